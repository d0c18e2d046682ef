//! Least squares on a support by conjugate gradients, all rows at once.
//!
//! Every row x of X keeps its own support S and target w (a row of W):
//!
//! ```text
//! minimize (x - w) H (x - w)'  over x with x_j = 0 outside S
//! that is  (x H)_S = (w H)_S
//! ```
//!
//! With H = L + D + L' (L strictly lower), all restricted to S, the steps are
//! preconditioned by a symmetric Gauss-Seidel sweep, (D + L) D^-1 (D + L'),
//! one of which is worth four or five steps preconditioned by D alone. In the
//! variables between the two halves of the sweep (Eisenstat 1981), a step needs no other
//! product with H: one solve with D + L' and one with D + L, together the work of one
//! M x K x K product. Supports may differ between rows, because entries outside are set
//! to zero in the sweep.

use rayon::prelude::*;

use super::gemm::{Threads, gemm, panel_rows};
use super::small;
use crate::matrix::{Matrix, MatrixMut, MatrixRef};

/// The stopping rule.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Stop {
    /// The maximum number of steps.
    pub steps: usize,
    /// A panel of rows stops once the next step is predicted to lower the sum of their costs
    /// by no more than this share.
    pub gain: f64,
}

/// Entries solved one after the other before the rest is updated by a product.
const BLOCK: usize = 64;

/// The share of the initial r.Dr that is rounding error in f32.
const ROUNDING: f64 = (f32::EPSILON * f32::EPSILON) as f64;

/// Improves every row of X towards the least-squares fit of W on its support:
///
/// ```text
/// r = (D + L)^-1 H (w - x)        p = D r
/// repeat:  t = (D + L')^-1 p;     q = t + (D + L)^-1 (p - D t)
///          a = r.Dr / p.q;        x += a t;  r -= a q
///          p = D r + (r.Dr new / r.Dr old) p
/// ```
///
/// `keep` is 1 where a weight may differ from zero and 0 elsewhere. X is the
/// initial guess; entries outside the support are set to zero first. H is symmetric with a
/// positive diagonal, preferably scaled to a unit diagonal so that f32 suffices. Rows are
/// independent, and results do not depend on the number of threads. Returns the largest
/// number of steps of any panel of rows.
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
/// If the shapes differ, or rows of H are not contiguous.
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
    let diagonal: Vec<f32> = (0..k).map(|j| h.at(j, j)).collect();
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
            Panel { h, diagonal: &diagonal, keep: keep.t().to_matrix() }.solve(w, x, stop)
        })
        .collect();
    steps.into_iter().max().unwrap_or(0)
}

/// Rows that are solved together. All their matrices are transposed, K x rows,
/// so that an entry of the solves is a vector over rows.
struct Panel<'h> {
    h: MatrixRef<'h>,
    diagonal: &'h [f32],
    keep: Matrix,
}

impl Panel<'_> {
    /// [`solve`] of these rows.
    fn solve(&self, w: MatrixRef<'_>, mut x: MatrixMut<'_>, stop: Stop) -> usize {
        let mut fit = x.view().t().to_matrix();
        for (x, &m) in fit.data_mut().iter_mut().zip(self.keep.data()) {
            *x = if m == 0.0 { 0.0 } else { *x };
        }
        let steps = self.steps(w.t().to_matrix(), &mut fit, stop);
        x.copy_from(fit.view().t());
        steps
    }

    /// The same with W and X transposed.
    fn steps(&self, mut w: Matrix, x: &mut Matrix, stop: Stop) -> usize {
        let (k, rows) = (x.rows(), x.cols());
        w.data_mut().iter_mut().zip(x.data()).for_each(|(w, &x)| *w -= x);
        let mut p = w;
        let mut r = Matrix::zeros(k, rows);
        gemm(0.0, r.view_mut(), 1.0, self.h, p.view(), Threads::One);
        let mut cost: f64 = sums(rows, r.data(), p.data()).iter().sum();
        self.sweep(Direction::Forward, &mut r);
        let mut old = vec![0.0; rows];
        for (j, &d) in self.diagonal.iter().enumerate() {
            for ((p, &r), old) in p.row_mut(j).iter_mut().zip(r.row(j)).zip(&mut old) {
                *p = d * r;
                *old += f64::from(*p) * f64::from(r);
            }
        }

        let (mut t, mut q) = (Matrix::zeros(k, rows), Matrix::zeros(k, rows));
        let first = old.clone();
        if first.iter().all(|&rz| rz == 0.0) {
            return 0;
        }
        for step in 0..stop.steps {
            t.data_mut().copy_from_slice(p.data());
            self.sweep(Direction::Backward, &mut t);
            for (j, &d) in self.diagonal.iter().enumerate() {
                for ((q, &p), &t) in q.row_mut(j).iter_mut().zip(p.row(j)).zip(t.row(j)) {
                    *q = p - d * t;
                }
            }
            self.sweep(Direction::Forward, &mut q);
            q.data_mut().iter_mut().zip(t.data()).for_each(|(q, &t)| *q += t);

            let pq = sums(rows, p.data(), q.data());
            let length: Vec<f64> =
                old.iter().zip(&pq).map(|(rz, &pq)| if pq > 0.0 { rz / pq } else { 0.0 }).collect();
            cost -= length.iter().zip(&old).map(|(a, rz)| a * rz).sum::<f64>();
            let a: Vec<f32> = length.iter().map(|&a| a as f32).collect();
            let mut new = vec![0.0; rows];
            for (j, &d) in self.diagonal.iter().enumerate() {
                for ((x, &t), &a) in x.row_mut(j).iter_mut().zip(t.row(j)).zip(&a) {
                    *x += a * t;
                }
                let r = r.row_mut(j).iter_mut().zip(q.row(j)).zip(&a);
                for (((r, &q), &a), new) in r.zip(&mut new) {
                    *r -= a * q;
                    *new += f64::from(d * *r) * f64::from(*r);
                }
            }
            // A row stops once its residual or its curvature is within rounding error.
            for (i, new) in new.iter_mut().enumerate() {
                if length[i] == 0.0 || *new <= ROUNDING * first[i] {
                    *new = 0.0;
                }
            }
            // Step lengths change little from step to step.
            let promised: f64 = length.iter().zip(&new).map(|(a, rz)| a * rz).sum();
            if promised <= stop.gain * cost.max(0.0) {
                return step + 1;
            }
            let b: Vec<f32> = (new.iter().zip(&old))
                .map(|(&new, &old)| if new > 0.0 { (new / old) as f32 } else { 0.0 })
                .collect();
            old = new;
            for (j, &d) in self.diagonal.iter().enumerate() {
                for ((p, &r), &b) in p.row_mut(j).iter_mut().zip(r.row(j)).zip(&b) {
                    *p = d * r + b * *p;
                }
            }
        }
        stop.steps
    }

    /// Solves with one triangle of H on the support of every row, in place:
    ///
    /// ```text
    /// forward   Y <- (D + L)^-1 Y      y_j = (y_j - sum over i < j of H_ji y_i) / D_j
    /// backward  Y <- (D + L')^-1 Y     the same over i > j, from the last j to the first
    /// ```
    fn sweep(&self, direction: Direction, y: &mut Matrix) {
        let (k, rows) = (y.rows(), y.cols());
        let blocks = k.div_ceil(BLOCK);
        for b in 0..blocks {
            let start = BLOCK * if direction == Direction::Forward { b } else { blocks - 1 - b };
            let end = (start + BLOCK).min(k);
            for n in 0..end - start {
                let j = if direction == Direction::Forward { start + n } else { end - 1 - n };
                let (before, rest) = y.data_mut().split_at_mut(j * rows);
                let (y, after) = rest.split_at_mut(rows);
                let (known, first) = match direction {
                    Direction::Forward => (&before[start * rows..], start),
                    Direction::Backward => (&after[..(end - 1 - j) * rows], j + 1),
                };
                let h = &self.h.row(j)[first..];
                small::subtract(y, n, |i| h[i], known);
                let d = 1.0 / self.diagonal[j];
                // Entries outside a support are arbitrary and must be cleared.
                for (y, &m) in y.iter_mut().zip(self.keep.row(j)) {
                    *y = if m == 0.0 { 0.0 } else { *y * d };
                }
            }
            let (before, rest) = y.data_mut().split_at_mut(start * rows);
            let (solved, after) = rest.split_at_mut((end - start) * rows);
            let (others, first) =
                if direction == Direction::Forward { (after, end) } else { (before, 0) };
            let count = others.len() / rows;
            let others = MatrixMut::new(others, count, rows);
            let h = self.h.part(start, end - start, first, count).t();
            let solved = MatrixRef::new(solved, end - start, rows);
            gemm(1.0, others, -1.0, h, solved, Threads::One);
        }
    }
}

/// The two halves of a symmetric sweep.
#[derive(Clone, Copy, PartialEq, Eq)]
enum Direction {
    Forward,
    Backward,
}

/// The sum of a b of every row, in f64.
fn sums(rows: usize, a: &[f32], b: &[f32]) -> Vec<f64> {
    let mut sums = vec![0.0; rows];
    for (a, b) in a.chunks_exact(rows).zip(b.chunks_exact(rows)) {
        for ((sum, &a), &b) in sums.iter_mut().zip(a).zip(b) {
            *sum += f64::from(a) * f64::from(b);
        }
    }
    sums
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

    #[test]
    fn a_sweep_solves_with_its_half_of_h_on_every_support() {
        const TOLERANCE: f64 = 1e-4;
        for (rows, k) in [(1, 1), (5, 64), (3, 65), (7, 200)] {
            let (h, b) = (curvature(k), random(k, rows, 1));
            let keep = support(rows, k).view().t().to_matrix();
            let diagonal: Vec<f32> = (0..k).map(|j| h.row(j)[j]).collect();
            let panel = Panel { h: h.view(), diagonal: &diagonal, keep };
            for direction in [Direction::Forward, Direction::Backward] {
                let mut y = b.clone();
                panel.sweep(direction, &mut y);
                for i in 0..rows {
                    for j in 0..k {
                        let half = if direction == Direction::Forward { 0..=j } else { j..=k - 1 };
                        let got: f64 =
                            half.map(|l| f64::from(h.row(j)[l]) * f64::from(y.row(l)[i])).sum();
                        if panel.keep.row(j)[i] == 0.0 {
                            assert_eq!(y.row(j)[i], 0.0);
                        } else {
                            let want = f64::from(b.row(j)[i]);
                            assert!((got - want).abs() <= TOLERANCE, "{i}, {j}: {got}, {want}");
                        }
                    }
                }
            }
        }
    }

    const MANY: Stop = Stop { steps: 300, gain: 0.0 };

    #[test]
    fn many_steps_end_at_the_least_squares_fit_of_every_row() {
        // f32 conjugate gradients on a matrix of condition below 100.
        const TOLERANCE: f64 = 1e-4;
        for (rows, k) in [(0, 4), (3, 0), (1, 1), (7, 13), (195, 40), (5, 64), (6, 150)] {
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
        let (steps, _) = at(100, 1e-3);
        assert!((2..10).contains(&steps), "{steps}");
        for step in 1..=steps + 1 {
            let (before, after) = (at(step - 1, 0.0).1, at(step, 0.0).1);
            let gained = (before - after) / after;
            assert_eq!(gained > 1e-3, step <= steps, "step {step} of {steps} gained {gained}");
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
        let (rows, k) = (289, 133);
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
