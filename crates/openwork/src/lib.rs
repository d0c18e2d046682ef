//! Structured sparsity: a pattern is one line of text; bound to tensors it
//! becomes a spec whose promises are checked once; any pruning method works
//! on any spec.

pub mod layout;
pub mod linalg;
pub mod matrix;

pub use layout::{IntTuple, Layout};
pub use matrix::{Matrix, MatrixMut, MatrixRef};
