//! Language models for openwork: the checkpoints people have, a forward pass
//! that shows the input of every linear, and perplexity as the literature
//! measures it.

pub mod checkpoint;
pub mod demo;
pub mod detokenise;
pub mod disk;
pub mod evaluate;
pub mod format;
pub mod generate;
pub mod inspect;
pub mod model;
pub mod pack;
pub mod pipeline;
pub mod report;
pub mod shrink;
pub mod tokens;

pub use checkpoint::{Checkpoint, CheckpointError, Dtype, Tensor};
pub use tokens::Tokenizer;
