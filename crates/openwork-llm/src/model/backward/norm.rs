//! Backward pass of RMSNorm.
//!
//! With `r = 1 / sqrt(mean(x^2) + eps)`, `y_i = x_i f_i r` of width `n`, and
//! `dy` the gradient of `y`:
//!
//! ```text
//! dx_i = r f_i dy_i - x_i r^3 / n  sum_j dy_j f_j x_j        df_i = sum over rows of dy_i x_i r
//! ```

use crate::model::norm::Norm;
use crate::model::vector;
use rayon::prelude::*;

/// Rows of one task. The sums over rows of `df` are formed per task and then
/// added in order, so they do not depend on the number of threads.
const TASK: usize = 32;

impl Norm {
    /// Adds the gradient of the rows `x` to `dx` and that of the factors to `df`,
    /// given the gradient `dy` of the normalised rows.
    pub(super) fn backward(&self, x: &[f32], dy: &[f32], dx: &mut [f32], df: &mut [f32]) {
        let task = TASK * self.width();
        let partial: Vec<Vec<f32>> = x
            .par_chunks(task)
            .zip(dy.par_chunks(task))
            .zip(dx.par_chunks_mut(task))
            .map(|((x, dy), dx)| {
                let mut df = vec![0.0; self.width()];
                self.backward_rows(x, dy, dx, &mut df);
                df
            })
            .collect();
        partial.iter().for_each(|partial| vector::add(df, partial));
    }

    /// As [`backward`](Self::backward), on this thread alone.
    fn backward_rows(&self, x: &[f32], dy: &[f32], dx: &mut [f32], df: &mut [f32]) {
        let (n, f) = (self.width(), self.factors());
        for ((x, dy), dx) in x.chunks_exact(n).zip(dy.chunks_exact(n)).zip(dx.chunks_exact_mut(n)) {
            let r = self.scale(x);
            let shared = vector::triple_dot(x, dy, f) * r * r * r / n as f32;
            vector::add_scaled_product(dx, f, dy, r);
            vector::add_scaled(dx, x, -shared);
            vector::add_scaled_product(df, x, dy, r);
        }
    }
}
