//! Where vector kernels read the kept values of a strip: numbers, or codes that are
//! converted on the way.

use super::kernel::{Value, prefetch};
use super::quant::{CodeBits, Quantized, UNIT};
use half::bf16;
use std::arch::x86_64::*;

/// The values of one strip.
pub(super) trait Source: Copy {
    /// What the values of [`pairs`](Self::pairs) are still to be multiplied with, a power
    /// of two: sums are, at their end.
    const FACTOR: f32;

    /// Values `at` to `at + 15` as f32: those at even positions, and those at odd ones.
    ///
    /// # Safety
    ///
    /// `at` is a multiple of 16, the strip has these values, and the machine has
    /// [`Kernel::Avx2`](super::kernel::Kernel::Avx2).
    unsafe fn pairs(self, at: usize) -> (__m256, __m256);

    /// Prefetches what follows value `at`, once per line of memory.
    fn prefetch(self, at: usize);
}

/// Numbers from an address on.
#[derive(Clone, Copy)]
pub(super) struct Numbers<T>(pub *const T);

impl<T: Value> Source for Numbers<T> {
    const FACTOR: f32 = 1.0;

    #[inline]
    #[target_feature(enable = "avx2,fma,f16c")]
    unsafe fn pairs(self, at: usize) -> (__m256, __m256) {
        // SAFETY: by the contract.
        unsafe { T::pairs(self.0.add(at)) }
    }

    #[inline(always)]
    fn prefetch(self, at: usize) {
        if (at * size_of::<T>()).is_multiple_of(64) {
            prefetch(self.0.wrapping_add(at));
        }
    }
}

/// Codes of `BITS` bits from the beginning of a run on.
#[derive(Clone, Copy)]
pub(super) struct Codes<const BITS: usize> {
    codes: *const u8,
    scales: *const bf16,
    /// The logarithm of the group's size.
    shift: u32,
}

impl<const BITS: usize> Codes<BITS> {
    /// The run of `count` values that begins with group `first`.
    ///
    /// # Panics
    ///
    /// If there is no such run, or codes have another number of bits.
    pub fn new(all: &Quantized, first: usize, count: usize) -> Self {
        assert_eq!(all.bits().bits(), BITS, "codes of {BITS} bits");
        let groups = count.div_ceil(all.group());
        let bytes = all.bits().bytes(all.group());
        Self {
            codes: all.codes()[first * bytes..][..groups * bytes].as_ptr(),
            scales: all.scales()[first..][..groups].as_ptr(),
            shift: all.group().trailing_zeros(),
        }
    }
}

/// Codes of a matrix, and the first group of each strip.
#[derive(Clone, Copy)]
pub(super) struct CodesView<'a> {
    pub index: &'a [u8],
    pub codes: &'a Quantized,
    pub groups: &'a [usize],
}

impl CodesView<'_> {
    pub fn bits(&self) -> CodeBits {
        self.codes.bits()
    }

    /// The codes of a strip of `count` values, and its scales.
    pub fn stored(&self, strip: usize, count: usize) -> (&[u8], &[bf16]) {
        let (first, group) = (self.groups[strip], self.codes.group());
        let (groups, bytes) = (count.div_ceil(group), self.codes.bits().bytes(group));
        (
            &self.codes.codes()[first * bytes..][..groups * bytes],
            &self.codes.scales()[first..][..groups],
        )
    }

    /// The codes of a strip of `count` values.
    pub fn strip<const BITS: usize>(&self, strip: usize, count: usize) -> Codes<BITS> {
        Codes::new(self.codes, self.groups[strip], count)
    }
}

impl<const BITS: usize> Source for Codes<BITS> {
    /// A code stays in the upper half of 32 bits, where it is 2^16 times as large.
    const FACTOR: f32 = 1.0 / 65536.0;

    #[inline]
    #[target_feature(enable = "avx2,fma,f16c")]
    unsafe fn pairs(self, at: usize) -> (__m256, __m256) {
        // SAFETY: the run has a scale and codes for value `at`, whole units of 32.
        unsafe {
            let scale = (*self.scales.add(at >> self.shift)).to_bits();
            // A bf16 is the upper half of an f32.
            let scale = _mm256_slli_epi32::<16>(_mm256_set1_epi16(scale as i16));
            let scale = _mm256_castsi256_ps(scale);
            let both = match BITS {
                8 => _mm256_cvtepi8_epi16(_mm_loadu_si128(self.codes.add(at).cast())),
                _ => {
                    let unit = self.codes.add(at / UNIT * (UNIT / 2)).cast();
                    let codes = _mm_loadu_si128(unit);
                    let codes =
                        if at.is_multiple_of(UNIT) { codes } else { _mm_srli_epi16::<4>(codes) };
                    let codes = _mm_and_si128(codes, _mm_set1_epi8(15));
                    _mm256_cvtepi8_epi16(_mm_sub_epi8(codes, _mm_set1_epi8(8)))
                }
            };
            let even = _mm256_cvtepi32_ps(_mm256_slli_epi32::<16>(both));
            let odd = _mm256_and_si256(both, _mm256_set1_epi32(0xffff_0000_u32 as i32));
            let odd = _mm256_cvtepi32_ps(odd);
            (_mm256_mul_ps(even, scale), _mm256_mul_ps(odd, scale))
        }
    }

    #[inline(always)]
    fn prefetch(self, at: usize) {
        let byte = at * BITS / 8;
        if byte.is_multiple_of(64) {
            prefetch(self.codes.wrapping_add(byte));
        }
    }
}

#[cfg(test)]
mod tests {
    use super::super::kernel::Kernel;
    use super::*;

    fn check<const BITS: usize>(bits: CodeBits) {
        for group in super::super::GROUPS {
            let values: Vec<f32> = (0..300).map(|i| ((i * 7919) % 257) as f32 - 128.0).collect();
            let mut all = Quantized::new(bits, group);
            all.push(&values[..40]);
            let first = all.scales().len();
            all.push(&values);
            let mut read = vec![0.0; 304];
            all.read(first, &mut read[..300]);
            let source = Codes::<BITS>::new(&all, first, 300);
            for at in (0..300).step_by(16) {
                let (mut even, mut odd) = ([0.0f32; 8], [0.0f32; 8]);
                // SAFETY: codes are padded to groups, and the caller checked the machine.
                unsafe {
                    let pairs = source.pairs(at);
                    _mm256_storeu_ps(even.as_mut_ptr(), pairs.0);
                    _mm256_storeu_ps(odd.as_mut_ptr(), pairs.1);
                }
                for l in 0..8 {
                    let want = (read[at + 2 * l], read[at + 2 * l + 1]);
                    let factor = Codes::<BITS>::FACTOR;
                    assert_eq!(
                        (factor * even[l], factor * odd[l]),
                        want,
                        "{BITS} bits, group {group}, {at}"
                    );
                }
            }
        }
    }

    #[test]
    fn codes_are_read_in_pairs() {
        if !Kernel::available().any(|kernel| kernel == Kernel::Avx2) {
            eprintln!("skipped: this machine has no AVX2, FMA and F16C");
            return;
        }
        check::<8>(CodeBits::Eight);
        check::<4>(CodeBits::Four);
    }
}
