//! Distance of a layer's output from a reference's.

use crate::model::vector;
use openwork::MatrixRef;
use rayon::prelude::*;

/// The mean over tokens of the squared distance to the reference, each token
/// relative to the mean square of its reference, for `[T, n]` outputs `o` and
/// references `y`:
///
/// ```text
/// loss = 1/T sum_t |o_t - y_t|^2 / |y_t|^2        d_t = 2 (o_t - y_t) / (T |y_t|^2)
/// ```
///
/// so that the few tokens with huge states do not drown the others. `o` is
/// replaced by the gradient `d`. A token whose reference is zero counts nothing.
///
/// # Panics
///
/// If the shapes differ.
pub fn token_loss(o: &mut [f32], y: MatrixRef<'_>) -> f64 {
    let (t, n) = (y.rows(), y.cols());
    assert_eq!(o.len(), t * n, "outputs and references differ in shape");
    let losses: Vec<f64> = o
        .par_chunks_mut(n)
        .enumerate()
        .map(|(i, o)| {
            let y = y.row(i);
            let size = vector::sum_of_squares(y);
            if size == 0.0 {
                o.fill(0.0);
                return 0.0;
            }
            vector::add_scaled(o, y, -1.0);
            let loss = f64::from(vector::sum_of_squares(o)) / f64::from(size);
            vector::scale(o, 2.0 / (t as f32 * size));
            loss
        })
        .collect();
    losses.iter().sum::<f64>() / t as f64
}
