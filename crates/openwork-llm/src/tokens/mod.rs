//! Text to tokens and back: the tokenizer, the files it reads, the windows a
//! model sees.

mod error;
mod files;
mod guard;
mod listed;
mod pre;
mod rebuild;
mod stream;
mod text;
mod tokenizer;
mod windows;

pub use error::TextError;
pub(crate) use guard::caught;
pub(crate) use listed::Listed;
pub use stream::Stream;
pub use text::{Use, join, named_text, read_text};
pub use tokenizer::Tokenizer;
pub(crate) use windows::SplitMix;
pub use windows::{random_windows, windows};
