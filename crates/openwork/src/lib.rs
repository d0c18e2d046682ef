//! Structured sparsity: a pattern is one line of text; bound to tensors it
//! becomes a spec whose promises are checked once; any pruning method works
//! on any spec.

pub mod hessian;
pub mod linalg;
pub mod matrix;
pub mod prune;

pub use matrix::{Matrix, MatrixMut, MatrixRef};
