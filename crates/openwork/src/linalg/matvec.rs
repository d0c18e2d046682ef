//! A matrix in its storage type times a vector, which dominates the time of decoding.
//!
//! Each weight is read and used once, so the speed is bounded by memory bandwidth. The
//! matrix is read in `ROWS` streams that are far apart, each through consecutive rows: this
//! reaches 22 to 27 GB/s, but one stream, or adjacent rows of 1 or 2 kB, only 7 to 13. The
//! order of a row's sum does not depend on the grouping, so the result does not depend on
//! how rows are distributed over threads.

use half::{bf16, f16};
#[cfg(target_arch = "x86_64")]
use std::arch::x86_64::{
    __m256, _MM_HINT_T0, _mm_loadu_si128, _mm_prefetch, _mm256_castsi256_ps, _mm256_cvtepu16_epi32,
    _mm256_cvtph_ps, _mm256_fmadd_ps, _mm256_loadu_ps, _mm256_setzero_ps, _mm256_slli_epi32,
    _mm256_storeu_ps,
};

/// Rows processed together, one per stream.
const ROWS: usize = 4;
/// Prefetch distance of a stream in bytes.
#[cfg(target_arch = "x86_64")]
const AHEAD: usize = 1024;
/// Partial sums of one row.
const LANES: usize = 16;

/// Storage types of weights.
pub trait Element: Copy + Default + Send + Sync + 'static {
    /// The value as f32.
    fn wide(self) -> f32;

    /// Its bits, zero-extended to 32.
    fn bits(self) -> u32;

    /// `y = W x`, `W` row-major with `y.len()` rows and `x.len()` columns.
    ///
    /// # Panics
    ///
    /// If `w` has another number of entries.
    fn matvec(w: &[Self], x: &[f32], y: &mut [f32]);
}

/// `y = W x` on any machine: the sums of the kernels without fused multiply-add.
pub fn portable<T: Element>(w: &[T], x: &[f32], y: &mut [f32]) {
    assert_eq!(w.len(), x.len() * y.len(), "a matrix does not fit its vectors");
    for (i, y) in y.iter_mut().enumerate() {
        let row = &w[i * x.len()..][..x.len()];
        let mut sums = [0.0f32; LANES];
        for (w, x) in row.chunks(LANES).zip(x.chunks(LANES)) {
            for ((sum, w), x) in sums.iter_mut().zip(w).zip(x) {
                *sum += w.wide() * x;
            }
        }
        *y = fold(sums);
    }
}

/// Adds partial sums pairwise.
#[inline(always)]
fn fold(mut sums: [f32; LANES]) -> f32 {
    let mut width = LANES / 2;
    while width > 0 {
        for l in 0..width {
            sums[l] += sums[l + width];
        }
        width /= 2;
    }
    sums[0]
}

/// Defines the AVX2 kernel for one type; `$load` widens eight entries.
#[cfg(target_arch = "x86_64")]
macro_rules! kernel {
    ($name:ident, $type:ty, $features:literal, $load:expr) => {
        #[target_feature(enable = $features)]
        fn $name(w: &[$type], x: &[f32], y: &mut [f32]) {
            let k = x.len();
            assert_eq!(w.len(), k * y.len(), "a matrix does not fit its vectors");

            /// The sums of `N` rows, `stride` entries apart.
            #[inline]
            #[target_feature(enable = $features)]
            fn rows<const N: usize>(w: &[$type], stride: usize, x: &[f32]) -> [f32; N] {
                let k = x.len();
                let whole = k / LANES * LANES;
                assert!((N - 1) * stride + k <= w.len(), "rows leave their matrix");
                let mut sums = [[_mm256_setzero_ps(); 2]; N];
                let mut j = 0;
                while j < whole {
                    // SAFETY: j + 16 <= whole <= k = x.len(), and the entries
                    // r * stride + j .. r * stride + k of `w` exist by the
                    // assertion above.
                    unsafe {
                        let x0 = _mm256_loadu_ps(x.as_ptr().add(j));
                        let x1 = _mm256_loadu_ps(x.as_ptr().add(j + 8));
                        for r in 0..N {
                            let p = w.as_ptr().add(r * stride + j);
                            // Once per cache line; a prefetch beyond the end has no effect.
                            if (j * size_of::<$type>()).is_multiple_of(64) {
                                _mm_prefetch::<_MM_HINT_T0>(p.cast::<i8>().wrapping_add(AHEAD));
                            }
                            sums[r][0] = _mm256_fmadd_ps($load(p), x0, sums[r][0]);
                            sums[r][1] = _mm256_fmadd_ps($load(p.add(8)), x1, sums[r][1]);
                        }
                    }
                    j += LANES;
                }
                std::array::from_fn(|r| {
                    let mut lanes = [0.0f32; LANES];
                    // SAFETY: `lanes` has 16 entries.
                    unsafe {
                        _mm256_storeu_ps(lanes.as_mut_ptr(), sums[r][0]);
                        _mm256_storeu_ps(lanes.as_mut_ptr().add(8), sums[r][1]);
                    }
                    for (l, j) in (whole..k).enumerate() {
                        lanes[l] = w[r * stride + j].wide().mul_add(x[j], lanes[l]);
                    }
                    fold(lanes)
                })
            }

            // Row i goes with rows i + part, i + 2 part ..
            let part = y.len() / ROWS;
            for i in 0..part {
                let sums = rows::<ROWS>(&w[i * k..], part * k, x);
                for (r, sum) in sums.into_iter().enumerate() {
                    y[i + r * part] = sum;
                }
            }
            for i in ROWS * part..y.len() {
                [y[i]] = rows::<1>(&w[i * k..], k, x);
            }
        }
    };
}

/// Eight entries, widened.
///
/// # Safety
///
/// Eight entries can be read from `p` on.
#[cfg(target_arch = "x86_64")]
#[inline]
#[target_feature(enable = "avx2")]
unsafe fn load_bf16(p: *const bf16) -> __m256 {
    // SAFETY: eight entries are sixteen bytes; the load needs no alignment.
    let halves = _mm256_cvtepu16_epi32(unsafe { _mm_loadu_si128(p.cast()) });
    _mm256_castsi256_ps(_mm256_slli_epi32::<16>(halves))
}

/// Eight entries, widened.
///
/// # Safety
///
/// Eight entries can be read from `p` on.
#[cfg(target_arch = "x86_64")]
#[inline]
#[target_feature(enable = "avx2,f16c")]
unsafe fn load_f16(p: *const f16) -> __m256 {
    // SAFETY: eight entries are sixteen bytes; the load needs no alignment.
    _mm256_cvtph_ps(unsafe { _mm_loadu_si128(p.cast()) })
}

#[cfg(target_arch = "x86_64")]
kernel!(matvec_bf16, bf16, "avx2,fma", load_bf16);
#[cfg(target_arch = "x86_64")]
kernel!(matvec_f16, f16, "avx2,fma,f16c", load_f16);
#[cfg(target_arch = "x86_64")]
kernel!(matvec_f32, f32, "avx2,fma", _mm256_loadu_ps);

/// Implements [`Element`] for a type with its kernel and the features the kernel needs.
macro_rules! element {
    ($type:ty, $wide:expr, $bits:expr, $kernel:ident, $($feature:tt),+) => {
        impl Element for $type {
            fn wide(self) -> f32 {
                $wide(self)
            }

            fn bits(self) -> u32 {
                $bits(self)
            }

            fn matvec(w: &[Self], x: &[f32], y: &mut [f32]) {
                #[cfg(target_arch = "x86_64")]
                if $(is_x86_feature_detected!($feature))&&+ {
                    // SAFETY: the machine has the kernel's features.
                    return unsafe { $kernel(w, x, y) };
                }
                portable(w, x, y);
            }
        }
    };
}

element!(bf16, bf16::to_f32, |v: bf16| u32::from(v.to_bits()), matvec_bf16, "avx2", "fma");
element!(f16, f16::to_f32, |v: f16| u32::from(v.to_bits()), matvec_f16, "avx2", "fma", "f16c");
element!(f32, std::convert::identity, f32::to_bits, matvec_f32, "avx2", "fma");

#[cfg(test)]
mod tests {
    use super::*;

    fn number(i: usize) -> f32 {
        ((i * 7919 + 13) % 257) as f32 / 128.0 - 1.0
    }

    /// Every width 0..=64 and a few heights, from unaligned storage.
    fn agrees<T: Element>(narrow: impl Fn(f32) -> T) {
        for k in 0..=64 {
            for n in [0, 1, 3, 4, 5, 9] {
                for offset in [0, 1, 3] {
                    let w: Vec<T> = (0..offset + n * k).map(|i| narrow(number(i))).collect();
                    let x: Vec<f32> = (0..offset + k).map(|i| number(i + 1000)).collect();
                    let (w, x) = (&w[offset..], &x[offset..]);
                    let mut fast = vec![f32::NAN; n];
                    let mut slow = vec![f32::NAN; n];
                    T::matvec(w, x, &mut fast);
                    portable(w, x, &mut slow);
                    for (i, (fast, slow)) in fast.iter().zip(&slow).enumerate() {
                        let want: f64 =
                            (0..k).map(|j| f64::from(w[i * k + j].wide()) * f64::from(x[j])).sum();
                        let tolerance = 1e-6 * (1.0 + k as f64);
                        assert!((f64::from(*fast) - want).abs() <= tolerance, "{n} x {k}");
                        assert!((f64::from(*slow) - want).abs() <= tolerance, "{n} x {k}");
                    }
                }
            }
        }
    }

    #[test]
    fn kernels_equal_their_slow_twin_at_every_size() {
        agrees(bf16::from_f32);
        agrees(f16::from_f32);
        agrees(|x| x);
    }

    #[test]
    fn a_row_does_not_depend_on_its_neighbors() {
        let (n, k) = (11, 37);
        let w: Vec<bf16> = (0..n * k).map(|i| bf16::from_f32(number(i))).collect();
        let x: Vec<f32> = (0..k).map(number).collect();
        let mut together = vec![0.0; n];
        bf16::matvec(&w, &x, &mut together);
        for i in 0..n {
            let mut alone = [0.0];
            bf16::matvec(&w[i * k..][..k], &x, &mut alone);
            assert_eq!(alone[0].to_bits(), together[i].to_bits());
        }
    }
}
