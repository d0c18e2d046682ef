//! Errors of packing a tensor and of reading packed parts.

use super::ValueType;
use crate::mask::Breach;

/// Why a tensor cannot be packed with a spec.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum PackError {
    /// The number of tensors is not that of the spec.
    #[error("the spec has {expected} tensors, but {found} were given")]
    Tensors {
        /// Tensors of the spec.
        expected: usize,
        /// Tensors given.
        found: usize,
    },
    /// A tensor does not have the size in the spec.
    #[error("tensor `{tensor}` has {found} weights, but the spec expects {expected}")]
    Size {
        /// Its name.
        tensor: String,
        /// Weights by the spec.
        expected: usize,
        /// Weights given.
        found: usize,
    },
    /// The weights do not conform to the spec.
    #[error("the weights do not conform to `{spec}`: {breach}; prune them with this spec first")]
    Breach {
        /// The spec's text.
        spec: String,
        /// The first breach.
        breach: Breach,
    },
    /// The weights would conform but for the sign of a zero.
    #[error(
        "scope {scope} keeps {expected} blocks, but another block holds -0.0 at offset {offset} of tensor `{tensor}`, which packing would turn into 0.0; write 0.0 there first"
    )]
    NegativeZero {
        /// The scope.
        scope: usize,
        /// Blocks to keep.
        expected: usize,
        /// The tensor's name.
        tensor: String,
        /// The offset of the -0.0.
        offset: usize,
    },
    /// A kept value cannot be a code.
    #[error(
        "kept value {at} is {value}, which codes cannot represent; prune or repair the model first"
    )]
    NotFinite {
        /// Its number in packed order.
        at: usize,
        /// NaN or an infinity.
        value: String,
    },
    /// Kept weights are not values of codes.
    #[error(
        "the kept weights of tensor `{tensor}` from row {row} are not values of {encoding} codes in groups of {group}"
    )]
    NotCodes {
        /// Its name.
        tensor: String,
        /// The first row of their strip.
        row: usize,
        /// The codes.
        encoding: String,
        /// The size of a group.
        group: usize,
    },
    /// A kept value is outside the range of the type.
    #[error("kept value {at} is {value}, outside the range of {value_type}; choose bf16 or f32")]
    Range {
        /// Its number in packed order.
        at: usize,
        /// The value.
        value: String,
        /// The type.
        value_type: ValueType,
    },
}

/// Why packed parts do not form a tensor. The parts are not trusted.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum PartsError {
    /// The format is not the one of the spec.
    #[error("the format of `{spec}` is `{expected}`, not `{found}`")]
    Format {
        /// The spec's text.
        spec: String,
        /// The format it has.
        expected: &'static str,
        /// The format named.
        found: String,
    },
    /// There is no such tensor in the spec.
    #[error("the spec has no tensor {tensor}; it has {tensors} of them, from 0")]
    Tensor {
        /// Tensors of the spec.
        tensors: usize,
        /// The number asked for.
        tensor: usize,
    },
    /// A wrong number of values.
    #[error("{found} {value_type} values are stored; the pattern needs {expected}")]
    Values {
        /// How many the pattern needs.
        expected: usize,
        /// How many there are.
        found: usize,
        /// Their type.
        value_type: ValueType,
    },
    /// A wrong number of index bytes.
    #[error("the index has {found} bytes; the pattern needs {expected}")]
    Index {
        /// How many the pattern needs.
        expected: usize,
        /// How many there are.
        found: usize,
    },
    /// An index that packing never writes.
    #[error("the index is damaged: {0}")]
    Damaged(String),
    /// Codes that packing never writes.
    #[error("the codes are damaged: {0}")]
    Codes(String),
    /// Too many weights for so few bytes.
    #[error("{weights} weights are declared for {bytes} stored bytes, too few for a pruned tensor")]
    Sparse {
        /// Weights of the dense tensor.
        weights: usize,
        /// Stored bytes.
        bytes: usize,
    },
}
