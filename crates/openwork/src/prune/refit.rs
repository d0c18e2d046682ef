//! `+refit`: least-squares weights on a fixed mask.
//!
//! Every row x keeps its support Q (P is its complement) and fits its target w, the
//! weights before pruning, in the damped metric A, with C = A^-1:
//!
//! ```text
//! minimize (x - w) A (x - w)'  with x_P = 0
//! x_Q = w_Q - w_P (C_PP)^-1 C_PQ  =  (w A)_Q (A_QQ)^-1
//! ```

use super::{
    Build, Group, MethodInfo, Modifier, Monitor, OptionInfo, Problem, PruneError, Solution, problem,
};
use crate::hessian::Damping;
use crate::linalg::cholesky::{self, NotPositive};
use crate::linalg::pcg::{self, Stop};
use crate::linalg::{Threads, gemm};
use crate::mask::Bits;
use crate::matrix::Matrix;
use rayon::prelude::*;
use std::collections::HashMap;

/// `+refit`.
pub const METHOD: MethodInfo = MethodInfo {
    name: "refit",
    summary: "least-squares fit of the kept weights on the given mask",
    options: &[
        OptionInfo {
            name: "solver",
            values: "auto | exact | cg",
            default: "auto",
            help: "exact: one factorization per distinct row of the mask; cg: conjugate gradients on \
                   all rows at once; auto: exact where it costs no more than cg",
        },
        OptionInfo {
            name: "steps",
            values: "a whole number",
            default: "30",
            help: "maximum number of conjugate gradient steps; stops earlier once a step gains little",
        },
    ],
    damping: Damping::Auto,
    build: Build::Modifier(|settings| {
        let solvers = [("auto", Solver::Auto), ("exact", Solver::Exact), ("cg", Solver::Cg)];
        Ok(Box::new(Refit {
            solver: settings.choice("solver", &solvers, Solver::Auto)?,
            stop: Stop { steps: settings.count("steps", STEPS, 1)?, gain: GAIN },
        }))
    }),
};

/// Default maximum of conjugate gradient steps: layers with nearly dependent inputs
/// need many.
pub(super) const STEPS: usize = 30;

/// Stop once a step is predicted to lower the squared error by less than this share.
/// Starting from SparseGPT's weights at 2:4, most layers of SmolLM2 then take one to
/// four steps and end within 1% of the error after thirty.
const GAIN: f64 = 5e-3;

/// The same for weights near their fit, where even the first step gains little.
pub(super) const FINE: f64 = 1e-5;

/// The solver of the fit.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Solver {
    /// Exact where it costs no more than the maximum of steps.
    Auto,
    /// A factorization for every distinct row of the mask.
    Exact,
    /// Conjugate gradients, all rows at once.
    Cg,
}

pub(super) struct Refit {
    solver: Solver,
    stop: Stop,
}

impl Refit {
    /// A refit of weights that are already near their fit.
    pub fn fine() -> Self {
        Self { solver: Solver::Auto, stop: Stop { steps: STEPS, gain: FINE } }
    }
}

impl Modifier for Refit {
    fn improve(
        &self,
        problem: &Problem<'_>,
        mut solution: Solution,
        monitor: &dyn Monitor,
    ) -> Result<Solution, PruneError> {
        let groups = problem.groups()?;
        for (g, group) in groups.iter().enumerate() {
            if monitor.cancelled() {
                return Err(PruneError::Stopped);
            }
            let out = &mut solution.weights[group.tensor];
            let target = problem.gather(group);
            let keep = group.keep(&solution.mask, out.cols());
            let mut x =
                problem::gather((&*out).into(), &group.rows, &group.columns, &group.curvature);
            let note = fit(group, &target, &keep, &mut x, self.solver, self.stop);
            group.scatter(&x, out);
            solution.notes.extend(note);
            monitor.progress((g + 1) as f64 / groups.len() as f64);
        }
        Ok(solution)
    }
}

/// Fits scaled weights `x`, the initial guess, to `w` on the support where `keep`
/// is 1. Returns a note if the requested solver could not be used.
pub(super) fn fit(
    group: &Group,
    w: &Matrix,
    keep: &Matrix,
    x: &mut Matrix,
    solver: Solver,
    stop: Stop,
) -> Option<String> {
    let a = group.curvature.matrix();
    let cg = |x: &mut Matrix| {
        pcg::solve(a.view(), w.view(), keep.view(), x.view_mut(), stop);
    };
    if solver == Solver::Cg {
        cg(x);
        return None;
    }
    let supports = Support::distinct(keep);
    if solver == Solver::Auto {
        let exact: f64 = supports.iter().map(Support::cost).sum();
        if exact > (stop.steps + 1) as f64 * (w.rows() * w.cols() * w.cols()) as f64 {
            cg(x);
            return None;
        }
    }
    match exact(group, w, &supports, x) {
        Ok(()) => None,
        Err(NotPositive { .. }) => {
            cg(x);
            Some(format!(
                "a submatrix of H is not positive definite in f64: refitted by at most {} conjugate \
                 gradient steps; use more damping for an exact fit",
                stop.steps
            ))
        }
    }
}

/// Rows with the same mask.
struct Support {
    kept: Bits,
    rows: Vec<usize>,
}

impl Support {
    fn distinct(keep: &Matrix) -> Vec<Self> {
        let mut supports: Vec<Self> = Vec::new();
        let mut known: HashMap<Bits, usize> = HashMap::new();
        for i in 0..keep.rows() {
            let at = *known.entry(Bits::nonzero(keep.row(i))).or_insert_with_key(|kept| {
                supports.push(Self { kept: kept.clone(), rows: Vec::new() });
                supports.len() - 1
            });
            supports[at].rows.push(i);
        }
        supports
    }

    /// The kept and the dropped columns.
    fn columns(&self) -> (Vec<usize>, Vec<usize>) {
        (0..self.kept.len()).partition(|&j| self.kept.get(j))
    }

    fn by_inverse(&self) -> bool {
        2 * self.kept.count() >= self.kept.len()
    }

    /// Multiplications in f64, in units of those of a large f32 product: twice
    /// as many bytes, and small matrices run at about half speed.
    fn cost(&self) -> f64 {
        const SLOWER: f64 = 4.0;
        let (k, kept) = (self.kept.len(), self.kept.count());
        let (m, r, k) = (kept.min(k - kept) as f64, self.rows.len() as f64, k as f64);
        SLOWER * (m * m * m / 6.0 + r * m * (m + k))
    }
}

/// Fits every row by a factorization of the smaller of C_PP and A_QQ.
fn exact(
    group: &Group,
    w: &Matrix,
    supports: &[Support],
    x: &mut Matrix,
) -> Result<(), NotPositive> {
    let a = group.curvature.matrix();
    let c = if supports.iter().any(Support::by_inverse) {
        group.curvature.inverse_f64()
    } else {
        Matrix::zeros(0, 0)
    };
    let at = |w: &Matrix, i: usize, j: usize| f64::from(w.row(i)[j]);
    let fits: Vec<Matrix<f64>> = supports
        .par_iter()
        .map(|support| {
            let ((q, p), rows) = (support.columns(), &support.rows);
            if support.by_inverse() {
                let c_pp = Matrix::from_fn(p.len(), p.len(), |i, j| c.row(p[i])[p[j]]);
                let mut y = Matrix::from_fn(p.len(), rows.len(), |i, r| at(w, rows[r], p[i]));
                solve(c_pp, &mut y)?;
                let c_qp = Matrix::from_fn(q.len(), p.len(), |i, j| c.row(q[i])[p[j]]);
                let mut x = Matrix::from_fn(q.len(), rows.len(), |i, r| at(w, rows[r], q[i]));
                gemm(1.0, x.view_mut(), -1.0, c_qp.view(), y.view(), Threads::One);
                Ok(x)
            } else {
                let k = w.cols();
                let a_q = Matrix::from_fn(q.len(), k, |i, j| at(a, q[i], j));
                let w = Matrix::from_fn(k, rows.len(), |j, r| at(w, rows[r], j));
                let mut x = Matrix::zeros(q.len(), rows.len());
                gemm(0.0, x.view_mut(), 1.0, a_q.view(), w.view(), Threads::One);
                solve(Matrix::from_fn(q.len(), q.len(), |i, j| a_q.row(i)[q[j]]), &mut x)?;
                Ok(x)
            }
        })
        .collect::<Result<_, NotPositive>>()?;
    for (support, fit) in supports.iter().zip(fits) {
        let (kept, pruned) = support.columns();
        for (r, &row) in support.rows.iter().enumerate() {
            let x = x.row_mut(row);
            pruned.iter().for_each(|&j| x[j] = 0.0);
            kept.iter().enumerate().for_each(|(i, &j)| x[j] = fit.row(i)[r] as f32);
        }
    }
    Ok(())
}

/// Solves A X = B in place.
fn solve(mut a: Matrix<f64>, b: &mut Matrix<f64>) -> Result<(), NotPositive> {
    let floor = a.rows() as f64 * f64::EPSILON;
    cholesky::factor(&mut a, floor)?;
    cholesky::solve_lower(&a, b);
    cholesky::solve_lower_transposed(&a, b);
    Ok(())
}
