//! The sums of one product of panels, and how they reach the result.

use super::PANEL;
use crate::matrix::MatrixMut;
use std::arch::x86_64::{
    __m512, _mm512_fmadd_ps, _mm512_loadu_ps, _mm512_mask_storeu_ps, _mm512_maskz_loadu_ps,
    _mm512_mul_ps, _mm512_set1_ps, _mm512_storeu_ps,
};

/// The sums of one product, row-major.
#[repr(align(64))]
pub struct Sums(pub(super) [[f32; PANEL]; PANEL]);

impl Default for Sums {
    fn default() -> Self {
        Self([[0.0; PANEL]; PANEL])
    }
}

impl Sums {
    /// `C <- beta C + alpha S`, where `C` may be smaller than `S`.
    pub fn add_to(&self, beta: f32, c: MatrixMut<'_>, alpha: f32) {
        // SAFETY: machines that multiply bf16 have AVX-512.
        unsafe { self.add(beta, c, alpha) }
    }

    #[target_feature(enable = "avx512f")]
    fn add(&self, beta: f32, mut c: MatrixMut<'_>, alpha: f32) {
        let cols = c.cols();
        let (alphas, betas) = (_mm512_set1_ps(alpha), _mm512_set1_ps(beta));
        for (i, sums) in self.0.iter().enumerate().take(c.rows()) {
            let row = &mut c.row_mut(i)[..cols];
            for half in 0..cols.div_ceil(16) {
                let count = 16.min(cols - 16 * half);
                let mask = u16::MAX >> (16 - count);
                // SAFETY: there are 16 sums, and the mask excludes entries beyond the row.
                unsafe {
                    let sum = _mm512_loadu_ps(sums.as_ptr().add(16 * half));
                    let to = row.as_mut_ptr().add(16 * half);
                    let sum = _mm512_mul_ps(alphas, sum);
                    let new: __m512 = match beta == 0.0 {
                        true => sum,
                        false => _mm512_fmadd_ps(betas, _mm512_maskz_loadu_ps(mask, to), sum),
                    };
                    match count {
                        16 => _mm512_storeu_ps(to, new),
                        _ => _mm512_mask_storeu_ps(to, mask, new),
                    }
                }
            }
        }
    }
}
