//! Bit masks: `N:M`, `rowwise(p%)` and `unstructured(p%)`.
//!
//! The kept values are stored row by row in column order. The index has a bit per
//! weight, lowest bit first; rows begin with a byte, and the bits after the last
//! column are zero. Row offsets follow from the mask and are held in memory only.
//!
//! The kernels do not depend on the pattern. They expand the next values to the
//! columns whose bits are set, 32 columns at a time with AVX-512 (`vpexpandw`), eight
//! with AVX2 (a shuffle from a table of 256 bytes), and multiply all columns. The
//! [`general`](super::general) format has the same layout in memory.

use super::axpy::{self, List};
use super::kept::Kept;
use super::kernel::{Kernel, Value};
use super::{
    Format, IndexStorage, InputColumns, Layout, PackedView, PartsError, Scratch, Shape, Strips,
};
use crate::spec::Spec;
use std::ops::Range;

/// Fine-grained patterns along rows.
pub(super) const FORMAT: Format = Format {
    name: "bitmask",
    summary: "N:M with M = 4, 8, 16, 32, rowwise and unstructured, at density 1/4 or higher: values in order, a bit per weight",
    example: "8:16",
    kernels: "AVX-512, AVX2",
    storage: IndexStorage::Memory,
    fits: plan,
};

/// Below this share of kept weights the codes of the general format are much smaller
/// than a mask.
pub(super) const MIN_DENSITY: f64 = 0.25;

fn plan(spec: &Spec, rows: usize, cols: usize) -> Option<Shape> {
    let (keep, scope) = (spec.keep(), spec.blocks_per_scope());
    if keep >= scope || (keep as f64) < MIN_DENSITY * scope as f64 {
        return None;
    }
    let text = match scope {
        4 | 8 | 16 | 32 => format!("{keep}:{scope}"),
        _ if scope == cols => format!("scope (1,_) keep {keep}"),
        _ if scope == rows * cols => format!("scope (_,_) keep {keep}"),
        _ => return None,
    };
    let scope = Some((scope, keep));
    super::is_like(spec, &text)
        .then(|| Shape::BitMask(BitMask { rows, cols, scope, starts: Vec::new() }))
}

/// Holds, once [`set_starts`](Self::set_starts) was called: row `r` has the values from
/// `starts[r]` to `starts[r + 1]`, one per bit of its mask.
#[derive(Clone, Debug)]
pub(super) struct BitMask {
    rows: usize,
    cols: usize,
    /// Weights of a scope, consecutive in row-major order, and how many of them are
    /// kept; none if the mask is decoded from codes that were checked.
    scope: Option<(usize, usize)>,
    starts: Vec<usize>,
}

impl BitMask {
    /// The layout of a mask that is checked elsewhere.
    pub fn unchecked(rows: usize, cols: usize) -> Self {
        Self { rows, cols, scope: None, starts: Vec::new() }
    }

    /// Computes the row offsets from the mask.
    pub fn set_starts(&mut self, index: &[u8]) {
        let mut count = 0;
        self.starts = std::iter::once(0)
            .chain(index.chunks_exact(self.row_bytes().max(1)).map(|row| {
                count += row.iter().map(|byte| byte.count_ones() as usize).sum::<usize>();
                count
            }))
            .collect();
        self.starts.resize(self.rows + 1, count);
    }

    fn row_bytes(&self) -> usize {
        self.cols.div_ceil(8)
    }

    fn mask<'a>(&self, index: &'a [u8], row: usize) -> &'a [u8] {
        &index[row * self.row_bytes()..][..self.row_bytes()]
    }
}

/// Bits set in `mask` from bit `from` to before bit `to`.
fn count_bits(mask: &[u8], from: usize, to: usize) -> usize {
    let byte = |i: usize| {
        let low = if i == from / 8 { 0xff << (from % 8) } else { 0xff };
        let high = if i == to / 8 { !(0xff << (to % 8)) } else { 0xff };
        (mask[i] & low & high).count_ones() as usize
    };
    (from / 8..to.div_ceil(8)).map(byte).sum()
}

impl Layout for BitMask {
    fn strip(&self) -> usize {
        1
    }

    fn work(&self) -> f64 {
        4.7 * self.values_len() as f64
    }

    fn index_len(&self) -> usize {
        self.rows * self.row_bytes()
    }

    fn values_len(&self) -> usize {
        self.starts.last().copied().unwrap_or(0)
    }

    fn part(&self, strips: Range<usize>) -> Self {
        let first = self.starts[strips.start];
        let starts = &self.starts[strips.start..=strips.end];
        Self {
            rows: strips.len(),
            cols: self.cols,
            scope: self.scope,
            starts: starts.iter().map(|start| start - first).collect(),
        }
    }

    fn index_of(&self, strips: Range<usize>) -> Range<usize> {
        strips.start * self.row_bytes()..strips.end * self.row_bytes()
    }

    fn values_of(&self, strips: Range<usize>) -> Range<usize> {
        self.starts[strips.start]..self.starts[strips.end]
    }

    fn encode(&self, kept: &Kept<'_>) -> Vec<u8> {
        let mask = kept.mask();
        let mut index = vec![0; self.index_len()];
        for (row, bytes) in index.chunks_exact_mut(self.row_bytes().max(1)).enumerate() {
            for col in 0..self.cols {
                bytes[col / 8] |= u8::from(mask.get(row * self.cols + col)) << (col % 8);
            }
        }
        index
    }

    fn check(&self, index: &[u8]) -> Result<(), PartsError> {
        let Some((scope, keep)) = self.scope else { return Ok(()) };
        let damaged = |why: String| Err(PartsError::Damaged(why));
        let mut total = 0;
        for row in 0..self.rows {
            let mask = self.mask(index, row);
            if count_bits(mask, self.cols, 8 * mask.len()) > 0 {
                return damaged(format!("bits after the last column of row {row} are set"));
            }
            if scope > self.cols {
                total += count_bits(mask, 0, self.cols);
                continue;
            }
            for (i, from) in (0..self.cols).step_by(scope).enumerate() {
                let found = count_bits(mask, from, from + scope);
                if found != keep {
                    let number = row * (self.cols / scope) + i;
                    return damaged(format!(
                        "scope {number} keeps {found} blocks, expected {keep}"
                    ));
                }
            }
        }
        match scope > self.cols && total != keep {
            true => damaged(format!("scope 0 keeps {total} blocks, expected {keep}")),
            false => Ok(()),
        }
    }

    fn each(&self, index: &[u8], mut visit: impl FnMut(usize)) {
        for (row, bytes) in index.chunks_exact(self.row_bytes().max(1)).enumerate() {
            for (i, &byte) in bytes.iter().enumerate() {
                let mut left = byte;
                while left != 0 {
                    visit(row * self.cols + 8 * i + left.trailing_zeros() as usize);
                    left &= left - 1;
                }
            }
        }
    }

    fn matvec_scalar<T: Value>(
        &self,
        w: PackedView<'_, T>,
        strip: usize,
        x: &[f32],
        y: &mut [f32],
    ) {
        let mut values = w.values[self.starts[strip]..].iter();
        let mut lanes = [0.0; 8];
        for (&byte, x) in self.mask(w.index, strip).iter().zip(x.chunks(8)) {
            let mut left = byte;
            while left != 0 {
                let lane = left.trailing_zeros() as usize;
                // There is a value per bit, and no bit after the last column.
                if let Some(value) = values.next() {
                    lanes[lane] += value.wide() * x[lane];
                }
                left &= left - 1;
            }
        }
        let four: [f32; 4] = std::array::from_fn(|l| lanes[l] + lanes[l + 4]);
        y.fill((four[0] + four[2]) + (four[1] + four[3]));
    }

    #[cfg(target_arch = "x86_64")]
    #[target_feature(enable = "avx2,fma,f16c,popcnt")]
    unsafe fn matvec_avx2<T: Value, const S: usize>(
        &self,
        w: PackedView<'_, T>,
        strips: Strips,
        x: &[f32],
        y: &mut [f32],
    ) {
        self.rows_with_padding(w, strips, 8, |masks, values| {
            // SAFETY: as for this function; 8 values can be read at every position.
            let sums: [f32; S] = unsafe { x86::dot_avx2(masks, values, x) };
            sums.into_iter().enumerate().for_each(|(s, sum)| y[strips.in_output(s)] = sum);
        });
    }

    #[cfg(target_arch = "x86_64")]
    #[target_feature(enable = "avx512f,avx512bw,avx512vl,avx512vbmi2,avx2,fma,f16c,popcnt")]
    unsafe fn matvec_avx512<T: Value, const S: usize>(
        &self,
        w: PackedView<'_, T>,
        strips: Strips,
        x: &[f32],
        y: &mut [f32],
    ) {
        self.rows_with_padding(w, strips, 32, |masks, values| {
            // SAFETY: as for this function; 32 values can be read at every position.
            let sums: [f32; S] = unsafe { x86::dot_avx512(masks, values, x) };
            sums.into_iter().enumerate().for_each(|(s, sum)| y[strips.in_output(s)] = sum);
        });
    }

    /// `cursor` counts the values of the row before the columns.
    fn accumulate<T: Value>(
        &self,
        w: PackedView<'_, T>,
        strip: usize,
        x: InputColumns<'_>,
        cursor: &mut usize,
        acc: &mut [f32],
        scratch: &mut Scratch,
    ) {
        let mask = &self.mask(w.index, strip)[x.range.start / 8..x.range.end.div_ceil(8)];
        let values = &w.values[self.starts[strip]..self.starts[strip + 1]][*cursor..];
        scratch.lists.resize_with(1, List::default);
        let list = &mut scratch.lists[0];
        *cursor += list_kept(mask, values, acc.len(), list, scratch.kernel);
        axpy::gather(list, x.xt, acc, scratch.kernel);
    }
}

/// Lists the kept weights of some columns as f32, with the offsets of their columns of
/// `X`, `width` entries each; returns how many there are.
fn list_kept<T: Value>(
    mask: &[u8],
    values: &[T],
    width: usize,
    list: &mut List,
    kernel: Kernel,
) -> usize {
    list.clear();
    let count: usize = mask.iter().map(|byte| byte.count_ones() as usize).sum();
    #[cfg(target_arch = "x86_64")]
    if kernel == Kernel::Avx512 {
        // SAFETY: the machine has the kernel.
        unsafe { x86::list_columns(mask, count, width, &mut list.at) };
        list.w.extend(values[..count].iter().map(|value| value.wide()));
        return count;
    }
    let _ = kernel;
    for (i, &byte) in mask.iter().enumerate() {
        let mut left = byte;
        while left != 0 {
            list.at.push(((8 * i + left.trailing_zeros() as usize) * width) as u32);
            left &= left - 1;
        }
    }
    list.w.extend(values[..count].iter().map(|value| value.wide()));
    count
}

#[cfg(target_arch = "x86_64")]
impl BitMask {
    /// Calls `kernel` with the masks of some rows and pointers to their values, from
    /// which `padding` values can be read at every position up to the last. Rows at the
    /// end of the matrix are copied for this.
    ///
    /// # Panics
    ///
    /// If a row is not in the matrix.
    #[inline(always)]
    fn rows_with_padding<T: Value, const S: usize>(
        &self,
        w: PackedView<'_, T>,
        strips: Strips,
        padding: usize,
        kernel: impl FnOnce([&[u8]; S], [*const T; S]),
    ) {
        let mut copies: [Vec<T>; S] = std::array::from_fn(|_| Vec::new());
        let masks = std::array::from_fn(|s| self.mask(w.index, strips.get(s)));
        let mut values = [w.values.as_ptr(); S];
        for s in 0..S {
            let row = strips.get(s);
            let (start, end) = (self.starts[row], self.starts[row + 1]);
            values[s] = w.values[start..end].as_ptr();
            if end + padding > w.values.len() {
                copies[s].extend_from_slice(&w.values[start..end]);
                copies[s].resize(end - start + padding, T::default());
                values[s] = copies[s].as_ptr();
            }
        }
        kernel(masks, values);
    }
}

#[cfg(target_arch = "x86_64")]
mod x86 {
    use super::super::kernel::{self, Value};
    use std::arch::x86_64::*;

    /// The products of `S` rows with `x`, eight columns at a time.
    ///
    /// # Safety
    ///
    /// The machine has AVX2, FMA and F16C. Every mask has `x.len()` bits, rounded up to
    /// bytes with zeros. From every pointer on there are as many values as bits, and
    /// eight more.
    #[inline]
    #[target_feature(enable = "avx2,fma,f16c,popcnt")]
    pub(super) unsafe fn dot_avx2<T: Value, const S: usize>(
        masks: [&[u8]; S],
        mut values: [*const T; S],
        x: &[f32],
    ) -> [f32; S] {
        let mut sums = [[_mm256_setzero_ps(); 2]; S];
        let whole = x.len() / 8;
        assert!(masks.iter().all(|mask| mask.len() == x.len().div_ceil(8)), "a bit per column");
        // SAFETY: by the contract and the assertion.
        unsafe {
            // Two bytes at a time, each with a sum of its own.
            for i in 0..whole / 2 {
                let at = x.as_ptr().add(16 * i);
                let x = [_mm256_loadu_ps(at), _mm256_loadu_ps(at.add(8))];
                for s in 0..S {
                    if i % 4 == 0 {
                        kernel::prefetch(values[s]);
                    }
                    for half in 0..2 {
                        let byte = *masks[s].get_unchecked(2 * i + half);
                        let expanded = T::expand_avx2(values[s], byte);
                        sums[s][half] = _mm256_fmadd_ps(expanded, x[half], sums[s][half]);
                        values[s] = values[s].add(byte.count_ones() as usize);
                    }
                }
            }
            if whole % 2 == 1 {
                let x = _mm256_loadu_ps(x.as_ptr().add(8 * (whole - 1)));
                for s in 0..S {
                    let byte = masks[s][whole - 1];
                    let expanded = T::expand_avx2(values[s], byte);
                    sums[s][0] = _mm256_fmadd_ps(expanded, x, sums[s][0]);
                    values[s] = values[s].add(byte.count_ones() as usize);
                }
            }
        }
        if whole * 8 < x.len() {
            let mut last = [0.0; 8];
            last[..x.len() - 8 * whole].copy_from_slice(&x[8 * whole..]);
            for s in 0..S {
                // SAFETY: as above.
                unsafe {
                    let expanded = T::expand_avx2(values[s], masks[s][whole]);
                    let x = _mm256_loadu_ps(last.as_ptr());
                    sums[s][0] = _mm256_fmadd_ps(expanded, x, sums[s][0]);
                }
            }
        }
        let mut out = [0.0; S];
        for s in 0..S {
            let sum = _mm256_add_ps(sums[s][0], sums[s][1]);
            let four = _mm_add_ps(_mm256_castps256_ps128(sum), _mm256_extractf128_ps::<1>(sum));
            let two = _mm_add_ps(four, _mm_movehl_ps(four, four));
            out[s] = _mm_cvtss_f32(_mm_add_ss(two, _mm_movehdup_ps(two)));
        }
        out
    }

    /// The products of `S` rows with `x`, 32 columns at a time.
    ///
    /// # Safety
    ///
    /// The machine has the features. Every mask has `x.len()` bits, rounded up to bytes
    /// with zeros. From every pointer on there are as many values as bits, and 32 more.
    #[inline]
    #[target_feature(enable = "avx512f,avx512bw,avx512vl,avx512vbmi2,avx2,fma,f16c,popcnt")]
    pub(super) unsafe fn dot_avx512<T: Value, const S: usize>(
        masks: [&[u8]; S],
        mut values: [*const T; S],
        x: &[f32],
    ) -> [f32; S] {
        let mut sums = [[_mm512_setzero_ps(); 2]; S];
        let whole = x.len() / 32;
        assert!(masks.iter().all(|mask| mask.len() == x.len().div_ceil(8)), "a bit per column");
        // SAFETY: by the contract and the assertion.
        unsafe {
            for i in 0..whole {
                let at = x.as_ptr().add(32 * i);
                let x = T::order_avx512([_mm512_loadu_ps(at), _mm512_loadu_ps(at.add(16))]);
                for s in 0..S {
                    let mask = masks[s].as_ptr().add(4 * i).cast::<u32>().read_unaligned();
                    kernel::prefetch(values[s]);
                    let expanded = T::expand_avx512(values[s], mask);
                    sums[s][0] = _mm512_fmadd_ps(expanded[0], x[0], sums[s][0]);
                    sums[s][1] = _mm512_fmadd_ps(expanded[1], x[1], sums[s][1]);
                    values[s] = values[s].add(mask.count_ones() as usize);
                }
            }
            if whole * 32 < x.len() {
                let mut last = [0.0f32; 32];
                last[..x.len() - 32 * whole].copy_from_slice(&x[32 * whole..]);
                let at = last.as_ptr();
                let x = T::order_avx512([_mm512_loadu_ps(at), _mm512_loadu_ps(at.add(16))]);
                for s in 0..S {
                    let mut mask = [0; 4];
                    let left = &masks[s][4 * whole..];
                    mask[..left.len()].copy_from_slice(left);
                    let expanded = T::expand_avx512(values[s], u32::from_le_bytes(mask));
                    sums[s][0] = _mm512_fmadd_ps(expanded[0], x[0], sums[s][0]);
                    sums[s][1] = _mm512_fmadd_ps(expanded[1], x[1], sums[s][1]);
                }
            }
        }
        let mut out = [0.0; S];
        for s in 0..S {
            out[s] = _mm512_reduce_add_ps(_mm512_add_ps(sums[s][0], sums[s][1]));
        }
        out
    }

    /// The offsets `column * width` of the columns whose bits are set, `count` of them.
    ///
    /// # Safety
    ///
    /// The machine has AVX-512F.
    #[target_feature(enable = "avx512f,popcnt")]
    pub(super) unsafe fn list_columns(
        mask: &[u8],
        count: usize,
        width: usize,
        list: &mut Vec<u32>,
    ) {
        const LANES: usize = 16;
        list.resize(count + LANES, 0);
        let lanes = _mm512_setr_epi32(0, 1, 2, 3, 4, 5, 6, 7, 8, 9, 10, 11, 12, 13, 14, 15);
        let step = _mm512_set1_epi32(width as i32);
        let mut at = 0;
        for (i, two) in mask.chunks(2).enumerate() {
            let bits = u16::from(two[0]) | u16::from(two.get(1).copied().unwrap_or(0)) << 8;
            let column = _mm512_add_epi32(lanes, _mm512_set1_epi32((LANES * i) as i32));
            let kept = _mm512_maskz_compress_epi32(bits, _mm512_mullo_epi32(column, step));
            assert!(at <= count, "as many bits as counted");
            // SAFETY: the list has 16 entries from `at` on.
            unsafe { _mm512_storeu_si512(list.as_mut_ptr().add(at).cast(), kept) };
            at += bits.count_ones() as usize;
        }
        list.truncate(count);
    }
}
