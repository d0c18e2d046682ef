//! Dense linear algebra; [`gemm`] is the only door to the matrix library.

mod gemm;

pub use gemm::{Threads, gemm};
