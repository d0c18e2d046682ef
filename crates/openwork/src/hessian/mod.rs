//! The curvature of a layer's output error: H = X'X / n over its inputs.
//!
//! ```text
//! HessianSum --finish--> Hessian --damp--> Curvature
//! samples in             H, in f64        H damped, scaled, factored
//! ```
//!
//! The output error of new weights `What` for `W` is `tr(D H D')` with
//! `D = What - W`, so H is all that a method needs to know about the inputs.

mod auto;
mod curvature;
mod damping;
mod note;
mod sum;

pub use auto::{AUTO_SHARES, Choice, Trial, choose, share_by_rule};
pub use curvature::Curvature;
pub use damping::{Damping, DampingError};
pub use note::Note;
pub use sum::{HessianSum, Sample, SumParts};

use crate::matrix::{Matrix, MatrixRef};

/// The maximum difference of H_ij and H_ji, relative to sqrt(H_ii H_jj): two f16 numbers
/// rounded apart (2 x 2^-11).
const SYMMETRY: f64 = 1e-3;

/// The maximum relative excess of |H_ij| over sqrt(H_ii H_jj), which X'X never exceeds:
/// three bf16 numbers rounded apart (3 x 2^-9 and a little).
const DOMINANCE: f64 = 1e-2;

/// X'X / n in f64, with the number of its samples where known. Holds, once built:
///
/// 1. the matrix is square, finite, and symmetric to the bit;
/// 2. its diagonal is not negative;
/// 3. a column with a zero on the diagonal (a dead column) is zero throughout;
/// 4. held-out samples, where known, are fewer than all samples and satisfy 1
///    to 3.
#[derive(Clone, Debug, PartialEq)]
pub struct Hessian {
    matrix: Matrix<f64>,
    samples: Option<usize>,
    /// The same mean over every third chunk of samples, and their number.
    held_out: Option<(Matrix<f64>, usize)>,
}

/// Invalid inputs, a matrix that is not a Hessian, or one that cannot be factored.
#[derive(Clone, Debug, PartialEq, thiserror::Error)]
pub enum HessianError {
    /// Samples of another width.
    #[error("a sample has {found} entries, but H has {columns} columns")]
    SampleWidth {
        /// Entries in a sample.
        found: usize,
        /// Columns of H.
        columns: usize,
    },
    /// NaN or infinity in a sample.
    #[error("sample {sample}, column {column} is {value}; {}", finite_advice(value, kind))]
    Sample {
        /// The index of the sample in the stream.
        sample: usize,
        /// Its column.
        column: usize,
        /// NaN or infinity.
        value: f32,
        /// The type of the samples.
        kind: &'static str,
    },
    /// Partial sums merged out of order.
    #[error(
        "a partial sum starts at sample {found}, but sample {expected} is next; \
         merge the parts in order"
    )]
    Order {
        /// The expected first sample.
        expected: usize,
        /// The actual first sample.
        found: usize,
    },
    /// A sum over no samples.
    #[error("H has no samples; give it at least one row of inputs")]
    NoSamples,
    /// A matrix that is not square.
    #[error("H is {rows} x {cols}; it must be square")]
    Square {
        /// Its rows.
        rows: usize,
        /// Its columns.
        cols: usize,
    },
    /// A matrix for another number of columns.
    #[error("H is {found} x {found}, but the weights have {columns} columns")]
    Size {
        /// Columns of H.
        found: usize,
        /// Columns of the weights.
        columns: usize,
    },
    /// NaN or infinity in a matrix.
    #[error("H[{row}, {column}] is {value}; every entry must be finite")]
    Entry {
        /// Its row.
        row: usize,
        /// Its column.
        column: usize,
        /// NaN or infinity.
        value: f64,
    },
    /// Two mirrored entries that differ.
    #[error("H is not symmetric: H[{row}, {column}] is {upper}, H[{column}, {row}] is {lower}")]
    Symmetry {
        /// The row of the upper entry.
        row: usize,
        /// The column of the upper entry.
        column: usize,
        /// The upper entry.
        upper: f64,
        /// The lower entry.
        lower: f64,
    },
    /// A negative diagonal entry.
    #[error("H[{index}, {index}] is {value}; the diagonal of X'X cannot be negative")]
    Negative {
        /// Its index.
        index: usize,
        /// What was found.
        value: f64,
    },
    /// An entry larger than its diagonal allows.
    #[error(
        "H[{row}, {column}] is {value}, but X'X cannot exceed the root of H[{row}, {row}] \
         H[{column}, {column}], {bound}; H is not of the form X'X"
    )]
    Dominance {
        /// Its row.
        row: usize,
        /// Its column.
        column: usize,
        /// What was found.
        value: f64,
        /// The largest value possible for X'X.
        bound: f64,
    },
    /// No samples on one side of the held-out split.
    #[error("{held_out} of {samples} samples are held out; both sides of the split need samples")]
    HeldOut {
        /// Held-out samples.
        held_out: usize,
        /// All samples.
        samples: usize,
    },
    /// Not positive definite even with the largest damping.
    #[error(
        "H is not positive definite even with {damping} (column {column} has pivot {pivot:e}); \
         it is not of the form X'X: check how it was computed"
    )]
    Indefinite {
        /// The largest damping tried.
        damping: Damping,
        /// The column whose pivot failed.
        column: usize,
        /// The pivot, relative to the column's own curvature.
        pivot: f64,
    },
    /// `auto` where a number is needed.
    #[error("damping `auto` must be resolved before H is damped")]
    AutoUnresolved,
}

/// What to do about a value that is not finite.
fn finite_advice(value: &f32, kind: &str) -> &'static str {
    match kind {
        "f16" if value.is_infinite() => {
            "the largest f16 is 65504; store these inputs as f32 or bf16"
        }
        _ => "every input must be finite",
    }
}

impl Hessian {
    /// A Hessian from a given matrix, after checking it (see [`HessianError`]). Small
    /// asymmetries (below a thousandth of sqrt(H_ii H_jj)) are rounding errors: the mean of
    /// both entries is used.
    ///
    /// ```
    /// use openwork::{Matrix, hessian::Hessian};
    /// let h = Matrix::from_vec(2, 2, vec![2.0, 1.0, 1.0, 0.0]);
    /// assert_eq!(
    ///     Hessian::from_matrix(h, None).unwrap_err().to_string(),
    ///     "H[0, 1] is 1, but X'X cannot exceed the root of H[0, 0] H[1, 1], 0; H is not of the form X'X"
    /// );
    /// ```
    pub fn from_matrix(h: Matrix<f64>, samples: Option<usize>) -> Result<Self, HessianError> {
        Ok(Self::trusted(checked(h)?, samples, None))
    }

    /// A Hessian from an f32 matrix; see [`Hessian::from_matrix`].
    pub fn from_f32(h: MatrixRef<'_>, samples: Option<usize>) -> Result<Self, HessianError> {
        let h = Matrix::from_fn(h.rows(), h.cols(), |i, j| f64::from(h.at(i, j)));
        Self::from_matrix(h, samples)
    }

    /// A Hessian with its held-out part, from the results of [`Hessian::matrix`],
    /// [`Hessian::samples`] and [`Hessian::held_out`]; used to read files.
    pub fn from_parts(
        h: Matrix<f64>,
        samples: usize,
        held_out: Option<(Matrix<f64>, usize)>,
    ) -> Result<Self, HessianError> {
        let h = checked(h)?;
        let held_out = match held_out {
            None => None,
            Some((held, n)) => {
                let held = checked(held)?;
                if held.rows() != h.rows() {
                    return Err(HessianError::Size { found: held.rows(), columns: h.rows() });
                }
                if n == 0 || n >= samples {
                    return Err(HessianError::HeldOut { held_out: n, samples });
                }
                Some((held, n))
            }
        };
        Ok(Self::trusted(h, Some(samples), held_out))
    }

    /// The caller guarantees the invariants.
    fn trusted(
        matrix: Matrix<f64>,
        samples: Option<usize>,
        held_out: Option<(Matrix<f64>, usize)>,
    ) -> Self {
        Self { matrix, samples, held_out }
    }

    /// Number of columns of X, which is the size of H.
    pub fn columns(&self) -> usize {
        self.matrix.cols()
    }

    /// H.
    pub fn matrix(&self) -> &Matrix<f64> {
        &self.matrix
    }

    /// The number of samples, where known.
    pub fn samples(&self) -> Option<usize> {
        self.samples
    }

    /// H of the held-out samples and their number, where known.
    pub fn held_out(&self) -> Option<(&Matrix<f64>, usize)> {
        self.held_out.as_ref().map(|(held, n)| (held, *n))
    }

    /// H_jj of every column.
    pub fn diagonal(&self) -> Vec<f64> {
        (0..self.columns()).map(|j| self.matrix.row(j)[j]).collect()
    }

    /// The mean of the diagonal; 0 with no columns.
    pub fn mean_diagonal(&self) -> f64 {
        self.diagonal().iter().sum::<f64>() / self.columns().max(1) as f64
    }

    /// Columns whose inputs are all zero, ascending.
    pub fn dead_columns(&self) -> Vec<usize> {
        (0..self.columns()).filter(|&j| self.matrix.row(j)[j] == 0.0).collect()
    }

    /// A note on dead columns, if there are any.
    pub fn dead_note(&self) -> Option<Note> {
        let dead = self.dead_columns();
        let (count, columns) = (dead.len(), self.columns());
        dead.first().map(|&first| Note::DeadColumns { count, first, columns })
    }

    /// Checks that the weights have as many columns as H.
    pub fn fits(&self, columns: usize) -> Result<(), HessianError> {
        if self.columns() == columns {
            Ok(())
        } else {
            Err(HessianError::Size { found: self.columns(), columns })
        }
    }

    /// The Hessians of about two thirds of the samples, to fit on, and of the
    /// other third, to judge by:
    ///
    /// ```text
    /// n H = n_fit H_fit + n_held H_held
    /// ```
    ///
    /// `None` where the samples are not known or were at most one chunk.
    pub fn split(&self) -> Option<(Self, Self)> {
        let ((held, n_held), n) = (self.held_out.as_ref()?, self.samples?);
        let (all, part) = (n as f64, *n_held as f64);
        let mut fit = self.matrix.clone();
        for (f, h) in fit.data_mut().iter_mut().zip(held.data()) {
            *f = (all * *f - part * h) / (all - part);
        }
        // Invariants 2 and 3: a column that is nonzero only in the held-out samples is a
        // difference of equal numbers here; make it exactly zero.
        let k = self.columns();
        for j in 0..k {
            let whole = self.matrix.row(j)[j];
            if fit.row(j)[j] <= whole * f64::EPSILON * 8.0 {
                fit.row_mut(j).fill(0.0);
                (0..k).for_each(|i| fit.row_mut(i)[j] = 0.0);
            }
        }
        let fit = Self::trusted(fit, Some(n - n_held), None);
        Some((fit, Self::trusted(held.clone(), Some(*n_held), None)))
    }

    /// The same H without its held-out part, which frees half the memory.
    pub fn without_split(self) -> Self {
        Self { held_out: None, ..self }
    }

    /// Damps, scales and factors H; see [`Curvature`].
    pub fn damp(&self, damping: Damping) -> Result<Curvature, HessianError> {
        Curvature::new(self, damping)
    }
}

/// Checks invariants 1 to 3.
fn checked(mut h: Matrix<f64>) -> Result<Matrix<f64>, HessianError> {
    let k = h.rows();
    // Invariant 1.
    if k != h.cols() {
        return Err(HessianError::Square { rows: k, cols: h.cols() });
    }
    if let Some(e) = h.data().iter().position(|x| !x.is_finite()) {
        return Err(HessianError::Entry { row: e / k, column: e % k, value: h.data()[e] });
    }
    // Invariant 2.
    let d: Vec<f64> = (0..k).map(|j| h.row(j)[j]).collect();
    if let Some(index) = d.iter().position(|&d| d < 0.0) {
        return Err(HessianError::Negative { index, value: d[index] });
    }
    let root: Vec<f64> = d.iter().map(|d| d.sqrt()).collect();
    for i in 0..k {
        for j in i + 1..k {
            let (upper, lower) = (h.row(i)[j], h.row(j)[i]);
            let bound = root[i] * root[j];
            if (upper - lower).abs() > SYMMETRY * bound.max(upper.abs().min(lower.abs())) {
                return Err(HessianError::Symmetry { row: i, column: j, upper, lower });
            }
            let mean = if upper == lower { upper } else { 0.5 * upper + 0.5 * lower };
            // Invariant 3 follows: with a zero diagonal the bound is zero.
            if mean.abs() > bound * (1.0 + DOMINANCE) {
                return Err(HessianError::Dominance { row: i, column: j, value: mean, bound });
            }
            h.row_mut(i)[j] = mean;
            h.row_mut(j)[i] = mean;
        }
    }
    Ok(h)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn refused(rows: usize, cols: usize, h: &[f64]) -> String {
        Hessian::from_matrix(Matrix::from_vec(rows, cols, h.to_vec()), None)
            .unwrap_err()
            .to_string()
    }

    #[test]
    fn a_matrix_that_is_no_hessian_is_refused_by_name() {
        assert_eq!(refused(1, 2, &[1.0, 2.0]), "H is 1 x 2; it must be square");
        assert_eq!(
            refused(2, 2, &[1.0, 0.0, f64::NAN, 1.0]),
            "H[1, 0] is NaN; every entry must be finite"
        );
        assert_eq!(
            refused(2, 2, &[1.0, f64::INFINITY, 0.0, 1.0]),
            "H[0, 1] is inf; every entry must be finite"
        );
        assert_eq!(
            refused(2, 2, &[1.0, 0.5, 0.4, 1.0]),
            "H is not symmetric: H[0, 1] is 0.5, H[1, 0] is 0.4"
        );
        assert_eq!(
            refused(2, 2, &[1.0, 0.0, 0.0, -2.0]),
            "H[1, 1] is -2; the diagonal of X'X cannot be negative"
        );
        assert_eq!(
            refused(2, 2, &[1.0, 3.0, 3.0, 4.0]),
            "H[0, 1] is 3, but X'X cannot exceed the root of H[0, 0] H[1, 1], 2; \
             H is not of the form X'X"
        );
        let h = Hessian::from_matrix(Matrix::zeros(3, 3), None).unwrap();
        assert_eq!(
            h.fits(4).unwrap_err().to_string(),
            "H is 3 x 3, but the weights have 4 columns"
        );
    }

    #[test]
    fn rounding_is_made_symmetric() {
        let h = Matrix::from_vec(2, 2, vec![1.0, 0.5, 0.5004, 1.0]);
        let h = Hessian::from_matrix(h, None).unwrap();
        assert_eq!(h.matrix().data(), [1.0, 0.5002, 0.5002, 1.0]);
    }

    #[test]
    fn parts_round_trip() {
        let x = crate::linalg::tests::random(1000, 6, 1);
        let mut sum = HessianSum::new(6);
        sum.add(x.view()).unwrap();
        let h = sum.finish().unwrap();
        let held = h.held_out().map(|(m, n)| (m.clone(), n));
        let again = Hessian::from_parts(h.matrix().clone(), 1000, held.clone()).unwrap();
        assert_eq!(again, h);
        let error = Hessian::from_parts(h.matrix().clone(), 256, held).unwrap_err();
        assert_eq!(
            error.to_string(),
            "256 of 256 samples are held out; both sides of the split need samples"
        );
    }

    #[test]
    fn facts_of_a_small_hessian() {
        let h = Matrix::from_vec(3, 3, vec![4.0, 0.0, 1.0, 0.0, 0.0, 0.0, 1.0, 0.0, 1.0]);
        let h = Hessian::from_matrix(h, Some(9)).unwrap();
        assert_eq!(h.diagonal(), [4.0, 0.0, 1.0]);
        assert_eq!(h.mean_diagonal(), 5.0 / 3.0);
        assert_eq!(h.dead_columns(), [1]);
        assert!(h.split().is_none());
    }

    #[test]
    fn a_column_seen_by_held_out_samples_only_is_dead_in_the_fit() {
        let x = Matrix::from_fn(3 * 256, 2, |i, j| {
            if j == 0 { 1.0 } else { f32::from(u8::from(i / 256 == 1)) * 0.1 }
        });
        let mut sum = HessianSum::new(2);
        sum.add(x.view()).unwrap();
        let (fit, held) = sum.finish().unwrap().split().unwrap();
        assert_eq!((fit.dead_columns(), held.dead_columns()), (vec![1], vec![]));
    }
}
