//! Kernels: which instructions products use, and the loads that vector kernels
//! share.

use crate::linalg::matvec::Element;
#[cfg(target_arch = "x86_64")]
use half::{bf16, f16};
#[cfg(target_arch = "x86_64")]
use std::arch::x86_64::*;
use std::sync::OnceLock;

/// The environment variable that limits the instructions of products, to compare
/// kernels on one machine: `scalar`, `avx2` or `avx512`.
pub const KERNEL_VARIABLE: &str = "OPENWORK_KERNEL";

/// The instructions of products with packed weights: `scalar`, `avx2` or `avx512`. An
/// unknown value of [`KERNEL_VARIABLE`] is an error here; products ignore it.
pub fn kernel() -> Result<&'static str, String> {
    match std::env::var(KERNEL_VARIABLE) {
        Ok(text) if Kernel::named(&text).is_none() => Err(format!(
            "{KERNEL_VARIABLE} is \"{text}\"; choose scalar, avx2 or avx512, or unset it"
        )),
        _ => Ok(Kernel::best().name()),
    }
}

/// The instructions of a product.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(super) enum Kernel {
    /// Portable code.
    Scalar,
    /// AVX2, FMA, F16C and POPCNT: eight lanes.
    Avx2,
    /// AVX-512 F, BW, VL and VBMI2: sixteen lanes, and values expanded by a mask.
    Avx512,
}

impl Kernel {
    const ALL: [Self; 3] = [Self::Scalar, Self::Avx2, Self::Avx512];

    fn name(self) -> &'static str {
        match self {
            Self::Scalar => "scalar",
            Self::Avx2 => "avx2",
            Self::Avx512 => "avx512",
        }
    }

    fn named(name: &str) -> Option<Self> {
        Self::ALL.into_iter().find(|kernel| kernel.name() == name)
    }

    /// The fastest kernel of this machine, within the limit of [`KERNEL_VARIABLE`].
    pub fn best() -> Self {
        static BEST: OnceLock<Kernel> = OnceLock::new();
        *BEST.get_or_init(|| {
            let limit = std::env::var(KERNEL_VARIABLE).ok();
            let limit = limit.and_then(|name| Self::named(&name)).unwrap_or(Self::Avx512);
            Self::detect().min(limit)
        })
    }

    fn detect() -> Self {
        #[cfg(target_arch = "x86_64")]
        if is_x86_feature_detected!("avx2")
            && is_x86_feature_detected!("fma")
            && is_x86_feature_detected!("f16c")
            && is_x86_feature_detected!("popcnt")
        {
            let wide = is_x86_feature_detected!("avx512f")
                && is_x86_feature_detected!("avx512bw")
                && is_x86_feature_detected!("avx512vl")
                && is_x86_feature_detected!("avx512vbmi2");
            return if wide { Self::Avx512 } else { Self::Avx2 };
        }
        Self::Scalar
    }

    /// All kernels of this machine.
    #[cfg(test)]
    pub fn available() -> impl Iterator<Item = Self> {
        let best = Self::detect();
        Self::ALL.into_iter().filter(move |&kernel| kernel <= best)
    }
}

/// Distance of prefetches, in bytes: some hundred nanoseconds of memory at full
/// speed, shared by the streams. On a Zen 5, 1024 and 4096 bytes were up to 17 % slower.
#[cfg(target_arch = "x86_64")]
const PREFETCH_DISTANCE: usize = 2048;

/// Prefetches what a stream reaches next; has no effect beyond its end.
#[cfg(target_arch = "x86_64")]
#[inline(always)]
pub(super) fn prefetch<T>(p: *const T) {
    // SAFETY: a prefetch reads no memory, whatever its address.
    unsafe { _mm_prefetch::<_MM_HINT_T0>(p.cast::<i8>().wrapping_add(PREFETCH_DISTANCE)) };
}

/// Prefetches the beginnings of the four streams of as many values as these, which follow them.
#[cfg(target_arch = "x86_64")]
pub(super) fn prefetch_streams<T>(values: &[T]) {
    const LINE: usize = 64;
    let stream = size_of_val(values) / 4;
    for s in 0..4 {
        let start = values.as_ptr_range().end.cast::<i8>().wrapping_add(s * stream);
        for line in (0..stream.min(PREFETCH_DISTANCE)).step_by(LINE) {
            // SAFETY: a prefetch reads no memory, whatever its address.
            unsafe { _mm_prefetch::<_MM_HINT_T0>(start.wrapping_add(line)) };
        }
    }
}

/// Types of packed values.
#[cfg(not(target_arch = "x86_64"))]
pub(super) trait Value: Element {}
#[cfg(not(target_arch = "x86_64"))]
impl<T: Element> Value for T {}

/// Types of packed values, with their vector loads.
#[cfg(target_arch = "x86_64")]
pub(super) trait Value: Element {
    /// Sixteen values as f32: those at even positions, and those at odd ones.
    ///
    /// # Safety
    ///
    /// Sixteen values can be read from `p` on, and the machine has [`Kernel::Avx2`].
    unsafe fn pairs(p: *const Self) -> (__m256, __m256);

    /// The same for 32 values.
    ///
    /// # Safety
    ///
    /// 32 values can be read from `p` on, and the machine has [`Kernel::Avx512`].
    unsafe fn pairs_avx512(p: *const Self) -> [__m512; 2];

    /// The next values as f32, one for each set bit of `mask` in its lane; zero in the
    /// other lanes.
    ///
    /// # Safety
    ///
    /// Eight values can be read from `p` on, and the machine has [`Kernel::Avx2`].
    unsafe fn expand_avx2(p: *const Self, mask: u8) -> __m256;

    /// The same for 32 bits. Lanes are in the order of
    /// [`order_avx512`](Self::order_avx512).
    ///
    /// # Safety
    ///
    /// 32 values can be read from `p` on, and the machine has [`Kernel::Avx512`].
    unsafe fn expand_avx512(p: *const Self, mask: u32) -> [__m512; 2];

    /// 32 consecutive numbers in the order of the lanes of
    /// [`expand_avx512`](Self::expand_avx512).
    ///
    /// # Safety
    ///
    /// The machine has [`Kernel::Avx512`].
    unsafe fn order_avx512(x: [__m512; 2]) -> [__m512; 2];
}

/// For every mask, the bytes of a shuffle that moves the next 16-bit values to the set
/// bits and zeros to the others.
#[cfg(target_arch = "x86_64")]
static EXPAND_16: [[u8; 16]; 256] = {
    let mut table = [[0x80; 16]; 256];
    let mut mask = 0;
    while mask < 256 {
        let (mut bit, mut next) = (0, 0);
        while bit < 8 {
            if mask >> bit & 1 == 1 {
                table[mask][2 * bit] = 2 * next;
                table[mask][2 * bit + 1] = 2 * next + 1;
                next += 1;
            }
            bit += 1;
        }
        mask += 1;
    }
    table
};

/// Eight 16-bit values, expanded by a mask.
///
/// # Safety
///
/// 16 bytes can be read from `p` on, and the machine has [`Kernel::Avx2`].
#[cfg(target_arch = "x86_64")]
#[inline]
#[target_feature(enable = "avx2,fma,f16c")]
unsafe fn expand_16(p: *const u8, mask: u8) -> __m128i {
    // SAFETY: by the contract; loads need no alignment.
    unsafe {
        let order = _mm_loadu_si128(EXPAND_16[usize::from(mask)].as_ptr().cast());
        _mm_shuffle_epi8(_mm_loadu_si128(p.cast()), order)
    }
}

/// The even ones of 32 numbers, then the odd ones.
#[cfg(target_arch = "x86_64")]
#[inline]
#[target_feature(enable = "avx512f")]
fn apart(x: [__m512; 2]) -> [__m512; 2] {
    let even = _mm512_setr_epi32(0, 2, 4, 6, 8, 10, 12, 14, 16, 18, 20, 22, 24, 26, 28, 30);
    let odd = _mm512_add_epi32(even, _mm512_set1_epi32(1));
    [_mm512_permutex2var_ps(x[0], even, x[1]), _mm512_permutex2var_ps(x[0], odd, x[1])]
}

#[cfg(target_arch = "x86_64")]
impl Value for bf16 {
    #[inline]
    #[target_feature(enable = "avx2,fma,f16c")]
    unsafe fn pairs(p: *const Self) -> (__m256, __m256) {
        // SAFETY: sixteen values are 32 bytes; the load needs no alignment.
        let both = unsafe { _mm256_loadu_si256(p.cast()) };
        // A bf16 is the upper half of an f32: the even one is shifted up, the odd one is
        // in position.
        let odd = _mm256_and_si256(both, _mm256_set1_epi32(0xffff_0000_u32 as i32));
        (_mm256_castsi256_ps(_mm256_slli_epi32::<16>(both)), _mm256_castsi256_ps(odd))
    }

    #[inline]
    #[target_feature(enable = "avx512f")]
    unsafe fn pairs_avx512(p: *const Self) -> [__m512; 2] {
        // SAFETY: 32 values are 64 bytes; the load needs no alignment.
        let both = unsafe { _mm512_loadu_si512(p.cast()) };
        let odd = _mm512_and_si512(both, _mm512_set1_epi32(0xffff_0000_u32 as i32));
        [_mm512_castsi512_ps(_mm512_slli_epi32::<16>(both)), _mm512_castsi512_ps(odd)]
    }

    #[inline]
    #[target_feature(enable = "avx2,fma,f16c")]
    unsafe fn expand_avx2(p: *const Self, mask: u8) -> __m256 {
        // SAFETY: by the contract.
        let halves = _mm256_cvtepu16_epi32(unsafe { expand_16(p.cast(), mask) });
        _mm256_castsi256_ps(_mm256_slli_epi32::<16>(halves))
    }

    #[inline]
    #[target_feature(enable = "avx512f,avx512bw,avx512vl,avx512vbmi2")]
    unsafe fn expand_avx512(p: *const Self, mask: u32) -> [__m512; 2] {
        // SAFETY: 32 values are 64 bytes; the load needs no alignment.
        let all = _mm512_maskz_expand_epi16(mask, unsafe { _mm512_loadu_si512(p.cast()) });
        let odd = _mm512_and_si512(all, _mm512_set1_epi32(0xffff_0000_u32 as i32));
        [_mm512_castsi512_ps(_mm512_slli_epi32::<16>(all)), _mm512_castsi512_ps(odd)]
    }

    #[inline]
    #[target_feature(enable = "avx512f")]
    unsafe fn order_avx512(x: [__m512; 2]) -> [__m512; 2] {
        apart(x)
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
    #[target_feature(enable = "avx512f")]
    unsafe fn pairs_avx512(p: *const Self) -> [__m512; 2] {
        // SAFETY: 32 values are 64 bytes; the load needs no alignment.
        let both = unsafe { _mm512_loadu_si512(p.cast()) };
        let odd = _mm512_srli_epi32::<16>(both);
        [_mm512_cvtph_ps(_mm512_cvtepi32_epi16(both)), _mm512_cvtph_ps(_mm512_cvtepi32_epi16(odd))]
    }

    #[inline]
    #[target_feature(enable = "avx2,fma,f16c")]
    unsafe fn expand_avx2(p: *const Self, mask: u8) -> __m256 {
        // SAFETY: by the contract.
        _mm256_cvtph_ps(unsafe { expand_16(p.cast(), mask) })
    }

    #[inline]
    #[target_feature(enable = "avx512f,avx512bw,avx512vl,avx512vbmi2")]
    unsafe fn expand_avx512(p: *const Self, mask: u32) -> [__m512; 2] {
        // SAFETY: 32 values are 64 bytes; the load needs no alignment.
        let all = _mm512_maskz_expand_epi16(mask, unsafe { _mm512_loadu_si512(p.cast()) });
        let high = _mm512_extracti64x4_epi64::<1>(all);
        [_mm512_cvtph_ps(_mm512_castsi512_si256(all)), _mm512_cvtph_ps(high)]
    }

    #[inline]
    #[target_feature(enable = "avx512f")]
    unsafe fn order_avx512(x: [__m512; 2]) -> [__m512; 2] {
        x
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
    #[target_feature(enable = "avx512f")]
    unsafe fn pairs_avx512(p: *const Self) -> [__m512; 2] {
        // SAFETY: 32 values are 128 bytes; the loads need no alignment.
        unsafe { apart([_mm512_loadu_ps(p), _mm512_loadu_ps(p.add(16))]) }
    }

    #[inline]
    #[target_feature(enable = "avx2,fma,f16c")]
    unsafe fn expand_avx2(p: *const Self, mask: u8) -> __m256 {
        // The table moves pairs of bytes: every second byte is twice the number of a value.
        // SAFETY: eight values are 32 bytes; loads need no alignment.
        unsafe {
            let bytes = _mm_loadu_si128(EXPAND_16[usize::from(mask)].as_ptr().cast());
            let order = _mm256_srli_epi32::<1>(_mm256_cvtepu16_epi32(_mm_and_si128(
                bytes,
                _mm_set1_epi16(0x7f),
            )));
            let clear = _mm256_cvtepi16_epi32(_mm_srai_epi16::<15>(bytes));
            let next = _mm256_permutevar8x32_ps(_mm256_loadu_ps(p), order);
            _mm256_andnot_ps(_mm256_castsi256_ps(clear), next)
        }
    }

    #[inline]
    #[target_feature(enable = "avx512f,avx512bw,avx512vl,avx512vbmi2")]
    unsafe fn expand_avx512(p: *const Self, mask: u32) -> [__m512; 2] {
        let low = mask as u16;
        // SAFETY: 16 values from `p` on and 16 after at most 16 others can be read.
        unsafe {
            let second = p.add(low.count_ones() as usize);
            [
                _mm512_maskz_expand_ps(low, _mm512_loadu_ps(p)),
                _mm512_maskz_expand_ps((mask >> 16) as u16, _mm512_loadu_ps(second)),
            ]
        }
    }

    #[inline]
    #[target_feature(enable = "avx512f")]
    unsafe fn order_avx512(x: [__m512; 2]) -> [__m512; 2] {
        x
    }
}

#[cfg(all(test, target_arch = "x86_64"))]
mod tests {
    use super::*;

    fn numbers(of: &[__m256]) -> Vec<f32> {
        let mut all = vec![0.0; 8 * of.len()];
        for (v, all) in of.iter().zip(all.chunks_mut(8)) {
            // SAFETY: eight entries; there are vectors, so the machine has AVX2.
            unsafe { _mm256_storeu_ps(all.as_mut_ptr(), *v) };
        }
        all
    }

    fn loads<T: Value>(narrow: impl Fn(f32) -> T) {
        let values: Vec<T> = (0..17).map(|i| narrow(i as f32 - 4.0)).collect();
        for offset in [0, 1] {
            let values = &values[offset..];
            // SAFETY: there are sixteen values from either offset on, and the caller checked.
            let (even, odd) = unsafe { T::pairs(values.as_ptr()) };
            let (even, odd) = (numbers(&[even]), numbers(&[odd]));
            for l in 0..8 {
                assert_eq!((even[l], odd[l]), (values[2 * l].wide(), values[2 * l + 1].wide()));
            }
        }
        let values: Vec<T> = (0..33).map(|i| narrow(i as f32 + 1.0)).collect();
        let expected = |mask: u32, lanes: u32| -> Vec<f32> {
            let rank = |bit: u32| (mask & !(u32::MAX << bit)).count_ones() as usize;
            let kept = |bit: u32| mask >> bit & 1 == 1;
            (0..lanes).map(|b| if kept(b) { values[rank(b)].wide() } else { 0.0 }).collect()
        };
        for mask in 0..=255u8 {
            // SAFETY: there are eight values, and the caller checked.
            let found = numbers(&[unsafe { T::expand_avx2(values.as_ptr(), mask) }]);
            assert_eq!(found, expected(mask.into(), 8), "{mask:08b}");
        }
        if Kernel::best() < Kernel::Avx512 {
            eprintln!("skipped: this machine has no AVX-512 VBMI2");
            return;
        }
        // SAFETY: there are 33 values, and the machine has the kernel.
        let pairs = unsafe { T::pairs_avx512(values.as_ptr()) }.map(|v| {
            let mut lanes = [0.0f32; 16];
            // SAFETY: sixteen entries.
            unsafe { _mm512_storeu_ps(lanes.as_mut_ptr(), v) };
            lanes
        });
        for l in 0..16 {
            let expected = [values[2 * l].wide(), values[2 * l + 1].wide()];
            assert_eq!([pairs[0][l], pairs[1][l]], expected, "pair {l}");
        }
        for i in 0..1000u32 {
            let mask = i.wrapping_mul(0x9e37_79b9) & i.wrapping_mul(0x85eb_ca6b).rotate_left(i);
            let order: Vec<f32> = (0..32).map(|i| i as f32).collect();
            let (mut found, mut lanes) = ([0.0f32; 32], [0.0f32; 32]);
            // SAFETY: there are 32 values and numbers, and the machine has the kernel.
            unsafe {
                let [a, b] = T::expand_avx512(values.as_ptr(), mask);
                _mm512_storeu_ps(found.as_mut_ptr(), a);
                _mm512_storeu_ps(found.as_mut_ptr().add(16), b);
                let x = order.as_ptr();
                let [a, b] = T::order_avx512([_mm512_loadu_ps(x), _mm512_loadu_ps(x.add(16))]);
                _mm512_storeu_ps(lanes.as_mut_ptr(), a);
                _mm512_storeu_ps(lanes.as_mut_ptr().add(16), b);
            }
            let wanted = expected(mask, 32);
            for (found, lane) in found.iter().zip(lanes) {
                assert_eq!(*found, wanted[lane as usize], "{mask:032b}");
            }
        }
    }

    #[test]
    fn loads_convert_and_expand_every_type() {
        if Kernel::best() == Kernel::Scalar {
            eprintln!("skipped: this machine has no AVX2, FMA and F16C");
            return;
        }
        loads(bf16::from_f32);
        loads(f16::from_f32);
        loads(|x| x);
    }
}
