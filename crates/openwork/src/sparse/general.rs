//! Any other spec: kept weights in the order of the tensor, and a code for each
//! scope that says which of its blocks stay.
//!
//! In a file the code of a scope is the bit mask of its blocks or, where that
//! is shorter, the [rank](super::rank) of the combination; codes follow each
//! other without gaps, lowest bit first, in the order of the scopes' numbers.
//! In memory the index is a bit for every weight, rows beginning with a byte:
//! whatever the pattern, a kernel expands eight columns by one byte. Weights
//! outside the domain always stay.

use super::axpy::{self, List};
use super::rank::Ranks;
use super::simd::Value;
use super::{Format, Layout, PartsError, Room, Shape, kept};
use crate::mask::Bits;
use crate::spec::{Coupling, Spec};
use std::ops::Range;

/// Everything else.
pub(super) const FORMAT: Format = Format {
    name: "general",
    summary: "any spec: kept values in order, and a bit mask or a rank for each scope",
    example: "rowwise(50%)",
    fits: |_, rows, cols| Some(Shape::General(General { rows, cols, starts: Vec::new() })),
};

/// Once [`begin`](Self::begin) was called, row `r` has the values from
/// `starts[r]` to `starts[r + 1]`, as many as its mask has bits.
#[derive(Clone, Debug)]
pub(super) struct General {
    rows: usize,
    cols: usize,
    starts: Vec<usize>,
}

/// How a scope's blocks are written.
enum Code {
    Mask,
    Rank(Ranks),
}

/// Stored bytes for each byte of mask that a file may make us allocate: 1 of
/// 1000 channels, say, needs 60.
const MOST_MASK: usize = 256;
/// Bytes of mask that need no reason.
const FREE_MASK: usize = 1 << 20;

/// A scope's code, its bits, and the blocks it is about.
fn code(spec: &Spec, tensor: usize) -> (Code, usize, Range<usize>) {
    let (blocks, keep) = (spec.blocks_per_scope(), spec.keep());
    if spec.coupling() == Coupling::Scopes && spec.tensors().len() > 1 {
        // How many of a scope's blocks this tensor keeps is free.
        let own = spec.own_blocks(tensor);
        return (Code::Mask, own.len(), own);
    }
    match Ranks::new(blocks, keep) {
        Some(ranks) if ranks.bits() < blocks => {
            let bits = ranks.bits();
            (Code::Rank(ranks), bits, 0..blocks)
        }
        _ => (Code::Mask, blocks, 0..blocks),
    }
}

/// Bytes that the codes of all scopes take in a file.
pub(super) fn code_bytes(spec: &Spec, tensor: usize) -> usize {
    (spec.scopes() * code(spec, tensor).1).div_ceil(8)
}

/// The codes of all scopes, from a bit for every block.
pub(super) fn codes(spec: &Spec, tensor: usize, stay: &Bits) -> Vec<u8> {
    let (code, bits, own) = code(spec, tensor);
    let mut bytes = vec![0u8; (spec.scopes() * bits).div_ceil(8)];
    let mut set = |at: usize| bytes[at / 8] |= 1 << (at % 8);
    for scope in 0..spec.scopes() {
        let stays = |block: usize| stay.get(scope * spec.blocks_per_scope() + block);
        match &code {
            Code::Mask => own
                .clone()
                .filter(|&block| stays(block))
                .for_each(|block| set(scope * bits + block - own.start)),
            Code::Rank(ranks) => {
                let rank = ranks.rank(stays);
                (0..bits).filter(|i| rank >> i & 1 == 1).for_each(|i| set(scope * bits + i));
            }
        }
    }
    bytes
}

/// A bit for every block, from the codes of all scopes; blocks of other tensors
/// of coupled scopes are left out.
pub(super) fn decode(spec: &Spec, tensor: usize, bytes: &[u8]) -> Result<Bits, PartsError> {
    let (code, bits, own) = code(spec, tensor);
    let expected = (spec.scopes() * bits).div_ceil(8);
    if bytes.len() != expected {
        return Err(PartsError::Index { expected, found: bytes.len() });
    }
    let get = |at: usize| bytes[at / 8] >> (at % 8) & 1 == 1;
    if (spec.scopes() * bits..bytes.len() * 8).any(get) {
        return Err(PartsError::Damaged("bits after the last scope are set".to_string()));
    }
    let free = own.len() < spec.blocks_per_scope();
    let mut stay = Bits::zeros(spec.blocks());
    for scope in 0..spec.scopes() {
        let first = scope * spec.blocks_per_scope();
        let mut count = 0;
        let mut keep = |block: usize| {
            stay.set(first + block, true);
            count += 1;
        };
        match &code {
            Code::Mask => {
                own.clone().filter(|b| get(scope * bits + b - own.start)).for_each(&mut keep);
            }
            Code::Rank(ranks) => {
                let rank =
                    (0..bits).fold(0, |rank, i| rank | u64::from(get(scope * bits + i)) << i);
                if !ranks.unrank(rank, &mut keep) {
                    return Err(PartsError::Damaged(format!(
                        "scope {scope} has the rank {rank}, and there are fewer combinations"
                    )));
                }
            }
        }
        if count > spec.keep() || (!free && count < spec.keep()) {
            return Err(PartsError::Damaged(format!(
                "{count} blocks of scope {scope} stay, expected {}",
                spec.keep()
            )));
        }
    }
    Ok(stay)
}

/// Refuses a tensor that is too large for what is stored of it.
pub(super) fn plausible(weights: usize, stored: usize) -> Result<(), PartsError> {
    match weights / 8 <= FREE_MASK.max(stored.saturating_mul(MOST_MASK)) {
        true => Ok(()),
        false => Err(PartsError::Sparse { weights, bytes: stored }),
    }
}

impl General {
    /// The index in memory, from a bit for every block.
    pub fn begin(&mut self, spec: &Spec, tensor: usize, stay: &Bits) -> Vec<u8> {
        let index = self.encode(&kept::mask(spec, tensor, stay));
        let mut count = 0;
        self.starts = std::iter::once(0)
            .chain(index.chunks_exact(self.row_bytes().max(1)).map(|row| {
                count += row.iter().map(|byte| byte.count_ones() as usize).sum::<usize>();
                count
            }))
            .collect();
        self.starts.resize(self.rows + 1, count);
        index
    }

    /// Blocks that stay, from the index in memory. A block without a weight of
    /// this tensor stays if the others are fewer than `keep`.
    pub fn stay(&self, spec: &Spec, tensor: usize, index: &[u8]) -> Bits {
        let mut stay = Bits::zeros(spec.blocks());
        let keeps = |offset: usize| {
            let (row, col) = (offset / self.cols, offset % self.cols);
            index[row * self.row_bytes() + col / 8] >> (col % 8) & 1 == 1
        };
        let own = code(spec, tensor).2;
        for scope in 0..spec.scopes() {
            let first = scope * spec.blocks_per_scope();
            let mut empty = Vec::new();
            let mut count = 0;
            for block in own.clone() {
                let element = spec.elements(scope, block).find(|element| element.tensor == tensor);
                match element {
                    Some(element) if keeps(element.offset) => {
                        stay.set(first + block, true);
                        count += 1;
                    }
                    Some(_) => {}
                    None => empty.push(block),
                }
            }
            if own.len() == spec.blocks_per_scope() {
                for block in empty.into_iter().take(spec.keep() - count) {
                    stay.set(first + block, true);
                }
            }
        }
        stay
    }

    fn row_bytes(&self) -> usize {
        self.cols.div_ceil(8)
    }

    fn row<'a, T>(&self, index: &'a [u8], values: &'a [T], row: usize) -> (&'a [u8], &'a [T]) {
        let mask = &index[row * self.row_bytes()..][..self.row_bytes()];
        (mask, &values[self.starts[row]..self.starts[row + 1]])
    }
}

impl Layout for General {
    fn strip(&self) -> usize {
        1
    }

    fn index_len(&self) -> usize {
        self.rows * self.row_bytes()
    }

    fn values_len(&self) -> usize {
        self.starts.last().copied().unwrap_or(0)
    }

    fn encode(&self, mask: &Bits) -> Vec<u8> {
        let mut index = vec![0; self.index_len()];
        for (row, bytes) in index.chunks_exact_mut(self.row_bytes().max(1)).enumerate() {
            for col in 0..self.cols {
                bytes[col / 8] |= u8::from(mask.get(row * self.cols + col)) << (col % 8);
            }
        }
        index
    }

    fn check(&self, _index: &[u8]) -> Result<(), PartsError> {
        Ok(()) // `decode` has checked the codes that it was made of
    }

    fn each(&self, index: &[u8], mut visit: impl FnMut(usize)) {
        for (row, bytes) in index.chunks_exact(self.row_bytes().max(1)).enumerate() {
            for col in 0..self.cols {
                if bytes[col / 8] >> (col % 8) & 1 == 1 {
                    visit(row * self.cols + col);
                }
            }
        }
    }

    fn slow<T: Value>(&self, index: &[u8], values: &[T], strip: usize, x: &[f32], y: &mut [f32]) {
        let (mask, values) = self.row(index, values, strip);
        let mut lanes = [0.0; 8];
        tail(mask, values, x, &mut lanes);
        y.fill(fold(lanes));
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
        for row in (0..S).map(|s| first + s * part) {
            let (mask, values) = self.row(index, values, from + row);
            // SAFETY: as for this function.
            y[row] = unsafe { avx2::dot(mask, values, x) };
        }
    }

    /// `cursor` counts the values of the row before `cols`.
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
        let width = acc.len();
        let (mask, values) = self.row(index, values, strip);
        room.lists.resize_with(1, List::default);
        let list = &mut room.lists[0];
        list.clear();
        for (i, &byte) in mask[cols.start / 8..cols.end.div_ceil(8)].iter().enumerate() {
            let mut left = byte;
            while left != 0 {
                list.at.push(((8 * i + left.trailing_zeros() as usize) * width) as u32);
                left &= left - 1;
            }
        }
        let count = list.at.len();
        list.w.extend(values[*cursor..][..count].iter().map(|v| v.wide()));
        *cursor += count;
        axpy::gather(list, xt, acc, simd);
    }
}

/// Adds the products of a row to the lanes of their columns.
fn tail<T: Value>(mask: &[u8], values: &[T], x: &[f32], lanes: &mut [f32; 8]) {
    let mut values = values.iter();
    for (&byte, x) in mask.iter().zip(x.chunks(8)) {
        let mut left = byte;
        while left != 0 {
            let lane = left.trailing_zeros() as usize;
            // As many values as bits, and no bit beyond the last column.
            if let Some(value) = values.next() {
                lanes[lane] += value.wide() * x[lane];
            }
            left &= left - 1;
        }
    }
}

/// Adds up lanes, halving.
fn fold(lanes: [f32; 8]) -> f32 {
    let four: [f32; 4] = std::array::from_fn(|l| lanes[l] + lanes[l + 4]);
    (four[0] + four[2]) + (four[1] + four[3])
}

#[cfg(target_arch = "x86_64")]
mod avx2 {
    use super::*;
    use std::arch::x86_64::*;

    /// For every byte, which of the next values belongs to each bit that is set.
    static SPREAD: [[i32; 8]; 256] = {
        let mut table = [[0; 8]; 256];
        let mut byte = 0;
        while byte < 256 {
            let (mut bit, mut next) = (0, 0);
            while bit < 8 {
                if byte >> bit & 1 == 1 {
                    table[byte][bit] = next;
                    next += 1;
                }
                bit += 1;
            }
            byte += 1;
        }
        table
    };

    /// A row times `x`.
    ///
    /// # Safety
    ///
    /// The machine has AVX2, FMA and F16C.
    #[target_feature(enable = "avx2,fma,f16c")]
    pub(super) unsafe fn dot<T: Value>(mask: &[u8], values: &[T], x: &[f32]) -> f32 {
        let bits = _mm256_setr_epi32(1, 2, 4, 8, 16, 32, 64, 128);
        let mut sums = [_mm256_setzero_ps(); 2];
        let (mut at, mut i) = (0, 0);
        let whole = x.len() / 8;
        while i < whole && at + 8 <= values.len() {
            let byte = mask[i];
            // SAFETY: eight values from `at` on, eight numbers of x from 8 i on.
            unsafe {
                let next = T::eight(values.as_ptr().add(at));
                let order = _mm256_loadu_si256(SPREAD[usize::from(byte)].as_ptr().cast());
                let set = _mm256_and_si256(_mm256_set1_epi32(i32::from(byte)), bits);
                let set = _mm256_castsi256_ps(_mm256_cmpeq_epi32(set, bits));
                let spread = _mm256_and_ps(_mm256_permutevar8x32_ps(next, order), set);
                let x = _mm256_loadu_ps(x.as_ptr().add(8 * i));
                sums[i % 2] = _mm256_fmadd_ps(spread, x, sums[i % 2]);
            }
            at += byte.count_ones() as usize;
            i += 1;
        }
        let mut lanes = [0.0; 8];
        // SAFETY: room for eight.
        unsafe { _mm256_storeu_ps(lanes.as_mut_ptr(), _mm256_add_ps(sums[0], sums[1])) };
        tail(&mask[i..], &values[at..], &x[8 * i..], &mut lanes);
        fold(lanes)
    }
}
