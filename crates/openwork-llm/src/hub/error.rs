//! Errors of the Hub. None of them contains a token.

use std::path::PathBuf;

/// Why something is not available from the Hub.
#[derive(Debug, thiserror::Error)]
#[allow(missing_docs)] // each variant's fields are the names and numbers in its message
pub enum HubError {
    #[error("{name}: {why}")]
    Name { name: String, why: String },
    #[error(
        "{name}: no such file or folder, and not in the cache {}; run once without --offline to download it",
        cache.display()
    )]
    NotCached { name: String, cache: PathBuf },
    #[error(
        "{name}: no such file or folder; a model on the Hugging Face Hub is written with its owner, org/{name}"
    )]
    NoOwner { name: String },
    #[error(
        "{name}: no such file; a file of a dataset on the Hugging Face Hub is written datasets:{name}"
    )]
    NoPrefix { name: String },
    #[error("{endpoint} cannot be reached: {why}")]
    Connect { endpoint: String, why: String },
    #[error(
        "{name}: no such file or folder, and {endpoint} cannot be reached: {why}; check the path, or the network"
    )]
    Unreachable { name: String, endpoint: String, why: String },
    #[error(
        "{name}: no such file or folder, and {endpoint} has no such {kind} or it is private; check the name{}",
        if *with_token { ", and that the token has access to it" } else { "; for a private one, set HF_TOKEN" }
    )]
    NotFound { name: String, kind: &'static str, endpoint: String, with_token: bool },
    #[error(
        "{name} is gated: accept its terms at {page}{}",
        if *with_token { " with the account of your token" } else { ", then set HF_TOKEN" }
    )]
    Gated { name: String, page: String, with_token: bool },
    #[error("the token is not accepted by {endpoint}; set HF_TOKEN to a valid one, or unset it")]
    BadToken { endpoint: String },
    #[error("{0}: the token contains invalid characters; store it again")]
    TokenText(String),
    #[error("{name} has no revision {revision}; give a branch, tag or commit after @")]
    NoRevision { name: String, revision: String },
    #[error(
        "{name} has no file {file} at revision {revision}{}",
        if similar.is_empty() { String::new() } else { format!("; it has {}", similar.join(", ")) }
    )]
    NoFile { name: String, file: String, revision: String, similar: Vec<String> },
    #[error("{name} has GGUF files and no safetensors; name one of {listed}: {example}")]
    NameGguf { name: String, listed: String, example: String },
    #[error(
        "{name} has only pickled weights ({pickle}), which can run code when they are loaded; use a repository with safetensors, or convert it"
    )]
    Pickles { name: String, pickle: String },
    #[error("{name} has no model.safetensors and no config.json: it is not a supported model")]
    NoWeights { name: String },
    #[error("{url}: the server's response is not valid: {why}")]
    Reply { url: String, why: String },
    #[error("{url}: the server answered {status}; try again later")]
    Status { url: String, status: u16 },
    #[error(
        "{url}: {found} of {size} bytes arrived after {attempts} attempts; run the command again to continue"
    )]
    Truncated { url: String, found: u64, size: u64, attempts: usize },
    #[error(
        "{url}: the {kind} of the contents is {found}, not {wanted}; the file changed in transit or on the server; it was removed"
    )]
    Hash { url: String, kind: &'static str, found: String, wanted: String },
    #[error("{}: {needed} bytes are needed, {free} are free; free some space, or set HF_HOME to another disk", path.display())]
    Space { path: PathBuf, needed: u64, free: u64 },
    #[error("stopped; the bytes that arrived are kept, and the next download continues from there")]
    Stopped,
    #[error("{}: {error}", path.display())]
    Io { path: PathBuf, error: std::io::Error },
}

impl HubError {
    /// Whether the user's input is at fault, rather than network or disk.
    pub fn is_input(&self) -> bool {
        !matches!(
            self,
            Self::Connect { .. }
                | Self::Reply { .. }
                | Self::Status { .. }
                | Self::Truncated { .. }
                | Self::Hash { .. }
                | Self::Space { .. }
                | Self::Stopped
                | Self::Io { .. }
        )
    }
}
