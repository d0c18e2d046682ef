//! Small dense routines for inner loops: no allocation, no threads.
//!
//! A matrix is a slice with a row stride; only its lower triangle is read or written.
//! Intended for n <= 64; use [`super::cholesky`] for larger systems.

use std::cmp::Ordering;

use super::gemm::Scalar;

/// The first pivot that is not positive: the matrix is not positive definite.
#[derive(Clone, Copy, Debug, PartialEq, thiserror::Error)]
#[error("pivot {pivot} is {value:e}: the matrix is not positive definite")]
pub struct NotPositive {
    /// Row and column of the pivot.
    pub pivot: usize,
    /// Its value.
    pub value: f64,
}

/// Factors a symmetric matrix in place, reading its lower triangle only:
///
/// ```text
/// A = L L'        L_ij = (A_ij - sum_k<j L_ik L_jk) / L_jj
/// ```
///
/// A pivot at or below `floor` is an error. The strict upper triangle of `a` is left
/// unchanged.
///
/// ```
/// use openwork::linalg::small;
/// let mut a = [4.0, 0.0, 2.0, 10.0];
/// small::cholesky(&mut a, 2, 2, 0.0).unwrap();
/// assert_eq!(a, [2.0, 0.0, 1.0, 3.0]);
/// ```
pub fn cholesky<T: Scalar>(
    a: &mut [T],
    n: usize,
    stride: usize,
    floor: T,
) -> Result<(), NotPositive> {
    for i in 0..n {
        let (above, rest) = a.split_at_mut(i * stride);
        let row = &mut rest[..=i];
        for j in 0..i {
            let l_j = &above[j * stride..][..=j];
            let sum = row[j] - dot(&row[..j], &l_j[..j]);
            row[j] = sum / l_j[j];
        }
        let pivot = row[i] - dot(&row[..i], &row[..i]);
        // NaN fails too.
        if pivot.partial_cmp(&floor) != Some(Ordering::Greater) {
            return Err(NotPositive { pivot: i, value: pivot.into() });
        }
        row[i] = pivot.sqrt();
    }
    Ok(())
}

/// Solves L x = b in place.
pub fn forward<T: Scalar>(l: &[T], n: usize, stride: usize, b: &mut [T]) {
    for i in 0..n {
        let l_i = &l[i * stride..][..=i];
        b[i] = (b[i] - dot(&l_i[..i], &b[..i])) / l_i[i];
    }
}

/// Solves L' x = b in place.
pub fn backward<T: Scalar>(l: &[T], n: usize, stride: usize, b: &mut [T]) {
    for i in (0..n).rev() {
        let l_i = &l[i * stride..][..=i];
        let x = b[i] / l_i[i];
        b[i] = x;
        for (b, &l) in b[..i].iter_mut().zip(l_i) {
            *b -= l * x;
        }
    }
}

/// Solves L X = B in place for the `cols` columns of `b`, whose rows start
/// `b_stride` entries apart.
pub fn forward_many<T: Scalar>(
    l: &[T],
    n: usize,
    stride: usize,
    b: &mut [T],
    cols: usize,
    b_stride: usize,
) {
    for i in 0..n {
        let (done, rest) = b.split_at_mut(i * b_stride);
        let b_i = &mut rest[..cols];
        for j in 0..i {
            let l_ij = l[i * stride + j];
            for (x, &y) in b_i.iter_mut().zip(&done[j * b_stride..][..cols]) {
                *x -= l_ij * y;
            }
        }
        let f = T::ONE / l[i * stride + i];
        b_i.iter_mut().for_each(|x| *x *= f);
    }
}

/// Replaces L by its inverse, in place; the strict upper triangle is left unchanged:
///
/// ```text
/// X_ii = 1 / L_ii        X_ij = -X_ii sum_j<=k<i L_ik X_kj
/// ```
pub fn invert_lower<T: Scalar>(l: &mut [T], n: usize, stride: usize) {
    for i in 0..n {
        let (above, rest) = l.split_at_mut(i * stride);
        let row = &mut rest[..=i];
        let x_ii = T::ONE / row[i];
        // Row by row, so that the compiler can vectorize: entry k holds L_ik until row k of X
        // is applied, which extends to entry k itself.
        for k in 0..i {
            let f = -x_ii * row[k];
            row[k] = T::ZERO;
            for (x, &above) in row[..=k].iter_mut().zip(&above[k * stride..][..=k]) {
                *x += f * above;
            }
        }
        row[i] = x_ii;
    }
}

/// Subtracts a linear combination of `count` vectors, stored consecutively in `x`:
///
/// ```text
/// y <- y - sum_i a(i) x_i
/// ```
#[inline]
pub fn subtract(y: &mut [f32], count: usize, a: impl Fn(usize) -> f32, x: &[f32]) {
    let n = y.len();
    let x = |i: usize| &x[i * n..][..n];
    let fours = count / 4 * 4;
    // Four at a time, so that y is read and written a quarter as often.
    for c in (0..fours).step_by(4) {
        let (a0, a1, a2, a3) = (a(c), a(c + 1), a(c + 2), a(c + 3));
        let (x0, x1, x2, x3) = (x(c), x(c + 1), x(c + 2), x(c + 3));
        for (i, y) in y.iter_mut().enumerate() {
            *y -= (a0 * x0[i] + a1 * x1[i]) + (a2 * x2[i] + a3 * x3[i]);
        }
    }
    for c in fours..count {
        let a = a(c);
        y.iter_mut().zip(x(c)).for_each(|(y, &x)| *y -= a * x);
    }
}

/// The inner product, as eight interleaved sums that the compiler can vectorize.
pub fn dot<T: Scalar>(a: &[T], b: &[T]) -> T {
    const LANES: usize = 8;
    let n = a.len().min(b.len());
    let whole = n - n % LANES;
    let mut sums = [T::ZERO; LANES];
    for (a, b) in a[..whole].chunks_exact(LANES).zip(b[..whole].chunks_exact(LANES)) {
        for l in 0..LANES {
            sums[l] += a[l] * b[l];
        }
    }
    let mut total = T::ZERO;
    for s in sums {
        total += s;
    }
    for i in whole..n {
        total += a[i] * b[i];
    }
    total
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::linalg::tests::random;
    use crate::matrix::Matrix;

    /// A positive definite matrix of size n: R R' + I.
    fn positive(n: usize) -> Matrix<f64> {
        let r = random(n, n, n as u64);
        Matrix::from_fn(n, n, |i, j| {
            f64::from(u8::from(i == j))
                + r.row(i).iter().zip(r.row(j)).map(|(&a, &b)| f64::from(a * b)).sum::<f64>()
        })
    }

    /// Rounding of n^2 operations on entries of size n.
    fn tolerance(n: usize) -> f64 {
        1e-14 * (1 + n * n) as f64
    }

    #[test]
    fn every_routine_obeys_its_equation_at_every_size() {
        for n in 0..=64 {
            let a = positive(n);
            let stride = n + 3;
            let mut l = vec![f64::NAN; n * stride];
            for i in 0..n {
                l[i * stride..][..=i].copy_from_slice(&a.row(i)[..=i]);
            }
            cholesky(&mut l, n, stride, 0.0).unwrap();
            let at = |i: usize, j: usize| if j <= i { l[i * stride + j] } else { 0.0 };
            let near = |x: f64, y: f64, what: &str| {
                assert!((x - y).abs() <= tolerance(n), "{what} of size {n}: {x} for {y}");
            };
            for i in 0..n {
                for j in 0..n {
                    near((0..n).map(|k| at(i, k) * at(j, k)).sum(), a.row(i)[j], "L L'");
                }
            }
            let b: Vec<f64> = (0..n).map(|i| (i as f64).sin()).collect();
            let mut x = b.clone();
            forward(&l, n, stride, &mut x);
            let mut many: Vec<f64> = b.iter().flat_map(|&b| [b, 2.0 * b, 0.0]).collect();
            forward_many(&l, n, stride, &mut many, 2, 3);
            let mut y = b.clone();
            backward(&l, n, stride, &mut y);
            let mut inverse = l.clone();
            invert_lower(&mut inverse, n, stride);
            for i in 0..n {
                near((0..n).map(|j| at(i, j) * x[j]).sum(), b[i], "L x");
                near((0..n).map(|j| at(j, i) * y[j]).sum(), b[i], "L' x");
                near(many[3 * i], x[i], "first column");
                near(many[3 * i + 1], 2.0 * x[i], "second column");
                for j in 0..=i {
                    let product = (j..=i).map(|k| at(i, k) * inverse[k * stride + j]).sum();
                    near(product, f64::from(u8::from(i == j)), "L L^-1");
                }
            }
        }
    }

    #[test]
    fn the_first_bad_pivot_is_named() {
        let mut a = [1.0, 0.0, 0.0, 0.0, 1.0, 0.0, 1.0, 1.0, 1.0];
        assert_eq!(cholesky(&mut a, 3, 3, 0.0), Err(NotPositive { pivot: 2, value: -1.0 }));
        let mut a = [f32::NAN];
        let error = cholesky(&mut a, 1, 1, 0.0).unwrap_err();
        assert_eq!(error.to_string(), "pivot 0 is NaN: the matrix is not positive definite");
    }
}
