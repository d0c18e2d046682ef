//! `rows16`: of every two rows 8 apart, one keeps each run of 16 columns.
//!
//! A strip is 16 rows. In every 16 columns its eight row pairs keep a
//! [panel](super::panel) of eight rows: panel row `p` is row `p` of the strip if bit
//! `p` of the index byte is clear, row `p + 8` if it is set. Panels follow each other
//! along the strip; the index has `M / 16` rows of `K / 16` bytes.

use super::kept::Kept;
use super::kernel::Value;
use super::{
    Format, IndexStorage, InputColumns, Layout, PackedView, PartsError, Scratch, Shape, Strips,
    panel,
};
#[cfg(target_arch = "x86_64")]
use super::{
    planes::{self, Planes},
    source::{CodesView, Numbers, Source},
    vnni,
};
#[cfg(target_arch = "x86_64")]
use std::arch::x86_64::*;
use std::ops::Range;

/// The 16-column pattern of the paper.
pub(super) const FORMAT: Format = Format {
    name: "rows16",
    summary: "rows16: panels of 8 rows by 16 columns, and a bit per row pair",
    example: "rows16",
    kernels: "AVX2; AVX-512 VNNI for codes",
    storage: IndexStorage::Memory,
    fits: |spec, rows, cols| {
        super::is_like(spec, "rows16").then_some(Shape::Rows16(Rows16 { rows, cols }))
    },
};

/// Rows of a strip, and columns of a panel.
const SIDE: usize = 16;
/// Values of a panel.
const PANEL: usize = panel::ROWS * SIDE;

/// Holds: both are multiples of 16.
#[derive(Clone, Debug)]
pub(super) struct Rows16 {
    rows: usize,
    cols: usize,
}

impl Rows16 {
    /// Panels of a strip.
    fn panels(&self) -> usize {
        self.cols / SIDE
    }
}

impl Layout for Rows16 {
    fn strip(&self) -> usize {
        SIDE
    }

    fn work(&self) -> f64 {
        1.5 * self.values_len() as f64
    }

    fn index_len(&self) -> usize {
        self.rows / SIDE * self.panels()
    }

    fn values_len(&self) -> usize {
        self.rows / 2 * self.cols
    }

    fn part(&self, strips: Range<usize>) -> Self {
        Self { rows: strips.len() * SIDE, cols: self.cols }
    }

    fn index_of(&self, strips: Range<usize>) -> Range<usize> {
        strips.start * self.panels()..strips.end * self.panels()
    }

    fn values_of(&self, strips: Range<usize>) -> Range<usize> {
        let values = self.panels() * PANEL;
        strips.start * values..strips.end * values
    }

    fn encode(&self, kept: &Kept<'_>) -> Vec<u8> {
        let mask = kept.mask();
        let byte = |strip: usize, panel: usize| {
            let second =
                |p: usize| mask.get((strip * SIDE + p + panel::ROWS) * self.cols + panel * SIDE);
            (0..panel::ROWS).fold(0, |byte, p| byte | u8::from(second(p)) << p)
        };
        (0..self.index_len()).map(|i| byte(i / self.panels(), i % self.panels())).collect()
    }

    fn check(&self, _index: &[u8]) -> Result<(), PartsError> {
        Ok(()) // every byte is valid
    }

    fn each(&self, index: &[u8], mut visit: impl FnMut(usize)) {
        for (i, &rows) in index.iter().enumerate() {
            let (strip, panel) = (i / self.panels(), i % self.panels());
            for place in 0..PANEL {
                let (p, c) =
                    (place % (2 * panel::ROWS) / 2, place / (2 * panel::ROWS) * 2 + place % 2);
                let row = strip * SIDE + p + panel::ROWS * (rows >> p & 1) as usize;
                visit(row * self.cols + panel * SIDE + c);
            }
        }
    }

    fn matvec_scalar<T: Value>(
        &self,
        PackedView { index, values }: PackedView<'_, T>,
        strip: usize,
        x: &[f32],
        y: &mut [f32],
    ) {
        y.fill(0.0);
        let panels = strip * self.panels()..(strip + 1) * self.panels();
        let values = &values[panels.start * PANEL..panels.end * PANEL];
        let panels = values.chunks_exact(PANEL).zip(x.chunks_exact(SIDE)).zip(&index[panels]);
        for ((values, x), &rows) in panels {
            for (p, sum) in panel::sums(values, x).into_iter().enumerate() {
                y[p + panel::ROWS * (rows >> p & 1) as usize] += sum;
            }
        }
    }

    #[cfg(target_arch = "x86_64")]
    #[target_feature(enable = "avx2,fma,f16c")]
    unsafe fn matvec_avx2<T: Value, const S: usize>(
        &self,
        PackedView { index, values }: PackedView<'_, T>,
        strips: Strips,
        x: &[f32],
        y: &mut [f32],
    ) {
        let count = self.panels() * PANEL;
        assert!((strips.get(S - 1) + 1) * count <= values.len(), "values of all strips");
        let stored = std::array::from_fn(|s| Numbers(values[strips.get(s) * count..].as_ptr()));
        // SAFETY: as for this function; every strip has its values.
        unsafe { self.strips_avx2::<_, S>(index, stored, strips, x, y) }
    }

    #[cfg(target_arch = "x86_64")]
    #[target_feature(enable = "avx2,fma,f16c")]
    unsafe fn codes_avx2<const S: usize, const BITS: usize>(
        &self,
        w: CodesView<'_>,
        strips: Strips,
        x: &[f32],
        y: &mut [f32],
    ) {
        let count = self.panels() * PANEL;
        let stored = std::array::from_fn(|s| w.strip::<BITS>(strips.get(s), count));
        // SAFETY: as for this function; every strip has its codes.
        unsafe { self.strips_avx2::<_, S>(w.index, stored, strips, x, y) }
    }

    fn has_codes_avx2(&self) -> bool {
        true
    }

    #[cfg(target_arch = "x86_64")]
    #[target_feature(enable = "avx512f,avx512bw,avx512vl,avx512vnni,avx2,fma")]
    unsafe fn codes_vnni<const S: usize, const BITS: usize, const PLANES: usize>(
        &self,
        w: CodesView<'_>,
        strips: Strips,
        x: &Planes,
        y: &mut [f32],
    ) {
        let panels = self.panels();
        assert!(x.quads() * planes::QUAD_ENTRIES >= panels * SIDE, "a vector as long as a row");
        let entries = x.split::<PLANES>();
        let mut codes = [std::ptr::null(); S];
        let mut own = [std::ptr::null(); S];
        let mut rows: [&[u8]; S] = [&[]; S];
        for s in 0..S {
            let strip = strips.get(s);
            let (stored, scales) = w.stored(strip, panels * PANEL);
            assert!(stored.len() >= panels * PANEL * BITS / 8, "codes of a strip");
            (codes[s], own[s]) = (stored.as_ptr(), scales.as_ptr());
            rows[s] = &w.index[strip * panels..][..panels];
        }
        let scales = vnni::Scales::new(w.codes.group());
        let part = scales.part::<BITS>(vnni::QUAD);
        // Rows 0 to 3, 4 to 7, 8 to 11 and 12 to 15 of each strip.
        let mut sums = [[_mm512_setzero_ps(); 4]; S];
        for p in 0..panels {
            let of_x = _mm512_set1_ps(x.scales()[p * SIDE / planes::BLOCK]);
            // SAFETY: 16 entries of the vector; every strip has a panel's codes, which are a
            // quad, and its scales.
            unsafe {
                let inputs = Planes::panel::<PLANES, SIDE>(entries, p * SIDE);
                let start = vnni::start::<BITS, 1, PLANES>(inputs);
                for s in 0..S {
                    let at = codes[s].add(p * PANEL * BITS / 8);
                    vnni::prefetch_codes::<BITS>(at);
                    let panel = vnni::panel_rows(vnni::codes::<BITS>(at, part));
                    let unit = p * vnni::QUAD;
                    let scale = _mm512_mul_ps(scales.load(own[s], unit, part), of_x);
                    let second = u16::from(rows[s][p]);
                    // A bit for each of four rows, four times.
                    let second = [(second & 15) * 0x1111, (second >> 4) * 0x1111];
                    for (four, &second) in second.iter().enumerate() {
                        let products = vnni::sums([panel[four]], inputs, start);
                        let products = _mm512_cvtepi32_ps(products);
                        let [upper, lower] = [four, four + 2].map(|i| sums[s][i]);
                        sums[s][four] = _mm512_mask3_fmadd_ps(products, scale, upper, !second);
                        sums[s][four + 2] = _mm512_mask3_fmadd_ps(products, scale, lower, second);
                    }
                }
            }
        }
        for s in 0..S {
            let y = &mut y[strips.in_output(s) * SIDE..][..SIDE];
            for (sums, y) in sums[s].iter().zip(y.chunks_exact_mut(4)) {
                // SAFETY: four rows.
                unsafe { _mm_storeu_ps(y.as_mut_ptr(), vnni::fold_twice(*sums)) };
            }
        }
    }

    fn has_codes_vnni(&self) -> bool {
        true
    }

    fn accumulate<T: Value>(
        &self,
        PackedView { index, values }: PackedView<'_, T>,
        strip: usize,
        InputColumns { range: cols, xt }: InputColumns<'_>,
        _cursor: &mut usize,
        acc: &mut [f32],
        scratch: &mut Scratch,
    ) {
        let width = acc.len() / SIDE;
        let panels = cols.start / SIDE..cols.end / SIDE;
        let index = &index[strip * self.panels()..][panels.clone()];
        let values =
            &values[strip * self.panels() * PANEL..][panels.start * PANEL..panels.end * PANEL];
        scratch.wide.resize(values.len(), 0.0);
        panel::widen(values, &mut scratch.wide, scratch.kernel);
        for (i, &rows) in index.iter().enumerate() {
            let rows =
                std::array::from_fn(|p| (p + panel::ROWS * (rows >> p & 1) as usize) * width);
            let wide = &scratch.wide[i * PANEL..][..PANEL];
            let xt = &xt[i * SIDE * width..][..SIDE * width];
            panel::multiply(wide, xt, width, rows, acc, scratch.kernel);
        }
    }
}

#[cfg(target_arch = "x86_64")]
impl Rows16 {
    /// The rows of `S` strips.
    ///
    /// # Safety
    ///
    /// The machine has AVX2, FMA and F16C; every source has the values of a strip.
    #[inline]
    #[target_feature(enable = "avx2,fma,f16c")]
    unsafe fn strips_avx2<P: Source, const S: usize>(
        &self,
        index: &[u8],
        stored: [P; S],
        strips: Strips,
        x: &[f32],
        y: &mut [f32],
    ) {
        let panels = self.panels();
        let chosen: [*const u8; S] =
            std::array::from_fn(|s| index[strips.get(s) * panels..][..panels].as_ptr());
        assert_eq!(x.len(), panels * SIDE, "a vector as long as a row");
        let mut rows = [[_mm256_setzero_ps(); 2]; S];
        let bits = _mm256_setr_epi32(1, 2, 4, 8, 16, 32, 64, 128);
        for i in 0..panels {
            // SAFETY: panel i of every strip is within its values by the contract, x has its 16 numbers and every strip its byte. With a
            // bounds check here the sums would be spilled to memory.
            let (sums, bytes) = unsafe {
                let bytes: [u8; S] = std::array::from_fn(|s| *chosen[s].add(i));
                let x = x.as_ptr().add(i * SIDE);
                (panel::sums_avx2::<P, S>(stored, i * PANEL, [x; S], SIDE), bytes)
            };
            for s in 0..S {
                let sum = _mm256_add_ps(sums[s][0], sums[s][1]);
                let byte = _mm256_set1_epi32(i32::from(bytes[s]));
                let second = _mm256_cmpeq_epi32(_mm256_and_si256(byte, bits), bits);
                let second = _mm256_castsi256_ps(second);
                rows[s][0] = _mm256_add_ps(rows[s][0], _mm256_andnot_ps(second, sum));
                rows[s][1] = _mm256_add_ps(rows[s][1], _mm256_and_ps(second, sum));
            }
        }
        for s in 0..S {
            let y = &mut y[strips.in_output(s) * SIDE..][..SIDE];
            // SAFETY: sixteen entries.
            unsafe {
                let factor = _mm256_set1_ps(P::FACTOR);
                _mm256_storeu_ps(y.as_mut_ptr(), _mm256_mul_ps(rows[s][0], factor));
                let second = y.as_mut_ptr().add(panel::ROWS);
                _mm256_storeu_ps(second, _mm256_mul_ps(rows[s][1], factor));
            }
        }
    }
}
