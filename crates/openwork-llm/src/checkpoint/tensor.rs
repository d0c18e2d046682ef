//! Tensors of a checkpoint: location in the file, and reading in Hugging Face's
//! row order.

use super::dtype::Dtype;
use super::mapped::Mapped;
use super::mxfp4;
use super::packed::{PackedInfo, Packing};
use openwork::sparse::{Packed, PartsError};
use rayon::prelude::*;
use std::ops::Range;
use std::sync::Arc;

/// Values decoded by one task: 64k, a few hundred microseconds of work.
const PARALLEL: usize = 1 << 16;

/// A tensor's location in a file, validated when the file was opened: `range` is
/// within the file and has the size that `shape` and `dtype` need.
#[derive(Clone, Debug)]
pub(super) struct TensorInfo {
    pub name: String,
    pub shape: Vec<usize>,
    pub dtype: Dtype,
    /// Index into the checkpoint's files.
    pub file: usize,
    pub range: Range<usize>,
    pub order: RowOrder,
    pub convention: Convention,
    /// For a packed tensor, the location of its parts; `shape` is then that of the
    /// dense tensor and `dtype` that of the kept values.
    pub packed: Option<Box<PackedInfo>>,
}

/// What a file stores instead of Hugging Face's value `w`.
#[derive(Clone, Copy, Debug, PartialEq)]
pub(super) enum Convention {
    /// `w`.
    Same,
    /// `w` plus this number: GGUF stores `1 + w` for norms that multiply by `1 + w`.
    Plus(f32),
    /// `-exp(w)`: GGUF stores the decay of a gated delta net, Hugging Face its logarithm.
    MinusExp,
}

impl Convention {
    /// Hugging Face's values, from those of the file.
    fn decode(self, values: &mut [f32]) {
        match self {
            Self::Same => {}
            Self::Plus(offset) => values.iter_mut().for_each(|w| *w -= offset),
            Self::MinusExp => values.iter_mut().for_each(|w| *w = (-*w).ln()),
        }
    }

    /// The file's values, from Hugging Face's.
    pub(super) fn encode(self, values: &mut [f32]) {
        match self {
            Self::Same => {}
            Self::Plus(offset) => values.iter_mut().for_each(|w| *w += offset),
            Self::MinusExp => values.iter_mut().for_each(|w| *w = -w.exp()),
        }
    }
}

/// The order of rows in a file, relative to Hugging Face's.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum RowOrder {
    /// The same.
    AsStored,
    /// The rows of each head are interleaved: ggml's Llama rotates `(2d, 2d + 1)`
    /// where Hugging Face rotates `(d, d + half)`.
    Interleaved { heads: usize },
    /// Rows are columns of a stored matrix: row `r` is column `first + step r` of `width`.
    /// Of a vector, entry `r` is entry `first + step r` of what is stored.
    Columns { first: usize, step: usize, width: usize },
    /// Rows are every `step`-th of a stored matrix, from `first` on; its elements are
    /// MXFP4, whose scales begin at this byte of the file. The tensor's range begins at
    /// the first row of that matrix.
    Mxfp4 { first: usize, step: usize, scales: usize },
    /// The heads among the rows are tiled.
    Tiled(Tiles),
    /// The heads among the columns are tiled.
    TiledColumns(Tiles),
}

/// Tiled heads: Hugging Face has all heads of the first group, then all of the second; the
/// file has the first head of every group, then the second of every group. So ggml repeats
/// the keys of a gated delta net for several heads of values each.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Tiles {
    /// Where the heads begin; the order of what comes before is the same.
    pub from: usize,
    /// Rows or columns of a head.
    pub size: usize,
    /// Number of groups.
    pub groups: usize,
    /// Heads of a group.
    pub group: usize,
}

impl Tiles {
    /// One past the last row or column.
    pub(super) fn end(self) -> usize {
        self.from + self.groups * self.group * self.size
    }

    /// Where the file stores row or column `i`.
    fn stored(self, i: usize) -> usize {
        let Some(i) = i.checked_sub(self.from) else { return i };
        let (head, at) = (i / self.size, i % self.size);
        let (group, head) = (head / self.group, head % self.group);
        self.from + (head * self.groups + group) * self.size + at
    }
}

impl RowOrder {
    /// The row of the file that stores row `row` of `rows`.
    pub(super) fn stored_row(self, row: usize, rows: usize) -> usize {
        match self {
            Self::AsStored | Self::TiledColumns(_) => row,
            Self::Tiled(tiles) => tiles.stored(row),
            Self::Columns { first, step, .. } | Self::Mxfp4 { first, step, .. } => {
                first + step * row
            }
            Self::Interleaved { heads } => {
                let size = rows / heads;
                let (head, i) = (row / size, row % size);
                let half = size / 2;
                head * size + 2 * (i % half) + i / half
            }
        }
    }

    /// Orders the rows of a matrix of `rows` rows, or the elements of a vector, as the file
    /// stores them.
    pub(super) fn encode(self, values: Vec<f32>, rows: usize) -> Vec<f32> {
        let n = values.len() / rows.max(1);
        let mut stored = vec![0.0; values.len()];
        for (row, values) in values.chunks_exact(n.max(1)).enumerate() {
            let out = &mut stored[self.stored_row(row, rows) * n..][..n];
            match self {
                Self::TiledColumns(tiles) => {
                    values.iter().enumerate().for_each(|(i, w)| out[tiles.stored(i)] = *w)
                }
                _ => out.copy_from_slice(values),
            }
        }
        stored
    }
}

/// A tensor of a mapped file, in Hugging Face's row order and orientation.
///
/// Rows are indexed by the first axis; a vector is a single row.
#[derive(Clone, Copy, Debug)]
pub struct Tensor<'a> {
    pub(super) stored: &'a TensorInfo,
    pub(super) data: &'a [u8],
    /// The type its values are rounded to when they are read.
    pub(super) rounded: Option<Dtype>,
}

/// A table of a mapped file that keeps the file open: rows of equal width, which can be
/// narrower than those of the tensor.
#[derive(Clone, Debug)]
pub struct Table {
    pub(super) file: Arc<Mapped>,
    pub(super) stored: TensorInfo,
    pub(super) rounded: Option<Dtype>,
}

impl Table {
    /// Converts a row to f32 into `out`.
    ///
    /// # Panics
    ///
    /// If there is no such row, or its width is different.
    pub fn row(&self, row: usize, out: &mut [f32]) {
        let tensor = Tensor::new(&self.stored, self.file.bytes(), self.rounded);
        tensor.rows_f32(row..row + 1, out);
    }
}

impl<'a> Tensor<'a> {
    /// A tensor of a file with these bytes.
    pub(super) fn new(stored: &'a TensorInfo, file: &'a [u8], rounded: Option<Dtype>) -> Self {
        // A packed tensor's parts have their own ranges.
        let in_parts = stored.packed.is_some() || matches!(stored.order, RowOrder::Mxfp4 { .. });
        let data = if in_parts { file } else { &file[stored.range.clone()] };
        Self { stored, data, rounded }
    }

    /// Hugging Face's name.
    pub fn name(&self) -> &'a str {
        &self.stored.name
    }

    /// Its dims, the fastest-varying last.
    pub fn shape(&self) -> &'a [usize] {
        &self.stored.shape
    }

    /// Its storage type.
    pub fn dtype(&self) -> Dtype {
        self.stored.dtype
    }

    /// Number of elements.
    #[allow(clippy::len_without_is_empty)] // a count, not a collection
    pub fn len(&self) -> usize {
        self.shape().iter().product()
    }

    /// Size in the file, in bytes.
    pub fn stored_bytes(&self) -> usize {
        match &self.stored.packed {
            Some(place) => place.values.len() + place.index.len() + place.scales.len(),
            None => self.dtype().bytes_for(self.len() as u64).unwrap_or(0) as usize,
        }
    }

    /// A copy of the packed weights, if the tensor is packed. They were validated
    /// when the file was opened.
    pub fn packed(&self) -> Result<Option<Packed>, PartsError> {
        self.stored.packed.as_ref().map(|place| place.read(self.data)).transpose()
    }

    /// How the tensor is packed, if it is.
    pub fn packing(&self) -> Option<Packing<'a>> {
        self.stored.packed.as_deref().map(PackedInfo::packing)
    }

    /// Number of rows.
    pub fn rows(&self) -> usize {
        if self.shape().len() < 2 { 1 } else { self.shape()[0] }
    }

    /// Number of elements per row.
    pub fn row_len(&self) -> usize {
        match self.shape() {
            shape if shape.len() < 2 => shape.iter().product(),
            shape => shape[1..].iter().product(),
        }
    }

    /// All values as f32, converted on all threads.
    pub fn to_f32(&self) -> Vec<f32> {
        let mut out = vec![0.0; self.len()];
        let n = self.row_len();
        if self.stored.packed.is_some() || self.rows() <= 1 || n == 0 {
            self.rows_f32(0..self.rows(), &mut out);
            return out;
        }
        let step = PARALLEL.div_ceil(n);
        out.par_chunks_mut(step * n).enumerate().for_each(|(i, out)| {
            self.rows_f32(i * step..i * step + out.len() / n, out);
        });
        out
    }

    /// Converts rows `rows` to f32 into `out`, reading nothing else.
    ///
    /// # Panics
    /// If the range is not within [`rows`](Self::rows), or `out` is not
    /// `rows.len() * row_len()` long.
    pub fn rows_f32(&self, rows: Range<usize>, out: &mut [f32]) {
        let (count, n) = (self.rows(), self.row_len());
        assert!(
            rows.start <= rows.end && rows.end <= count,
            "rows {rows:?} of the {count} in {}",
            self.name()
        );
        assert_eq!(out.len(), rows.len() * n, "room for {rows:?} rows of {n} in {}", self.name());
        if n == 0 || count == 0 {
            return;
        }
        if let Some(place) = &self.stored.packed {
            place.rows_f32(self.data, rows.start * n, n, out);
            if let Some(rounded) = self.rounded {
                rounded.round(out);
            }
            return;
        }
        let bytes = self.data.len() / count;
        let TensorInfo { dtype, order, convention, .. } = *self.stored;
        if let RowOrder::Mxfp4 { scales, .. } = order {
            let blocks = n / mxfp4::BLOCK;
            for (row, out) in rows.zip(out.chunks_exact_mut(n)) {
                let row = order.stored_row(row, count);
                let at = self.stored.range.start + row * blocks * mxfp4::BYTES;
                let scales = &self.data[scales + row * blocks..][..blocks];
                mxfp4::decode(&self.data[at..][..blocks * mxfp4::BYTES], scales, out);
            }
        } else if let (RowOrder::Columns { width, .. }, true) = (order, self.shape().len() > 1) {
            let (first, last) =
                (order.stored_row(rows.start, count), order.stored_row(rows.end, count));
            let size = dtype.block_bytes();
            let mut stored = vec![0.0; last.min(width) - first];
            for k in 0..n {
                let at = (k * width + first) * size;
                dtype.decode(&self.data[at..at + stored.len() * size], &mut stored);
                for i in 0..rows.len() {
                    let step = order.stored_row(i, count) - order.stored_row(0, count);
                    out[i * n + k] = stored[step];
                }
            }
        } else if order == RowOrder::AsStored {
            dtype.decode(&self.data[rows.start * bytes..rows.end * bytes], out);
        } else if let RowOrder::TiledColumns(tiles) = order {
            let mut stored = vec![0.0; n];
            for (row, out) in rows.zip(out.chunks_exact_mut(n)) {
                dtype.decode(&self.data[row * bytes..][..bytes], &mut stored);
                out.iter_mut().enumerate().for_each(|(i, w)| *w = stored[tiles.stored(i)]);
            }
        } else if self.shape().len() < 2 {
            // The order applies to the elements of a bias as to the rows of its matrix.
            let mut as_stored = vec![0.0; self.data.len() / dtype.block_bytes()];
            dtype.decode(self.data, &mut as_stored);
            for (i, out) in out.iter_mut().enumerate() {
                *out = as_stored[order.stored_row(i, n)];
            }
        } else {
            for (row, out) in rows.zip(out.chunks_exact_mut(n)) {
                let at = order.stored_row(row, count) * bytes;
                dtype.decode(&self.data[at..at + bytes], out);
            }
        }
        convention.decode(out);
        if let Some(rounded) = self.rounded {
            rounded.round(out);
        }
    }

    /// The stored little-endian bytes, if they are F32, F16 or BF16 in Hugging
    /// Face's order. They may be unaligned.
    pub fn bytes(&self) -> Option<&'a [u8]> {
        let plain = matches!(self.dtype(), Dtype::F32 | Dtype::F16 | Dtype::BF16);
        let as_is = self.stored.order == RowOrder::AsStored
            && self.stored.convention == Convention::Same
            && self.stored.packed.is_none();
        let exact = self.rounded.is_none_or(|rounded| rounded == self.dtype());
        (plain && as_is && exact).then_some(self.data)
    }

    /// Number of nonzero values, counted on all threads, a few rows at a time.
    pub fn nonzeros(&self) -> u64 {
        let n = self.row_len();
        if n == 0 {
            return 0;
        }
        if let Some(place) = &self.stored.packed {
            return place.nonzeros(self.data);
        }
        let count = |_, w: &[f32]| w.iter().filter(|&&w| w != 0.0).count() as u64;
        self.pieces(PARALLEL.div_ceil(n), count).iter().sum()
    }

    /// The first row that contains NaN or infinity.
    pub fn not_finite(&self) -> Option<usize> {
        let n = self.row_len();
        if n == 0 || self.rows() == 0 {
            return None;
        }
        // Reading any row of a packed tensor unpacks all of it.
        let step = if self.stored.packed.is_some() { self.rows() } else { PARALLEL.div_ceil(n) };
        let first = |row, w: &[f32]| Some(row + w.iter().position(|w| !w.is_finite())? / n);
        self.pieces(step, first).into_iter().flatten().next()
    }

    /// Maps `look` over chunks of `step` rows, given the first row's index and the
    /// chunk's values.
    fn pieces<T: Send>(&self, step: usize, look: impl Fn(usize, &[f32]) -> T + Sync) -> Vec<T> {
        (0..self.rows().div_ceil(step))
            .into_par_iter()
            .map_init(Vec::new, |buffer, i| {
                let rows = i * step..((i + 1) * step).min(self.rows());
                buffer.resize(rows.len() * self.row_len(), 0.0);
                self.rows_f32(rows, buffer);
                look(i * step, buffer)
            })
            .collect()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn numbered(shape: &[usize], order: RowOrder, offset: f32) -> (TensorInfo, Vec<u8>) {
        let len = shape.iter().product::<usize>();
        let data: Vec<u8> = (0..len).flat_map(|i| (i as f32).to_le_bytes()).collect();
        let (name, shape) = ("w".to_string(), shape.to_vec());
        let stored = TensorInfo {
            name,
            shape,
            dtype: Dtype::F32,
            file: 0,
            range: 0..data.len(),
            order,
            convention: if offset == 0.0 { Convention::Same } else { Convention::Plus(offset) },
            packed: None,
        };
        (stored, data)
    }

    #[test]
    fn interleaved_rows_come_out_as_halves() {
        // Two heads of four rows: the file has d, d + half as neighbors.
        let (stored, data) = numbered(&[8, 1], RowOrder::Interleaved { heads: 2 }, 0.0);
        let tensor = Tensor { stored: &stored, data: &data, rounded: None };
        assert_eq!(tensor.to_f32(), [0.0, 2.0, 1.0, 3.0, 4.0, 6.0, 5.0, 7.0]);
        let mut three = [0.0; 3];
        tensor.rows_f32(1..4, &mut three);
        assert_eq!(three, [2.0, 1.0, 3.0]);
        assert!(tensor.bytes().is_none());
        let (stored, data) = numbered(&[8], RowOrder::Interleaved { heads: 2 }, 0.0);
        let bias = Tensor { stored: &stored, data: &data, rounded: None };
        assert_eq!(bias.to_f32(), [0.0, 2.0, 1.0, 3.0, 4.0, 6.0, 5.0, 7.0]);
    }

    #[test]
    fn tiled_heads_come_out_by_group() {
        // After one row, two groups of three heads of two rows.
        let tiles = Tiles { from: 1, size: 2, groups: 2, group: 3 };
        assert_eq!(tiles.end(), 13);
        let (stored, data) = numbered(&[13, 1], RowOrder::Tiled(tiles), 0.0);
        let by_group = Tensor { stored: &stored, data: &data, rounded: None }.to_f32();
        let want = [0, 1, 2, 5, 6, 9, 10, 3, 4, 7, 8, 11, 12].map(|w| w as f32);
        assert_eq!(by_group, want);
        let (stored, data) = numbered(&[2, 13], RowOrder::TiledColumns(tiles), 0.0);
        let columns = Tensor { stored: &stored, data: &data, rounded: None };
        assert_eq!(columns.to_f32()[13..], want.map(|w| w + 13.0));
        assert!(columns.bytes().is_none());
        for (order, rows) in [(RowOrder::Tiled(tiles), 13), (RowOrder::TiledColumns(tiles), 1)] {
            let stored = order.encode(want.to_vec(), rows);
            assert_eq!(stored, (0..13).map(|w| w as f32).collect::<Vec<_>>());
        }
    }

    #[test]
    fn logarithms_of_decays_come_back() {
        let logs = [-3.0f32, 0.0, 1.5];
        let mut values = logs;
        Convention::MinusExp.encode(&mut values);
        assert_eq!(values[1], -1.0);
        Convention::MinusExp.decode(&mut values);
        assert!(values.iter().zip(logs).all(|(a, b)| (a - b).abs() < 1e-6));
    }

    #[test]
    fn the_offset_is_subtracted_once_and_hides_the_bytes() {
        let (stored, data) = numbered(&[3], RowOrder::AsStored, 1.0);
        let tensor = Tensor { stored: &stored, data: &data, rounded: None };
        assert_eq!(tensor.to_f32(), [-1.0, 0.0, 1.0]);
        assert_eq!(tensor.nonzeros(), 2);
        assert!(tensor.bytes().is_none());
    }

    #[test]
    fn rows_together_are_the_tensor() {
        let (stored, data) = numbered(&[300, 7, 50], RowOrder::AsStored, 0.0);
        let tensor = Tensor { stored: &stored, data: &data, rounded: None };
        assert_eq!((tensor.rows(), tensor.row_len()), (300, 350));
        let whole = tensor.to_f32();
        let mut row = vec![0.0; 350];
        for i in 0..300 {
            tensor.rows_f32(i..i + 1, &mut row);
            assert_eq!(row, whole[i * 350..(i + 1) * 350]);
        }
        assert_eq!(tensor.nonzeros(), 300 * 350 - 1);
        assert_eq!(tensor.bytes(), Some(&data[..]));
    }

    #[test]
    fn the_first_row_that_is_not_finite_is_found() {
        let (stored, mut data) = numbered(&[1000, 100], RowOrder::AsStored, 0.0);
        assert_eq!(Tensor { stored: &stored, data: &data, rounded: None }.not_finite(), None);
        for (at, value) in [(99_900, f32::INFINITY), (70_199, f32::NAN)] {
            data[4 * at..][..4].copy_from_slice(&value.to_le_bytes());
            let found = Tensor { stored: &stored, data: &data, rounded: None }.not_finite();
            assert_eq!(found, Some(at / 100));
        }
    }

    #[test]
    fn tensors_without_numbers_are_harmless() {
        for shape in [&[0][..], &[0, 5], &[5, 0], &[0, 0]] {
            let (stored, data) = numbered(shape, RowOrder::AsStored, 0.0);
            let tensor = Tensor { stored: &stored, data: &data, rounded: None };
            assert_eq!(tensor.to_f32(), [0.0; 0]);
            assert_eq!((tensor.nonzeros(), tensor.not_finite()), (0, None));
        }
        let (stored, data) = numbered(&[], RowOrder::AsStored, 0.0);
        assert_eq!(Tensor { stored: &stored, data: &data, rounded: None }.to_f32(), [0.0]);
    }
}
