//! Errors of checkpoints: the file, and what is wrong with it.

use super::dtype::Dtype;
use crate::format::{count, format_bytes};
use std::path::{Path, PathBuf};

/// Why a checkpoint cannot be read, and which file is at fault.
#[derive(Debug, thiserror::Error)]
#[error("{}: {fault}", file.display())]
pub struct CheckpointError {
    file: PathBuf,
    /// Boxed to keep `Result`s small.
    fault: Box<Fault>,
}

impl CheckpointError {
    /// `fault`, found in `file`.
    pub fn new(file: &Path, fault: Fault) -> Self {
        Self { file: file.to_path_buf(), fault: Box::new(fault) }
    }

    /// The file or folder at fault.
    pub fn file(&self) -> &Path {
        &self.file
    }

    /// Whether the file is at fault, rather than the machine.
    pub fn is_input(&self) -> bool {
        !matches!(*self.fault, Fault::Memory { .. })
    }

    /// What is wrong with it.
    pub fn fault(&self) -> &Fault {
        &self.fault
    }
}

/// What is wrong with a checkpoint. Messages follow the file's name.
#[derive(Debug, thiserror::Error)]
#[allow(missing_docs)] // each variant's fields are the numbers and names in its message
pub enum Fault {
    #[error("no such file or folder")]
    Missing,
    #[error("cannot be read: {0}")]
    Io(std::io::Error),
    #[error(
        "there is not enough memory to map its {}; close other programs, or raise the limit (ulimit -v)",
        format_bytes(*bytes)
    )]
    Memory { bytes: u64 },
    #[error("not a model; expected a folder with config.json and safetensors, or a .gguf file")]
    Kind,
    #[error(
        "the folder has no {what}; a model needs config.json, tokenizer.json and model.safetensors (or shards with model.safetensors.index.json)"
    )]
    Incomplete { what: &'static str },
    #[error(
        "an unfinished run ({} done); give its `openwork prune` command again with --resume to finish it",
        count(*layers, "layer")
    )]
    Unfinished { layers: usize },
    #[error("not valid JSON: {0}")]
    Json(serde_json::Error),
    #[error("{0}")]
    Shape(String),
    #[error(
        "the file ends after {length} bytes, inside {what}, which needs {needed} bytes; it is truncated or damaged"
    )]
    Truncated { what: String, needed: u128, length: u64 },
    #[error(
        "the header length of {claimed} bytes exceeds the limit of {limit}; the file is damaged or not safetensors"
    )]
    HeaderLength { claimed: u64, limit: u64 },
    #[error("invalid header: {0}")]
    Header(String),
    #[error("tensor {tensor:?} is listed twice")]
    Twice { tensor: String },
    #[error("tensor {tensor:?} is also in {other}; a name may appear in one shard only")]
    InTwoShards { tensor: String, other: String },
    #[error("tensor {tensor:?} has the unsupported type {dtype} (supported: {known})")]
    Type { tensor: String, dtype: String, known: String },
    #[error("tensor {tensor:?} has shape {shape:?}: {why}")]
    TensorShape { tensor: String, shape: Vec<u64>, why: String },
    #[error(
        "tensor {tensor:?} of {dtype} with shape {shape:?} needs {needed} bytes, but its offsets {start}..{end} hold {found}"
    )]
    Size {
        tensor: String,
        dtype: &'static str,
        shape: Vec<usize>,
        needed: u64,
        start: u64,
        end: u64,
        found: i128,
    },
    #[error(
        "tensor {tensor:?} at bytes {start}..{end} overlaps tensor {other:?}, which ends at byte {other_end}"
    )]
    Overlap { tensor: String, start: u64, end: u64, other: String, other_end: u64 },
    #[error("packed tensor {tensor:?}: {why}")]
    Packed { tensor: String, why: String },
    #[error("tensor {tensor:?} {why}")]
    Tensor { tensor: String, why: String },
    #[error("bytes {start}..{end} of the data belong to no tensor; the file is damaged")]
    Hole { start: u64, end: u64 },
    #[error(
        "tensor {tensor:?} at bytes {start}..{end} exceeds the file's {length} bytes of data; the file is truncated or damaged"
    )]
    Beyond { tensor: String, start: u64, end: u64, length: u64 },
    #[error("the shard {shard:?} of tensor {tensor:?} does not exist")]
    MissingShard { shard: String, tensor: String },
    #[error("invalid shard name {shard:?}; a shard must be a file in the same folder")]
    ShardName { shard: String },
    #[error("lists tensor {tensor:?} in {shard}, which does not contain it")]
    NotInShard { tensor: String, shard: String },
    #[error("does not list tensor {tensor:?} of {shard}")]
    NotInIndex { tensor: String, shard: String },
    #[error("none of the {count} tensors is called {tensor:?}")]
    NoTensor { tensor: String, count: usize },
    #[error("tensor {tensor:?} has shape {found:?}, but the config implies {asked:?}")]
    OtherShape { tensor: String, found: Vec<usize>, asked: Vec<usize> },
    #[error(
        "tensor {tensor:?} has the integer type {dtype}; convert the weights to F32, F16 or BF16"
    )]
    NotWeights { tensor: String, dtype: Dtype },
    #[error(
        "tensor {tensor:?} contains NaN or infinity, first in row {row}; the file is damaged, or training diverged"
    )]
    NotFinite { tensor: String, row: usize },
    #[error("the tokenizer cannot be built: {0}")]
    Tokenizer(String),
    #[error("metadata {key:?}: {why}")]
    Metadata { key: String, why: String },
    #[error(
        "{what} has {count} entries, more than the file's {length} bytes can hold; the file is truncated or damaged"
    )]
    Count { what: String, count: u64, length: u64 },
    #[error("unsupported GGUF version {0}; openwork reads versions 2 and 3, little-endian")]
    Version(u32),
    #[error(
        "part {part} of {count} of a split model; merge the parts first with `llama-gguf-split --merge FIRST OUT`"
    )]
    Split { part: u64, count: u32 },
    #[error("the GGUF architecture {found:?} is not supported (supported: {known})")]
    Architecture { found: String, known: String },
    #[error(
        "cannot be exported to GGUF: {0}; pass --like FILE, the GGUF file of the model before pruning"
    )]
    NoGguf(String),
    #[error("unexpected tensor {tensor:?} for architecture {architecture:?}")]
    Foreign { tensor: String, architecture: String },
}
