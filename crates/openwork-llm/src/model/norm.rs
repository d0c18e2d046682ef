//! Root-mean-square and layer normalization.

use super::vector;
use rayon::prelude::*;

/// Rows normalized by one task.
const TASK: usize = 32;

/// RMS norm: scales rows to unit mean square, then each element by a weight:
///
/// ```text
/// y_i = x_i f_i / sqrt(mean(x^2) + eps)
/// ```
///
/// With a bias it is a layer norm, which subtracts the mean first:
///
/// ```text
/// y_i = (x_i - m) f_i / sqrt(mean((x - m)^2) + eps) + b_i        m = mean(x)
/// ```
#[derive(Clone, Debug)]
pub struct Norm {
    factors: Vec<f32>,
    /// Of a layer norm.
    bias: Option<Vec<f32>>,
    eps: f32,
}

impl Norm {
    /// A norm with factors `offset + weights`.
    pub fn new(mut weights: Vec<f32>, offset: f32, eps: f32) -> Self {
        if offset != 0.0 {
            weights.iter_mut().for_each(|w| *w += offset);
        }
        Self { factors: weights, bias: None, eps }
    }

    /// A layer norm.
    pub fn layer(factors: Vec<f32>, bias: Vec<f32>, eps: f32) -> Self {
        Self { factors, bias: Some(bias), eps }
    }

    /// Width of the rows.
    pub fn width(&self) -> usize {
        self.factors.len()
    }

    /// What each entry is scaled by: the stored weights plus the family's offset.
    pub fn factors(&self) -> &[f32] {
        &self.factors
    }

    /// The factors, to be changed.
    pub fn factors_mut(&mut self) -> &mut [f32] {
        &mut self.factors
    }

    /// The factor `1 / sqrt(mean(x^2) + eps)` of a row.
    pub(super) fn scale(&self, row: &[f32]) -> f32 {
        (vector::sum_of_squares(row) / row.len() as f32 + self.eps).sqrt().recip()
    }

    /// Normalizes the rows of `x` into `out`.
    pub fn apply(&self, x: &[f32], out: &mut [f32]) {
        let d = self.width();
        let task = |(x, out): (&[f32], &mut [f32])| {
            for (x, out) in x.chunks_exact(d).zip(out.chunks_exact_mut(d)) {
                if self.bias.is_some() {
                    out.copy_from_slice(x);
                    self.in_place(out);
                    continue;
                }
                vector::scaled_product(out, x, &self.factors, self.scale(x));
            }
        };
        if x.len() <= TASK * d {
            return task((x, out));
        }
        x.par_chunks(TASK * d).zip(out.par_chunks_mut(TASK * d)).for_each(task);
    }

    /// Normalizes the rows of `x` and adds them to the rows of `sum`.
    pub fn apply_add(&self, x: &mut [f32], sum: &mut [f32]) {
        let d = self.width();
        let task = |(x, sum): (&mut [f32], &mut [f32])| {
            for (x, sum) in x.chunks_exact_mut(d).zip(sum.chunks_exact_mut(d)) {
                self.in_place(x);
                vector::add(sum, x);
            }
        };
        if x.len() <= TASK * d {
            return task((x, sum));
        }
        x.par_chunks_mut(TASK * d).zip(sum.par_chunks_mut(TASK * d)).for_each(task);
    }

    /// Normalizes rows in place.
    pub fn rows_in_place(&self, rows: &mut [f32]) {
        let d = self.width();
        rows.par_chunks_mut(TASK * d)
            .for_each(|rows| rows.chunks_exact_mut(d).for_each(|row| self.in_place(row)));
    }

    /// Normalizes one row in place.
    pub fn in_place(&self, row: &mut [f32]) {
        if let Some(bias) = &self.bias {
            let n = row.len() as f32;
            let mean = vector::sum(row) / n;
            let scale = (vector::sum_of_squares_from(row, mean) / n + self.eps).sqrt().recip();
            return vector::scale_and_shift(row, mean, scale, &self.factors, bias);
        }
        let scale = self.scale(row);
        for (x, f) in row.iter_mut().zip(&self.factors) {
            *x = *x * scale * f;
        }
    }
}
