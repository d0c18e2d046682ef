//! Products of codes with a vector in 16-bit integers, by AVX-512 VNNI.
//!
//! One instruction multiplies 32 codes by 32 entries of a [rounded](super::rounded) vector
//! and adds neighboring products. Two units of 32 codes are taken at a time, `A` and `B`: one
//! register has values 0 to 15 of `A` and of `B`, a second one values 16 to 31 of both. Both
//! registers add to the same sums, so eight 32-bit lanes belong to each unit and a scale
//! is applied once per 64 codes. A layout has to bring the entries of `x` into the order of
//! its codes, so that the pairs that meet in a lane belong to one sum.

use super::quant::UNIT;
use std::arch::x86_64::*;
use std::sync::OnceLock;

/// Whether the machine multiplies pairs of 16-bit integers and adds them in one step.
pub(super) fn available() -> bool {
    static VNNI: OnceLock<bool> = OnceLock::new();
    *VNNI.get_or_init(|| is_x86_feature_detected!("avx512vnni"))
}

/// What codes of `BITS` bits are stored plus.
const fn offset(bits: usize) -> i16 {
    match bits {
        4 => 8,
        _ => 0,
    }
}

/// Where the sums of products with `inputs` begin: codes are multiplied as they are
/// stored, plus an offset, and this takes the offset's products away again.
#[inline]
#[target_feature(enable = "avx512f,avx512bw,avx512vnni")]
pub(super) fn start<const BITS: usize>(inputs: [__m512i; 2]) -> __m512i {
    let zero = _mm512_setzero_si512();
    match offset(BITS) {
        0 => zero,
        offset => {
            let offset = _mm512_set1_epi16(-offset);
            _mm512_dpwssd_epi32(_mm512_dpwssd_epi32(zero, inputs[0], offset), inputs[1], offset)
        }
    }
}

/// The sums of two units of codes times `inputs`, from [`start`] on, as floats.
///
/// # Safety
///
/// The machine has AVX-512 F, BW, VL and VNNI; `8 * BITS` bytes can be read from `at` on.
#[inline]
#[target_feature(enable = "avx512f,avx512bw,avx512vl,avx512vnni")]
pub(super) unsafe fn products<const BITS: usize>(
    at: *const u8,
    inputs: [__m512i; 2],
    start: __m512i,
) -> __m512 {
    // SAFETY: by the contract.
    let [low, high] = unsafe { codes::<BITS>(at) };
    let sums = _mm512_dpwssd_epi32(start, low, inputs[0]);
    _mm512_cvtepi32_ps(_mm512_dpwssd_epi32(sums, high, inputs[1]))
}

/// Two units of codes as they are stored: values 0 to 15 of both, then values 16 to 31.
///
/// # Safety
///
/// As for [`products`].
#[inline]
#[target_feature(enable = "avx512f,avx512bw,avx512vl")]
unsafe fn codes<const BITS: usize>(at: *const u8) -> [__m512i; 2] {
    // SAFETY: by the contract.
    unsafe {
        match BITS {
            8 => {
                let half = |first: usize| {
                    let a = _mm_loadu_si128(at.add(first).cast());
                    let b = _mm_loadu_si128(at.add(first + UNIT).cast());
                    _mm512_cvtepi8_epi16(_mm256_set_m128i(b, a))
                };
                [half(0), half(UNIT / 2)]
            }
            _ => {
                let bytes = _mm512_cvtepu8_epi16(_mm256_loadu_si256(at.cast()));
                [_mm512_and_si512(bytes, _mm512_set1_epi16(15)), _mm512_srli_epi16::<4>(bytes)]
            }
        }
    }
}

/// Two blocks of 32 entries of a rounded vector, in the order of [`codes`].
///
/// # Safety
///
/// The machine has AVX-512F; 64 numbers can be read from `at` on.
#[inline]
#[target_feature(enable = "avx512f")]
pub(super) unsafe fn two_blocks(at: *const i16) -> [__m512i; 2] {
    // SAFETY: by the contract.
    let (a, b) =
        unsafe { (_mm512_loadu_si512(at.cast()), _mm512_loadu_si512(at.add(UNIT).cast())) };
    [_mm512_shuffle_i64x2::<0b01_00_01_00>(a, b), _mm512_shuffle_i64x2::<0b11_10_11_10>(a, b)]
}

/// Four consecutive 32-bit numbers, the first and the third in eight lanes each, and the
/// second and the fourth.
///
/// # Safety
///
/// The machine has AVX-512F; 16 bytes can be read from `at` on.
#[inline]
#[target_feature(enable = "avx512f")]
pub(super) unsafe fn four_in_lanes(at: *const u8) -> [__m512i; 2] {
    let even = _mm512_setr_epi32(0, 0, 0, 0, 0, 0, 0, 0, 2, 2, 2, 2, 2, 2, 2, 2);
    let odd = _mm512_setr_epi32(1, 1, 1, 1, 1, 1, 1, 1, 3, 3, 3, 3, 3, 3, 3, 3);
    // SAFETY: by the contract.
    let four = _mm512_castsi128_si512(unsafe { _mm_loadu_si128(at.cast()) });
    [_mm512_permutexvar_epi32(even, four), _mm512_permutexvar_epi32(odd, four)]
}

/// Two consecutive scales, each in eight lanes.
///
/// # Safety
///
/// The machine has AVX-512F; two numbers can be read from `at` on.
#[inline]
#[target_feature(enable = "avx512f")]
pub(super) unsafe fn two_scales(at: *const f32) -> __m512 {
    let lanes = _mm512_setr_epi32(0, 0, 0, 0, 0, 0, 0, 0, 1, 1, 1, 1, 1, 1, 1, 1);
    // SAFETY: by the contract.
    let two = _mm512_castsi128_si512(unsafe { _mm_loadl_epi64(at.cast()) });
    _mm512_castsi512_ps(_mm512_permutexvar_epi32(lanes, two))
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
