//! What can be wrong with a checkpoint, and in which file.

use super::dtype::Dtype;
use std::path::{Path, PathBuf};

/// A checkpoint that cannot be read: which file, and what is wrong with it.
#[derive(Debug, thiserror::Error)]
#[error("{}: {fault}", file.display())]
pub struct CheckpointError {
    file: PathBuf,
    /// Boxed: a result is passed along far more often than it is wrong.
    fault: Box<Fault>,
}

impl CheckpointError {
    /// `fault`, found in `file`.
    pub fn new(file: &Path, fault: Fault) -> Self {
        Self { file: file.to_path_buf(), fault: Box::new(fault) }
    }

    /// The file or folder that is at fault.
    pub fn file(&self) -> &Path {
        &self.file
    }

    /// What is wrong with it.
    pub fn fault(&self) -> &Fault {
        &self.fault
    }
}

/// What is wrong with a checkpoint. The messages follow a file's name.
#[derive(Debug, thiserror::Error)]
#[allow(missing_docs)] // each variant's fields are the numbers and names in its message
pub enum Fault {
    #[error("no such file or folder")]
    Missing,
    #[error("cannot be read: {0}")]
    Io(std::io::Error),
    #[error("is neither a folder with config.json and safetensors nor a .gguf file")]
    Kind,
    #[error(
        "the folder has no {what}; a model needs config.json, tokenizer.json and model.safetensors (or shards with model.safetensors.index.json)"
    )]
    Incomplete { what: &'static str },
    #[error("is not valid JSON: {0}")]
    Json(serde_json::Error),
    #[error("{0}")]
    Shape(String),
    #[error(
        "ends after {length} bytes, inside {what}, which needs {needed} bytes; the file is truncated or damaged"
    )]
    Truncated { what: String, needed: u128, length: u64 },
    #[error(
        "the header claims {claimed} bytes, more than {limit}; not a safetensors file, or a damaged one"
    )]
    HeaderLength { claimed: u64, limit: u64 },
    #[error("the header is not valid: {0}")]
    Header(String),
    #[error("tensor {tensor:?} is listed twice")]
    Twice { tensor: String },
    #[error("tensor {tensor:?} is also in {other}; a name may appear in one shard only")]
    InTwoShards { tensor: String, other: String },
    #[error("tensor {tensor:?} has type {dtype}, which openwork does not read (it reads {known})")]
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
        "tensor {tensor:?} at bytes {start}..{end} is beyond the file's {length} bytes of data; the file is truncated or damaged"
    )]
    Beyond { tensor: String, start: u64, end: u64, length: u64 },
    #[error("names the shard {shard:?} for tensor {tensor:?}, and there is no such file beside it")]
    MissingShard { shard: String, tensor: String },
    #[error("names the shard {shard:?}; a shard is a plain file name in the same folder")]
    ShardName { shard: String },
    #[error("says tensor {tensor:?} is in {shard}, which does not have it")]
    NotInShard { tensor: String, shard: String },
    #[error("does not list tensor {tensor:?}, which {shard} has")]
    NotInIndex { tensor: String, shard: String },
    #[error("there is no tensor {tensor:?} among its {count}")]
    NoTensor { tensor: String, count: usize },
    #[error("tensor {tensor:?} has shape {found:?}, but the model's config asks for {asked:?}")]
    OtherShape { tensor: String, found: Vec<usize>, asked: Vec<usize> },
    #[error(
        "tensor {tensor:?} has type {dtype}, which does not hold weights; convert it to F32, F16 or BF16"
    )]
    NotWeights { tensor: String, dtype: Dtype },
    #[error(
        "tensor {tensor:?} holds NaN or infinity, first in row {row}; the file is damaged, or was written by a training that failed"
    )]
    NotFinite { tensor: String, row: usize },
    #[error("the tokenizer cannot be built: {0}")]
    Tokenizer(String),
    #[error("metadata {key:?}: {why}")]
    Metadata { key: String, why: String },
    #[error(
        "{what} counts {count}, more than the {length} bytes of the file can hold; the file is truncated or damaged"
    )]
    Count { what: String, count: u64, length: u64 },
    #[error("is GGUF version {0}; openwork reads versions 2 and 3, little-endian")]
    Version(u32),
    #[error(
        "is part {part} of {count} of a split model; merge the parts first (llama-gguf-split --merge FIRST OUT) and give the whole"
    )]
    Split { part: u64, count: u32 },
    #[error("architecture {found:?} is not one that openwork reads from GGUF ({known})")]
    Architecture { found: String, known: String },
    #[error(
        "it cannot become a GGUF file by itself: {0}; give --like FILE, the GGUF file of the model before pruning"
    )]
    NoGguf(String),
    #[error("tensor {tensor:?} has no place in architecture {architecture:?}")]
    Foreign { tensor: String, architecture: String },
}
