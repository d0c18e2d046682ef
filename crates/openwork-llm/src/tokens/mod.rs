//! Text to tokens and back: the tokenizer, the files it reads, the windows a
//! model sees.

mod error;
mod guard;
mod listed;
mod pre;
mod rebuild;
mod text;
mod tokenizer;
mod windows;

pub use error::TextError;
pub(crate) use guard::caught;
pub(crate) use listed::Listed;
pub use text::{Use, join, named_text, read_text};
pub use tokenizer::{Stream, Tokenizer};
pub(crate) use windows::SplitMix;
pub use windows::{random_windows, windows};
