//! Structured sparsity: patterns, pruning methods, masks and packed weights.
//!
//! A [`Pattern`] is one line of text. Bound to tensors it becomes a [`Spec`], whose
//! invariants are checked once. Every pruning method works on every spec.

pub mod blocks;
mod choice;
mod conform;
pub mod dynamic;
pub mod example;
pub mod fragment;
pub mod hardware;
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
mod suggest;
pub mod values;
pub mod viz;

pub use layout::{IntTuple, Layout};
pub use mask::{Breach, Mask};
pub use matrix::{Matrix, MatrixMut, MatrixRef};
pub use spec::{Element, Pattern, Spec, SpecError};
