//! Tokenizers, text files, and the windows of tokens that a model is run on.

mod decode_stream;
mod error;
mod files;
mod from_gguf;
mod gguf_vocab;
mod pair;
mod pre_tokenizer;
mod text;
mod tokenizer;
mod validate;
mod windows;

pub use decode_stream::DecodeStream;
pub use error::TextError;
pub(crate) use gguf_vocab::GgufVocab;
pub use pair::TokenPair;
pub use text::{TextUse, join, load_text, read_text};
pub use tokenizer::Tokenizer;
pub(crate) use validate::catch_panic;
pub use windows::{covering_windows, random_windows, windows};
