//! The matrix-matrix product `Y <- beta Y + X W'` with packed `W`.
//!
//! Up to 64 rows of `X` are transposed, so that one weight multiplies a column of
//! them held in a few registers. Columns are processed in runs whose part of `X`
//! stays in the first-level cache while some hundred rows of `W` use it. One thread
//! sums each output row in a fixed order, so the result does not depend on the
//! number of threads.

use super::axpy::{List, MAX_ROWS};
use super::kernel::{Kernel, Value};
use super::{Layout, PackedView};
use crate::matrix::{MatrixMut, MatrixRef};
use rayon::prelude::*;
use std::ops::Range;

/// Columns of `W` in a run: with 64 rows of `X` 16 kB, half of a first-level cache.
pub(super) const COLUMNS: usize = 64;
/// Largest number of rows of `W` in a task.
const TASK_ROWS: usize = 256;

/// Rows and columns of `Y` that are written together: a cache line.
const TILE: usize = 16;

/// A run of columns of the transposed `X`: each has as many entries as a line of
/// the accumulator.
#[derive(Clone, Debug)]
pub(super) struct InputColumns<'a> {
    pub range: Range<usize>,
    pub xt: &'a [f32],
}

/// The kernel of a task and its scratch memory.
pub(super) struct Scratch {
    pub kernel: Kernel,
    /// Kept weights by row.
    pub lists: Vec<List>,
    /// Weights as f32.
    pub wide: Vec<f32>,
}

/// `Y <- beta Y + X W'` for `W` with `rows` rows.
pub(super) fn matmul<L: Layout + Sync, T: Value>(
    layout: &L,
    w: PackedView<'_, T>,
    rows: usize,
    beta: f32,
    x: MatrixRef<'_>,
    mut y: MatrixMut<'_>,
    kernel: Kernel,
) {
    let k = x.cols();
    let strip = layout.strip();
    let share = rows.div_ceil(4 * rayon::current_num_threads()).clamp(1, TASK_ROWS);
    let task_rows = share.div_ceil(strip) * strip;
    for first in (0..x.rows()).step_by(MAX_ROWS) {
        let count = MAX_ROWS.min(x.rows() - first);
        let width = count.div_ceil(8) * 8;
        let xt = transposed(x.part(first, count, 0, k), width);
        let mut out = vec![0.0f32; rows * width];
        out.par_chunks_mut(task_rows * width).enumerate().for_each(|(task, out)| {
            let mut scratch = Scratch { kernel, lists: Vec::new(), wide: Vec::new() };
            let mut cursors = vec![0; (out.len() / width).div_ceil(strip)];
            let run = layout.run().max(1);
            for start in (0..k).step_by(run) {
                let range = start..k.min(start + run);
                let xt = &xt[range.start * width..range.end * width];
                for (s, (acc, cursor)) in
                    out.chunks_mut(strip * width).zip(&mut cursors).enumerate()
                {
                    let strip = task * task_rows / strip + s;
                    let x = InputColumns { range: range.clone(), xt };
                    layout.accumulate(w, strip, x, cursor, acc, &mut scratch);
                }
            }
        });
        let stride = y.row_stride();
        let end = ((first + count - 1) * stride + rows).min(y.data_mut().len());
        let y = &mut y.data_mut()[first * stride..end];
        // A few rows of `Y` at a time share each line of `out` while it is in cache.
        y.par_chunks_mut(TILE * stride.max(1)).enumerate().for_each(|(part, y)| {
            for (o, out) in out.chunks(TILE * width).enumerate() {
                for (t, y) in y.chunks_mut(stride.max(1)).enumerate() {
                    let y = &mut y[TILE * o..][..out.len() / width];
                    for (y, out) in y.iter_mut().zip(out.chunks_exact(width)) {
                        let out = out[part * TILE + t];
                        *y = if beta == 0.0 { out } else { beta * *y + out };
                    }
                }
            }
        });
    }
}

/// The columns of `x`, each padded with zeros to `width` entries.
fn transposed(x: MatrixRef<'_>, width: usize) -> Vec<f32> {
    let mut xt = vec![0.0f32; x.cols() * width];
    xt.par_chunks_mut(COLUMNS * width).enumerate().for_each(|(part, xt)| {
        for t in 0..x.rows() {
            for (c, column) in xt.chunks_exact_mut(width).enumerate() {
                column[t] = x.at(t, part * COLUMNS + c);
            }
        }
    });
    xt
}
