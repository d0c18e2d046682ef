//! Language models and encoders for openwork: reading and writing checkpoints, running
//! and evaluating models on the CPU, and pruning them layer by layer.

pub mod chat;
pub mod checkpoint;
pub mod chunk_store;
pub mod demo;
pub mod detokenize;
pub mod disk;
pub mod embed;
pub mod evaluate;
pub mod format;
pub mod frontier;
pub mod generate;
#[cfg(feature = "hub")]
pub mod hub;
pub mod inspect;
mod language_model;
pub mod likelihood;
pub mod model;
mod named_shape;
pub mod output;
pub mod pack;
pub mod pipeline;
pub mod recover;
pub mod report;
pub mod shrink;
mod spec_json;
pub mod staged_folder;
pub mod task;
pub mod tensors;
pub mod tokens;

pub use checkpoint::{Checkpoint, CheckpointError, Dtype, Tensor};
pub use language_model::{LanguageModel, LanguageModelError};
pub use named_shape::NamedShape;
pub use spec_json::{fragment_json, spec_json};
pub use tokens::Tokenizer;
