//! `block(b,c)` with `b` a multiple of 8 and `c` even.
//!
//! A strip is one row of blocks. Its kept blocks follow each other from left to
//! right, each as `b / 8` [panels](super::panel) of eight rows and `c` columns
//! from the top. The index has, for each strip, a bit for every block, lowest
//! first, in `ceil(K / c / 8)` bytes whose last bits are zero. Scopes are equal
//! runs of blocks of a strip, so that all strips keep equally many.

use super::simd::Value;
use super::{Format, Layout, PartsError, Room, Shape, panel};
use crate::mask::Bits;
use crate::spec::Spec;
use std::ops::Range;

/// Dense blocks.
pub(super) const FORMAT: Format = Format {
    name: "block",
    summary: "block(b,c), b a multiple of 8 and c even: whole blocks, and a bit for each",
    example: "block(16,16)",
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
    super::is(spec, &text).then(|| {
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
    /// Blocks of a strip.
    fn blocks(&self) -> usize {
        self.cols / self.c
    }

    /// Bytes of a strip's index.
    fn bytes(&self) -> usize {
        self.blocks().div_ceil(8)
    }

    /// The kept blocks of a strip, from left to right.
    fn columns<'a>(&self, index: &'a [u8], strip: usize) -> Ones<'a> {
        Ones::new(&index[strip * self.bytes()..][..self.bytes()])
    }

    fn size(&self) -> usize {
        self.b * self.c
    }
}

/// The places of the bits that are set, rising.
struct Ones<'a> {
    bytes: &'a [u8],
    word: u64,
    base: usize,
    next: usize,
}

impl<'a> Ones<'a> {
    fn new(bytes: &'a [u8]) -> Self {
        Self { bytes, word: 0, base: 0, next: 0 }
    }
}

impl Iterator for Ones<'_> {
    type Item = usize;

    #[inline]
    fn next(&mut self) -> Option<usize> {
        while self.word == 0 {
            if self.next == self.bytes.len() {
                return None;
            }
            let part = &self.bytes[self.next..self.bytes.len().min(self.next + 8)];
            let mut word = [0; 8];
            word[..part.len()].copy_from_slice(part);
            self.word = u64::from_le_bytes(word);
            self.base = self.next * 8;
            self.next += part.len();
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

    fn index_len(&self) -> usize {
        self.rows / self.b * self.bytes()
    }

    fn values_len(&self) -> usize {
        self.rows / self.b * self.kept * self.size()
    }

    fn encode(&self, mask: &Bits) -> Vec<u8> {
        let mut index = vec![0; self.index_len()];
        for (strip, bytes) in index.chunks_exact_mut(self.bytes()).enumerate() {
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
            for block in self.columns(index, strip) {
                if block >= self.blocks() {
                    return Err(PartsError::Damaged(format!(
                        "bits beyond the {} blocks of strip {strip} are set",
                        self.blocks()
                    )));
                }
                counts[block / self.scope] += 1;
            }
            if let Some(scope) = counts.iter().position(|&count| count != keep) {
                return Err(PartsError::Damaged(format!(
                    "{} blocks of scope {} stay, expected {keep}",
                    counts[scope],
                    strip * counts.len() + scope
                )));
            }
        }
        Ok(())
    }

    fn each(&self, index: &[u8], mut visit: impl FnMut(usize)) {
        for strip in 0..self.rows / self.b {
            for block in self.columns(index, strip) {
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

    fn slow<T: Value>(&self, index: &[u8], values: &[T], strip: usize, x: &[f32], y: &mut [f32]) {
        y.fill(0.0);
        let values = &values[strip * self.kept * self.size()..];
        for (block, values) in self.columns(index, strip).zip(values.chunks_exact(self.size())) {
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
    unsafe fn fast<T: Value, const S: usize>(
        &self,
        index: &[u8],
        values: &[T],
        from: usize,
        first: usize,
        part: usize,
        x: &[f32],
        y: &mut [f32],
    ) {
        let strips: [usize; S] = std::array::from_fn(|s| from + first + s * part);
        let size = self.kept * self.size();
        assert!((strips[S - 1] + 1) * size <= values.len(), "values of all strips");
        let panels = self.b / panel::ROWS;
        for panel in (0..panels).step_by(2) {
            // SAFETY: all strips are within the values; the machine has the features.
            unsafe {
                match panels - panel {
                    1 => self.pass::<T, S, 1>(index, values, strips, first, part, panel, x, y),
                    _ => self.pass::<T, S, 2>(index, values, strips, first, part, panel, x, y),
                }
            }
        }
    }

    /// `cursor` counts the kept blocks that lie wholly before `cols`.
    fn accumulate<T: Value>(
        &self,
        index: &[u8],
        values: &[T],
        strip: usize,
        cols: Range<usize>,
        cursor: &mut usize,
        xt: &[f32],
        acc: &mut [f32],
        room: &mut Room,
        simd: bool,
    ) {
        let width = acc.len() / self.b;
        let values = &values[strip * self.kept * self.size()..][..self.kept * self.size()];
        let bytes = &index[strip * self.bytes()..][..self.bytes()];
        let near = cols.start / self.c..cols.end.div_ceil(self.c);
        for block in near.filter(|&block| bytes[block / 8] >> (block % 8) & 1 == 1) {
            let left = (block * self.c).max(cols.start);
            let right = ((block + 1) * self.c).min(cols.end);
            let stored = &values[*cursor * self.size()..][..self.size()];
            for (p, stored) in stored.chunks_exact(panel::ROWS * self.c).enumerate() {
                let inside = left - block * self.c..right - block * self.c;
                let stored = &stored[inside.start * panel::ROWS..inside.end * panel::ROWS];
                room.wide.resize(stored.len(), 0.0);
                panel::widen(stored, &mut room.wide, simd);
                let xt = &xt[(left - cols.start) * width..][..(right - left) * width];
                let rows = std::array::from_fn(|r| (p * panel::ROWS + r) * width);
                panel::multiply(&room.wide, xt, width, rows, acc, simd);
            }
            *cursor += usize::from(right == (block + 1) * self.c);
        }
    }
}

#[cfg(target_arch = "x86_64")]
mod avx2 {
    use super::super::simd;
    use super::*;
    use std::arch::x86_64::*;

    impl Block {
        /// What `P` panels, from `panel` on, of all blocks of some strips give:
        /// their rows of `y`, whose strips are `part` apart from `first` on. The
        /// sums stay in registers, eight of them for four strips.
        ///
        /// # Safety
        ///
        /// The machine has AVX2, FMA and F16C; the strips are within `values`.
        #[inline]
        #[target_feature(enable = "avx2,fma,f16c")]
        #[allow(clippy::too_many_arguments)] // a kernel and its place
        pub(super) unsafe fn pass<T: Value, const S: usize, const P: usize>(
            &self,
            index: &[u8],
            values: &[T],
            strips: [usize; S],
            first: usize,
            part: usize,
            panel: usize,
            x: &[f32],
            y: &mut [f32],
        ) {
            let (size, c) = (panel::ROWS * self.c, self.c);
            let mut columns: [Ones<'_>; S] =
                std::array::from_fn(|s| self.columns(index, strips[s]));
            let mut stored: [*const T; S] = std::array::from_fn(|s| {
                values[strips[s] * self.kept * self.size() + panel * size..].as_ptr()
            });
            let mut sums = [[_mm256_setzero_ps(); P]; S];
            // An index holds `kept` blocks in every strip; there is none after the last.
            let mut next = [0; S];
            for s in 0..S {
                next[s] = columns[s].next().unwrap_or(0);
            }
            for _ in 0..self.kept {
                let mut inputs = [x.as_ptr(); S];
                for s in 0..S {
                    inputs[s] = x[next[s] * c..][..c].as_ptr();
                    // Streams of values push x out of the nearest cache: ask for it ahead.
                    next[s] = columns[s].next().unwrap_or(0);
                    _mm_prefetch::<_MM_HINT_T0>(x.as_ptr().wrapping_add(next[s] * c).cast());
                }
                // Panel after panel: a stream is then read from its beginning to its end.
                for p in 0..P {
                    for column in (0..c).step_by(2) {
                        for s in 0..S {
                            // SAFETY: `c` is even, so both columns are there, of x
                            // and of the panels of this block.
                            unsafe {
                                let at = stored[s].add(p * size + panel::ROWS * column);
                                if (column * panel::ROWS * size_of::<T>()).is_multiple_of(64) {
                                    simd::ahead(at);
                                }
                                let (even, odd) = T::pairs(at);
                                let x0 = _mm256_broadcast_ss(&*inputs[s].add(column));
                                let x1 = _mm256_broadcast_ss(&*inputs[s].add(column + 1));
                                sums[s][p] = _mm256_fmadd_ps(even, x0, sums[s][p]);
                                sums[s][p] = _mm256_fmadd_ps(odd, x1, sums[s][p]);
                            }
                        }
                    }
                }
                for s in 0..S {
                    stored[s] = stored[s].wrapping_add(self.size());
                }
            }
            for s in 0..S {
                let y = &mut y[(first + s * part) * self.b + panel * panel::ROWS..];
                let y = &mut y[..P * panel::ROWS];
                for p in 0..P {
                    // SAFETY: y has eight numbers for each panel.
                    unsafe { _mm256_storeu_ps(y.as_mut_ptr().add(p * panel::ROWS), sums[s][p]) };
                }
            }
        }
    }
}
