//! Why a tensor cannot be packed, and why packed parts are not a tensor.

use super::ValueType;
use crate::mask::Breach;

/// Why a tensor cannot be packed with a spec.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum PackError {
    /// The spec is about other tensors.
    #[error("the spec is about {expected} tensors; {found} were given")]
    Tensors {
        /// Tensors of the spec.
        expected: usize,
        /// Tensors given.
        found: usize,
    },
    /// A tensor has another size than the spec says.
    #[error("tensor `{tensor}` has {found} weights; the spec is about {expected}")]
    Size {
        /// Its name.
        tensor: String,
        /// Weights by the spec.
        expected: usize,
        /// Weights given.
        found: usize,
    },
    /// The weights do not conform to the spec.
    #[error("the weights are not as `{spec}` says: {breach}; prune them with this spec first")]
    Breach {
        /// The spec's text.
        spec: String,
        /// The first breach.
        breach: Breach,
    },
    /// Only the sign of a zero stands in the way.
    #[error(
        "scope {scope} keeps {expected} blocks, but another holds -0.0 at offset {offset} of tensor `{tensor}`, which packing would turn into 0.0; write 0.0 there first"
    )]
    NegativeZero {
        /// The scope.
        scope: usize,
        /// Blocks that stay.
        expected: usize,
        /// The tensor's name.
        tensor: String,
        /// Where the -0.0 is.
        offset: usize,
    },
}

/// Why packed parts are not a tensor. The parts may come from anywhere.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum PartsError {
    /// The spec is stored in another format.
    #[error("`{spec}` is stored as `{expected}`, not as `{found}`")]
    Format {
        /// The spec's text.
        spec: String,
        /// The format it has.
        expected: &'static str,
        /// The format named.
        found: String,
    },
    /// There is no such tensor in the spec.
    #[error("the spec has {tensors} tensors, none with number {tensor}")]
    Tensor {
        /// Tensors of the spec.
        tensors: usize,
        /// The number asked for.
        tensor: usize,
    },
    /// Another number of values.
    #[error("{found} {value_type} values are stored; the pattern needs {expected}")]
    Values {
        /// How many the pattern needs.
        expected: usize,
        /// How many there are.
        found: usize,
        /// Their type.
        value_type: ValueType,
    },
    /// Another number of bytes in the index.
    #[error("the index has {found} bytes; the pattern needs {expected}")]
    Index {
        /// How many the pattern needs.
        expected: usize,
        /// How many there are.
        found: usize,
    },
    /// Something in the index that packing never writes.
    #[error("the index is damaged: {0}")]
    Damaged(String),
    /// So many weights from so few bytes that no pruning explains it.
    #[error("{weights} weights are claimed for {bytes} stored bytes; that is no pruned tensor")]
    Sparse {
        /// Weights of the dense tensor.
        weights: usize,
        /// Stored bytes.
        bytes: usize,
    },
}
