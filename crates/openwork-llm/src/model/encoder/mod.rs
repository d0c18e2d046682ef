//! Encoders: models whose tokens attend to each other in both directions, and whose result
//! is their last hidden states instead of logits.
//!
//! They are rows of [`FAMILIES`](super::FAMILIES) as decoders are. What differs:
//!
//! ```text
//! input    norm(word + position + type)         input.rs
//! scores   c q . k + b(s - t), all tokens       bias.rs
//! layer    h <- norm(h + attention(h))          layer.rs
//!          h <- norm(h + mlp(h))
//! ```

mod bias;
mod config;
mod family;
mod input;

pub use bias::PositionBias;
pub use config::EncoderConfig;
pub(super) use config::config;
pub(super) use family::{BERT, MPNET, NOMIC_BERT};
pub use family::{EncoderRules, Positions};
pub(super) use input::EncoderInput;
