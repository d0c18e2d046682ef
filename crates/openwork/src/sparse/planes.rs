//! Vectors in one or two planes of 8 bits, for products with codes in integers.
//!
//! Every block of 32 entries has a scale, `x_i = t_b q_i`. With one plane `q_i` is -127 to
//! 127. With two it is `256 h_i + l_i`, where `h_i` and `l_i` are signed bytes, and -32639 to
//! 32639, so rounding changes an entry by at most 2^-16 of the largest of the 32.
//!
//! In a plane, entries are in the order in which a kernel multiplies them with a
//! [quad](super::vnni) of codes: of four blocks, entries 0 to 15 of each, then entries 16 to 31
//! of each. Runs of 16 entries stay together.

use super::quant::UNIT;
use super::vnni;
use std::arch::x86_64::*;

/// Blocks that are stored together.
pub(super) const QUAD_BLOCKS: usize = 4;
/// Entries of such a quad.
pub(super) const QUAD_ENTRIES: usize = QUAD_BLOCKS * BLOCK;
/// Entries with a scale.
pub(super) const BLOCK: usize = UNIT;
/// Entries that stay together.
pub(super) const RUN: usize = BLOCK / 2;

/// A vector in `planes` planes. Holds: planes and scales have whole quads, zeros after the
/// vector's end.
pub(super) struct Planes {
    /// Plane after plane; the first counts 256 times if there are two.
    bytes: Vec<i8>,
    scales: Vec<f32>,
}

impl Planes {
    /// Rounds `x` to one plane or two.
    ///
    /// # Safety
    ///
    /// The machine has AVX-512F.
    #[target_feature(enable = "avx512f")]
    pub unsafe fn new(x: &[f32], planes: usize) -> Self {
        assert!(planes == 1 || planes == 2, "{planes} planes");
        let quads = x.len().div_ceil(QUAD_ENTRIES);
        let mut bytes = vec![0i8; planes * quads * QUAD_ENTRIES];
        let mut scales = vec![0.0f32; quads * QUAD_BLOCKS];
        let largest = if planes == 1 { 127.0 } else { 32639.0f32 };
        let (first, second) = bytes.split_at_mut(quads * QUAD_ENTRIES);
        for (b, (x, scale)) in x.chunks(BLOCK).zip(&mut scales).enumerate() {
            let half = |h: usize| {
                let count = x.len().saturating_sub(RUN * h).min(RUN);
                // SAFETY: masked entries are not read.
                unsafe {
                    let from = x.as_ptr().wrapping_add(RUN * h);
                    _mm512_maskz_loadu_ps(((1u32 << count) - 1) as u16, from)
                }
            };
            let halves = [half(0), half(1)];
            // As bits, magnitudes are in order, and NaN is above infinity.
            let magnitude = |x: __m512| {
                _mm512_and_si512(_mm512_castps_si512(x), _mm512_set1_epi32(0x7fff_ffff))
            };
            let most = _mm512_max_epu32(magnitude(halves[0]), magnitude(halves[1]));
            let most = f32::from_bits(_mm512_reduce_max_epu32(most));
            // A vector with NaN or infinity must not give finite products.
            *scale = if most < f32::INFINITY { most / largest } else { f32::NAN };
            // Below 2^-100 the inverse would overflow; such numbers count as zeros.
            if !(most < f32::INFINITY && most > 1e-30) {
                continue;
            }
            let inverse = _mm512_set1_ps(largest / most);
            for (h, x) in halves.into_iter().enumerate() {
                let q = _mm512_cvtps_epi32(_mm512_mul_ps(x, inverse));
                let at = run_start(2 * b + h);
                let high = match planes {
                    1 => q,
                    _ => _mm512_srai_epi32::<8>(_mm512_add_epi32(q, _mm512_set1_epi32(128))),
                };
                let put = |plane: &mut [i8], q: __m512i| {
                    let plane = &mut plane[at..][..RUN];
                    // SAFETY: room for 16 bytes.
                    unsafe { _mm_storeu_si128(plane.as_mut_ptr().cast(), _mm512_cvtepi32_epi8(q)) };
                };
                put(first, high);
                if planes == 2 {
                    put(second, q);
                }
            }
        }
        Self { bytes, scales }
    }

    /// Number of quads.
    pub fn quads(&self) -> usize {
        self.scales.len() / QUAD_BLOCKS
    }

    /// Number of planes.
    pub fn planes(&self) -> usize {
        self.bytes.len() / (self.quads() * QUAD_ENTRIES).max(1)
    }

    /// The scale of each block.
    pub fn scales(&self) -> &[f32] {
        &self.scales
    }

    /// The first plane and the second one, if they are so many.
    ///
    /// # Panics
    ///
    /// If they are not.
    pub fn split<const PLANES: usize>(&self) -> [&[i8]; PLANES] {
        let len = self.quads() * QUAD_ENTRIES;
        assert_eq!(self.bytes.len(), PLANES * len, "{PLANES} planes");
        std::array::from_fn(|p| &self.bytes[p * len..][..len])
    }

    /// The entries of a quad in all planes, as they meet its codes.
    ///
    /// # Safety
    ///
    /// The machine has AVX-512F; the planes, those of [`split`](Self::split), have the quad.
    #[inline]
    #[target_feature(enable = "avx512f")]
    pub unsafe fn quad<const PLANES: usize>(
        planes: [&[i8]; PLANES],
        quad: usize,
    ) -> [[__m512i; 2]; PLANES] {
        let mut inputs = [[_mm512_setzero_si512(); 2]; PLANES];
        for p in 0..PLANES {
            // SAFETY: by the contract, 128 bytes.
            unsafe {
                let at = planes[p].as_ptr().add(QUAD_ENTRIES * quad);
                inputs[p] = [_mm512_loadu_si512(at.cast()), _mm512_loadu_si512(at.add(64).cast())];
            }
        }
        inputs
    }

    /// `COLUMNS` entries, 8 or 16, of all planes: the first four in four lanes, then the next
    /// ones, then zeros. They are all in one run.
    ///
    /// # Safety
    ///
    /// The machine has AVX-512F; the planes, those of [`split`](Self::split), have the entries.
    #[inline]
    #[target_feature(enable = "avx512f")]
    pub unsafe fn panel<const PLANES: usize, const COLUMNS: usize>(
        planes: [&[i8]; PLANES],
        first: usize,
    ) -> [[__m512i; 1]; PLANES] {
        let mut inputs = [[_mm512_setzero_si512()]; PLANES];
        for p in 0..PLANES {
            // SAFETY: by the contract.
            let entries = unsafe {
                let at = planes[p].as_ptr().add(run_start(first / RUN) + first % RUN).cast();
                if COLUMNS == RUN { _mm_loadu_si128(at) } else { _mm_loadl_epi64(at) }
            };
            inputs[p] = [vnni::four_in_lanes(entries)];
        }
        inputs
    }

    /// The scales of a quad's blocks, each in four lanes.
    ///
    /// # Safety
    ///
    /// The machine has AVX-512F, and there is the quad.
    #[inline]
    #[target_feature(enable = "avx512f")]
    pub unsafe fn quad_scales(&self, quad: usize) -> __m512 {
        // SAFETY: by the contract, four numbers.
        let four = unsafe { _mm_loadu_si128(self.scales.as_ptr().add(QUAD_BLOCKS * quad).cast()) };
        _mm512_castsi512_ps(vnni::four_in_lanes(four))
    }

    /// An entry as a kernel reads it.
    #[cfg(test)]
    pub fn entry(&self, i: usize) -> f64 {
        let plane = self.quads() * QUAD_ENTRIES;
        let at = run_start(i / RUN) + i % RUN;
        let code = match self.planes() {
            1 => i32::from(self.bytes[at]),
            _ => 256 * i32::from(self.bytes[at]) + i32::from(self.bytes[plane + at]),
        };
        f64::from(self.scales[i / BLOCK]) * f64::from(code)
    }
}

/// Where a run of 16 entries begins in a plane.
#[inline(always)]
pub(super) fn run_start(run: usize) -> usize {
    let (quad, block, half) = (run / (2 * QUAD_BLOCKS), run / 2 % QUAD_BLOCKS, run % 2);
    quad * QUAD_ENTRIES + half * (QUAD_ENTRIES / 2) + block * RUN
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn entries_change_by_half_a_step_at_most() {
        if !vnni::available() {
            eprintln!("skipped: this machine has no AVX-512 VNNI");
            return;
        }
        for len in (0..=130usize).chain([255, 256, 300]) {
            let x: Vec<f32> = (0..len).map(|i| ((i * 7919 + 13) % 257) as f32 - 128.0).collect();
            for planes in [1, 2] {
                // SAFETY: the machine has AVX-512.
                let rounded = unsafe { Planes::new(&x, planes) };
                assert_eq!(rounded.quads(), len.div_ceil(QUAD_ENTRIES));
                for (b, block) in x.chunks(BLOCK).enumerate() {
                    let most = block.iter().fold(0.0f32, |most, x| most.max(x.abs()));
                    let steps = if planes == 1 { 127.0 } else { 32639.0 };
                    let far = 0.501 * f64::from(most) / steps;
                    for (i, &x) in block.iter().enumerate() {
                        let entry = rounded.entry(BLOCK * b + i);
                        assert!((entry - f64::from(x)).abs() <= far, "{len} {planes}: {x} {entry}");
                    }
                }
                for i in len..rounded.quads() * QUAD_ENTRIES {
                    assert_eq!(rounded.entry(i), 0.0, "after the end of {len}");
                }
            }
        }
    }

    #[test]
    fn extreme_entries_are_zeros_or_not_finite() {
        if !vnni::available() {
            eprintln!("skipped: this machine has no AVX-512 VNNI");
            return;
        }
        for (x, zero) in [(1e-38, true), (f32::NAN, false), (f32::INFINITY, false)] {
            // SAFETY: the machine has AVX-512.
            let rounded = unsafe { Planes::new(&[1.0, x], 2) };
            assert_eq!(rounded.entry(1) == 0.0, zero, "{x}");
            // SAFETY: as above.
            let alone = unsafe { Planes::new(&[x], 1) };
            assert_eq!(alone.entry(0) == 0.0, zero, "{x}");
        }
    }
}
