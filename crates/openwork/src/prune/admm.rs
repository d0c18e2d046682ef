//! ADMM on the mask and the weights together (after ALPS, Meng et al. 2024).
//!
//! The weights are split into two copies, B unconstrained and D on a mask, coupled
//! by a multiplier V and a penalty rho that grows as the mask converges. With A of
//! unit diagonal and W the weights before pruning:
//!
//! ```text
//! B = (W A - V + rho D)(A + rho I)^-1
//! D = the blocks of largest norm of P = B + V / rho;     V += rho (B - D)
//! ```
//!
//! V is then rho times the part of P outside the mask, so P and the mask are the
//! whole state. All tensors iterate together, because a scope may span them.

use super::project::Projection;
use super::refit::{self, Solver};
use super::{
    Build, Group, MethodInfo, Monitor, Needs, OptionInfo, Problem, PruneError, Pruner, Solution,
};
use crate::hessian::{Curvature, Damping};
use crate::linalg::pcg::Stop;
use crate::linalg::{Scalar, Threads, cholesky, gemm, panel_rows};
use crate::matrix::{Matrix, MatrixMut, MatrixRef};
use rayon::prelude::*;
use std::sync::Arc;

/// `admm`.
pub const METHOD: MethodInfo = MethodInfo {
    name: "admm",
    summary: "optimizes mask and weights of all columns together by ADMM, then refits: low error",
    options: &[
        OptionInfo {
            name: "iterations",
            values: "a whole number",
            default: "120",
            help: "maximum number of iterations; stops earlier once the mask has converged",
        },
        OptionInfo {
            name: "rho",
            values: "a number of at least 0.001",
            default: "0.1",
            help: "initial penalty; it grows as the mask converges",
        },
        OptionInfo {
            name: "steps",
            values: "a whole number",
            default: "30",
            help: "maximum number of conjugate gradient steps of the final refit",
        },
    ],
    damping: Damping::Auto,
    build: Build::Base(|settings| {
        let rho = settings.number("rho", 0.1)?;
        if rho < LEAST {
            return Err(format!("rho={rho}: expected a number of at least {LEAST}"));
        }
        Ok(Box::new(Admm {
            iterations: settings.count("iterations", 120, 1)?,
            rho,
            steps: settings.count("steps", refit::STEPS, 1)?,
        }))
    }),
};

/// Iterations between two checks of the mask.
const CHECK: usize = 3;

/// The factor by which rho grows if at least this share of the support changed
/// since the last check, as in ALPS.
const GROWTH: [(f64, f64); 3] = [(0.1, 1.3), (0.005, 1.2), (0.0, 1.1)];

/// From this iteration on, a mask has converged if less than this share of it changed
/// since the last check. A third of the share took one more check and lowered the
/// error by less than 1e-4.
const SETTLED: (usize, f64) = (20, 1e-3);

/// The divisor of rho if the mask never moved.
const RESTART: f64 = 5.0;

/// The minimum rho: well above the rounding of A in f32.
const LEAST: f64 = 1e-3;

struct Admm {
    iterations: usize,
    rho: f64,
    steps: usize,
}

impl Pruner for Admm {
    fn needs(&self) -> Needs {
        Needs::Hessian
    }

    /// The penalty rho depends on the mask of all rows.
    fn by_rows(&self) -> bool {
        false
    }

    fn prune(&self, problem: &Problem<'_>, monitor: &dyn Monitor) -> Result<Solution, PruneError> {
        let groups = problem.groups()?;
        let w: Vec<Matrix> = groups.iter().map(|group| problem.gather(group)).collect();
        let mut state = State::new(problem, &groups, &w)?;
        let mut rho = self.rho;
        while !state.descend(rho, self.iterations, monitor)? && rho / RESTART >= LEAST {
            rho /= RESTART;
            state.restart();
        }

        let State { parts, p, projection, .. } = state;
        let (mut weights, mut notes) = (problem.copies(), Vec::new());
        let mut rest = p.as_slice();
        for ((part, w), keep) in parts.iter().zip(&w).zip(projection.keeps()) {
            let (p, after) = rest.split_at(w.data().len());
            rest = after;
            let mut x = Matrix::from_vec(w.rows(), w.cols(), p.to_vec());
            let stop = Stop { steps: self.steps, gain: refit::FINE };
            notes.extend(refit::fit(part.group, w, &keep, &mut x, Solver::Auto, stop));
            part.group.scatter(&x, &mut weights[part.group.tensor]);
        }
        monitor.progress(1.0);
        Ok(Solution { mask: projection.mask(), weights, notes })
    }
}

/// The state of all groups.
struct State<'s> {
    parts: Vec<GroupState<'s>>,
    inverses: Vec<Inverse<'s>>,
    /// P, numbered as in [`Projection`].
    p: Vec<f32>,
    /// Scratch for W A + rho (D - U), numbered alike.
    right: Vec<f32>,
    projection: Projection<'s>,
}

/// The constants of one group.
struct GroupState<'s> {
    group: &'s Group,
    /// The scaled weights before pruning.
    w: &'s Matrix,
    /// W A.
    wa: Matrix,
    /// The index of its A among the inverses.
    inverse: usize,
}

/// (A + rho I)^-1, shared by groups with the same A.
struct Inverse<'s> {
    a: &'s Arc<Curvature>,
    inverse: Matrix,
    /// Reused from one rho to the next.
    scratch: Matrix,
}

impl<'s> State<'s> {
    /// Starts at P = W: the first mask keeps the largest scaled weights.
    fn new(
        problem: &Problem<'s>,
        groups: &'s [Group],
        w: &'s [Matrix],
    ) -> Result<Self, PruneError> {
        let mut inverses: Vec<Inverse<'s>> = Vec::new();
        let parts: Vec<GroupState<'s>> = groups
            .iter()
            .zip(w)
            .map(|(group, w)| {
                let (k, a) = (w.cols(), group.curvature.matrix());
                let (mut wa, panel) = (Matrix::zeros(w.rows(), k), panel(w));
                let rows = wa.data_mut().par_chunks_mut(panel).zip(w.data().par_chunks(panel));
                rows.for_each(|(wa, w)| {
                    let count = w.len() / k;
                    let (wa, w) = (MatrixMut::new(wa, count, k), MatrixRef::new(w, count, k));
                    gemm(0.0, wa, 1.0, w, a.view(), Threads::One);
                });
                let known = inverses.iter().position(|i| Arc::ptr_eq(i.a, &group.curvature));
                let inverse = known.unwrap_or_else(|| {
                    inverses.push(Inverse::new(&group.curvature));
                    inverses.len() - 1
                });
                GroupState { group, w, wa, inverse }
            })
            .collect();
        let projection = Projection::new(problem.spec, groups)?;
        let right = vec![0.0; w.iter().map(|w| w.data().len()).sum()];
        let mut state = Self { parts, inverses, p: Vec::new(), right, projection };
        state.restart();
        Ok(state)
    }

    /// Restarts at P = W.
    fn restart(&mut self) {
        self.p.clear();
        self.parts.iter().for_each(|part| self.p.extend_from_slice(part.w.data()));
        self.projection.project(&self.p);
    }

    /// Iterates until the mask has converged. False if it never moved before rho first
    /// grew: rho was too large.
    fn descend(
        &mut self,
        mut rho: f64,
        iterations: usize,
        monitor: &dyn Monitor,
    ) -> Result<bool, PruneError> {
        let mut before = self.projection.kept().to_vec();
        self.invert(rho);
        let mut old = rho;
        for i in 1..=iterations {
            if monitor.cancelled() {
                return Err(PruneError::Stopped);
            }
            self.step(old, rho);
            self.projection.project(&self.p);
            old = rho;
            monitor.progress(i as f64 / (iterations + 1) as f64);
            if i % CHECK != 0 {
                continue;
            }
            let (kept, changed) = self.projection.changed(&before);
            // A dropped weight and the one that replaces it are one change.
            let share = changed as f64 / (2 * kept).max(1) as f64;
            if changed == 0 || (i >= SETTLED.0 && share < SETTLED.1) {
                return Ok(changed > 0 || i > CHECK);
            }
            before.copy_from_slice(self.projection.kept());
            let growth = GROWTH.iter().find(|(least, _)| share > *least);
            rho *= growth.map_or(1.0, |(_, by)| *by);
            self.invert(rho);
        }
        Ok(true)
    }

    /// One iteration up to P, with V = `old` times the part of P outside the mask:
    ///
    /// ```text
    /// U = V / rho        P = (W A + rho (D - U))(A + rho I)^-1 + U
    /// ```
    fn step(&mut self, old: f64, rho: f64) {
        // P is D on the mask and V / old elsewhere.
        let (in_u, in_right) = ((old / rho) as f32, [-old as f32, rho as f32]);
        let (stays, blocks) = (self.projection.kept(), self.projection.blocks());
        let mut first = 0;
        for part in &self.parts {
            let inverse = &self.inverses[part.inverse].inverse;
            let (k, size) = (part.wa.cols(), part.wa.data().len());
            let panel = panel(&part.wa);
            let here = first..first + size;
            let p = self.p[here.clone()].par_chunks_mut(panel);
            let rights = self.right[here.clone()].par_chunks_mut(panel);
            let known = part.wa.data().par_chunks(panel).zip(blocks[here].par_chunks(panel));
            p.zip(rights).zip(known).for_each(|((p, right), (wa, blocks))| {
                for (((right, p), &wa), &block) in right.iter_mut().zip(&mut *p).zip(wa).zip(blocks)
                {
                    let stays = stays[block as usize];
                    *right = wa + in_right[usize::from(stays)] * *p;
                    *p *= if stays { 0.0 } else { in_u };
                }
                let rows = p.len() / k;
                let right = MatrixRef::new(right, rows, k);
                gemm(1.0, MatrixMut::new(p, rows, k), 1.0, right, inverse.view(), Threads::One);
            });
            first += size;
        }
    }

    fn invert(&mut self, rho: f64) {
        self.inverses.iter_mut().for_each(|inverse| inverse.compute(rho as f32));
    }
}

impl<'s> Inverse<'s> {
    fn new(a: &'s Arc<Curvature>) -> Self {
        let n = a.matrix().rows();
        Self { a, inverse: Matrix::zeros(n, n), scratch: Matrix::zeros(n, n) }
    }

    /// Inverts A + rho I, in f32 unless rounding makes it indefinite.
    fn compute(&mut self, rho: f32) {
        let a = self.a.matrix();
        raise(a, rho, &mut self.inverse, |x| x);
        if cholesky::invert(&mut self.inverse, &mut self.scratch, 0.0).is_err() {
            let mut wide = Matrix::zeros(a.rows(), a.rows());
            raise(a, rho, &mut wide, f64::from);
            // A is positive definite up to rounding in f32, which `LEAST` exceeds.
            let inverse = cholesky::inverse(wide, 0.0).expect("A + rho I is positive definite");
            self.inverse = Matrix::from_fn(a.rows(), a.rows(), |i, j| inverse.row(i)[j] as f32);
        }
    }
}

/// A + rho I, summed in f32.
fn raise<T: Scalar>(a: &Matrix, rho: f32, out: &mut Matrix<T>, wide: impl Fn(f32) -> T + Sync) {
    out.data_mut().par_chunks_mut(a.rows().max(1)).enumerate().for_each(|(j, row)| {
        row.iter_mut().zip(a.row(j)).for_each(|(x, &a)| *x = wide(a));
        row[j] = wide(a.row(j)[j] + rho);
    });
}

/// The number of entries in a panel of rows that one thread multiplies.
fn panel(x: &Matrix) -> usize {
    (panel_rows(x.rows()) * x.cols()).max(1)
}
