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
    planes::Planes,
    source::{CodesView, Numbers, Source},
};
use crate::spec::Spec;
use std::ops::Range;

/// The fewest columns that the integer kernel takes at a time; it takes 16 if it can.
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
    unsafe fn codes_vnni<const S: usize, const BITS: usize, const PLANES: usize>(
        &self,
        w: CodesView<'_>,
        strips: Strips,
        x: &Planes,
        y: &mut [f32],
    ) {
        let panels = self.b / panel::ROWS;
        for first in (0..panels).step_by(2) {
            let two = panels - first > 1;
            // SAFETY: as for this function; the panels exist, and a block has whole steps.
            unsafe {
                match (self.c.is_multiple_of(2 * STEP_COLUMNS), two) {
                    (true, true) => {
                        self.integer_panels::<S, BITS, PLANES, 2, 16>(w, strips, first, x, y);
                    }
                    (true, false) => {
                        self.integer_panels::<S, BITS, PLANES, 1, 16>(w, strips, first, x, y);
                    }
                    (false, true) => {
                        self.integer_panels::<S, BITS, PLANES, 2, 8>(w, strips, first, x, y);
                    }
                    (false, false) => {
                        self.integer_panels::<S, BITS, PLANES, 1, 8>(w, strips, first, x, y);
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
    use super::super::{planes, quant::UNIT, vnni};
    use super::*;
    use std::arch::x86_64::*;

    /// Bits of an index that are decoded at once.
    const BITS_AT_ONCE: usize = 64;

    impl Block {
        /// Writes the first columns of a strip's kept blocks; numbers after them are undefined.
        ///
        /// # Safety
        ///
        /// The machine has AVX-512 F, BW and VBMI2.
        #[target_feature(enable = "avx512f,avx512bw,avx512vbmi2")]
        unsafe fn columns(&self, index: &[u8], strip: usize, columns: &mut [u32]) {
            assert!(columns.len() >= self.kept + BITS_AT_ONCE, "room for what follows the last");
            let bytes = self.bytes();
            if bytes == 0 {
                return (0..).step_by(self.c).zip(columns).for_each(|(c, to)| *to = c);
            }
            let numbers: [u8; BITS_AT_ONCE] = std::array::from_fn(|i| i as u8);
            // SAFETY: 64 bytes.
            let numbers = unsafe { _mm512_loadu_si512(numbers.as_ptr().cast()) };
            let width = _mm512_set1_epi32(self.c as i32);
            let mut count = 0;
            for (i, part) in index[strip * bytes..][..bytes].chunks(8).enumerate() {
                let mut word = [0; 8];
                word[..part.len()].copy_from_slice(part);
                let word = u64::from_le_bytes(word);
                let set = _mm512_maskz_compress_epi8(word, numbers);
                let first = _mm512_set1_epi32((BITS_AT_ONCE * i) as i32);
                let sixteens = [
                    _mm512_castsi512_si128(set),
                    _mm512_extracti32x4_epi32::<1>(set),
                    _mm512_extracti32x4_epi32::<2>(set),
                    _mm512_extracti32x4_epi32::<3>(set),
                ];
                let to = &mut columns[count..][..BITS_AT_ONCE];
                for (sixteen, to) in sixteens.into_iter().zip(to.chunks_exact_mut(16)) {
                    let block = _mm512_add_epi32(_mm512_cvtepu8_epi32(sixteen), first);
                    let column = _mm512_mullo_epi32(block, width);
                    // SAFETY: 16 numbers.
                    unsafe { _mm512_storeu_si512(to.as_mut_ptr().cast(), column) };
                }
                count += word.count_ones() as usize;
            }
            assert_eq!(count, self.kept, "the kept blocks of a strip");
        }

        /// The rows of `P` panels of `S` strips, from panel `first` on, `COLUMNS` columns at a
        /// time.
        ///
        /// # Safety
        ///
        /// The machine has AVX-512 F, BW, VL, VNNI, VBMI and VBMI2; the panels exist, and blocks have
        /// whole steps of `COLUMNS` columns, 8 or 16.
        #[target_feature(enable = "avx512f,avx512bw,avx512vl,avx512vnni,avx2,fma")]
        pub(super) unsafe fn integer_panels<
            const S: usize,
            const BITS: usize,
            const PLANES: usize,
            const P: usize,
            const COLUMNS: usize,
        >(
            &self,
            w: CodesView<'_>,
            strips: Strips,
            first: usize,
            x: &Planes,
            y: &mut [f32],
        ) {
            let entries = x.split::<PLANES>();
            assert!(x.quads() * planes::QUAD_ENTRIES >= self.cols, "a vector as long as a row");
            let mut codes = [std::ptr::null(); S];
            let mut own = [std::ptr::null(); S];
            // The first columns of the kept blocks, strip by strip: found here, so that the
            // loop below has no branches and its sums stay in registers.
            let room = self.kept + BITS_AT_ONCE;
            let mut columns = vec![0u32; S * room];
            for s in 0..S {
                let (stored, scales) = w.stored(strips.get(s), self.kept * self.size());
                assert!(stored.len() >= self.kept * self.size() * BITS / 8, "codes of a strip");
                (codes[s], own[s]) = (stored.as_ptr(), scales.as_ptr());
                // SAFETY: the machine has the instructions.
                unsafe { self.columns(w.index, strips.get(s), &mut columns[s * room..][..room]) };
            }
            let scales = vnni::Scales::new(w.codes.group());
            let part = scales.part::<BITS>(COLUMNS * panel::ROWS / UNIT);
            // Rows 0 to 3 and 4 to 7 of each panel.
            let mut sums = [[[_mm512_setzero_ps(); 2]; P]; S];
            for i in 0..self.kept {
                for c in (0..self.c).step_by(COLUMNS) {
                    for s in 0..S {
                        // SAFETY: the vector has the columns of a block and their scales; every
                        // step has its codes, and every unit of it a scale.
                        unsafe {
                            let column = *columns.get_unchecked(s * room + i) as usize + c;
                            let of_x = *x.scales().get_unchecked(column / planes::BLOCK);
                            let of_x = _mm512_set1_ps(of_x);
                            let inputs = Planes::panel::<PLANES, COLUMNS>(entries, column);
                            let start = vnni::start::<BITS, 1, PLANES>(inputs);
                            for p in 0..P {
                                let value =
                                    i * self.size() + ((first + p) * self.c + c) * panel::ROWS;
                                let at = codes[s].add(value * BITS / 8);
                                vnni::prefetch_codes::<BITS>(at);
                                let panel = vnni::panel_rows(vnni::codes::<BITS>(at, part));
                                let own = scales.load(own[s], value / UNIT, part);
                                let scale = _mm512_mul_ps(own, of_x);
                                for four in 0..2 {
                                    let products = vnni::sums([panel[four]], inputs, start);
                                    sums[s][p][four] = _mm512_fmadd_ps(
                                        _mm512_cvtepi32_ps(products),
                                        scale,
                                        sums[s][p][four],
                                    );
                                }
                            }
                        }
                    }
                }
            }
            for s in 0..S {
                let y = &mut y[strips.in_output(s) * self.b + first * panel::ROWS..];
                let fours = y[..P * panel::ROWS].chunks_exact_mut(4);
                for (y, sums) in fours.zip(sums[s].as_flattened()) {
                    // SAFETY: four rows.
                    unsafe { _mm_storeu_ps(y.as_mut_ptr(), vnni::fold_twice(*sums)) };
                }
            }
        }
    }
}
