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

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_gradient_is_that_of_the_loss() {
        let (o, y) = ([1.0f32, 2.0, -1.0, 0.5, 3.0, 1.0], [0.5f32, 2.5, -1.5, 0.0, 0.0, 0.0]);
        let loss = |o: &[f32]| token_loss(&mut o.to_vec(), MatrixRef::new(&y, 2, 3));
        let mut gradient = o.to_vec();
        let value = token_loss(&mut gradient, MatrixRef::new(&y, 2, 3));
        // The second token's reference is zero.
        assert!((value - 0.5 * 0.75 / 8.75).abs() < 1e-7, "{value}");
        for i in 0..6 {
            let at = |step: f32| {
                let mut moved = o;
                moved[i] += step;
                loss(&moved)
            };
            let want = (at(1e-2) - at(-1e-2)) / 2e-2;
            assert!((f64::from(gradient[i]) - want).abs() < 1e-5, "{i}");
        }
    }
}
