//! Least squares on a support by conjugate gradients, all rows at once.
//!
//! Every row x of X keeps its own support S and target w (a row of W):
//!
//! ```text
//! least  (x - w) H (x - w)'  over x with x_j = 0 outside S
//! that is  (x H)_S = (w H)_S
//! ```
//!
//! One step costs one M x K x K product, shared by all rows; the mask is
//! applied to the result, so supports may differ from row to row.

use rayon::prelude::*;

use super::gemm::{Threads, gemm, panel_rows};
use crate::matrix::{Matrix, MatrixMut, MatrixRef};

/// When to stop.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Stop {
    /// At most this many steps.
    pub steps: usize,
    /// Rows that are solved together rest once a step has lowered the sum of
    /// their costs by no more than this part of it.
    pub gain: f64,
}

/// Moves every row of X towards the best fit of W on its own support:
///
/// ```text
/// r = ((w - x) H) . m        z = r / diag(H)        p = z
/// repeat:  q = (p H) . m
///          a = r.z / p.q;  x += a p;  r -= a q;  z = r / diag(H)
///          p = z + (r.z new / r.z old) p
/// ```
///
/// `keep` is 1 where a weight may differ from zero and 0 elsewhere (the m
/// above, entry by entry). X is the first guess; entries outside the support
/// are set to zero first. H is symmetric with a positive diagonal, best scaled
/// to a unit diagonal so that f32 suffices. Rows are independent and the bytes
/// do not depend on the number of threads. Gives the steps of the panel of rows
/// that took most.
///
/// ```
/// use openwork::{Matrix, linalg::pcg};
/// let h = Matrix::from_vec(2, 2, vec![1.0, 0.5, 0.5, 1.0]);
/// let w = Matrix::from_vec(1, 2, vec![2.0, 4.0]);
/// let keep = Matrix::from_vec(1, 2, vec![1.0, 0.0]);
/// let mut x = w.clone();
/// let stop = pcg::Stop { steps: 10, gain: 0.0 };
/// pcg::solve(h.view(), w.view(), keep.view(), x.view_mut(), stop);
/// assert_eq!(x.data(), [4.0, 0.0]); // 2 + 0.5 * 4
/// ```
///
/// # Panics
///
/// If the shapes differ, or rows of W or `keep` are not contiguous.
pub fn solve(
    h: MatrixRef<'_>,
    w: MatrixRef<'_>,
    keep: MatrixRef<'_>,
    mut x: MatrixMut<'_>,
    stop: Stop,
) -> usize {
    let (rows, k) = (x.rows(), x.cols());
    assert_eq!((h.rows(), h.cols()), (k, k), "H does not fit {k} columns");
    assert_eq!((w.rows(), w.cols()), (rows, k), "the target is not {rows} x {k}");
    assert_eq!((keep.rows(), keep.cols()), (rows, k), "the support is not {rows} x {k}");
    if rows == 0 || k == 0 {
        return 0;
    }
    let scale: Vec<f32> = (0..k).map(|j| 1.0 / h.at(j, j)).collect();
    let (stride, panel) = (x.row_stride(), panel_rows(rows));
    let steps: Vec<usize> = x
        .data_mut()
        .par_chunks_mut(panel * stride)
        .take(rows.div_ceil(panel))
        .enumerate()
        .map(|(p, data)| {
            let count = panel.min(rows - p * panel);
            let x = MatrixMut::with_stride(data, count, k, stride);
            let (w, keep) = (w.part(p * panel, count, 0, k), keep.part(p * panel, count, 0, k));
            solve_panel(h, &scale, w, keep, x, stop)
        })
        .collect();
    steps.into_iter().max().unwrap_or(0)
}

/// [`solve`] of one panel of rows.
fn solve_panel(
    h: MatrixRef<'_>,
    scale: &[f32],
    w: MatrixRef<'_>,
    keep: MatrixRef<'_>,
    mut x: MatrixMut<'_>,
    stop: Stop,
) -> usize {
    let (rows, k) = (x.rows(), x.cols());
    let mut r = Matrix::zeros(rows, k);
    let mut p = Matrix::zeros(rows, k);
    let mut q = Matrix::zeros(rows, k);

    // r and the cost at the guess.
    for i in 0..rows {
        for ((x, &m), (p, &w)) in
            x.row_mut(i).iter_mut().zip(keep.row(i)).zip(p.row_mut(i).iter_mut().zip(w.row(i)))
        {
            *x = if m == 0.0 { 0.0 } else { *x };
            *p = w - *x;
        }
    }
    gemm(0.0, r.view_mut(), 1.0, p.view(), h, Threads::One);
    let (mut old, mut cost) = (vec![0.0; rows], 0.0);
    for i in 0..rows {
        let (r, p) = (r.row_mut(i), p.row_mut(i));
        cost += dot(r, p);
        for ((r, p), (&m, &s)) in r.iter_mut().zip(&mut *p).zip(keep.row(i).iter().zip(scale)) {
            *r *= m;
            *p = *r * s;
        }
        old[i] = dot(r, p);
    }

    for step in 0..stop.steps {
        if old.iter().all(|&rz| rz == 0.0) {
            return step;
        }
        gemm(0.0, q.view_mut(), 1.0, p.view(), h, Threads::One);
        let mut gained = 0.0;
        for i in 0..rows {
            let (r, p, q) = (r.row_mut(i), p.row_mut(i), q.row_mut(i));
            q.iter_mut().zip(keep.row(i)).for_each(|(q, &m)| *q *= m);
            let pq = dot(q, p);
            // A row at its fit has p = 0; where rounding hides the curvature it
            // is as near as it gets.
            if pq <= 0.0 {
                p.fill(0.0);
                old[i] = 0.0;
                continue;
            }
            let a = old[i] / pq;
            gained += a * old[i];
            let a = a as f32;
            x.row_mut(i).iter_mut().zip(&*p).for_each(|(x, &p)| *x += a * p);
            r.iter_mut().zip(&*q).for_each(|(r, &q)| *r -= a * q);
            // q has done its work and takes z.
            q.iter_mut().zip(&*r).zip(scale).for_each(|((z, &r), &s)| *z = r * s);
            let new = dot(r, q);
            let b = (new / old[i]) as f32;
            p.iter_mut().zip(&*q).for_each(|(p, &z)| *p = z + b * *p);
            old[i] = new;
        }
        cost -= gained;
        if gained <= stop.gain * cost {
            return step + 1;
        }
    }
    stop.steps
}

/// a.b in f64, by eight sums side by side: one would wait for itself.
fn dot(a: &[f32], b: &[f32]) -> f64 {
    let ((a, a_rest), (b, b_rest)) = (a.as_chunks::<8>(), b.as_chunks::<8>());
    let mut sums = [0.0; 8];
    for (a, b) in a.iter().zip(b) {
        for ((sum, &a), &b) in sums.iter_mut().zip(a).zip(b) {
            *sum += f64::from(a) * f64::from(b);
        }
    }
    let rest = a_rest.iter().zip(b_rest).map(|(&a, &b)| f64::from(a) * f64::from(b));
    sums.iter().sum::<f64>() + rest.sum::<f64>()
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::linalg::cholesky;
    use crate::linalg::tests::random;

    /// A correlated matrix with unit diagonal.
    fn curvature(k: usize) -> Matrix {
        let x = random(2 * k + 1, k, 9);
        let mut h = Matrix::zeros(k, k);
        gemm(0.0, h.view_mut(), 1.0, x.view().t(), x.view(), Threads::One);
        let d: Vec<f32> = (0..k).map(|j| h.row(j)[j].sqrt()).collect();
        Matrix::from_fn(k, k, |i, j| if i == j { 1.0 } else { h.row(i)[j] / (1.1 * d[i] * d[j]) })
    }

    fn support(rows: usize, k: usize) -> Matrix {
        let u = random(rows, k, 5);
        Matrix::from_fn(rows, k, |i, j| f32::from(u8::from(u.row(i)[j] > 0.0)))
    }

    /// The exact fit of one row: a dense f64 solve on its support.
    fn slow(h: &Matrix, w: &[f32], keep: &[f32]) -> Vec<f64> {
        let s: Vec<usize> = (0..w.len()).filter(|&j| keep[j] != 0.0).collect();
        let at = |i: usize, j: usize| f64::from(h.row(i)[j]);
        let mut l = Matrix::from_fn(s.len(), s.len(), |i, j| at(s[i], s[j]));
        cholesky::factor(&mut l, 0.0).unwrap();
        let mut b = Matrix::from_fn(s.len(), 1, |i, _| {
            (0..w.len()).map(|j| at(s[i], j) * f64::from(w[j])).sum()
        });
        cholesky::solve_lower(&l, &mut b);
        cholesky::solve_lower_transposed(&l, &mut b);
        let mut x = vec![0.0; w.len()];
        s.iter().zip(b.data()).for_each(|(&j, &b)| x[j] = b);
        x
    }

    const MANY: Stop = Stop { steps: 300, gain: 0.0 };

    #[test]
    fn many_steps_end_at_the_least_squares_fit_of_every_row() {
        // f32 conjugate gradients on a matrix of condition below 100.
        const TOLERANCE: f64 = 1e-4;
        for (rows, k) in [(0, 4), (3, 0), (1, 1), (7, 13), (195, 40)] {
            let (h, w, keep) = (curvature(k), random(rows, k, 1), support(rows, k));
            let mut x = w.clone();
            solve(h.view(), w.view(), keep.view(), x.view_mut(), MANY);
            for i in 0..rows {
                for (j, want) in slow(&h, w.row(i), keep.row(i)).into_iter().enumerate() {
                    let got = x.row(i)[j];
                    assert!((f64::from(got) - want).abs() <= TOLERANCE, "{i}, {j}: {got}, {want}");
                    assert!(keep.row(i)[j] == 1.0 || got == 0.0);
                }
            }
        }
    }

    #[test]
    fn a_fit_that_is_exact_stays_as_it_is() {
        let (h, keep) = (curvature(20), support(4, 20));
        let w = random(4, 20, 3);
        let w = Matrix::from_fn(4, 20, |i, j| w.row(i)[j] * keep.row(i)[j]);
        let mut x = w.clone();
        let steps = solve(h.view(), w.view(), keep.view(), x.view_mut(), MANY);
        assert_eq!((steps, x), (0, w));
    }

    #[test]
    fn it_rests_where_a_step_gains_little_of_the_cost_that_is_left() {
        let (h, w, keep) = (curvature(60), random(9, 60, 1), support(9, 60));
        let at = |steps: usize, gain: f64| {
            let mut x = w.clone();
            let steps = solve(h.view(), w.view(), keep.view(), x.view_mut(), Stop { steps, gain });
            let mut cost = 0.0;
            for i in 0..9 {
                let d: Vec<f64> = (0..60).map(|j| f64::from(x.row(i)[j] - w.row(i)[j])).collect();
                for j in 0..60 {
                    let hd: f64 = (0..60).map(|l| f64::from(h.row(j)[l]) * d[l]).sum();
                    cost += d[j] * hd;
                }
            }
            (steps, cost)
        };
        let (steps, _) = at(100, 1e-2);
        assert!((2..20).contains(&steps), "{steps}");
        for step in 1..=steps {
            let (before, after) = (at(step - 1, 0.0).1, at(step, 0.0).1);
            let gained = (before - after) / after;
            assert_eq!(gained > 1e-2, step < steps, "step {step} of {steps} gained {gained}");
        }
    }

    #[test]
    fn an_empty_support_gives_zeros() {
        let (h, w) = (curvature(5), random(2, 5, 3));
        let mut x = w.clone();
        let none = Matrix::zeros(2, 5);
        let steps = solve(h.view(), w.view(), none.view(), x.view_mut(), MANY);
        assert_eq!((steps, x), (0, none));
    }

    #[test]
    fn bytes_do_not_depend_on_the_number_of_threads() {
        let (rows, k) = (289, 33);
        let (h, w, keep) = (curvature(k), random(rows, k, 1), support(rows, k));
        let results: Vec<Matrix> = [1, 2, 3]
            .map(|threads| {
                let pool = rayon::ThreadPoolBuilder::new().num_threads(threads).build().unwrap();
                let mut x = w.clone();
                let stop = Stop { steps: 30, gain: 1e-3 };
                pool.install(|| solve(h.view(), w.view(), keep.view(), x.view_mut(), stop));
                x
            })
            .into();
        assert!(results[0] == results[1] && results[0] == results[2]);
    }
}
