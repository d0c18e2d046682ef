//! Structured sparsity: a pattern is one line of text; bound to tensors it
//! becomes a spec whose promises are checked once; any pruning method works
//! on any spec.

pub mod blocks;
pub mod dynamic;
pub mod example;
pub mod fragment;
pub mod hessian;
pub mod layout;
pub mod linalg;
pub mod mask;
pub mod matrix;
pub mod prune;
pub mod random;
pub mod saliency;
pub mod select;
pub mod sparse;
pub mod spec;
pub mod values;
pub mod viz;

pub use layout::{IntTuple, Layout};
pub use mask::{Breach, Mask};
pub use matrix::{Matrix, MatrixMut, MatrixRef};
pub use spec::{Element, Pattern, Spec, SpecError};
