//! Vectors in 16 bits, for products with dense codes in integers without AVX-512 VNNI.
//!
//! Every 32 entries share a scale, `x_i = t_b q_i`, so rounding changes an entry by at most
//! 2^-16 of the largest of the 32.

use super::kernel::Kernel;
use super::quant::UNIT;
use half::bf16;

/// A vector in 16 bits.
pub(super) struct Rounded {
    pub codes: Vec<i16>,
    pub scales: Vec<f32>,
}

impl Rounded {
    /// Rounds `x`, filled up with zeros to `blocks` blocks of 32.
    pub fn new(x: &[f32], blocks: usize, kernel: Kernel) -> Self {
        let mut all = Self { codes: vec![0; blocks * UNIT], scales: vec![0.0; blocks] };
        #[cfg(target_arch = "x86_64")]
        if kernel >= Kernel::Avx2 {
            // SAFETY: the machine has the kernel.
            unsafe { all.fill_avx2(x) };
            return all;
        }
        let _ = kernel;
        all.fill(x);
        all
    }

    /// [`fill`](Self::fill), compiled for AVX2: every task of a product rounds the vector.
    ///
    /// # Safety
    ///
    /// The machine has AVX2.
    #[cfg(target_arch = "x86_64")]
    #[target_feature(enable = "avx2")]
    unsafe fn fill_avx2(&mut self, x: &[f32]) {
        self.fill(x);
    }

    #[inline(always)]
    fn fill(&mut self, x: &[f32]) {
        const LARGEST: f32 = 32767.0;
        // Added to a number below 2^22 it leaves the nearest integer in the lowest bits.
        const MAGIC: f32 = 1.5 * (1 << 23) as f32;
        const INFINITE: u32 = 0x7f80_0000;
        let blocks = x.chunks(UNIT).zip(self.codes.chunks_exact_mut(UNIT)).zip(&mut self.scales);
        for ((x, codes), scale) in blocks {
            // As bits, magnitudes are in order, and NaN is above infinity.
            let most = x.iter().fold(0u32, |most, x| most.max(x.to_bits() & 0x7fff_ffff));
            let magnitude = f32::from_bits(most);
            // A vector with NaN or infinity must not give finite products. Below 2^-100
            // the inverse would overflow; such numbers count as zeros.
            *scale = if most < INFINITE { magnitude / LARGEST } else { f32::NAN };
            let counts = most < INFINITE && magnitude > 1e-30;
            let inverse = if counts { LARGEST / magnitude } else { 0.0 };
            if counts {
                for (code, x) in codes.iter_mut().zip(x) {
                    *code = (x * inverse + MAGIC).to_bits() as u16 as i16;
                }
            }
        }
    }
}

/// The scale of every 32 codes times the scale of their entries of the vector:
/// `out[i] = own[i / per_group] * vector[i]`.
///
/// # Panics
///
/// If there are too few scales.
pub(super) fn scale_products(
    own: &[bf16],
    per_group: usize,
    vector: &[f32],
    out: &mut [f32],
    kernel: Kernel,
) {
    #[cfg(target_arch = "x86_64")]
    if kernel >= Kernel::Avx2 {
        // SAFETY: the machine has the kernel.
        return unsafe { scale_products_avx2(own, per_group, vector, out) };
    }
    let _ = kernel;
    products(own, per_group, vector, out);
}

/// [`products`], compiled for AVX2: every row needs them.
///
/// # Safety
///
/// The machine has AVX2.
#[cfg(target_arch = "x86_64")]
#[target_feature(enable = "avx2")]
unsafe fn scale_products_avx2(own: &[bf16], per_group: usize, vector: &[f32], out: &mut [f32]) {
    products(own, per_group, vector, out);
}

#[inline(always)]
fn products(own: &[bf16], per_group: usize, vector: &[f32], out: &mut [f32]) {
    // A bf16 is the upper half of an f32; scales are finite.
    let wide = |scale: &bf16| f32::from_bits(u32::from(scale.to_bits()) << 16);
    assert!(own.len() * per_group >= out.len() && vector.len() >= out.len(), "scales");
    let groups = out.chunks_mut(per_group).zip(vector.chunks(per_group)).zip(own);
    for ((out, vector), own) in groups {
        out.iter_mut().zip(vector).for_each(|(out, x)| *out = wide(own) * x);
    }
}
