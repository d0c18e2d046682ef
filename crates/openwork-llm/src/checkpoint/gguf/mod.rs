//! GGUF files: weights, config and tokenizer in one file.

mod config;
mod experts;
pub(crate) mod export;
mod kinds;
mod layers;
mod metadata;
mod metadata_writer;
mod names;
mod read;
mod rope;
mod settings;
pub(crate) mod write;

pub(crate) use metadata::Metadata;
pub(super) use read::MAGIC;

use super::error::{CheckpointError, Fault};
use super::mapped::Mapped;
use super::tensor::{Tensor, TensorInfo};
use crate::format::count;
use config::ConfigBuilder;
use rope::Factors;
use serde_json::Value;
use std::collections::BTreeSet;

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
    let (metadata, mut tensors) = read::read(bytes)?;
    let keys = ConfigBuilder::new(&metadata, bytes)?;
    let layout = keys.layout()?;
    let unused = tensors.extract_if(.., |tensor| layout.is_further(&tensor.name)).count();
    let (factors, tensors): (Vec<_>, Vec<_>) =
        tensors.into_iter().partition(|tensor| is_factors(&tensor.name));
    let factors = {
        let find = |name: &str| {
            let stored = factors.iter().find(|tensor| tensor.name == name)?;
            Some(Tensor { stored, data: &bytes[stored.range.clone()], rounded: None })
        };
        Factors {
            frequencies: find(rope::FREQUENCIES),
            long: find(rope::LONG),
            short: find(rope::SHORT),
        }
    };
    if let Some(experts) = keys.experts()? {
        experts.check(&tensors, keys.layers()?, keys.needed("embedding_length")?)?;
    }
    let mut adopted = Vec::with_capacity(tensors.len());
    for tensor in tensors {
        adopted.extend(layout.adopt(tensor)?);
    }
    // Two tensors of the file may hold the same one.
    let mut names = BTreeSet::new();
    if let Some(twice) = adopted.iter().find(|tensor| !names.insert(tensor.name.as_str())) {
        return Err(Fault::Twice { tensor: twice.name.clone() });
    }
    let config = keys.config(&adopted, &factors)?;
    let mut notes = keys.notes();
    if unused > 0 {
        let (unused, layers) = (count(unused, "tensor"), layout.layers);
        notes.push(format!("{unused} ignored: layers from {layers} on predict further tokens"));
    }
    Ok(GgufContents { config, metadata, tensors: adopted, notes })
}

/// Whether a tensor holds RoPE factors.
fn is_factors(name: &str) -> bool {
    [rope::FREQUENCIES, rope::LONG, rope::SHORT].contains(&name)
}
