//! Dense linear algebra. Only [`gemm()`] calls the matrix library and the kernels
//! for bf16.

#[cfg(target_arch = "x86_64")]
mod bf16;
pub mod cholesky;
mod gemm;
mod gram;
pub mod matvec;
pub mod pcg;
pub mod small;

pub(crate) use gemm::panel_rows;
pub use gemm::{Scalar, Threads, gemm, gemm_each, gemm_rounded};
pub use gram::{CHUNK, Gram};

/// Whether products use a matrix unit, which is several times as fast as vector instructions.
pub(crate) fn has_matrix_unit() -> bool {
    #[cfg(target_arch = "x86_64")]
    return bf16::Kernel::Exact.available();
    #[cfg(not(target_arch = "x86_64"))]
    false
}

/// The instruction sets that products use on this machine, such as
/// `avx2+fma+avx512f+amx`. Machines with others round sums in another order, so results may
/// differ in their last bits.
pub fn instructions() -> String {
    let mut names: Vec<&str> = Vec::new();
    #[cfg(target_arch = "x86_64")]
    {
        let vectors = [
            ("avx2", is_x86_feature_detected!("avx2")),
            ("fma", is_x86_feature_detected!("fma")),
            ("avx512f", is_x86_feature_detected!("avx512f")),
            ("avx512bf16", bf16::Kernel::Rounded.available()),
            ("amx", bf16::Kernel::Exact.available()),
        ];
        names.extend(vectors.iter().filter(|(_, present)| *present).map(|(name, _)| name));
    }
    if names.is_empty() {
        names.push(std::env::consts::ARCH);
    }
    names.join("+")
}

#[cfg(test)]
pub(crate) mod tests {
    use crate::matrix::Matrix;
    use crate::random::{STEP, SplitMix64};

    /// Reproducible entries, uniform between -1 and 1.
    pub(crate) fn random(rows: usize, cols: usize, seed: u64) -> Matrix {
        let mut bits = SplitMix64(seed.wrapping_mul(STEP) ^ 0x5851_f42d_4c95_7f2d);
        Matrix::from_fn(rows, cols, |_, _| {
            (bits.next_bits() >> 40) as f32 / (1u64 << 23) as f32 - 1.0
        })
    }
}
