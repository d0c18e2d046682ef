//! Eight lanes at a time: the loads that all kernels share, and whether the
//! machine has them.

use crate::linalg::matvec::Element;
#[cfg(target_arch = "x86_64")]
use half::{bf16, f16};
#[cfg(target_arch = "x86_64")]
use std::arch::x86_64::*;

/// Whether the machine has AVX2, FMA and F16C, which the kernels need together.
pub(super) fn available() -> bool {
    #[cfg(target_arch = "x86_64")]
    {
        is_x86_feature_detected!("avx2")
            && is_x86_feature_detected!("fma")
            && is_x86_feature_detected!("f16c")
    }
    #[cfg(not(target_arch = "x86_64"))]
    {
        false
    }
}

/// How far ahead kernels ask for values, in bytes: some hundred nanoseconds of
/// memory at full speed, shared by the streams. Chosen by measurement.
#[cfg(target_arch = "x86_64")]
const AHEAD: usize = 1024;

/// Asks for the values that a stream will reach in a while; beyond its end this
/// does nothing.
#[cfg(target_arch = "x86_64")]
#[inline(always)]
pub(super) fn ahead<T>(p: *const T) {
    // SAFETY: a prefetch reads no memory, whatever its address.
    unsafe { _mm_prefetch::<_MM_HINT_T0>(p.cast::<i8>().wrapping_add(AHEAD)) };
}

/// Types that packed values have.
#[cfg(not(target_arch = "x86_64"))]
pub(super) trait Value: Element {}
#[cfg(not(target_arch = "x86_64"))]
impl<T: Element> Value for T {}

/// Types that packed values have, with their loads.
#[cfg(target_arch = "x86_64")]
pub(super) trait Value: Element {
    /// Sixteen values, widened: those in even places, and those in odd ones.
    ///
    /// # Safety
    ///
    /// Sixteen values can be read from `p` on, and the machine is
    /// [`available`].
    unsafe fn pairs(p: *const Self) -> (__m256, __m256);

    /// Eight values, widened.
    ///
    /// # Safety
    ///
    /// Eight values can be read from `p` on, and the machine is [`available`].
    unsafe fn eight(p: *const Self) -> __m256;
}

#[cfg(target_arch = "x86_64")]
impl Value for bf16 {
    #[inline]
    #[target_feature(enable = "avx2,fma,f16c")]
    unsafe fn pairs(p: *const Self) -> (__m256, __m256) {
        // SAFETY: sixteen values are 32 bytes; the load needs no alignment.
        let both = unsafe { _mm256_loadu_si256(p.cast()) };
        // A bf16 is the upper half of an f32: the even one is shifted up, the odd
        // one is there already.
        let odd = _mm256_and_si256(both, _mm256_set1_epi32(0xffff_0000_u32 as i32));
        (_mm256_castsi256_ps(_mm256_slli_epi32::<16>(both)), _mm256_castsi256_ps(odd))
    }

    #[inline]
    #[target_feature(enable = "avx2,fma,f16c")]
    unsafe fn eight(p: *const Self) -> __m256 {
        // SAFETY: eight values are 16 bytes; the load needs no alignment.
        let halves = _mm256_cvtepu16_epi32(unsafe { _mm_loadu_si128(p.cast()) });
        _mm256_castsi256_ps(_mm256_slli_epi32::<16>(halves))
    }
}

#[cfg(target_arch = "x86_64")]
impl Value for f16 {
    #[inline]
    #[target_feature(enable = "avx2,fma,f16c")]
    unsafe fn pairs(p: *const Self) -> (__m256, __m256) {
        // SAFETY: sixteen values are 32 bytes; the load needs no alignment.
        let both = unsafe { _mm256_loadu_si256(p.cast()) };
        // Even values to the lower half of each lane, then of the register.
        let order = _mm256_setr_epi8(
            0, 1, 4, 5, 8, 9, 12, 13, 2, 3, 6, 7, 10, 11, 14, 15, 0, 1, 4, 5, 8, 9, 12, 13, 2, 3,
            6, 7, 10, 11, 14, 15,
        );
        let apart = _mm256_permute4x64_epi64::<0b11_01_10_00>(_mm256_shuffle_epi8(both, order));
        (
            _mm256_cvtph_ps(_mm256_castsi256_si128(apart)),
            _mm256_cvtph_ps(_mm256_extracti128_si256::<1>(apart)),
        )
    }

    #[inline]
    #[target_feature(enable = "avx2,fma,f16c")]
    unsafe fn eight(p: *const Self) -> __m256 {
        // SAFETY: eight values are 16 bytes; the load needs no alignment.
        _mm256_cvtph_ps(unsafe { _mm_loadu_si128(p.cast()) })
    }
}

#[cfg(target_arch = "x86_64")]
impl Value for f32 {
    #[inline]
    #[target_feature(enable = "avx2,fma,f16c")]
    unsafe fn pairs(p: *const Self) -> (__m256, __m256) {
        // SAFETY: sixteen values are 64 bytes; the loads need no alignment.
        let (low, high) = unsafe { (_mm256_loadu_ps(p), _mm256_loadu_ps(p.add(8))) };
        // 0 2 8 10 | 4 6 12 14 and 1 3 9 11 | 5 7 13 15, then quarters into place.
        let apart =
            |x| _mm256_castpd_ps(_mm256_permute4x64_pd::<0b11_01_10_00>(_mm256_castps_pd(x)));
        (
            apart(_mm256_shuffle_ps::<0b10_00_10_00>(low, high)),
            apart(_mm256_shuffle_ps::<0b11_01_11_01>(low, high)),
        )
    }

    #[inline]
    #[target_feature(enable = "avx2,fma,f16c")]
    unsafe fn eight(p: *const Self) -> __m256 {
        // SAFETY: eight values are 32 bytes; the load needs no alignment.
        unsafe { _mm256_loadu_ps(p) }
    }
}

#[cfg(all(test, target_arch = "x86_64"))]
mod tests {
    use super::*;

    fn loads<T: Value>(narrow: impl Fn(f32) -> T) {
        let values: Vec<T> = (0..17).map(|i| narrow(i as f32 - 4.0)).collect();
        for offset in [0, 1] {
            let values = &values[offset..];
            let (mut even, mut odd, mut first) = ([0.0f32; 8], [0.0f32; 8], [0.0f32; 8]);
            // SAFETY: there are sixteen values from either offset on, and the caller asked.
            unsafe {
                let (e, o) = T::pairs(values.as_ptr());
                _mm256_storeu_ps(even.as_mut_ptr(), e);
                _mm256_storeu_ps(odd.as_mut_ptr(), o);
                _mm256_storeu_ps(first.as_mut_ptr(), T::eight(values.as_ptr()));
            }
            for l in 0..8 {
                assert_eq!(even[l], values[2 * l].wide());
                assert_eq!(odd[l], values[2 * l + 1].wide());
                assert_eq!(first[l], values[l].wide());
            }
        }
    }

    #[test]
    fn loads_widen_every_type() {
        if available() {
            loads(bf16::from_f32);
            loads(f16::from_f32);
            loads(|x| x);
        }
    }
}
