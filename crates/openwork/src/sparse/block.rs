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
        let strip = |s: usize| from + first + s * part;
        let mut columns: [Ones<'_>; S] = std::array::from_fn(|s| self.columns(index, strip(s)));
        let strip_size = self.kept * self.size();
        assert!((strip(S - 1) + 1) * strip_size <= values.len(), "values of all strips");
        assert!((first + (S - 1) * part + 1) * self.b <= y.len(), "room for all strips");
        for s in 0..S {
            y[(first + s * part) * self.b..][..self.b].fill(0.0);
        }
        let panels = self.b / panel::ROWS;
        for j in 0..self.kept {
            for s in 0..S {
                // An index holds `kept` blocks in every strip, all within `x`.
                let block = columns[s].next().expect("a checked index");
                let x = x[block * self.c..][..self.c].as_ptr();
                // SAFETY: block j of every strip is within its values by the
                // assertion above; x has `c` numbers; so has y for its rows.
                unsafe {
                    let stored = values.as_ptr().add(strip(s) * strip_size + j * self.size());
                    let y = y.as_mut_ptr().add((first + s * part) * self.b);
                    // Two panels share what they read of x.
                    for panel in (0..panels / 2 * 2).step_by(2) {
                        self.add::<T, 2>(stored, panel, x, y);
                    }
                    if panels % 2 == 1 {
                        self.add::<T, 1>(stored, panels - 1, x, y);
                    }
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
    use super::*;
    use std::arch::x86_64::*;

    impl Block {
        /// Adds what `P` panels of a block give to their rows of a strip.
        ///
        /// # Safety
        ///
        /// The machine has AVX2, FMA and F16C; from `block` on there is a block
        /// with these panels, from `x` on `c` numbers, from `y` on `b`.
        #[inline]
        #[target_feature(enable = "avx2,fma,f16c")]
        pub(super) unsafe fn add<T: Value, const P: usize>(
            &self,
            block: *const T,
            panel: usize,
            x: *const f32,
            y: *mut f32,
        ) {
            let size = panel::ROWS * self.c;
            // SAFETY: by the contract above.
            unsafe {
                let stored = std::array::from_fn(|p| block.wrapping_add((panel + p) * size));
                let sums = panel::sums_avx2::<T, P>(stored, [x; P], self.c);
                for p in 0..P {
                    let y = y.add((panel + p) * panel::ROWS);
                    let sum = _mm256_add_ps(sums[p][0], sums[p][1]);
                    _mm256_storeu_ps(y, _mm256_add_ps(_mm256_loadu_ps(y), sum));
                }
            }
        }
    }
}
