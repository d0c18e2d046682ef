//! What is in a checkpoint: every tensor with its density.

use crate::checkpoint::Checkpoint;
use serde::Serialize;
use serde_json::Value;
use std::path::PathBuf;

/// What a checkpoint holds.
#[derive(Clone, Debug, Serialize)]
pub struct Inspection {
    /// The folder or file.
    pub model: PathBuf,
    /// `safetensors` or `gguf`.
    pub format: &'static str,
    /// Hugging Face's class, the first of `architectures` in the config.
    pub architecture: Option<String>,
    /// The files that hold the tensors.
    pub files: Vec<FilePart>,
    /// The whole config, in Hugging Face's names.
    pub config: Value,
    /// Every tensor, in natural order of the names.
    pub tensors: Vec<TensorPart>,
    /// Sums over all tensors.
    pub totals: Totals,
}

/// One file of a checkpoint.
#[derive(Clone, Debug, Serialize)]
pub struct FilePart {
    /// Where it is.
    pub path: PathBuf,
    /// How long it is.
    pub bytes: usize,
}

/// One tensor of a checkpoint.
#[derive(Clone, Debug, Serialize)]
pub struct TensorPart {
    /// Hugging Face's name.
    pub name: String,
    /// The extent of each axis.
    pub shape: Vec<usize>,
    /// How the numbers are stored.
    pub dtype: &'static str,
    /// Bytes in the file.
    pub bytes: usize,
    /// How many numbers are not zero.
    pub nonzeros: u64,
    /// The share of numbers that are not zero; none for an empty tensor.
    pub density: Option<f64>,
    /// How it is packed, if it is.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub packed: Option<PackedPart>,
}

/// How a tensor is packed.
#[derive(Clone, Debug, Serialize)]
pub struct PackedPart {
    /// The spec's text.
    pub spec: String,
    /// The format's name.
    pub format: String,
    /// Its bytes over those of the dense tensor.
    pub share: f64,
}

/// Sums over tensors.
#[derive(Clone, Copy, Debug, Serialize)]
pub struct Totals {
    /// How many tensors.
    pub tensors: usize,
    /// How many numbers in all of them.
    pub parameters: u64,
    /// Bytes in the files.
    pub bytes: u64,
    /// How many numbers are not zero.
    pub nonzeros: u64,
    /// The share of numbers that are not zero; none if there are no numbers.
    pub density: Option<f64>,
}

fn density(nonzeros: u64, len: u64) -> Option<f64> {
    (len > 0).then(|| nonzeros as f64 / len as f64)
}

/// Reads every number of `model` once, a few rows at a time.
pub fn inspect(model: &Checkpoint) -> Inspection {
    let mut totals = Totals { tensors: 0, parameters: 0, bytes: 0, nonzeros: 0, density: None };
    let mut tensors = Vec::new();
    for tensor in model.tensors() {
        let (len, nonzeros) = (tensor.len() as u64, tensor.nonzeros());
        totals.tensors += 1;
        totals.parameters += len;
        totals.bytes += tensor.stored_bytes() as u64;
        totals.nonzeros += nonzeros;
        tensors.push(TensorPart {
            name: tensor.name().to_string(),
            shape: tensor.shape().to_vec(),
            dtype: tensor.dtype().name(),
            bytes: tensor.stored_bytes(),
            nonzeros,
            density: density(nonzeros, len),
            packed: tensor.packing().map(|(spec, format)| PackedPart {
                spec: spec.to_string(),
                format: format.to_string(),
                share: tensor.stored_bytes() as f64
                    / (tensor.len() * tensor.dtype().block_bytes()).max(1) as f64,
            }),
        });
    }
    totals.density = density(totals.nonzeros, totals.parameters);
    Inspection {
        model: model.path().to_path_buf(),
        format: model.format().name(),
        architecture: model.config()["architectures"][0].as_str().map(str::to_string),
        files: model.files().map(|(path, bytes)| FilePart { path: path.into(), bytes }).collect(),
        config: model.config().clone(),
        tensors,
        totals,
    }
}
