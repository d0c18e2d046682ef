//! ADMM on the mask and the weights together (after ALPS, Meng et al. 2024).
//!
//! The weights are held twice, B free and D on a mask, and pulled together by a
//! multiplier V and a weight rho that grows as the mask settles. On A with a unit
//! diagonal, W the weights before pruning:
//!
//! ```text
//! B = (W A - V + rho D)(A + rho I)^-1
//! D = the blocks of largest norm of P = B + V / rho;     V += rho (B - D)
//! ```
//!
//! V is then rho times the part of P that D leaves out, so P and the mask are
//! all the state. Tensors step together, for a scope may span them.

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
    summary: "mask and weights of all columns at once, by matrix products, then a refit: low error",
    options: &[
        OptionInfo {
            name: "iterations",
            values: "a whole number",
            default: "120",
            help: "at most this many; it stops when the mask has settled",
        },
        OptionInfo {
            name: "rho",
            values: "a number from 0.001 on",
            default: "0.1",
            help: "the first weight that pulls the weights to a mask; it grows as the mask settles",
        },
        OptionInfo {
            name: "steps",
            values: "a whole number",
            default: "30",
            help: "conjugate gradient steps of the refit at the end; they end sooner where one \
                   gains little",
        },
    ],
    damping: Damping::Auto,
    build: Build::Base(|settings| {
        let rho = settings.number("rho", 0.1)?;
        if rho < LEAST {
            return Err(format!("rho={rho}: give a number from {LEAST} on"));
        }
        Ok(Box::new(Admm {
            iterations: settings.count("iterations", 120, 1)?,
            rho,
            steps: settings.count("steps", refit::STEPS, 1)?,
        }))
    }),
};

/// Iterations between two looks at the mask.
const CHECK: usize = 3;

/// By how much rho grows where at least this share of the support changed since
/// the last look, as in ALPS.
const GROWTH: [(f64, f64); 3] = [(0.1, 1.3), (0.005, 1.2), (0.0, 1.1)];

/// From this iteration on a mask has settled if less than the share changed
/// since the last look. A third of it cost one more look and gained less than
/// 1e-4 of the error.
const SETTLED: (usize, f64) = (20, 1e-3);

/// What rho is divided by if the mask stood still from the start.
const RESTART: f64 = 5.0;

/// The least rho: well above the rounding of A in f32.
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

    /// The weight rho grows as the mask of all rows settles.
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

/// All groups on their way.
struct State<'s> {
    parts: Vec<GroupState<'s>>,
    inverses: Vec<Inverse<'s>>,
    /// P, numbered as in [`Projection`].
    p: Vec<f32>,
    /// Room for W A + rho (D - U), numbered alike.
    right: Vec<f32>,
    projection: Projection<'s>,
}

/// One group.
struct GroupState<'s> {
    group: &'s Group,
    /// The scaled weights before pruning.
    w: &'s Matrix,
    /// W A.
    wa: Matrix,
    /// Where its A stands among the inverses.
    inverse: usize,
}

/// (A + rho I)^-1; groups with one A share it.
struct Inverse<'s> {
    a: &'s Arc<Curvature>,
    inverse: Matrix,
    /// Kept from one rho to the next.
    scratch: Matrix,
}

impl<'s> State<'s> {
    /// P = W: the first mask is that of the largest scaled weights.
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

    /// Back to P = W.
    fn restart(&mut self) {
        self.p.clear();
        self.parts.iter().for_each(|part| self.p.extend_from_slice(part.w.data()));
        self.projection.project(&self.p);
    }

    /// Iterates until the mask has settled. False if it stood still before rho
    /// had ever grown: rho was too large to let it move.
    fn descend(
        &mut self,
        mut rho: f64,
        iterations: usize,
        monitor: &dyn Monitor,
    ) -> Result<bool, PruneError> {
        let mut before = self.projection.stays().to_vec();
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
            // What goes makes place for what comes: one change.
            let share = changed as f64 / (2 * kept).max(1) as f64;
            if changed == 0 || (i >= SETTLED.0 && share < SETTLED.1) {
                return Ok(changed > 0 || i > CHECK);
            }
            before.copy_from_slice(self.projection.stays());
            let growth = GROWTH.iter().find(|(least, _)| share > *least);
            rho *= growth.map_or(1.0, |(_, by)| *by);
            self.invert(rho);
        }
        Ok(true)
    }

    /// One iteration up to P, with V = `old` times what D left out:
    ///
    /// ```text
    /// U = V / rho        P = (W A + rho (D - U))(A + rho I)^-1 + U
    /// ```
    fn step(&mut self, old: f64, rho: f64) {
        // P is D on the mask and V / old elsewhere.
        let (in_u, in_right) = ((old / rho) as f32, [-old as f32, rho as f32]);
        let (stays, blocks) = (self.projection.stays(), self.projection.blocks());
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

    /// Inverts A + rho I, in f32 unless its rounding stands in the way.
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

/// Entries of the rows that one thread multiplies at a time.
fn panel(x: &Matrix) -> usize {
    (panel_rows(x.rows()) * x.cols()).max(1)
}
