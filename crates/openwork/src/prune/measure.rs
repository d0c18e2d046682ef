//! Measures the output error of new weights.

use rayon::prelude::*;

use crate::linalg::{Threads, gemm};
use crate::matrix::{Matrix, MatrixRef};

/// Rows per parallel task.
const ROWS: usize = 64;

/// The change of the outputs and their size:
///
/// ```text
/// change = tr(D H D')        size = tr(W H W')        D = What - W
/// ```
///
/// Both are sums over rows, so the errors of tensors pruned together add up.
///
/// ```
/// use openwork::{Matrix, prune::measure::{OutputError, output_error}};
/// let h = Matrix::from_vec(2, 2, vec![1.0, 0.0, 0.0, 4.0]);
/// let w = Matrix::from_vec(1, 2, vec![3.0, 2.0]);
/// let new = Matrix::from_vec(1, 2, vec![3.0, 0.0]);
/// let e = output_error(w.view(), new.view(), h.view());
/// assert_eq!(e, OutputError { change: 16.0, size: 25.0 });
/// assert_eq!(e.relative(), 0.8);
/// ```
#[derive(Clone, Copy, Debug, Default, PartialEq)]
pub struct OutputError {
    /// tr(D H D').
    pub change: f64,
    /// tr(W H W').
    pub size: f64,
}

impl OutputError {
    /// sqrt(change / size). With `size = 0` (all-zero weights or inputs) it is
    /// 0 if nothing changed and infinite otherwise.
    pub fn relative(self) -> f64 {
        if self.change == 0.0 {
            0.0
        } else {
            // Infinite if size is 0.
            (self.change / self.size).sqrt()
        }
    }
}

impl std::iter::Sum for OutputError {
    fn sum<I: Iterator<Item = Self>>(parts: I) -> Self {
        parts.fold(Self::default(), |a, b| Self {
            change: a.change + b.change,
            size: a.size + b.size,
        })
    }
}

/// Measures `new` against `w` with the undamped H, in f64.
///
/// H is positive semidefinite, so a term that rounding makes negative counts as zero.
/// Rows are summed in a fixed order: the result does not depend on the number of
/// threads.
///
/// # Panics
///
/// If the shapes differ.
pub fn output_error(w: MatrixRef<'_>, new: MatrixRef<'_>, h: MatrixRef<'_, f64>) -> OutputError {
    assert_eq!(
        (w.rows(), w.cols()),
        (new.rows(), new.cols()),
        "old and new weights differ in shape"
    );
    measured((w.rows(), w.cols()), h, |i, j| w.at(i, j), |i, j| new.at(i, j))
}

/// The error of every row; their sum is [`output_error`], up to rounding. Without H, that of
/// the weights (H = I).
///
/// # Panics
///
/// If the shapes differ.
pub fn row_errors(
    w: MatrixRef<'_>,
    new: MatrixRef<'_>,
    h: Option<MatrixRef<'_, f64>>,
) -> Vec<OutputError> {
    let row = |i: usize| {
        let (w, new) = (w.part(i, 1, 0, w.cols()), new.part(i, 1, 0, new.cols()));
        match h {
            Some(h) => output_error(w, new, h),
            None => {
                let square = |x: f64| x * x;
                let columns =
                    || (0..w.cols()).map(|j| (f64::from(w.at(0, j)), f64::from(new.at(0, j))));
                OutputError {
                    change: columns().map(|(w, new)| square(new - w)).sum(),
                    size: columns().map(|(w, _)| square(w)).sum(),
                }
            }
        }
    };
    (0..w.rows()).into_par_iter().map(row).collect()
}

/// The same for weights given as functions of row and column.
pub(super) fn measured(
    (rows, cols): (usize, usize),
    h: MatrixRef<'_, f64>,
    w: impl Fn(usize, usize) -> f32 + Sync,
    new: impl Fn(usize, usize) -> f32 + Sync,
) -> OutputError {
    let change = quadratic(rows, cols, h, |i, j| f64::from(new(i, j)) - f64::from(w(i, j)));
    let size = quadratic(rows, cols, h, |i, j| f64::from(w(i, j)));
    OutputError { change, size }
}

/// tr(V H V') of the matrix whose entries are `v(i, j)`.
pub(super) fn quadratic(
    rows: usize,
    k: usize,
    h: MatrixRef<'_, f64>,
    v: impl Fn(usize, usize) -> f64 + Sync,
) -> f64 {
    assert_eq!((h.rows(), h.cols()), (k, k), "H does not fit {k} columns");
    let panels: Vec<f64> = (0..rows.div_ceil(ROWS))
        .into_par_iter()
        .map(|p| {
            let top = p * ROWS;
            let v = Matrix::from_fn(ROWS.min(rows - top), k, |i, j| v(top + i, j));
            let mut vh = Matrix::zeros(v.rows(), k);
            gemm(0.0, vh.view_mut(), 1.0, v.view(), h, Threads::One);
            v.data().iter().zip(vh.data()).map(|(a, b)| a * b).sum()
        })
        .collect();
    panels.iter().sum::<f64>().max(0.0)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::linalg::tests::random;

    #[test]
    fn the_error_is_the_change_of_the_outputs() {
        for (rows, k) in [(0, 3), (3, 0), (1, 1), (5, 7), (2 * ROWS + 1, 9)] {
            let (w, new, x) = (random(rows, k, 1), random(rows, k, 2), random(50, k, 3));
            let x = Matrix::from_fn(50, k, |i, j| f64::from(x.row(i)[j]));
            let mut h = Matrix::zeros(k, k);
            gemm(0.0, h.view_mut(), 1.0, x.view().t(), x.view(), Threads::One);
            let outputs = |w: &dyn Fn(usize, usize) -> f64| -> f64 {
                let pairs = (0..rows).flat_map(|i| (0..50).map(move |s| (i, s)));
                let out = |(i, s)| (0..k).map(|j| w(i, j) * x.row(s)[j]).sum::<f64>();
                pairs.map(|at| out(at) * out(at)).sum()
            };
            let size = outputs(&|i, j| f64::from(w.row(i)[j]));
            let change = outputs(&|i, j| f64::from(new.row(i)[j]) - f64::from(w.row(i)[j]));
            let e = output_error(w.view(), new.view(), h.view());
            assert!((e.size - size).abs() <= 1e-12 * size, "{} for {size}", e.size);
            assert!((e.change - change).abs() <= 1e-12 * change, "{} for {change}", e.change);
        }
    }

    #[test]
    fn the_errors_of_rows_add_up() {
        let (w, new, x) = (random(5, 7, 1), random(5, 7, 2), random(20, 7, 3));
        let x = Matrix::from_fn(20, 7, |i, j| f64::from(x.row(i)[j]));
        let mut h = Matrix::zeros(7, 7);
        gemm(0.0, h.view_mut(), 1.0, x.view().t(), x.view(), Threads::One);
        let identity = Matrix::from_fn(7, 7, |i, j| f64::from(u8::from(i == j)));
        for (given, h) in [(Some(h.view()), &h), (None, &identity)] {
            let sum: OutputError = row_errors(w.view(), new.view(), given).into_iter().sum();
            let whole = output_error(w.view(), new.view(), h.view());
            assert!((sum.change - whole.change).abs() <= 1e-10 * whole.change);
            assert!((sum.size - whole.size).abs() <= 1e-10 * whole.size);
        }
    }

    #[test]
    fn zero_sizes_have_a_documented_answer() {
        let (w, zero, h) = (random(2, 3, 1), Matrix::zeros(2, 3), Matrix::zeros(3, 3));
        assert_eq!(output_error(w.view(), zero.view(), h.view()).relative(), 0.0);
        let one = Matrix::from_fn(3, 3, |i, j| f64::from(u8::from(i == j)));
        assert_eq!(output_error(zero.view(), zero.view(), one.view()).relative(), 0.0);
        assert_eq!(output_error(zero.view(), w.view(), one.view()).relative(), f64::INFINITY);
    }

    #[test]
    fn tensors_pruned_together_add_up() {
        let parts =
            [OutputError { change: 1.0, size: 4.0 }, OutputError { change: 2.0, size: 8.0 }];
        assert_eq!(parts.into_iter().sum::<OutputError>().relative(), 0.5);
    }
}
