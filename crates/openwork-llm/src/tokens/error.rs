//! What can be wrong with a text.

use std::path::PathBuf;

/// A text that cannot be used.
#[derive(Debug, thiserror::Error)]
#[allow(missing_docs)] // each variant's fields are the numbers and names in its message
pub enum TextError {
    #[error("{}: no such file", .0.display())]
    Missing(PathBuf),
    #[error("{}: cannot be read: {error}", path.display())]
    Io { path: PathBuf, error: std::io::Error },
    #[error("{}: a text is a .txt file, or a .jsonl file with a `text` field in every line", .0.display())]
    Kind(PathBuf),
    #[error("{}: not UTF-8 at byte {at}; convert it to UTF-8", path.display())]
    Utf8 { path: PathBuf, at: usize },
    #[error("{}: line {line}: {why}; every line is an object with a `text` field", path.display())]
    Line { path: PathBuf, line: usize, why: String },
    #[error("{}: there is no text in it", .0.display())]
    Empty(PathBuf),
    #[error("a window of {0} tokens has no room for text; ask for more")]
    Window(usize),
    #[error(
        "the text has {tokens} tokens, fewer than one window of {length}; give a longer text or a shorter window"
    )]
    Short { tokens: usize, length: usize },
    #[error(
        "the text has {tokens} tokens, so only {starts} different windows of {length}, not the {samples} samples asked for; give a longer text or ask for fewer samples"
    )]
    Samples { tokens: usize, length: usize, starts: usize, samples: usize },
    #[error("token id {id} is beyond the tokenizer's {count} tokens")]
    Token { id: u32, count: usize },
    #[error("the tokenizer failed: {0}")]
    Tokenizer(String),
}
