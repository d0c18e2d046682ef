//! The state of a bundle whose support changes column by column.
//!
//! With `H` the curvature, `Q` the kept columns and `P` the dropped ones:
//!
//! ```text
//!     [  B   A ]     B = H_QQ^-1    A = B H_QP    S = H_PP - H_PQ A
//! T = [  A' -S ]     u = [ w_Q ; g_P ]: the fitted weights, and the gradient
//!
//! pivot k:  T <- T - r r'/d - 2 s e_k e_k'      d = T_kk,  r = T_k: but r_k = d - s
//!           u_i <- u_i - T_ik u_k / d           u_k <- s u_k / d
//! ```
//!
//! with s = -1 to drop k and +1 to restore it. Dropping `k` costs `w_k^2 / B_kk`,
//! restoring it gains `g_k^2 / S_kk`. Pivots are queued as vectors and applied to T
//! several at a time.

use crate::linalg::{Scalar, Threads, cholesky, gemm};
use crate::matrix::{Matrix, MatrixRef};

/// Queued pivots after which T is updated.
const PENDING: usize = 64;

/// The tableau of the module documentation.
#[derive(Clone)]
pub(super) struct Tableau<T: Scalar> {
    n: usize,
    t: Matrix<T>,
    /// Whether each column is kept.
    pub kept: Vec<bool>,
    /// u of each row, over all columns.
    pub u: Matrix<T>,
    /// r and d of each queued pivot.
    r: Vec<T>,
    d: Vec<T>,
    /// What the queued pivots add to the diagonal.
    fix: Vec<T>,
}

/// A pivot, to be applied to submatrices of T.
pub(super) struct Pivot<T> {
    pub column: usize,
    pub r: Vec<T>,
    pub d: T,
    /// What is added to the diagonal entry of the column besides.
    pub fix: T,
}

impl<T: Scalar> Tableau<T> {
    /// The state of rows `w` fitted on the kept columns; `None` if rounding makes that
    /// impossible.
    pub fn new(h: &Matrix, w: &Matrix, kept: Vec<bool>) -> Option<Self> {
        let n = h.rows();
        let q: Vec<usize> = (0..n).filter(|&j| kept[j]).collect();
        let p: Vec<usize> = (0..n).filter(|&j| !kept[j]).collect();
        let wide = |x: f32| T::from_f64(f64::from(x));
        let part = |a: &[usize], b: &[usize]| {
            Matrix::from_fn(a.len(), b.len(), |i, j| wide(h.row(a[i])[b[j]]))
        };
        let b = cholesky::inverse(part(&q, &q), T::ZERO).ok()?;
        let h_qp = part(&q, &p);
        let mut a = Matrix::zeros(q.len(), p.len());
        gemm(T::ZERO, a.view_mut(), T::ONE, b.view(), h_qp.view(), Threads::One);
        let mut s = part(&p, &p);
        gemm(T::ONE, s.view_mut(), -T::ONE, h_qp.view().t(), a.view(), Threads::One);
        let mut t = Matrix::zeros(n, n);
        for (i, &qi) in q.iter().enumerate() {
            let row = t.row_mut(qi);
            q.iter().zip(b.row(i)).for_each(|(&j, &x)| row[j] = x);
            p.iter().zip(a.row(i)).for_each(|(&j, &x)| row[j] = x);
        }
        for (i, &pi) in p.iter().enumerate() {
            let row = t.row_mut(pi);
            q.iter().enumerate().for_each(|(k, &j)| row[j] = a.row(k)[i]);
            p.iter().zip(s.row(i)).for_each(|(&j, &x)| row[j] = -x);
        }
        // u = w_Q + T_:P w_P
        let mut u = Matrix::zeros(w.rows(), n);
        for i in 0..w.rows() {
            let u = u.row_mut(i);
            q.iter().for_each(|&j| u[j] = wide(w.row(i)[j]));
            for &k in &p {
                let w_k = wide(w.row(i)[k]);
                // T is symmetric, so its row serves as a column.
                u.iter_mut().zip(t.row(k)).for_each(|(u, &t)| *u += t * w_k);
            }
        }
        Some(Self { n, t, kept, u, r: Vec::new(), d: Vec::new(), fix: vec![T::ZERO; n] })
    }

    /// Row `i` of T.
    pub fn row(&self, i: usize) -> Vec<T> {
        let mut row = self.t.row(i).to_vec();
        for (r, &d) in self.r.chunks(self.n).zip(&self.d) {
            let f = r[i] / d;
            row.iter_mut().zip(r).for_each(|(t, &r)| *t -= f * r);
        }
        row[i] += self.fix[i];
        row
    }

    /// Entry `i`, `j` of T.
    pub fn at(&self, i: usize, j: usize) -> T {
        let pivots = self.r.chunks(self.n).zip(&self.d);
        let changes = pivots.fold(T::ZERO, |sum, (r, &d)| sum + r[i] * r[j] / d);
        self.t.row(i)[j] - changes + if i == j { self.fix[i] } else { T::ZERO }
    }

    /// tr((X - W) H (X - W)') for the fitted weights X, that is w_P' S w_P of
    /// every row.
    pub fn cost(&self, w: &Matrix) -> f64 {
        let mut cost = 0.0;
        for i in 0..w.rows() {
            // u_P = -S w_P
            let pruned =
                self.kept.iter().zip(w.row(i)).zip(self.u.row(i)).filter(|((kept, _), _)| !**kept);
            cost -= pruned.map(|((_, &w), &g)| f64::from(w) * g.into()).sum::<f64>();
        }
        cost
    }

    /// Drops column `k` if it is kept, restores it if it is not.
    pub fn pivot(&mut self, k: usize) -> Pivot<T> {
        let mut r = self.row(k);
        let d = r[k];
        let s = if self.kept[k] { -T::ONE } else { T::ONE };
        for i in 0..self.u.rows() {
            let u = self.u.row_mut(i);
            let f = u[k] / d;
            u.iter_mut().zip(&r).for_each(|(u, &t)| *u -= f * t);
            u[k] = s * f;
        }
        r[k] = d - s;
        let fix = -(s + s);
        self.r.extend_from_slice(&r);
        self.d.push(d);
        self.fix[k] += fix;
        self.kept[k] = !self.kept[k];
        if self.d.len() == PENDING {
            self.bring_up_to_date();
        }
        Pivot { column: k, r, d, fix }
    }

    fn bring_up_to_date(&mut self) {
        let n = self.n;
        let r = MatrixRef::new(&self.r, self.d.len(), n);
        let over = Matrix::from_fn(self.d.len(), n, |i, j| self.r[i * n + j] / self.d[i]);
        gemm(T::ONE, self.t.view_mut(), -T::ONE, r.t(), over.view(), Threads::One);
        for (i, fix) in self.fix.iter_mut().enumerate() {
            self.t.row_mut(i)[i] += std::mem::take(fix);
        }
        self.r.clear();
        self.d.clear();
    }
}

impl<T: Scalar> Pivot<T> {
    /// Applies the pivot to the submatrix of T for some columns.
    pub fn update(&self, columns: &[u32], t: &mut [T]) {
        let b = columns.len();
        for (i, &ci) in columns.iter().enumerate() {
            let f = self.r[ci as usize] / self.d;
            for (t, &cj) in t[i * b..][..b].iter_mut().zip(columns) {
                *t -= f * self.r[cj as usize];
            }
            if ci as usize == self.column {
                t[i * b + i] += self.fix;
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::linalg::tests::random;

    /// A matrix with a unit diagonal, well away from singular.
    fn curvature(n: usize) -> Matrix {
        let x = random(3 * n, n, 5);
        let dot = |i: usize, j: usize| (0..3 * n).map(|s| x.row(s)[i] * x.row(s)[j]).sum::<f32>();
        Matrix::from_fn(n, n, |i, j| dot(i, j) / (dot(i, i) * dot(j, j)).sqrt())
    }

    #[test]
    fn pivots_lead_to_the_state_of_the_new_support() {
        let n = 40;
        let (h, w) = (curvature(n), random(3, n, 9));
        let kept: Vec<bool> = (0..n).map(|j| j % 3 != 0).collect();
        let mut state = Tableau::<f32>::new(&h, &w, kept.clone()).unwrap();
        let mut want = kept;
        // More pivots than the queue holds, some of them undone later.
        for step in 0..3 * PENDING / 2 {
            let k = (step * 7 + step / n) % n;
            state.pivot(k);
            want[k] = !want[k];
        }
        assert_eq!(state.kept, want);
        let fresh = Tableau::<f32>::new(&h, &w, want).unwrap();
        for i in 0..n {
            for (got, want) in state.row(i).iter().zip(fresh.row(i)) {
                assert!((got - want).abs() < 2e-3, "T: {got} for {want}");
            }
            assert!((state.at(i, (i + 1) % n) - state.row(i)[(i + 1) % n]).abs() < 1e-4);
        }
        let change =
            |i: usize, j: usize| if fresh.kept[j] { fresh.u.row(i)[j] } else { 0.0 } - w.row(i)[j];
        let times = |i: usize, j: usize| (0..n).map(|k| change(i, k) * h.row(k)[j]).sum::<f32>();
        let cost: f32 = (0..3)
            .flat_map(|i| (0..n).map(move |j| (i, j)))
            .map(|(i, j)| times(i, j) * change(i, j))
            .sum();
        assert!(
            (state.cost(&w) - f64::from(cost)).abs() < 1e-3 * f64::from(cost),
            "{} for {cost}",
            state.cost(&w)
        );
        for (got, want) in state.u.data().iter().zip(fresh.u.data()) {
            assert!((got - want).abs() < 2e-3, "u: {got} for {want}");
        }
    }
}
