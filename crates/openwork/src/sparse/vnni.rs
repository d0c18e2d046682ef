//! Products of codes with a vector in 8-bit integers, by AVX-512 VNNI.
//!
//! One instruction multiplies 64 unsigned by 64 signed bytes and adds four neighboring
//! products to a lane of 32 bits. Codes are the unsigned ones: they are multiplied plus an
//! offset, and the sums begin with the offset's products taken away. The vector is in one or
//! two [planes](super::planes) of signed bytes.
//!
//! A *quad* of four units of 32 codes is multiplied at a time, in two registers: values 0 to
//! 15 of each unit, and values 16 to 31. So 128 bits, four lanes, belong to each unit, and one
//! register of scales serves the quad. A layout has to bring the entries of `x` into the order
//! of its codes, so that the four that meet in a lane belong to one sum.

use super::kernel::prefetch;
use super::planes::QUAD_BLOCKS;
use super::quant::UNIT;
use half::bf16;
use std::arch::x86_64::*;
use std::sync::OnceLock;

/// Units of a quad.
pub(super) const QUAD: usize = QUAD_BLOCKS;

/// Whether the machine multiplies bytes and adds four products in one step, and shifts the
/// bits of a register into bytes.
pub(super) fn available() -> bool {
    static VNNI: OnceLock<bool> = OnceLock::new();
    *VNNI.get_or_init(|| {
        is_x86_feature_detected!("avx512vnni") && is_x86_feature_detected!("avx512vbmi")
    })
}

/// What codes of `BITS` bits are multiplied plus.
const fn offset(bits: usize) -> i8 {
    match bits {
        4 => 8,
        // 128, as unsigned bytes.
        _ => i8::MIN,
    }
}

/// Masks that read the first units of a quad.
#[derive(Clone, Copy)]
pub(super) struct Part {
    codes: [u64; 2],
    scales: u8,
}

/// A quad's codes plus their offset. After the part's end they are zeros or the offset, where
/// the vector is zero.
///
/// # Safety
///
/// The machine has AVX-512 F, BW and VL; the part can be read from `at` on.
#[inline]
#[target_feature(enable = "avx512f,avx512bw,avx512vl")]
pub(super) unsafe fn codes<const BITS: usize>(at: *const u8, part: Part) -> [__m512i; 2] {
    // SAFETY: by the contract; masked bytes are not read, and loads need no alignment.
    unsafe {
        let first = _mm512_maskz_loadu_epi8(part.codes[0], at.cast());
        match BITS {
            8 => {
                let second = _mm512_maskz_loadu_epi8(part.codes[1], at.wrapping_add(64).cast());
                let offset = _mm512_set1_epi8(offset(BITS));
                let [low, high] = [
                    _mm512_shuffle_i64x2::<0b10_00_10_00>(first, second),
                    _mm512_shuffle_i64x2::<0b11_01_11_01>(first, second),
                ];
                [_mm512_xor_si512(low, offset), _mm512_xor_si512(high, offset)]
            }
            _ => {
                let low = _mm512_set1_epi8(15);
                let high = _mm512_srli_epi16::<4>(first);
                [_mm512_and_si512(first, low), _mm512_and_si512(high, low)]
            }
        }
    }
}

/// Prefetches what follows a quad of codes. Kernels prefetch what follows in the streams of
/// scales and index too, a few bytes per quad: without, they reached only 70 % of the speed on a Zen 5.
#[inline(always)]
pub(super) fn prefetch_codes<const BITS: usize>(at: *const u8) {
    prefetch(at);
    if BITS == 8 {
        prefetch(at.wrapping_add(64));
    }
}

/// A mask of the lowest `count` bits, at most 64.
#[inline(always)]
pub(super) fn low_bits(count: usize) -> u64 {
    if count >= 64 { u64::MAX } else { (1 << count) - 1 }
}

/// The sums of products of `N` registers of codes with the planes of their inputs, from
/// [`start`] on.
#[inline]
#[target_feature(enable = "avx512f,avx512bw,avx512vnni")]
pub(super) fn sums<const N: usize, const PLANES: usize>(
    codes: [__m512i; N],
    inputs: [[__m512i; N]; PLANES],
    start: __m512i,
) -> __m512i {
    let mut sums = if PLANES == 1 { start } else { _mm512_setzero_si512() };
    for (p, inputs) in inputs.iter().enumerate() {
        if p == 1 {
            // The first plane counts 256 times; 8 of its products are below 2^18.
            sums = _mm512_add_epi32(_mm512_slli_epi32::<8>(sums), start);
        }
        for n in 0..N {
            sums = _mm512_dpbusd_epi32(sums, codes[n], inputs[n]);
        }
    }
    sums
}

/// Where the sums of products with `inputs` begin: minus the products of the codes' offset.
#[inline]
#[target_feature(enable = "avx512f,avx512bw,avx512vnni")]
pub(super) fn start<const BITS: usize, const N: usize, const PLANES: usize>(
    inputs: [[__m512i; N]; PLANES],
) -> __m512i {
    let zero = _mm512_setzero_si512();
    _mm512_sub_epi32(zero, sums([_mm512_set1_epi8(offset(BITS)); N], inputs, zero))
}

/// Reads the scales of quads of codes in groups of some size.
#[derive(Clone, Copy)]
pub(super) struct Scales {
    order: __m512i,
    /// The logarithm of the units of a group.
    shift: u32,
}

impl Scales {
    #[inline]
    #[target_feature(enable = "avx512f")]
    pub fn new(group: usize) -> Self {
        let shift = (group / UNIT).trailing_zeros();
        let units = _mm512_setr_epi32(0, 0, 0, 0, 1, 1, 1, 1, 2, 2, 2, 2, 3, 3, 3, 3);
        let own = _mm512_srl_epi32(units, _mm_cvtsi32_si128(shift as i32));
        // A bf16 is the upper half of an f32.
        Self { order: _mm512_slli_epi32::<16>(own), shift }
    }

    /// The first `units` units of a quad with codes of `BITS` bits.
    #[inline(always)]
    pub fn part<const BITS: usize>(self, units: usize) -> Part {
        let bytes = units * UNIT * BITS / 8;
        Part {
            codes: [low_bits(bytes), low_bits(bytes.saturating_sub(64))],
            scales: low_bits(((units - 1) >> self.shift) + 1) as u8,
        }
    }

    /// The scales of a part of a quad from `unit` on, each in four lanes. The part begins with
    /// the quad or in its middle.
    ///
    /// # Safety
    ///
    /// The machine has AVX-512 F, BW and VL; the units have scales among those from `own` on.
    #[inline]
    #[target_feature(enable = "avx512f,avx512bw,avx512vl")]
    pub unsafe fn load(self, own: *const bf16, unit: usize, part: Part) -> __m512 {
        // SAFETY: by the contract; masked numbers are not read.
        let scales = unsafe {
            let at = own.add(unit >> self.shift);
            if unit.is_multiple_of(8 * QUAD) {
                prefetch(at);
            }
            _mm_maskz_loadu_epi16(part.scales, at.cast())
        };
        let scales = _mm512_castsi128_si512(scales);
        _mm512_castsi512_ps(_mm512_maskz_permutexvar_epi16(0xaaaa_aaaa, self.order, scales))
    }
}

/// Four consecutive 32-bit numbers, each in four lanes.
#[inline]
#[target_feature(enable = "avx512f")]
pub(super) fn four_in_lanes(four: __m128i) -> __m512i {
    let each = _mm512_setr_epi32(0, 0, 0, 0, 1, 1, 1, 1, 2, 2, 2, 2, 3, 3, 3, 3);
    _mm512_permutexvar_epi32(each, _mm512_castsi128_si512(four))
}

/// A panel's codes, eight rows and 16 columns, such that lane `l` of the first register has
/// row `l % 4` and columns `4 (l / 4)` to `4 (l / 4) + 3`, and the second one the other four rows.
#[inline]
#[target_feature(enable = "avx512f,avx512bw")]
pub(super) fn panel_rows([first, second]: [__m512i; 2]) -> [__m512i; 2] {
    [_mm512_unpacklo_epi16(first, second), _mm512_unpackhi_epi16(first, second)]
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

/// The sums of lanes 0, 4, 8 and 12, of lanes 1, 5, 9 and 13, and so on.
#[inline]
#[target_feature(enable = "avx512f,avx2")]
pub(super) fn fold_twice(sums: __m512) -> __m128 {
    let sums = fold(sums);
    _mm_add_ps(_mm256_castps256_ps128(sums), _mm256_extractf128_ps::<1>(sums))
}
