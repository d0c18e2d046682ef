//! What can be wrong with a file or a tensor in it.

use super::dtype::Dtype;
use openwork::hessian::HessianError;
use std::path::{Path, PathBuf};

/// The most names a message lists.
const LISTED: usize = 12;

/// A file that cannot be used: which, and why.
#[derive(Debug, thiserror::Error)]
#[error("{}: {fault}", path.display())]
pub struct FileError {
    path: PathBuf,
    fault: Fault,
}

impl FileError {
    /// `fault`, found in the file at `path`.
    pub fn new(path: &Path, fault: Fault) -> Self {
        Self { path: path.to_path_buf(), fault }
    }
}

/// What is wrong. The messages follow a file's name.
#[derive(Debug, thiserror::Error)]
#[allow(missing_docs)] // each variant's fields are the names and numbers in its message
pub enum Fault {
    #[error("no such file")]
    Missing,
    #[error("is not a regular file")]
    Kind,
    #[error("cannot be read: {0}")]
    Read(std::io::Error),
    #[error("cannot be written: {0}")]
    Write(std::io::Error),
    #[error("is a folder; give the name of a file")]
    Folder,
    #[error("the folder {} does not exist; make it first", .0.display())]
    NoFolder(PathBuf),
    #[error(
        "has {length} bytes, too few for a safetensors file; it is truncated or something else"
    )]
    TooShort { length: usize },
    #[error(
        "the header should have {claimed} bytes, but the file has {length}; \
         it is truncated or not a safetensors file"
    )]
    Header { claimed: u64, length: usize },
    #[error("is not a safetensors file: {0}")]
    NotSafetensors(String),
    #[error(
        "holds {found} bytes of data where its header describes {described}; \
         it is truncated or damaged"
    )]
    DataLength { found: usize, described: usize },
    #[error("has no tensors")]
    Empty,
    #[error("has no tensor `{name}`; {hint}it has {}", listed(names))]
    NoTensor { name: String, hint: String, names: Vec<String> },
    #[error("has {} tensors; name one as FILE:NAME: {}", names.len(), listed(names))]
    Ambiguous { names: Vec<String> },
    #[error(
        "has {square} square matrices among its {} tensors; name the Hessian as FILE:NAME: {}",
        names.len(),
        listed(names)
    )]
    NoSingleSquare { square: usize, names: Vec<String> },
    #[error("tensor `{name}` is {found}; {what} must be {}", Dtype::words(allowed))]
    Type { name: String, found: String, what: &'static str, allowed: &'static [Dtype] },
    #[error("tensor `{name}` has shape {shape:?}; {expected}")]
    Shape { name: String, shape: Vec<usize>, expected: String },
    #[error("tensor `{name}` has {value:e} at offset {offset}, which f32 cannot hold")]
    Narrow { name: String, offset: usize, value: f64 },
    #[error(
        "the new weight {value:e} at offset {offset} of `{name}` is beyond {dtype}; \
         nothing was written: use more damping, or store the weights as f32 or bf16"
    )]
    Overflow { name: String, offset: usize, value: f32, dtype: Dtype },
    #[error("tensor `{name}`: {error}{advice}")]
    Hessian { name: String, error: HessianError, advice: &'static str },
    #[error("metadata `{key}` is `{value}`; {expected}")]
    Metadata { key: String, value: String, expected: &'static str },
    #[error("there is a tensor `{name}`, but metadata `{key}` is missing; see docs/formats.md")]
    NoCount { name: String, key: String },
}

/// Names for a message, not too many of them.
fn listed(names: &[String]) -> String {
    let mut shown: Vec<&str> = names.iter().take(LISTED).map(String::as_str).collect();
    let more = format!("and {} more", names.len().saturating_sub(LISTED));
    if names.len() > LISTED {
        shown.push(&more);
    }
    shown.join(", ")
}
