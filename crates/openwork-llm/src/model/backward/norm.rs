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
    /// given the gradient `dy` of the normalized rows.
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

    /// As [`backward`](Self::backward), for a norm whose factors are not trained.
    pub(super) fn backward_frozen(&self, x: &[f32], dy: &[f32], dx: &mut [f32]) {
        self.backward(x, dy, dx, &mut vec![0.0; self.width()]);
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

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn gradients_equal_finite_differences() {
        for (rows, width) in [(1, 1), (1, 7), (3, 40), (70, 5)] {
            let some = |n: usize, seed: usize| -> Vec<f32> {
                (0..n).map(|i| ((i + seed) * 7919 % 251) as f32 / 100.0 - 1.2).collect()
            };
            let (x, f, w) = (some(rows * width, 1), some(width, 5), some(rows * width, 9));
            let norm = Norm::new(f.clone(), 0.0, 1e-5);
            let (mut dx, mut df) = (vec![0.0; x.len()], vec![0.0; width]);
            norm.backward(&x, &w, &mut dx, &mut df);
            let loss = |x: &[f64], f: &[f64]| -> f64 {
                let row = |(x, w): (&[f64], &[f32])| {
                    let ms: f64 = x.iter().map(|x| x * x).sum::<f64>() / width as f64;
                    let r = (ms + f64::from(1e-5f32)).sqrt().recip();
                    x.iter().zip(f).zip(w).map(|((x, f), w)| x * f * r * f64::from(*w)).sum::<f64>()
                };
                x.chunks(width).zip(w.chunks(width)).map(row).sum()
            };
            let wide = |x: &[f32]| -> Vec<f64> { x.iter().map(|&x| f64::from(x)).collect() };
            let inputs = [wide(&x), wide(&f)];
            for (which, grad) in [&dx, &df].into_iter().enumerate() {
                for (i, &got) in grad.iter().enumerate() {
                    let at = |step: f64| {
                        let mut moved = inputs.clone();
                        moved[which][i] += step;
                        loss(&moved[0], &moved[1])
                    };
                    let want = (at(1e-5) - at(-1e-5)) / 2e-5;
                    assert!(
                        (f64::from(got) - want).abs() <= 1e-4 * (1.0 + want.abs()),
                        "{rows} x {width}, input {which}, entry {i}: {got} for {want}"
                    );
                }
            }
        }
    }
}
