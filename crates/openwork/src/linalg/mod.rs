//! Dense linear algebra; [`gemm()`] is the only door to the matrix library and to
//! matrix units.

#[cfg(target_arch = "x86_64")]
mod amx;
pub mod cholesky;
mod gemm;
mod gram;
pub mod matvec;
pub mod pcg;
pub mod small;

pub(crate) use gemm::panel_rows;
pub use gemm::{Scalar, Threads, gemm, gemm_each};
pub use gram::{CHUNK, Gram};

/// The instructions that products use here, such as `avx2+fma+avx512f+amx`: on a
/// machine with others sums are rounded in another order, so bytes may differ.
pub fn instructions() -> String {
    let mut names: Vec<&str> = Vec::new();
    #[cfg(target_arch = "x86_64")]
    {
        let vectors = [
            ("avx2", is_x86_feature_detected!("avx2")),
            ("fma", is_x86_feature_detected!("fma")),
            ("avx512f", is_x86_feature_detected!("avx512f")),
            ("amx", amx::available()),
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

    /// Reproducible entries, uniform between -1 and 1.
    pub(crate) fn random(rows: usize, cols: usize, seed: u64) -> Matrix {
        let mut state = seed.wrapping_mul(0x9e37_79b9_7f4a_7c15) ^ 0x5851_f42d_4c95_7f2d;
        Matrix::from_fn(rows, cols, |_, _| {
            // SplitMix64 (Steele, Lea and Flood 2014).
            state = state.wrapping_add(0x9e37_79b9_7f4a_7c15);
            let mut z = state;
            z = (z ^ (z >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
            z = (z ^ (z >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
            (((z ^ (z >> 31)) >> 40) as f32) / (1u64 << 23) as f32 - 1.0
        })
    }
}
