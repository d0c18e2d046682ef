//! Errors in tensors given to a command.

use crate::checkpoint::{CheckpointError, Dtype};
use openwork::hessian::HessianError;
use std::path::{Path, PathBuf};

/// The most names a message lists.
const LISTED: usize = 12;

/// A tensor that cannot be used: in which file, and why.
#[derive(Debug, thiserror::Error)]
pub enum TensorError {
    /// The file cannot be read, or is damaged.
    #[error(transparent)]
    File(#[from] CheckpointError),
    /// The file is valid, but the tensor is not what was requested.
    #[error("{}: {fault}", path.display())]
    Tensor {
        /// The file.
        path: PathBuf,
        /// What is wrong.
        fault: TensorFault,
    },
}

impl TensorError {
    /// `fault`, found in the file at `path`.
    pub fn new(path: &Path, fault: TensorFault) -> Self {
        Self::Tensor { path: path.to_path_buf(), fault }
    }
}

/// What is wrong with a tensor. The messages follow a file's name.
#[derive(Debug, thiserror::Error)]
#[allow(missing_docs)] // each variant's fields are the names and numbers in its message
pub enum TensorFault {
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
    #[error("tensor `{name}` is {}; {what} must be {}", lower(*found), one_of(allowed))]
    Type { name: String, found: Dtype, what: &'static str, allowed: &'static [Dtype] },
    #[error("tensor `{name}` has shape {shape:?}; {expected}")]
    Shape { name: String, shape: Vec<usize>, expected: String },
    #[error("tensor `{name}` has {value:e} at offset {offset}, which f32 cannot hold")]
    Narrow { name: String, offset: usize, value: f64 },
    #[error(
        "the new weight {value:e} at offset {offset} of `{name}` is outside the range of {}; \
         nothing was written: use more damping, or store the weights as f32 or bf16",
        lower(*dtype)
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

fn lower(dtype: Dtype) -> String {
    dtype.name().to_lowercase()
}

/// A list for a person: `f32, f16 or bf16`.
fn one_of(list: &[Dtype]) -> String {
    let names: Vec<String> = list.iter().map(|&dtype| lower(dtype)).collect();
    match names.split_last() {
        Some((last, rest)) if !rest.is_empty() => format!("{} or {last}", rest.join(", ")),
        _ => names.concat(),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn lists_read_like_a_sentence() {
        assert_eq!(one_of(super::super::SAMPLES), "f32, f16 or bf16");
        assert_eq!(one_of(&[Dtype::F32]), "f32");
        let names: Vec<String> = (0..14).map(|i| i.to_string()).collect();
        assert!(listed(&names).ends_with("10, 11, and 2 more"), "{}", listed(&names));
    }
}
