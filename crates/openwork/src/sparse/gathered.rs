//! Strips of rows that use the same columns: `block (V,C)` with scopes along the rows, and
//! the levels inside it.
//!
//! All rows of a strip keep the same columns. A product gathers these columns of `x` once
//! for the strip and multiplies them by the compacted rows, which are dense or packed in the
//! format of the inner level; the same for the dropped columns if the spec has an `else`.
//! Dense blocks with whole [panels](super::panel) are stored as in [`block`](super::block)
//! and need no gathering.
//! This is V:N:M (`block (64,1) scope (1,8) keep 4 then 2:4`), dense tiles beside 2:4
//! (`block (16,16) scope (1,_) keep 50% else 2:4`), 2:4 inside blocks, and whole columns.
//!
//! A strip has `V` rows, or if `V` exceeds 64 the largest divisor of it that does not. In
//! the index, every strip has a bit per block, lowest first, in `ceil(K / C / 8)` bytes, then
//! its part of the index of the kept side, then of the dropped side. The values of a strip
//! are those of the kept side, then those of the dropped side.

use super::kept::Kept;
use super::kernel::{self, Kernel, Value};
use super::{
    Format, IndexStorage, InputColumns, Layout, Packed, PackedView, PartsError, Scratch, Shape,
    Strips, block, dense, gather, layout, matvec, panel,
};
#[cfg(target_arch = "x86_64")]
use super::{block::SetBits, source::Numbers};
use crate::linalg::{Threads, gemm};
use crate::matrix::{MatrixMut, MatrixRef};
use crate::spec::{Side, Spec};
use std::cell::Cell;
use std::ops::Range;

/// Shared columns, and levels inside them.
pub(super) const FORMAT: Format = Format {
    name: "gathered",
    summary: "blocks of V rows (V at least 8) with scopes along the rows, with or without levels: a bit per block of each strip, then the packed levels",
    example: "block (16,1) scope (1,8) keep 4 then 2:4",
    kernels: "AVX-512, AVX2",
    storage: IndexStorage::Memory,
    fits: plan,
};

/// The fewest rows for which gathering columns pays.
const MIN_ROWS: usize = 8;
/// The most rows of a strip: enough to share the gathered columns, and many tasks.
const MAX_ROWS: usize = 64;
/// Entries after the end of gathered columns that a vector store may overwrite.
const PADDING: usize = 64;

fn plan(spec: &Spec, rows: usize, cols: usize) -> Option<Shape> {
    let [tensor] = spec.tensors() else { return None };
    let &[v, c] = tensor.blocks().tile() else { return None };
    let &[1, scope] = tensor.scope_tile() else { return None };
    let keep = spec.keep();
    let text = format!("block ({v},{c}) scope (1,{scope}) keep {keep}");
    if v < MIN_ROWS || tensor.dims() != [rows, cols] || !super::is_like(&spec.outermost(), &text) {
        return None;
    }
    let tiles = spec.level(Side::Kept).is_none()
        && keep > 0
        && v.is_multiple_of(panel::ROWS)
        && c.is_multiple_of(2);
    let mut sides = Vec::new();
    for side in Side::BOTH {
        let cols = cols / scope * side.pick(keep, scope - keep);
        match spec.level(side) {
            Some(level) => {
                let inner = level.spec();
                if inner.tensors()[0].dims() != [rows, cols] {
                    return None;
                }
                let (format, shape) = Packed::plan(inner, 0);
                if format.storage != IndexStorage::Memory {
                    return None;
                }
                sides.push(Inner { side, cols, shape: Box::new(shape) });
            }
            None if side == Side::Kept && keep > 0 => {
                let shape = match tiles {
                    true => Shape::Block(block::Block::all(rows, cols, [panel::ROWS, c])),
                    false => Shape::Dense(dense::Dense::new(rows, cols)),
                };
                sides.push(Inner { side, cols, shape: Box::new(shape) });
            }
            None => {}
        }
    }
    let fits = |rows: usize| {
        v.is_multiple_of(rows)
            && sides.iter().all(|i| rows.is_multiple_of(layout!(&*i.shape, l => l.strip())))
    };
    let height = (1..=v.min(MAX_ROWS)).rev().find(|&rows| fits(rows))?;
    if tiles {
        let cols = sides[0].cols;
        *sides[0].shape = Shape::Block(block::Block::all(rows, cols, [height, c]));
    }
    let all = Gathered { rows, cols, v, height, c, scope, keep, tiles, sides };
    (height >= MIN_ROWS && !all.sides.is_empty()).then_some(Shape::Gathered(all))
}

/// Holds: `height` divides `v`, `v` divides `rows`, `c * scope` divides `cols`, and the strips
/// of every inner layout divide `height`. With `tiles`, the first side is a `Block` whose strips
/// and blocks are those of the whole, all of them kept.
#[derive(Clone, Debug)]
pub(super) struct Gathered {
    rows: usize,
    cols: usize,
    /// Rows of a block.
    v: usize,
    /// Rows of a strip.
    height: usize,
    /// Columns of a block.
    c: usize,
    /// Blocks of a scope, and how many are kept.
    scope: usize,
    keep: usize,
    /// Whether the first side consists of dense blocks, in panels.
    tiles: bool,
    /// The kept side, then the dropped one, where they are stored.
    sides: Vec<Inner>,
}

/// The compacted matrix of one side, with all rows.
#[derive(Clone, Debug)]
struct Inner {
    side: Side,
    cols: usize,
    shape: Box<Shape>,
}

impl Inner {
    /// The inner strips of some strips with `height` rows.
    fn strips(&self, strips: &Range<usize>, height: usize) -> Range<usize> {
        let each = height / layout!(&*self.shape, l => l.strip());
        strips.start * each..strips.end * each
    }
}

/// The values and index of one side of a strip.
struct StripSide<'a, T> {
    inner: &'a Inner,
    shape: Shape,
    w: PackedView<'a, T>,
}

impl Gathered {
    /// Bytes of a strip's bits.
    fn bytes(&self) -> usize {
        (self.cols / self.c).div_ceil(8)
    }

    fn strips(&self) -> usize {
        self.rows / self.height
    }

    /// The first byte of a strip in the index.
    fn index_start(&self, strip: usize) -> usize {
        let inner = self.sides.iter().map(|inner| {
            let before = inner.strips(&(0..strip), self.height);
            layout!(&*inner.shape, l => l.index_of(before)).len()
        });
        strip * self.bytes() + inner.sum::<usize>()
    }

    /// The first value of a strip.
    fn value_start(&self, strip: usize) -> usize {
        let inner = self.sides.iter().map(|inner| {
            let before = inner.strips(&(0..strip), self.height);
            layout!(&*inner.shape, l => l.values_of(before)).len()
        });
        inner.sum()
    }

    /// The bits of a strip.
    fn bits<'a>(&self, index: &'a [u8], strip: usize) -> &'a [u8] {
        &index[self.index_start(strip)..][..self.bytes()]
    }

    /// The place of a side of a strip in the index.
    fn index_place(&self, strip: usize, side: usize) -> Range<usize> {
        let len = |inner: &Inner| {
            let strips = inner.strips(&(strip..strip + 1), self.height);
            layout!(&*inner.shape, l => l.index_of(strips)).len()
        };
        let before = self.sides[..side].iter().map(len).sum::<usize>();
        let start = self.index_start(strip) + self.bytes() + before;
        start..start + len(&self.sides[side])
    }

    /// The place of a side of a strip in the values.
    fn value_place(&self, strip: usize, side: usize) -> Range<usize> {
        let len = |inner: &Inner| {
            let strips = inner.strips(&(strip..strip + 1), self.height);
            layout!(&*inner.shape, l => l.values_of(strips)).len()
        };
        let before = self.sides[..side].iter().map(len).sum::<usize>();
        let start = self.value_start(strip) + before;
        start..start + len(&self.sides[side])
    }

    /// The index of a side of a strip.
    fn strip_index<'a>(&self, index: &'a [u8], strip: usize, side: usize) -> &'a [u8] {
        &index[self.index_place(strip, side)]
    }

    /// A side of a strip.
    fn strip_side<'a, T>(
        &'a self,
        w: PackedView<'a, T>,
        strip: usize,
        side: usize,
    ) -> StripSide<'a, T> {
        let inner = &self.sides[side];
        let strips = inner.strips(&(strip..strip + 1), self.height);
        let shape = layout!(&*inner.shape, l => Shape::from(l.part(strips)));
        let w = PackedView {
            index: self.strip_index(w.index, strip, side),
            values: &w.values[self.value_place(strip, side)],
        };
        StripSide { inner, shape, w }
    }

    /// The columns of a side of a strip, ascending.
    fn columns(&self, bits: &[u8], side: Side) -> impl Iterator<Item = usize> {
        let c = self.c;
        let wanted = side == Side::Kept;
        (0..self.cols / c)
            .filter(move |block| (bits[block / 8] >> (block % 8) & 1 == 1) == wanted)
            .flat_map(move |block| block * c..(block + 1) * c)
    }

    /// The whole index of a side, from the index of all strips.
    fn side_index(&self, side: usize, index: &[u8]) -> Vec<u8> {
        (0..self.strips()).flat_map(|strip| self.strip_index(index, strip, side).to_vec()).collect()
    }

    /// Takes over what follows from a checked index.
    pub fn accept(&mut self, index: &[u8]) {
        for side in 0..self.sides.len() {
            // Only a bit mask needs it, and levels with one.
            if matches!(*self.sides[side].shape, Shape::BitMask(_) | Shape::Gathered(_)) {
                let own = self.side_index(side, index);
                self.sides[side].shape.accept(&own);
            }
        }
    }

    /// The product of one strip. If the product of the first side is in `y` already, that of
    /// the other is added.
    fn product<T: Value>(
        &self,
        w: PackedView<'_, T>,
        strip: usize,
        x: &[f32],
        y: &mut [f32],
        kernel: Kernel,
        has_first: bool,
    ) {
        thread_local! {
            /// Gathered columns and a second side's sums, kept for the next strip.
            static MEMORY: Cell<[Vec<f32>; 2]> = const { Cell::new([Vec::new(), Vec::new()]) };
        }
        let [mut gathered, mut more] = MEMORY.take();
        let bits = self.bits(w.index, strip);
        let gathered_x = aligned(&mut gathered, x.len() + self.c.max(PADDING));
        for i in usize::from(has_first)..self.sides.len() {
            let part = self.strip_side(w, strip, i);
            let wanted = part.inner.side == Side::Kept;
            gather::gather(bits, wanted, self.c, x, gathered_x, kernel);
            let x = &gathered_x[..part.inner.cols];
            #[cfg(target_arch = "x86_64")]
            if self.sides.len() == 1 {
                kernel::prefetch_streams(part.w.values);
            }
            let y = match i {
                0 => &mut *y,
                _ => {
                    more.resize(y.len(), 0.0);
                    &mut more[..]
                }
            };
            match &part.shape {
                // In streams of its own.
                Shape::Dense(_) if kernel > Kernel::Scalar => T::matvec(part.w.values, x, y),
                shape => {
                    layout!(shape, l => matvec::matvec(l, part.w, 0..y.len(), x, y, kernel));
                }
            }
        }
        if self.sides.len() > 1 {
            y.iter_mut().zip(&more).for_each(|(y, more)| *y += more);
        }
        MEMORY.set([gathered, more]);
    }
}

#[cfg(target_arch = "x86_64")]
impl Gathered {
    /// The products of some strips.
    ///
    /// # Safety
    ///
    /// The machine has AVX2, FMA and F16C, and `kernel`.
    unsafe fn products<T: Value, const S: usize>(
        &self,
        w: PackedView<'_, T>,
        strips: Strips,
        x: &[f32],
        y: &mut [f32],
        kernel: Kernel,
    ) {
        if self.tiles {
            // SAFETY: as for this function.
            unsafe { self.dense_blocks::<T, S>(w, strips, x, y) };
        }
        for s in 0..S {
            let y = &mut y[strips.in_output(s) * self.height..][..self.height];
            self.product(w, strips.get(s), x, y, kernel, self.tiles);
        }
    }

    /// The products of the dense blocks of some strips.
    ///
    /// # Safety
    ///
    /// The machine has AVX2, FMA and F16C.
    #[target_feature(enable = "avx2,fma,f16c")]
    unsafe fn dense_blocks<T: Value, const S: usize>(
        &self,
        w: PackedView<'_, T>,
        strips: Strips,
        x: &[f32],
        y: &mut [f32],
    ) {
        let Shape::Block(block) = &*self.sides[0].shape else { unreachable!("with tiles") };
        let stored =
            std::array::from_fn(|s| Numbers(w.values[self.value_place(strips.get(s), 0)].as_ptr()));
        let kept = std::array::from_fn(|s| SetBits::of(self.bits(w.index, strips.get(s))));
        // SAFETY: every strip has its values; the machine has the kernel.
        unsafe { block.strips_avx2::<_, S>(kept, stored, strips, x, y) }
    }
}

impl Layout for Gathered {
    fn strip(&self) -> usize {
        self.height
    }

    /// Less than that of the parts: the rows of a strip share their columns.
    fn work(&self) -> f64 {
        0.75 * self.sides.iter().map(|inner| layout!(&*inner.shape, l => l.work())).sum::<f64>()
    }

    fn index_len(&self) -> usize {
        self.index_start(self.strips())
    }

    fn values_len(&self) -> usize {
        self.value_start(self.strips())
    }

    fn part(&self, strips: Range<usize>) -> Self {
        let part = |inner: &Inner| {
            let own = inner.strips(&strips, self.height);
            let shape = layout!(&*inner.shape, l => Shape::from(l.part(own)));
            Inner { shape: Box::new(shape), ..*inner }
        };
        Self {
            rows: strips.len() * self.height,
            sides: self.sides.iter().map(part).collect(),
            ..*self
        }
    }

    fn index_of(&self, strips: Range<usize>) -> Range<usize> {
        self.index_start(strips.start)..self.index_start(strips.end)
    }

    fn values_of(&self, strips: Range<usize>) -> Range<usize> {
        self.value_start(strips.start)..self.value_start(strips.end)
    }

    fn encode(&self, kept: &Kept<'_>) -> Vec<u8> {
        let outer = kept.outermost();
        let inner: Vec<Vec<u8>> = self
            .sides
            .iter()
            .map(|inner| match kept.level(inner.side) {
                Some(level) => layout!(&*inner.shape, l => l.encode(&level)),
                None => Vec::new(), // dense
            })
            .collect();
        let mut index = Vec::new();
        for strip in 0..self.strips() {
            let mut bits = vec![0u8; self.bytes()];
            let row = strip * self.height * self.cols;
            for block in 0..self.cols / self.c {
                bits[block / 8] |= u8::from(outer.get(row + block * self.c)) << (block % 8);
            }
            index.extend(bits);
            for (side, whole) in self.sides.iter().zip(&inner) {
                let own = side.strips(&(strip..strip + 1), self.height);
                index.extend(&whole[layout!(&*side.shape, l => l.index_of(own))]);
            }
        }
        index
    }

    fn check(&self, index: &[u8]) -> Result<(), PartsError> {
        let damaged = |why: String| Err(PartsError::Damaged(why));
        let blocks = self.cols / self.c;
        let shared = self.v / self.height;
        for strip in 0..self.strips() {
            let bits = self.bits(index, strip);
            let get = |block: usize| bits[block / 8] >> (block % 8) & 1 == 1;
            if (blocks..8 * bits.len()).any(get) {
                return damaged(format!("bits after the {blocks} blocks of strip {strip} are set"));
            }
            for scope in 0..blocks / self.scope {
                let all = scope * self.scope..(scope + 1) * self.scope;
                let found = all.filter(|&block| get(block)).count();
                if found != self.keep {
                    return damaged(format!(
                        "scope {} keeps {found} blocks, expected {}",
                        strip / shared * (blocks / self.scope) + scope,
                        self.keep
                    ));
                }
            }
            if strip % shared > 0 && bits != self.bits(index, strip - 1) {
                return damaged(format!("strips {} and {strip} of a block differ", strip - 1));
            }
        }
        for (side, inner) in self.sides.iter().enumerate() {
            let own = self.side_index(side, index);
            layout!(&*inner.shape, l => l.check(&own)).map_err(|error| match error {
                PartsError::Damaged(why) => {
                    PartsError::Damaged(format!("{why} (after `{}`)", inner.side.word()))
                }
                other => other,
            })?;
        }
        Ok(())
    }

    fn each(&self, index: &[u8], mut visit: impl FnMut(usize)) {
        for strip in 0..self.strips() {
            let bits = self.bits(index, strip);
            for (side, inner) in self.sides.iter().enumerate() {
                let index = self.strip_index(index, strip, side);
                let columns: Vec<usize> = self.columns(bits, inner.side).collect();
                let first = strip * self.height;
                let visit: &mut dyn FnMut(usize) = &mut |offset| {
                    let (row, col) = (offset / inner.cols, offset % inner.cols);
                    visit((first + row) * self.cols + columns[col]);
                };
                let strips = inner.strips(&(strip..strip + 1), self.height);
                layout!(&*inner.shape, l => l.part(strips).each(index, visit));
            }
        }
    }

    /// Dense blocks of several strips are read side by side.
    fn streams(&self) -> usize {
        if self.tiles { 4 } else { 1 }
    }

    fn run(&self) -> usize {
        self.cols
    }

    fn matvec_scalar<T: Value>(
        &self,
        w: PackedView<'_, T>,
        strip: usize,
        x: &[f32],
        y: &mut [f32],
    ) {
        self.product(w, strip, x, y, Kernel::Scalar, false);
    }

    #[cfg(target_arch = "x86_64")]
    unsafe fn matvec_avx2<T: Value, const S: usize>(
        &self,
        w: PackedView<'_, T>,
        strips: Strips,
        x: &[f32],
        y: &mut [f32],
    ) {
        // SAFETY: as for this function.
        unsafe { self.products::<T, S>(w, strips, x, y, Kernel::Avx2) }
    }

    #[cfg(target_arch = "x86_64")]
    unsafe fn matvec_avx512<T: Value, const S: usize>(
        &self,
        w: PackedView<'_, T>,
        strips: Strips,
        x: &[f32],
        y: &mut [f32],
    ) {
        // SAFETY: a machine with AVX-512 has AVX2.
        unsafe { self.products::<T, S>(w, strips, x, y, Kernel::Avx512) }
    }

    /// Called once for each strip, with all columns.
    fn accumulate<T: Value>(
        &self,
        w: PackedView<'_, T>,
        strip: usize,
        x: InputColumns<'_>,
        _: &mut usize,
        acc: &mut [f32],
        scratch: &mut Scratch,
    ) {
        let width = acc.len() / self.height;
        let bits = self.bits(w.index, strip);
        let mut gathered = Vec::new();
        for side in 0..self.sides.len() {
            let part = self.strip_side(w, strip, side);
            let columns: Vec<usize> = self.columns(bits, part.inner.side).collect();
            if let Shape::Dense(_) = part.shape {
                gathered.clear();
                for &column in &columns {
                    gathered.extend_from_slice(&x.xt[column * width..][..width]);
                }
                let wide = &mut scratch.wide;
                wide.clear();
                wide.extend(part.w.values.iter().map(|value| value.wide()));
                let w = MatrixRef::new(wide, self.height, columns.len());
                let x = MatrixRef::new(&gathered, columns.len(), width);
                let y = MatrixMut::with_stride(acc, self.height, width, width);
                gemm(1.0, y, 1.0, w, x, Threads::One);
                continue;
            }
            layout!(&part.shape, l => {
                let lines = l.strip() * width;
                let mut cursors = vec![0; acc.len() / lines];
                for start in (0..columns.len()).step_by(l.run().max(1)) {
                    let range = start..columns.len().min(start + l.run());
                    gathered.clear();
                    for &column in &columns[range.clone()] {
                        gathered.extend_from_slice(&x.xt[column * width..][..width]);
                    }
                    for (s, (acc, cursor)) in
                        acc.chunks_mut(lines).zip(&mut cursors).enumerate()
                    {
                        let x = InputColumns { range: range.clone(), xt: &gathered };
                        l.accumulate(part.w, s, x, cursor, acc, scratch);
                    }
                }
            });
        }
    }
}

/// `room` entries that begin with a line of memory: stores of whole lines are twice as fast.
fn aligned(memory: &mut Vec<f32>, room: usize) -> &mut [f32] {
    const LINE: usize = 64;
    if memory.len() < room + LINE / 4 {
        memory.resize(room + LINE / 4, 0.0);
    }
    // At most a line, where it can be told at all.
    let first = memory.as_ptr().align_offset(LINE).min(LINE / 4);
    &mut memory[first..first + room]
}
