//! Rounding of a block of columns, in which the columns not yet rounded compensate every
//! error.
//!
//! Let S be the curvature of the block's columns if all columns of later blocks are free, and
//! L its lower factor on the row's own support, with the columns that are rounded first in
//! the last places. From the last place to the first,
//!
//! ```text
//! S = L L'        c_j = x_j + sum over l > j of L_lj (x_l - q_l) / L_jj
//! ```
//!
//! is the best value of column j given what is rounded, and q_j the nearest `s c` to it. This
//! is the order of operations of Babai (1986), which gives what GPTQ (Frantar and others
//! 2022) computes from the inverse, at the cost of one factorization.
//!
//! Later blocks have the row's support too, which would take a factorization of all of A per
//! row. S is therefore interpolated between none and all of their columns being free, by the
//! density of the mask.

use super::{Strip, Tensor};
use crate::hessian::Curvature;
use crate::linalg::cholesky;
use crate::matrix::Matrix;
use rayon::prelude::*;
use std::ops::Range;
use std::sync::Arc;

/// The blocks of columns of a tensor, in the order they are rounded.
pub(super) struct Blocks {
    /// All columns: those rounded first come last.
    order: Vec<usize>,
    /// Columns of a block; the last may have fewer.
    width: usize,
    /// S of each block, its columns in the order of `order`.
    curvatures: Vec<Matrix<f64>>,
    failed: bool,
}

impl Blocks {
    /// Blocks of about equal width, at most `most` columns each.
    pub fn new(curvature: &Curvature, most: usize, density: f64) -> Self {
        let (k, a) = (curvature.columns(), curvature.matrix());
        let count = k.div_ceil(most.max(1)).max(1);
        let mut order: Vec<usize> = (0..k).collect();
        // Stable: columns of equal curvature are rounded from the last to the first.
        order.sort_by(|&i, &j| curvature.scale()[i].total_cmp(&curvature.scale()[j]));
        let at = |i: usize, j: usize| f64::from(a.row(order[i])[order[j]]);
        let (mut failed, mut factor) = (false, None);
        if count > 1 && density > 0.0 {
            let mut all = Matrix::from_fn(k, k, at);
            failed = cholesky::factor(&mut all, k as f64 * f64::EPSILON).is_err();
            factor = (!failed).then_some(all);
        }
        let mut blocks = Self { order, width: k.div_ceil(count), curvatures: vec![], failed };
        let at = |i: usize, j: usize| f64::from(a.row(blocks.order[i])[blocks.order[j]]);
        blocks.curvatures = (0..blocks.count())
            .map(|b| {
                let range = blocks.range(b);
                let (first, n) = (range.start, range.len());
                let mut s = Matrix::from_fn(n, n, |i, j| at(first + i, first + j));
                if let Some(l) = &factor {
                    // L_bb L_bb' is what is left of A_bb once the columns before are eliminated.
                    let free = l.view().part(first, n, first, n);
                    let (s, beta) = (s.view_mut(), 1.0 - density);
                    crate::linalg::gemm(beta, s, density, free, free.t(), super::Threads::All);
                }
                s
            })
            .collect();
        blocks
    }

    /// Number of blocks.
    pub fn count(&self) -> usize {
        self.order.len().div_ceil(self.width.max(1))
    }

    /// The places of a block in `order`.
    fn range(&self, block: usize) -> Range<usize> {
        let end = self.order.len() - block * self.width;
        end.saturating_sub(self.width)..end
    }

    /// What the user should know.
    pub fn note(&self) -> Option<String> {
        self.failed.then(|| {
            "H is not positive definite in the order of rounding: blocks of columns were rounded \
             without regard to later ones; use more damping"
                .to_string()
        })
    }
}

/// The factor of S on a support: its places in the block, and L row by row.
struct Factor {
    support: Vec<usize>,
    l: Matrix<f64>,
}

impl Factor {
    /// The factor of S on some places of the block.
    fn new(s: &Matrix<f64>, support: Vec<usize>) -> Self {
        let n = support.len();
        let mut l = Matrix::from_fn(n, n, |i, j| s.row(support[i])[support[j]]);
        if cholesky::factor(&mut l, n as f64 * f64::EPSILON).is_err() {
            // S is positive definite but for rounding: these columns depend on each other, and
            // each is rounded by itself. Fits and descent make up for the errors.
            l = Matrix::from_fn(n, n, |i, j| {
                if i == j { s.row(support[i])[support[i]].sqrt() } else { 0.0 }
            });
        }
        Self { support, l }
    }
}

/// The row of a strip while it is rounded.
struct Row {
    factor: Arc<Factor>,
    /// The sums over l of L_lj (x_l - q_l).
    sums: Vec<f64>,
    /// Places of the support that are not yet rounded.
    open: usize,
}

impl Tensor<'_> {
    /// Rounds the columns of a block in all rows: their entries of `codes` are set, their
    /// weights taken from `left`, and they leave the support `keep`.
    pub(super) fn round_block(
        &mut self,
        blocks: &Blocks,
        b: usize,
        x: &mut Matrix,
        left: &mut Matrix,
        keep: &mut Matrix,
        codes: &mut Matrix,
    ) {
        let block = Block {
            columns: &blocks.order[blocks.range(b)],
            s: &blocks.curvatures[b],
            scale: self.curvature.scale(),
            quantizer: self.quantizer,
            cols: self.cols,
        };
        let height = self.strips[0].rows.len() * self.cols;
        (x.data_mut().par_chunks_mut(height), left.data_mut().par_chunks_mut(height))
            .into_par_iter()
            .zip((keep.data_mut().par_chunks_mut(height), codes.data_mut().par_chunks_mut(height)))
            .zip(&mut self.strips)
            // Rows with one support, of columns say, share its factor.
            .for_each_init(
                || None,
                |known, (((x, left), (keep, codes)), strip)| {
                    block.round(strip, StripRows { x, left, keep, codes }, known);
                },
            );
    }
}

/// What the strips share.
struct Block<'a> {
    columns: &'a [usize],
    s: &'a Matrix<f64>,
    scale: &'a [f64],
    quantizer: crate::sparse::Quantizer,
    cols: usize,
}

/// The rows of a strip, in units of the curvature but for the codes.
struct StripRows<'a> {
    x: &'a mut [f32],
    left: &'a mut [f32],
    keep: &'a mut [f32],
    codes: &'a mut [f32],
}

impl Block<'_> {
    fn round(&self, strip: &mut Strip, rows: StripRows<'_>, known: &mut Option<Arc<Factor>>) {
        let StripRows { x, left, keep, codes } = rows;
        let mut group_of = vec![u32::MAX; x.len()];
        for (i, &at) in strip.offsets.iter().enumerate() {
            group_of[at] = (i / strip.group) as u32;
        }
        let mut each: Vec<Row> = Vec::with_capacity(strip.rows.len());
        for keep in keep.chunks(self.cols) {
            let support: Vec<usize> =
                (0..self.columns.len()).filter(|&i| keep[self.columns[i]] != 0.0).collect();
            let factor = match known {
                Some(factor) if factor.support == support => Arc::clone(factor),
                _ => known.insert(Arc::new(Factor::new(self.s, support))).clone(),
            };
            let open = factor.support.len();
            each.push(Row { sums: vec![0.0; open], open, factor });
        }
        for place in (0..self.columns.len()).rev() {
            let j = self.columns[place];
            for (r, row) in each.iter_mut().enumerate() {
                let Some(n) = row.open.checked_sub(1) else { continue };
                if row.factor.support[n] != place {
                    continue;
                }
                row.open = n;
                let at = r * self.cols + j;
                let group = group_of[at] as usize;
                if strip.scales[group].is_nan() {
                    strip.scales[group] = self.group_scale(strip, group, x);
                }
                let (scale, l) = (strip.scales[group], row.factor.l.row(n));
                let best = f64::from(x[at]) + row.sums[n] / l[n];
                let unit = self.scale[j];
                let value = if unit == 0.0 { 0.0 } else { (best / unit) as f32 };
                codes[at] = self.quantizer.code(value, scale);
                let q = f64::from(scale * codes[at]) * unit;
                let error = f64::from(x[at]) - q;
                for (sum, l) in row.sums[..n].iter_mut().zip(l) {
                    *sum += l * error;
                }
                left[at] -= q as f32;
                (x[at], keep[at]) = (0.0, 0.0);
            }
        }
    }

    /// The scale of a group whose weights are all in `x`.
    fn group_scale(&self, strip: &Strip, group: usize, x: &[f32]) -> f32 {
        let members = strip.offsets.chunks(strip.group).nth(group).unwrap_or(&[]);
        let unit = |at: usize| self.scale[at % self.cols];
        let value = |&at: &usize| match unit(at) {
            0.0 => 0.0,
            unit => (f64::from(x[at]) / unit) as f32,
        };
        let values: Vec<f32> = members.iter().map(value).collect();
        let h: Vec<f32> = members.iter().map(|&at| (unit(at) * unit(at)) as f32).collect();
        self.quantizer.scale(&values, &h)
    }
}
