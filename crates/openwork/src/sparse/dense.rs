//! Dense matrices: every weight is kept, and there is no index.
//!
//! For linears that are not pruned and for embeddings, whose values may be
//! [codes](super::quant). Values are in row-major order; a strip is a row.

use super::axpy::{self, List};
use super::kept::Kept;
use super::kernel::Value;
use super::{
    Format, IndexStorage, InputColumns, Layout, PackedView, PartsError, Scratch, Shape, Strips,
};
use crate::linalg::matvec;
use std::ops::Range;

/// Specs that keep everything.
pub(super) const FORMAT: Format = Format {
    name: "dense",
    summary: "specs that keep every weight: values in order, no index",
    example: "keep 100%",
    kernels: "AVX2; AVX-512 VNNI for codes",
    storage: IndexStorage::Memory,
    fits: |spec, rows, cols| {
        let all = spec.keep() == spec.blocks_per_scope() && !spec.has_levels();
        all.then_some(Shape::Dense(Dense { rows, cols }))
    },
};

/// Rows and columns.
#[derive(Clone, Debug)]
pub(super) struct Dense {
    rows: usize,
    cols: usize,
}

impl Dense {
    pub fn new(rows: usize, cols: usize) -> Self {
        Self { rows, cols }
    }

    fn row<'a, T>(&self, values: &'a [T], row: usize) -> &'a [T] {
        &values[row * self.cols..][..self.cols]
    }
}

impl Layout for Dense {
    fn strip(&self) -> usize {
        1
    }

    fn work(&self) -> f64 {
        self.values_len() as f64
    }

    fn index_len(&self) -> usize {
        0
    }

    fn values_len(&self) -> usize {
        self.rows * self.cols
    }

    fn part(&self, strips: Range<usize>) -> Self {
        Self { rows: strips.len(), cols: self.cols }
    }

    fn index_of(&self, _: Range<usize>) -> Range<usize> {
        0..0
    }

    fn values_of(&self, strips: Range<usize>) -> Range<usize> {
        strips.start * self.cols..strips.end * self.cols
    }

    fn encode(&self, _: &Kept<'_>) -> Vec<u8> {
        Vec::new()
    }

    fn check(&self, _: &[u8]) -> Result<(), PartsError> {
        Ok(())
    }

    fn each(&self, _: &[u8], visit: impl FnMut(usize)) {
        (0..self.values_len()).for_each(visit);
    }

    fn matvec_scalar<T: Value>(
        &self,
        w: PackedView<'_, T>,
        strip: usize,
        x: &[f32],
        y: &mut [f32],
    ) {
        matvec::portable(self.row(w.values, strip), x, y);
    }

    #[cfg(target_arch = "x86_64")]
    unsafe fn matvec_avx2<T: Value, const S: usize>(
        &self,
        w: PackedView<'_, T>,
        strips: Strips,
        x: &[f32],
        y: &mut [f32],
    ) {
        for s in 0..S {
            let y = &mut y[strips.in_output(s)..][..1];
            T::matvec(self.row(w.values, strips.get(s)), x, y);
        }
    }

    fn accumulate<T: Value>(
        &self,
        w: PackedView<'_, T>,
        strip: usize,
        x: InputColumns<'_>,
        _: &mut usize,
        acc: &mut [f32],
        scratch: &mut Scratch,
    ) {
        scratch.lists.resize_with(1, List::default);
        let list = &mut scratch.lists[0];
        list.clear();
        let width = acc.len();
        for (i, value) in self.row(w.values, strip)[x.range].iter().enumerate() {
            list.push(value.wide(), i * width);
        }
        axpy::gather(list, x.xt, acc, scratch.kernel);
    }
}
