//! The curvature that methods use: H damped, scaled to a unit diagonal, and factored.

use std::sync::{Arc, OnceLock};

use rayon::prelude::*;

use super::{Damping, Hessian, HessianError, Note};
use crate::linalg::cholesky::{self, NotPositive};
use crate::matrix::Matrix;

/// A damped Hessian in units in which its diagonal is one:
///
/// ```text
/// Hd = H + damping        s_j = sqrt(Hd_jj)        A = S^-1 Hd S^-1        C = A^-1
/// ```
///
/// Methods scale weights accordingly, `Ws = W S`, so that
/// `d Hd d' = ds A ds'` for every row. In these units f32 suffices: masks chosen
/// with C in f32 equalled those of f64 down to damping 1e-4. Scaling does not change
/// costs, so it changes no mask.
///
/// A dead column (H_jj = 0) has s_j = 0, A_jj = 1 and zeros beside it: scaled
/// weights there are zero, cost nothing, are pruned first, and end as exact
/// zeros.
///
/// If H is not positive definite with the requested damping, damping is multiplied by ten
/// until it is, up to ten times the diagonal; a [`Note`] reports it.
///
/// ```
/// use openwork::{Matrix, hessian::{Damping, Hessian}};
/// let h = Matrix::from_vec(2, 2, vec![4.0, 2.0, 2.0, 4.0]);
/// let h = Hessian::from_matrix(h, None).unwrap();
/// let c = h.damp(Damping::Diag(0.0)).unwrap();
/// assert_eq!(c.scale(), [2.0, 2.0]);
/// assert_eq!(c.matrix().data(), [1.0, 0.5, 0.5, 1.0]);
/// assert!((c.inverse().row(0)[0] - 4.0 / 3.0).abs() < 1e-6);
/// ```
#[derive(Debug)]
pub struct Curvature {
    damping: Damping,
    notes: Vec<Note>,
    /// s_j; zero exactly for dead columns.
    scale: Vec<f64>,
    matrix: Arc<Matrix>,
    /// The lower factor of A with rows and columns in reverse order: its
    /// inverse, reversed, is the upper U with C = U'U that SparseGPT needs, so
    /// one factorization serves all.
    reversed: Arc<Matrix<f64>>,
    inverse: Arc<OnceLock<Matrix>>,
    upper: Arc<OnceLock<Matrix>>,
}

impl Curvature {
    /// Damps, scales and factors `h`.
    pub(super) fn new(h: &Hessian, asked: Damping) -> Result<Self, HessianError> {
        if asked == Damping::Auto {
            return Err(HessianError::AutoUnresolved);
        }
        let (k, mean) = (h.columns(), h.mean_diagonal());
        let mut notes = Vec::new();
        if let Some(samples) = h.samples().filter(|&n| n < k) {
            notes.push(Note::FewSamples { samples, columns: k });
        }
        notes.extend(h.dead_note());
        let mut damping = asked;
        loop {
            match Self::try_factor(h, damping, mean) {
                Ok((scale, reversed)) => {
                    if damping != asked {
                        notes.push(Note::DampingRaised { from: asked, to: damping });
                    }
                    let (matrix, reversed) = (Arc::new(scaled(h, &scale)), Arc::new(reversed));
                    let (inverse, upper) = Default::default();
                    return Ok(Self { damping, notes, scale, matrix, reversed, inverse, upper });
                }
                Err(NotPositive { pivot, value }) => {
                    let column = k - 1 - pivot;
                    damping = damping.raised(mean).ok_or(HessianError::Indefinite {
                        damping,
                        column,
                        pivot: value,
                    })?;
                }
            }
        }
    }

    /// The same curvature for weights whose errors count `factor` squared times as much:
    /// weights are scaled by another `factor`. Shares all matrices.
    pub(crate) fn weighted(&self, factor: f64) -> Self {
        Self {
            damping: self.damping,
            notes: self.notes.clone(),
            scale: self.scale.iter().map(|s| s * factor).collect(),
            matrix: Arc::clone(&self.matrix),
            reversed: Arc::clone(&self.reversed),
            inverse: Arc::clone(&self.inverse),
            upper: Arc::clone(&self.upper),
        }
    }

    /// The scale and the reversed factor with this damping, or the bad pivot
    /// (counted from the last column).
    fn try_factor(
        h: &Hessian,
        damping: Damping,
        mean: f64,
    ) -> Result<(Vec<f64>, Matrix<f64>), NotPositive> {
        let k = h.columns();
        let scale: Vec<f64> = h
            .diagonal()
            .iter()
            .map(|&d| if d == 0.0 { 0.0 } else { (d + damping.added(d, mean)).sqrt() })
            .collect();
        let inverse = reciprocals(&scale);
        let mut a = Matrix::zeros(k, k);
        a.data_mut().par_chunks_mut(k.max(1)).enumerate().for_each(|(r, row)| {
            let i = k - 1 - r;
            let h_i = h.matrix().row(i);
            for (c, a) in row[..r].iter_mut().enumerate() {
                let j = k - 1 - c;
                *a = h_i[j] * inverse[i] * inverse[j];
            }
            row[r] = 1.0;
        });
        // Pivots below this are rounding errors of K operations on numbers up to one.
        let floor = k as f64 * f64::EPSILON;
        cholesky::factor(&mut a, floor)?;
        Ok((scale, a))
    }

    /// The damping used: the requested one, or more (see the notes).
    pub fn damping(&self) -> Damping {
        self.damping
    }

    /// Notes for the user.
    pub fn notes(&self) -> &[Note] {
        &self.notes
    }

    /// Number of columns.
    pub fn columns(&self) -> usize {
        self.scale.len()
    }

    /// s_j of every column; zero exactly for dead columns.
    pub fn scale(&self) -> &[f64] {
        &self.scale
    }

    /// A: symmetric, damped, with a unit diagonal.
    pub fn matrix(&self) -> &Matrix {
        &self.matrix
    }

    /// C = A^-1, exactly symmetric; computed in f64 on first use.
    pub fn inverse(&self) -> &Matrix {
        self.inverse.get_or_init(|| narrow(self.inverse_f64()))
    }

    /// C = A^-1 in f64, computed on every call.
    pub fn inverse_f64(&self) -> Matrix<f64> {
        let c = cholesky::transposed_square(&cholesky::invert_lower(&self.reversed));
        reverse(c)
    }

    /// The upper triangular U with C = U'U, as SparseGPT uses it; computed in f64
    /// on first use.
    ///
    /// With columns 0..j frozen, the inverse of what is left of A has
    /// `U_jj^2` in its first entry and `U_jj U[j, j..]` in its first row.
    pub fn upper(&self) -> &Matrix {
        self.upper.get_or_init(|| narrow(reverse(cholesky::invert_lower(&self.reversed))))
    }
}

/// A in f32, from H and the scale.
fn scaled(h: &Hessian, scale: &[f64]) -> Matrix {
    let k = h.columns();
    let inverse = reciprocals(scale);
    let mut a = Matrix::zeros(k, k);
    a.data_mut().par_chunks_mut(k.max(1)).enumerate().for_each(|(i, row)| {
        for (j, (a, h)) in row.iter_mut().zip(h.matrix().row(i)).enumerate() {
            // The smaller index first, so that both triangles round alike.
            let (f, g) = (inverse[i.min(j)], inverse[i.max(j)]);
            *a = (h * f * g) as f32;
        }
        row[i] = 1.0;
    });
    a
}

/// 1 / s_j, and zero for dead columns.
fn reciprocals(scale: &[f64]) -> Vec<f64> {
    scale.iter().map(|&s| if s == 0.0 { 0.0 } else { 1.0 / s }).collect()
}

/// Rows and columns in reverse order: in row-major storage, all entries.
fn reverse(mut a: Matrix<f64>) -> Matrix<f64> {
    a.data_mut().reverse();
    a
}

fn narrow(a: Matrix<f64>) -> Matrix {
    let data = a.data().par_iter().map(|&x| x as f32).collect();
    Matrix::from_vec(a.rows(), a.cols(), data)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::hessian::HessianSum;
    use crate::linalg::tests::random;

    /// H of `n` samples whose columns differ in scale by a thousand and more.
    fn sample(n: usize, k: usize) -> Hessian {
        let x = random(n, k, k as u64);
        let x = Matrix::from_fn(n, k, |i, j| {
            x.row(i)[j] * 10f32.powi(j as i32 % 4) + if j > 0 { x.row(i)[j - 1] } else { 0.0 }
        });
        let mut sum = HessianSum::new(k);
        sum.add(x.view()).unwrap();
        sum.finish().unwrap()
    }

    fn matrix(h: &[f64]) -> Hessian {
        let k = h.len().isqrt();
        Hessian::from_matrix(Matrix::from_vec(k, k, h.to_vec()), None).unwrap()
    }

    #[test]
    fn scale_and_matrix_give_back_the_damped_hessian() {
        for k in 0..=20 {
            let h = sample(50, k);
            for damping in [Damping::Diag(0.3), Damping::Mean(0.01), Damping::Absolute(2.0)] {
                let c = h.damp(damping).unwrap();
                assert_eq!((c.damping(), c.notes()), (damping, &[][..]));
                let s = c.scale();
                for i in 0..k {
                    assert_eq!(c.matrix().row(i)[i], 1.0);
                    for j in 0..k {
                        let got = s[i] * f64::from(c.matrix().row(i)[j]) * s[j];
                        let added = match damping {
                            _ if i != j => 0.0,
                            Damping::Diag(l) => l * h.matrix().row(i)[i],
                            Damping::Mean(l) => l * h.mean_diagonal(),
                            _ => 2.0,
                        };
                        let want = h.matrix().row(i)[j] + added;
                        assert!((got - want).abs() <= 1e-6 * s[i] * s[j], "{got} for {want}");
                        assert_eq!(c.matrix().row(i)[j], c.matrix().row(j)[i]);
                    }
                }
            }
        }
    }

    #[test]
    fn inverse_and_upper_obey_their_equations() {
        for k in (0..=33).chain([250]) {
            let c = sample(2 * k + 9, k).damp(Damping::Diag(0.1)).unwrap();
            let (inverse, u) = (c.inverse_f64(), c.upper());
            for i in 0..k {
                for j in 0..k {
                    let one: f64 =
                        (0..k).map(|l| f64::from(c.matrix().row(i)[l]) * inverse.row(l)[j]).sum();
                    let want = f64::from(u8::from(i == j));
                    // A is rounded to f32; C is below 11 (damping 0.1).
                    assert!((one - want).abs() <= 1e-5, "A C of size {k}: {one} for {want}");
                    let square: f64 = (0..=i.min(j))
                        .map(|l| f64::from(u.row(l)[i]) * f64::from(u.row(l)[j]))
                        .sum();
                    assert!((square - inverse.row(i)[j]).abs() <= 1e-5, "U'U of size {k}");
                    assert!(j >= i || u.row(i)[j] == 0.0);
                    assert_eq!(c.inverse().row(i)[j], inverse.row(i)[j] as f32);
                    assert_eq!(c.inverse().row(i)[j], c.inverse().row(j)[i]);
                }
            }
        }
    }

    #[test]
    fn an_indefinite_hessian_is_damped_more_and_a_note_says_so() {
        // The least eigenvalue is 1 - 0.9 sqrt(2) = -0.27.
        let h = matrix(&[1.0, 0.9, 0.9, 0.9, 1.0, 0.0, 0.9, 0.0, 1.0]);
        let c = h.damp(Damping::Diag(0.01)).unwrap();
        let raised = Note::DampingRaised { from: Damping::Diag(0.01), to: Damping::Diag(1.0) };
        assert_eq!((c.damping(), c.notes()), (Damping::Diag(1.0), &[raised.clone()][..]));
        assert_eq!(
            raised.to_string(),
            "H is not positive definite with diag:0.01; damping was raised to diag:1"
        );
    }

    #[test]
    fn a_singular_hessian_without_damping_gets_a_little() {
        let c = matrix(&[1.0, 1.0, 1.0, 1.0]).damp(Damping::Mean(0.0)).unwrap();
        assert_eq!(c.damping(), Damping::Mean(1e-10));
    }

    #[test]
    fn a_hopeless_matrix_is_an_error_that_names_a_column() {
        // Off-diagonal -1 everywhere: the least eigenvalue is 2 - k.
        let k = 40;
        let h = Matrix::from_fn(k, k, |i, j| if i == j { 1.0 } else { -1.0 });
        let h = Hessian::from_matrix(h, None).unwrap();
        let error = h.damp(Damping::Diag(0.1)).unwrap_err().to_string();
        assert!(
            error.starts_with("H is not positive definite even with diag:10 (column 2"),
            "{error}"
        );
        assert!(error.ends_with("it is not of the form X'X: check how it was computed"), "{error}");
    }

    #[test]
    fn dead_columns_have_no_scale_and_no_correlations() {
        let h = matrix(&[4.0, 0.0, 1.0, 0.0, 0.0, 0.0, 1.0, 0.0, 1.0]);
        for damping in [Damping::Diag(0.1), Damping::Mean(0.1), Damping::Absolute(0.1)] {
            let c = h.damp(damping).unwrap();
            assert_eq!(c.scale()[1], 0.0);
            assert_eq!(c.matrix().row(1), [0.0, 1.0, 0.0]);
            assert_eq!(c.inverse().row(1), [0.0, 1.0, 0.0]);
            assert_eq!(
                c.notes()[0].to_string(),
                "1 of 3 columns has only zero inputs (the first is 1); these weights have no effect"
            );
        }
    }

    #[test]
    fn an_all_zero_hessian_is_all_dead_columns() {
        let c = matrix(&[0.0; 9]).damp(Damping::Diag(0.0)).unwrap();
        assert_eq!(c.scale(), [0.0; 3]);
        assert_eq!(c.notes(), [Note::DeadColumns { count: 3, first: 0, columns: 3 }]);
    }

    #[test]
    fn fewer_samples_than_columns_work_with_a_note() {
        let h = sample(5, 12);
        let c = h.damp(Damping::Diag(0.1)).unwrap();
        assert_eq!(c.damping(), Damping::Diag(0.1));
        assert_eq!(
            c.notes()[0].to_string(),
            "5 samples for 12 columns: the result depends on damping; use more calibration tokens"
        );
        assert_eq!(
            h.damp(Damping::Auto).unwrap_err().to_string(),
            "damping `auto` must be resolved before H is damped"
        );
    }

    #[test]
    fn scaling_h_changes_only_the_scale() {
        let h = sample(40, 9);
        let big = Matrix::from_fn(9, 9, |i, j| h.matrix().row(i)[j] * 2f64.powi(40));
        let big = Hessian::from_matrix(big, Some(40)).unwrap();
        let (a, b) = (h.damp(Damping::Diag(0.1)).unwrap(), big.damp(Damping::Diag(0.1)).unwrap());
        assert_eq!((a.matrix(), a.inverse()), (b.matrix(), b.inverse()));
    }
}
