//! Loads for products of codes with a vector in 16-bit integers, by AVX-512 VNNI.
//!
//! One instruction multiplies 32 codes by 32 entries of a [rounded](super::rounded) vector
//! and adds neighboring products. So a layout has to bring the entries of `x` into the order
//! of its codes, in pairs whose products belong to one sum.

use std::arch::x86_64::*;
use std::sync::OnceLock;

/// Whether the machine multiplies pairs of 16-bit integers and adds them in one step.
pub(super) fn available() -> bool {
    static VNNI: OnceLock<bool> = OnceLock::new();
    *VNNI.get_or_init(|| is_x86_feature_detected!("avx512vnni"))
}

/// 32 codes of `BITS` bits as 16-bit integers.
///
/// # Safety
///
/// The machine has AVX-512 F, BW and VL; `4 * BITS` bytes can be read from `at` on.
#[inline]
#[target_feature(enable = "avx512f,avx512bw,avx512vl")]
pub(super) unsafe fn codes<const BITS: usize>(at: *const u8) -> __m512i {
    // SAFETY: by the contract.
    unsafe {
        match BITS {
            8 => _mm512_cvtepi8_epi16(_mm256_loadu_si256(at.cast())),
            _ => {
                // Lower halves of all bytes, then upper halves.
                let bytes = _mm256_cvtepu8_epi16(_mm_loadu_si128(at.cast()));
                let twice = _mm512_broadcast_i64x4(bytes);
                let shifts = _mm512_inserti64x4::<1>(_mm512_setzero_si512(), _mm256_set1_epi16(4));
                let halves = _mm512_srlv_epi16(twice, shifts);
                let halves = _mm512_and_si512(halves, _mm512_set1_epi16(15));
                _mm512_sub_epi16(halves, _mm512_set1_epi16(8))
            }
        }
    }
}

/// Two consecutive 32-bit numbers, each in eight lanes.
///
/// # Safety
///
/// The machine has AVX-512F; eight bytes can be read from `at` on.
#[inline]
#[target_feature(enable = "avx512f")]
pub(super) unsafe fn two_in_lanes(at: *const u8) -> __m512i {
    let lanes = _mm512_setr_epi32(0, 0, 0, 0, 0, 0, 0, 0, 1, 1, 1, 1, 1, 1, 1, 1);
    // SAFETY: by the contract.
    let two = unsafe { _mm_loadl_epi64(at.cast()) };
    _mm512_permutexvar_epi32(lanes, _mm512_castsi128_si512(two))
}

/// The sums of the lower and the upper eight lanes.
#[inline]
#[target_feature(enable = "avx512f,avx2")]
pub(super) fn fold(sums: __m512) -> __m256 {
    let upper = _mm512_castpd_ps(_mm512_castpd256_pd512(_mm512_extractf64x4_pd::<1>(
        _mm512_castps_pd(sums),
    )));
    _mm256_add_ps(_mm512_castps512_ps256(sums), _mm512_castps512_ps256(upper))
}
