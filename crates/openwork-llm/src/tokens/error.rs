//! Errors of texts and tokenizers.

use crate::format::count;
use std::path::PathBuf;

/// Why a text cannot be used.
#[derive(Debug, thiserror::Error)]
#[allow(missing_docs)] // each variant's fields are the numbers and names in its message
pub enum TextError {
    #[error("{}: no such file", .0.display())]
    Missing(PathBuf),
    #[error("{}: cannot be read: {error}", path.display())]
    Io { path: PathBuf, error: std::io::Error },
    #[error("{}: not a text; use a .txt file, or a .jsonl file with a `text` field on every line", .0.display())]
    Kind(PathBuf),
    #[error("{}: not UTF-8 at byte {at}; convert it to UTF-8", path.display())]
    Utf8 { path: PathBuf, at: usize },
    #[error("{}: line {line}: {why}; every line must be an object with a `text` field", path.display())]
    Line { path: PathBuf, line: usize, why: String },
    #[error("{}: the file contains no text", .0.display())]
    Empty(PathBuf),
    #[error("a window of {} leaves no space for text; use a longer window", count(*.0, "token"))]
    Window(usize),
    #[error(
        "the text has {tokens} tokens, fewer than one window of {length}; use a longer text or a shorter window"
    )]
    Short { tokens: usize, length: usize },
    #[error(
        "the text has {tokens} tokens, enough for {starts} different windows of {length}, but {samples} samples were requested; use a longer text or fewer samples"
    )]
    Samples { tokens: usize, length: usize, starts: usize, samples: usize },
    #[error("token id {id} is out of range: the tokenizer has {count} tokens")]
    Token { id: u32, count: usize },
    #[error("a text has no tokens")]
    NoTokens,
    #[error("the tokenizer failed: {0}")]
    Tokenizer(String),
}
