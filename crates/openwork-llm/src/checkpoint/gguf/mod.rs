//! GGUF files: weights, config and tokenizer in one file.

mod config;
pub(crate) mod export;
mod metadata;
mod metadata_writer;
mod names;
mod read;
pub(crate) mod write;

pub(crate) use metadata::Metadata;
pub(super) use read::MAGIC;

use super::error::{CheckpointError, Fault};
use super::mapped::Mapped;
use super::tensor::{Tensor, TensorInfo};
use config::ConfigBuilder;
use names::Architecture;
use serde_json::Value;

/// The tensor of RoPE frequency factors, which Hugging Face keeps in the config.
const FACTORS: &str = "rope_freqs.weight";

/// The contents of a GGUF file in Hugging Face's terms.
pub(super) struct GgufContents {
    /// `config.json`.
    pub config: Value,
    pub metadata: Metadata,
    /// With Hugging Face's names.
    pub tensors: Vec<TensorInfo>,
    /// Notes for the user about ignored keys.
    pub notes: Vec<String>,
}

/// Parses `file`.
pub(super) fn open(file: &Mapped) -> Result<GgufContents, CheckpointError> {
    parse(file.bytes()).map_err(|fault| CheckpointError::new(file.path(), fault))
}

fn parse(bytes: &[u8]) -> Result<GgufContents, Fault> {
    const KEY: &str = "general.architecture";
    let (metadata, mut tensors) = read::read(bytes)?;
    let missing = || Fault::Metadata { key: KEY.to_string(), why: "is missing".to_string() };
    let architecture = Architecture::find(&metadata.text(KEY)?.ok_or_else(missing)?)?;
    let keys = ConfigBuilder::new(architecture, &metadata, bytes);
    let (heads, kv_heads) = keys.heads()?;
    let at = tensors.iter().position(|tensor| tensor.name == FACTORS);
    let factors = at.map(|at| tensors.swap_remove(at));
    for tensor in &mut tensors {
        architecture.adopt(tensor, heads, kv_heads)?;
    }
    let factors = factors.as_ref().map(|stored| Tensor {
        stored,
        data: &bytes[stored.range.clone()],
        rounded: None,
    });
    let config = keys.config(&tensors, factors)?;
    let notes = keys.notes();
    Ok(GgufContents { config, metadata, tensors, notes })
}
