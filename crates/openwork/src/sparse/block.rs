//! `block(b,c)` with `b` a multiple of 8 and `c` even.
//!
//! A strip is one row of blocks. Its kept blocks are stored from left to right, each
//! as `b / 8` [panels](super::panel) of eight rows and `c` columns from top to bottom.
//! The index has `ceil(K / c / 8)` bytes per strip: a bit per block, lowest first;
//! unused bits are zero. Scopes are equal runs of blocks in a strip, so all strips
//! keep the same number of blocks. Where every block is kept, which happens inside
//! [`gathered`](super::gathered) only, there is no index.

use super::kept::Kept;
use super::kernel::Value;
use super::{
    Format, IndexStorage, InputColumns, Layout, PackedView, PartsError, Scratch, Shape, Strips,
    panel,
};
#[cfg(target_arch = "x86_64")]
use super::{
    rounded::Rounded,
    source::{CodesView, Numbers, Source},
};
use crate::spec::Spec;
use std::ops::Range;

/// Columns that the integer kernel takes at a time; they lie in one block of the rounded
/// vector.
const STEP_COLUMNS: usize = 8;

/// Dense blocks.
pub(super) const FORMAT: Format = Format {
    name: "block",
    summary: "block(b,c), b a multiple of 8 and c even: whole blocks, and a bit per block",
    example: "block(16,16)",
    kernels: "AVX2; AVX-512 VNNI for codes",
    storage: IndexStorage::Memory,
    fits: plan,
};

fn plan(spec: &Spec, rows: usize, cols: usize) -> Option<Shape> {
    let [tensor] = spec.tensors() else { return None };
    let &[b, c] = tensor.blocks().tile() else { return None };
    let &[1, scope] = tensor.scope_tile() else { return None };
    if b % panel::ROWS != 0 || c % 2 != 0 || spec.keep() == 0 {
        return None;
    }
    let text = format!("block ({b},{c}) scope (1,{scope}) keep {}", spec.keep());
    super::is_like(spec, &text).then(|| {
        let kept = cols / c / scope * spec.keep();
        Shape::Block(Block { rows, cols, b, c, scope, kept })
    })
}

/// Holds: `b` divides `rows`, `c * scope` divides `cols`, `b` is a multiple of 8
/// and `c` even.
#[derive(Clone, Debug)]
pub(super) struct Block {
    rows: usize,
    cols: usize,
    b: usize,
    c: usize,
    /// Blocks of a scope.
    scope: usize,
    /// Kept blocks of a strip.
    kept: usize,
}

impl Block {
    /// A matrix of blocks that are all kept.
    ///
    /// # Panics
    ///
    /// If blocks do not have whole panels and an even number of columns, or do not divide
    /// the matrix.
    pub fn all(rows: usize, cols: usize, [b, c]: [usize; 2]) -> Self {
        assert!(b.is_multiple_of(panel::ROWS) && c.is_multiple_of(2), "whole panels");
        assert!(rows.is_multiple_of(b) && cols.is_multiple_of(c), "whole blocks");
        Self { rows, cols, b, c, scope: 1, kept: cols / c }
    }

    /// Blocks of a strip.
    fn blocks(&self) -> usize {
        self.cols / self.c
    }

    /// Bytes of a strip's index.
    fn bytes(&self) -> usize {
        if self.kept == self.blocks() { 0 } else { self.blocks().div_ceil(8) }
    }

    /// The kept blocks of a strip, from left to right.
    fn kept_blocks<'a>(&self, index: &'a [u8], strip: usize) -> SetBits<'a> {
        match self.bytes() {
            0 => SetBits::all(self.blocks()),
            bytes => SetBits::of(&index[strip * bytes..][..bytes]),
        }
    }

    fn size(&self) -> usize {
        self.b * self.c
    }
}

/// The positions of the bits that are set, ascending.
#[derive(Clone)]
pub(super) struct SetBits<'a> {
    /// Empty if all bits are set.
    bytes: &'a [u8],
    /// The number of bits.
    count: usize,
    word: u64,
    base: usize,
    next: usize,
}

impl<'a> SetBits<'a> {
    /// Those of some bytes, the lowest bit of a byte first.
    pub fn of(bytes: &'a [u8]) -> Self {
        Self { bytes, count: 8 * bytes.len(), word: 0, base: 0, next: 0 }
    }

    /// All positions below `count`.
    fn all(count: usize) -> Self {
        Self { bytes: &[], count, word: 0, base: 0, next: 0 }
    }
}

impl Iterator for SetBits<'_> {
    type Item = usize;

    #[inline]
    fn next(&mut self) -> Option<usize> {
        while self.word == 0 {
            if self.next >= self.count {
                return None;
            }
            let left = (self.count - self.next).min(64);
            self.word = if self.bytes.is_empty() {
                u64::MAX >> (64 - left)
            } else {
                let part = &self.bytes[self.next / 8..(self.next + left) / 8];
                let mut word = [0; 8];
                word[..part.len()].copy_from_slice(part);
                u64::from_le_bytes(word)
            };
            self.base = self.next;
            self.next += left;
        }
        let at = self.base + self.word.trailing_zeros() as usize;
        self.word &= self.word - 1;
        Some(at)
    }
}

impl Layout for Block {
    fn strip(&self) -> usize {
        self.b
    }

    fn work(&self) -> f64 {
        1.5 * self.values_len() as f64
    }

    fn index_len(&self) -> usize {
        self.rows / self.b * self.bytes()
    }

    fn values_len(&self) -> usize {
        self.rows / self.b * self.kept * self.size()
    }

    fn part(&self, strips: Range<usize>) -> Self {
        Self { rows: strips.len() * self.b, ..*self }
    }

    fn index_of(&self, strips: Range<usize>) -> Range<usize> {
        strips.start * self.bytes()..strips.end * self.bytes()
    }

    fn values_of(&self, strips: Range<usize>) -> Range<usize> {
        let values = self.kept * self.size();
        strips.start * values..strips.end * values
    }

    fn encode(&self, kept: &Kept<'_>) -> Vec<u8> {
        let mask = kept.mask();
        let mut index = vec![0; self.index_len()];
        for (strip, bytes) in index.chunks_exact_mut(self.bytes().max(1)).enumerate() {
            for block in 0..self.blocks() {
                let stays = mask.get(strip * self.b * self.cols + block * self.c);
                bytes[block / 8] |= u8::from(stays) << (block % 8);
            }
        }
        index
    }

    fn check(&self, index: &[u8]) -> Result<(), PartsError> {
        let keep = self.kept / (self.blocks() / self.scope).max(1);
        for strip in 0..self.rows / self.b {
            let mut counts = vec![0; self.blocks() / self.scope];
            for block in self.kept_blocks(index, strip) {
                if block >= self.blocks() {
                    return Err(PartsError::Damaged(format!(
                        "bits after the {} blocks of strip {strip} are set",
                        self.blocks()
                    )));
                }
                counts[block / self.scope] += 1;
            }
            if let Some(scope) = counts.iter().position(|&count| count != keep) {
                return Err(PartsError::Damaged(format!(
                    "scope {} keeps {} blocks, expected {keep}",
                    strip * counts.len() + scope,
                    counts[scope]
                )));
            }
        }
        Ok(())
    }

    fn each(&self, index: &[u8], mut visit: impl FnMut(usize)) {
        for strip in 0..self.rows / self.b {
            for block in self.kept_blocks(index, strip) {
                let corner = strip * self.b * self.cols + block * self.c;
                for panel in 0..self.b / panel::ROWS {
                    for pair in 0..self.c / 2 {
                        for r in 0..panel::ROWS {
                            let row = corner + (panel * panel::ROWS + r) * self.cols;
                            visit(row + 2 * pair);
                            visit(row + 2 * pair + 1);
                        }
                    }
                }
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
        let values = &values[strip * self.kept * self.size()..];
        for (block, values) in self.kept_blocks(index, strip).zip(values.chunks_exact(self.size()))
        {
            let x = &x[block * self.c..][..self.c];
            let panels = values.chunks_exact(panel::ROWS * self.c);
            for (values, y) in panels.zip(y.chunks_exact_mut(panel::ROWS)) {
                let sums = panel::sums(values, x);
                y.iter_mut().zip(sums).for_each(|(y, sum)| *y += sum);
            }
        }
    }

    #[cfg(target_arch = "x86_64")]
    #[target_feature(enable = "avx2,fma,f16c")]
    unsafe fn matvec_avx2<T: Value, const S: usize>(
        &self,
        w: PackedView<'_, T>,
        strips: Strips,
        x: &[f32],
        y: &mut [f32],
    ) {
        let size = self.kept * self.size();
        assert!((strips.get(S - 1) + 1) * size <= w.values.len(), "values of all strips");
        let stored = std::array::from_fn(|s| Numbers(w.values[strips.get(s) * size..].as_ptr()));
        let kept = std::array::from_fn(|s| self.kept_blocks(w.index, strips.get(s)));
        // SAFETY: all strips are within the values; the machine has the kernel.
        unsafe { self.strips_avx2::<_, S>(kept, stored, strips, x, y) }
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
        let count = self.kept * self.size();
        let stored = std::array::from_fn(|s| w.strip::<BITS>(strips.get(s), count));
        let kept = std::array::from_fn(|s| self.kept_blocks(w.index, strips.get(s)));
        // SAFETY: every strip has its codes; the machine has the kernel.
        unsafe { self.strips_avx2::<_, S>(kept, stored, strips, x, y) }
    }

    fn has_codes_avx2(&self) -> bool {
        true
    }

    #[cfg(target_arch = "x86_64")]
    #[target_feature(enable = "avx512f,avx512bw,avx512vl,avx512vnni,avx2,fma")]
    unsafe fn codes_vnni<const S: usize, const BITS: usize>(
        &self,
        w: CodesView<'_>,
        strips: Strips,
        x: &Rounded,
        y: &mut [f32],
    ) {
        for s in 0..S {
            let y = &mut y[strips.in_output(s) * self.b..][..self.b];
            for (i, y) in y.chunks_mut(2 * panel::ROWS).enumerate() {
                // SAFETY: as for this function; the panels exist.
                unsafe {
                    match y.len() / panel::ROWS {
                        1 => self.integer_panels::<BITS, 1>(w, strips.get(s), 2 * i, x, y),
                        _ => self.integer_panels::<BITS, 2>(w, strips.get(s), 2 * i, x, y),
                    }
                }
            }
        }
    }

    /// Whole steps of eight columns.
    fn has_codes_vnni(&self) -> bool {
        self.c.is_multiple_of(STEP_COLUMNS)
    }

    /// `cursor` counts the kept blocks that lie wholly before `cols`.
    fn accumulate<T: Value>(
        &self,
        PackedView { index, values }: PackedView<'_, T>,
        strip: usize,
        InputColumns { range: cols, xt }: InputColumns<'_>,
        cursor: &mut usize,
        acc: &mut [f32],
        scratch: &mut Scratch,
    ) {
        let width = acc.len() / self.b;
        let values = &values[strip * self.kept * self.size()..][..self.kept * self.size()];
        let bytes = &index[strip * self.bytes()..][..self.bytes()];
        let near = cols.start / self.c..cols.end.div_ceil(self.c);
        let is_kept = |&block: &usize| bytes.is_empty() || bytes[block / 8] >> (block % 8) & 1 == 1;
        for block in near.filter(is_kept) {
            let left = (block * self.c).max(cols.start);
            let right = ((block + 1) * self.c).min(cols.end);
            let stored = &values[*cursor * self.size()..][..self.size()];
            for (p, stored) in stored.chunks_exact(panel::ROWS * self.c).enumerate() {
                let inside = left - block * self.c..right - block * self.c;
                let stored = &stored[inside.start * panel::ROWS..inside.end * panel::ROWS];
                scratch.wide.resize(stored.len(), 0.0);
                panel::widen(stored, &mut scratch.wide, scratch.kernel);
                let xt = &xt[(left - cols.start) * width..][..(right - left) * width];
                let rows = std::array::from_fn(|r| (p * panel::ROWS + r) * width);
                panel::multiply(&scratch.wide, xt, width, rows, acc, scratch.kernel);
            }
            *cursor += usize::from(right == (block + 1) * self.c);
        }
    }
}

#[cfg(target_arch = "x86_64")]
mod avx2 {
    use super::*;
    use std::arch::x86_64::*;

    impl Block {
        /// The rows of `S` strips, given the places in `x` of the blocks that each keeps.
        ///
        /// # Safety
        ///
        /// The machine has AVX2, FMA and F16C; every source has the values of a strip.
        #[inline]
        #[target_feature(enable = "avx2,fma,f16c")]
        pub(in super::super) unsafe fn strips_avx2<V: Source, const S: usize>(
            &self,
            kept: [SetBits<'_>; S],
            stored: [V; S],
            strips: Strips,
            x: &[f32],
            y: &mut [f32],
        ) {
            let panels = self.b / panel::ROWS;
            for panel in (0..panels).step_by(2) {
                // SAFETY: as for this function.
                unsafe {
                    match panels - panel {
                        1 => self.two_panels::<V, S, 1>(&kept, stored, strips, panel, x, y),
                        _ => self.two_panels::<V, S, 2>(&kept, stored, strips, panel, x, y),
                    }
                }
            }
        }

        /// The rows of `P` panels, from `panel` on, of all blocks of some strips. The
        /// sums stay in registers, eight of them for four strips.
        ///
        /// # Safety
        ///
        /// As for [`strips_avx2`](Self::strips_avx2), and the panels exist.
        #[inline]
        #[target_feature(enable = "avx2,fma,f16c")]
        unsafe fn two_panels<V: Source, const S: usize, const P: usize>(
            &self,
            kept: &[SetBits<'_>; S],
            stored: [V; S],
            strips: Strips,
            panel: usize,
            x: &[f32],
            y: &mut [f32],
        ) {
            let (size, c) = (panel::ROWS * self.c, self.c);
            let mut columns = kept.clone();
            let mut sums = [[_mm256_setzero_ps(); P]; S];
            // Every strip has `kept` blocks; there is none after the last.
            let mut next = [0; S];
            for s in 0..S {
                next[s] = columns[s].next().unwrap_or(0);
            }
            for block in 0..self.kept {
                let mut inputs = [x.as_ptr(); S];
                for s in 0..S {
                    inputs[s] = x[next[s] * c..][..c].as_ptr();
                    // Streams of values evict x from the first-level cache.
                    next[s] = columns[s].next().unwrap_or(0);
                    _mm_prefetch::<_MM_HINT_T0>(x.as_ptr().wrapping_add(next[s] * c).cast());
                }
                // Panel after panel, so that a stream is read in order.
                for p in 0..P {
                    for column in (0..c).step_by(2) {
                        for s in 0..S {
                            // SAFETY: `c` is even, so x and the panels of this block have
                            // both columns.
                            unsafe {
                                let first = block * self.size() + (panel + p) * size;
                                let at = first + panel::ROWS * column;
                                stored[s].prefetch(at);
                                let (even, odd) = stored[s].pairs(at);
                                let x0 = _mm256_broadcast_ss(&*inputs[s].add(column));
                                let x1 = _mm256_broadcast_ss(&*inputs[s].add(column + 1));
                                sums[s][p] = _mm256_fmadd_ps(even, x0, sums[s][p]);
                                sums[s][p] = _mm256_fmadd_ps(odd, x1, sums[s][p]);
                            }
                        }
                    }
                }
            }
            for s in 0..S {
                let y = &mut y[strips.in_output(s) * self.b + panel * panel::ROWS..];
                let y = &mut y[..P * panel::ROWS];
                for p in 0..P {
                    // SAFETY: y has eight numbers for each panel.
                    unsafe {
                        let sum = _mm256_mul_ps(sums[s][p], _mm256_set1_ps(V::FACTOR));
                        _mm256_storeu_ps(y.as_mut_ptr().add(p * panel::ROWS), sum);
                    }
                }
            }
        }
    }
}

#[cfg(target_arch = "x86_64")]
mod avx512 {
    use super::super::{kernel, quant::UNIT, vnni};
    use super::*;
    use std::arch::x86_64::*;

    /// Codes that are multiplied at once.
    const STEP: usize = STEP_COLUMNS * panel::ROWS;

    impl Block {
        /// The rows of `P` panels of a strip, from `first` on.
        ///
        /// # Safety
        ///
        /// The machine has AVX-512 F, BW, VL and VNNI; the panels exist, and blocks have
        /// whole steps of eight columns.
        #[inline]
        #[target_feature(enable = "avx512f,avx512bw,avx512vl,avx512vnni,avx2,fma")]
        pub(super) unsafe fn integer_panels<const BITS: usize, const P: usize>(
            &self,
            w: CodesView<'_>,
            strip: usize,
            first: usize,
            x: &Rounded,
            y: &mut [f32],
        ) {
            let (codes, scales) = w.stored(strip, self.kept * self.size());
            assert!(codes.len() >= self.kept * self.size() * BITS / 8, "codes of a strip");
            let shift = (w.codes.group() / UNIT).trailing_zeros();
            let mut sums = [_mm512_setzero_ps(); P];
            for (i, block) in self.kept_blocks(w.index, strip).enumerate() {
                let column = block * self.c;
                let entries = &x.codes[column..][..self.c];
                for c in (0..self.c).step_by(STEP_COLUMNS) {
                    // SAFETY: there are eight entries of the vector.
                    let inputs = unsafe { vnni::four_in_lanes(entries.as_ptr().add(c).cast()) };
                    let start = vnni::start::<BITS>(inputs);
                    let of_x = x.scales[(column + c) / UNIT];
                    for p in 0..P {
                        let value = i * self.size() + ((first + p) * self.c + c) * panel::ROWS;
                        // SAFETY: every step has its codes, and every unit of it a scale.
                        unsafe {
                            let at = codes.as_ptr().add(value * BITS / 8);
                            if BITS == 8 || value.is_multiple_of(2 * STEP) {
                                kernel::prefetch(at);
                            }
                            let products = vnni::products::<BITS>(at, inputs, start);
                            let own = |unit: usize| {
                                let own = scales.get_unchecked(unit >> shift).to_bits();
                                f32::from_bits(u32::from(own) << 16)
                            };
                            let unit = value / UNIT;
                            let both = [own(unit) * of_x, own(unit + 1) * of_x];
                            let scale = vnni::two_scales(both.as_ptr());
                            sums[p] = _mm512_fmadd_ps(products, scale, sums[p]);
                        }
                    }
                }
            }
            for (p, y) in y.chunks_exact_mut(panel::ROWS).enumerate() {
                // SAFETY: eight rows.
                unsafe { _mm256_storeu_ps(y.as_mut_ptr(), vnni::fold(sums[p])) };
            }
        }
    }
}
