//! Products with many rows: `Y <- beta Y + X W'`, straight from packed weights.
//!
//! Up to 64 rows of `X` are transposed, so that one weight meets a column of
//! them as a few registers. Columns go by in runs whose part of `X` stays in the
//! first cache while some hundred rows of `W` use it; each output row is summed
//! by one thread in one order, so the result does not depend on their number.

use super::Layout;
use super::axpy::{List, MOST};
use super::simd::Value;
use crate::matrix::{MatrixMut, MatrixRef};
use rayon::prelude::*;

/// Columns of `W` at a time: with 64 rows of `X` 16 kB, half of a first cache.
const COLUMNS: usize = 64;
/// Rows of `W` that one task takes at most.
const TASK_ROWS: usize = 256;

/// Rows and columns of `Y` that are written together: a line of the cache.
const ACROSS: usize = 16;

/// Scratch space of one task.
#[derive(Default)]
pub(super) struct Room {
    /// Kept weights by row.
    pub lists: Vec<List>,
    /// Widened weights.
    pub wide: Vec<f32>,
}

/// `Y <- beta Y + X W'` for `W` with `rows` rows.
pub(super) fn matmul<L: Layout + Sync, T: Value>(
    layout: &L,
    index: &[u8],
    values: &[T],
    rows: usize,
    beta: f32,
    x: MatrixRef<'_>,
    mut y: MatrixMut<'_>,
    simd: bool,
) {
    let k = x.cols();
    let strip = layout.strip();
    let share = rows.div_ceil(4 * rayon::current_num_threads()).clamp(1, TASK_ROWS);
    let task_rows = share.div_ceil(strip) * strip;
    for first in (0..x.rows()).step_by(MOST) {
        let count = MOST.min(x.rows() - first);
        let width = count.div_ceil(8) * 8;
        let xt = transposed(x.part(first, count, 0, k), width);
        let mut out = vec![0.0f32; rows * width];
        out.par_chunks_mut(task_rows * width).enumerate().for_each(|(task, out)| {
            let mut room = Room::default();
            let mut cursors = vec![0; (out.len() / width).div_ceil(strip)];
            for start in (0..k).step_by(COLUMNS) {
                let cols = start..k.min(start + COLUMNS);
                let xt = &xt[cols.start * width..cols.end * width];
                for (s, (acc, cursor)) in
                    out.chunks_mut(strip * width).zip(&mut cursors).enumerate()
                {
                    let strip = task * task_rows / strip + s;
                    let cols = cols.clone();
                    layout.accumulate(index, values, strip, cols, cursor, xt, acc, &mut room, simd);
                }
            }
        });
        let stride = y.row_stride();
        let end = ((first + count - 1) * stride + rows).min(y.data_mut().len());
        let y = &mut y.data_mut()[first * stride..end];
        // A few rows of `Y` at a time: a line of `out` serves them all while it
        // is at hand.
        y.par_chunks_mut(ACROSS * stride.max(1)).enumerate().for_each(|(part, y)| {
            for (o, out) in out.chunks(ACROSS * width).enumerate() {
                for (t, y) in y.chunks_mut(stride.max(1)).enumerate() {
                    let y = &mut y[ACROSS * o..][..out.len() / width];
                    for (y, out) in y.iter_mut().zip(out.chunks_exact(width)) {
                        let out = out[part * ACROSS + t];
                        *y = if beta == 0.0 { out } else { beta * *y + out };
                    }
                }
            }
        });
    }
}

/// The columns of `x`, each with `width` entries, zero beyond the rows there are.
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
