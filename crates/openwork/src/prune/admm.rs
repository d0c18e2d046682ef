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

use super::lots::Places;
use super::refit::{self, Solver};
use super::{
    Build, Group, Method, Needs, OptionInfo, Problem, PruneError, Pruner, Solution, Watch,
};
use crate::hessian::{Curvature, Damping};
use crate::linalg::{Threads, cholesky, gemm};
use crate::mask::Mask;
use crate::matrix::{Matrix, MatrixMut};
use crate::select::Selector;
use rayon::prelude::*;
use std::sync::Arc;

/// `admm`.
pub const METHOD: Method = Method {
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
            default: "10",
            help: "conjugate gradient steps of the refit at the end",
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

/// From this iteration on a mask has settled if less than the share changed.
const SETTLED: (usize, f64) = (30, 3e-4);

/// What rho is divided by if the mask stood still from the start.
const RESTART: f64 = 5.0;

/// The least rho: well above the rounding of A in f32.
const LEAST: f64 = 1e-3;

/// Rows that one thread moves at a time.
const ROWS: usize = 96;

struct Admm {
    iterations: usize,
    rho: f64,
    steps: usize,
}

impl Pruner for Admm {
    fn needs(&self) -> Needs {
        Needs::Hessian
    }

    fn prune(&self, problem: &Problem<'_>, watch: &dyn Watch) -> Result<Solution, PruneError> {
        let groups = problem.groups()?;
        let places = Places::new(problem.spec, &groups);
        let mut state = State::new(problem, &groups, &places);
        let mut rho = self.rho;
        while !state.descend(rho, self.iterations, watch)? && rho / RESTART >= LEAST {
            rho /= RESTART;
            state.restart();
        }

        let State { parts, mask, .. } = state;
        let mut weights = problem.copies();
        let mut notes = Vec::new();
        for (group, Part { w, mut p, keep, .. }) in groups.iter().zip(parts) {
            notes.extend(refit::fit(group, &w, &keep, &mut p, Solver::Auto, self.steps));
            group.scatter(&p, &mut weights[group.tensor]);
        }
        watch.progress(1.0);
        Ok(Solution { mask, weights, notes })
    }
}

/// All groups on their way.
struct State<'s> {
    groups: &'s [Group],
    places: &'s Places,
    selector: Selector<'s>,
    parts: Vec<Part>,
    mask: Mask,
}

/// One group: the columns of its tensor, the scaled weights before pruning,
/// W A, P, and 1 where D is not zero.
struct Part {
    cols: usize,
    w: Matrix,
    wa: Matrix,
    p: Matrix,
    keep: Matrix,
}

impl<'s> State<'s> {
    /// P = W: the first mask is that of the largest scaled weights.
    fn new(problem: &Problem<'s>, groups: &'s [Group], places: &'s Places) -> Self {
        let parts: Vec<Part> = groups
            .iter()
            .map(|group| {
                let w = problem.gather(group);
                let mut wa = Matrix::zeros(w.rows(), w.cols());
                let a = group.curvature.matrix();
                by_rows(&mut wa, |top, out| {
                    let w = w.view().part(top, out.rows(), 0, w.cols());
                    gemm(0.0, out, 1.0, w, a.view(), Threads::One);
                });
                let keep = Matrix::zeros(0, 0);
                Part { cols: problem.weights[group.tensor].cols(), p: w.clone(), w, wa, keep }
            })
            .collect();
        let (selector, mask) = (Selector::new(problem.spec), Mask::full(problem.spec));
        let mut state = Self { groups, places, selector, parts, mask };
        state.project();
        state
    }

    /// Back to P = W.
    fn restart(&mut self) {
        self.parts.iter_mut().for_each(|part| part.p = part.w.clone());
        self.project();
    }

    /// Iterates until the mask has settled. False if it stood still before rho
    /// had ever grown: rho was too large to let it move.
    fn descend(
        &mut self,
        mut rho: f64,
        iterations: usize,
        watch: &dyn Watch,
    ) -> Result<bool, PruneError> {
        let kept: usize = self.mask.tensors().iter().map(|bits| bits.count()).sum();
        let mut before = self.mask.clone();
        let mut inverses = self.inverses(rho);
        let mut old = rho;
        for i in 1..=iterations {
            if watch.stopped() {
                return Err(PruneError::Stopped);
            }
            self.step(&inverses, old, rho);
            self.project();
            old = rho;
            watch.progress(i as f64 / (iterations + 1) as f64);
            if i % CHECK != 0 {
                continue;
            }
            let changed = self.mask.differences(&before) as f64 / kept.max(1) as f64;
            if changed == 0.0 && i == CHECK {
                return Ok(false);
            }
            if changed == 0.0 || (i >= SETTLED.0 && changed < SETTLED.1) {
                break;
            }
            before = self.mask.clone();
            let growth = GROWTH.iter().find(|(share, _)| changed > *share);
            rho *= growth.map_or(1.0, |(_, by)| *by);
            inverses = self.inverses(rho);
        }
        Ok(true)
    }

    /// One iteration up to P, with V = `old` times what D left out:
    ///
    /// ```text
    /// U = V / rho        P = (W A + rho (D - U))(A + rho I)^-1 + U
    /// ```
    fn step(&mut self, inverses: &[Arc<Matrix>], old: f64, rho: f64) {
        let (ratio, rho) = ((old / rho) as f32, rho as f32);
        for (part, inverse) in self.parts.iter_mut().zip(inverses) {
            let Part { wa, p, keep, .. } = part;
            let k = p.cols();
            by_rows(p, |top, mut p| {
                let mut right = Matrix::zeros(p.rows(), k);
                for i in 0..p.rows() {
                    let (wa, keep) = (wa.row(top + i), keep.row(top + i));
                    let entries = right.row_mut(i).iter_mut().zip(p.row_mut(i));
                    for ((right, p), (&wa, &keep)) in entries.zip(wa.iter().zip(keep)) {
                        // U outside the mask and D = P on it: one of the two is zero.
                        let (d, u) = (*p * keep, *p * (1.0 - keep) * ratio);
                        *right = wa + rho * (d - u);
                        *p = u;
                    }
                }
                gemm(1.0, p, 1.0, right.view(), inverse.view(), Threads::One);
            });
        }
    }

    /// Chooses the mask by the norms of P's blocks.
    fn project(&mut self) {
        let Self { places, parts, .. } = self;
        self.mask = self.selector.select(|element| {
            let place = places.of(element);
            let p = f64::from(parts[place.group].p.row(place.row)[place.column]);
            p * p
        });
        for (part, group) in parts.iter_mut().zip(self.groups) {
            part.keep = group.keep(&self.mask, part.cols);
        }
    }

    /// (A + rho I)^-1 of every group; groups with one A share it.
    fn inverses(&self, rho: f64) -> Vec<Arc<Matrix>> {
        let mut known: Vec<(&Arc<Curvature>, Arc<Matrix>)> = Vec::new();
        self.groups
            .iter()
            .map(|group| {
                let a = &group.curvature;
                if let Some((_, inverse)) = known.iter().find(|(b, _)| Arc::ptr_eq(a, b)) {
                    return inverse.clone();
                }
                let inverse = Arc::new(inverse(a.matrix(), rho as f32));
                known.push((a, inverse.clone()));
                inverse
            })
            .collect()
    }
}

/// (A + rho I)^-1, in f32 unless its rounding stands in the way.
fn inverse(a: &Matrix, rho: f32) -> Matrix {
    let mut raised = a.clone();
    (0..a.rows()).for_each(|j| raised.row_mut(j)[j] += rho);
    let wide = |x: &Matrix| Matrix::from_fn(x.rows(), x.cols(), |i, j| f64::from(x.row(i)[j]));
    cholesky::inverse(raised.clone(), 0.0).unwrap_or_else(|_| {
        // A is positive definite up to rounding in f32, which `LEAST` exceeds.
        let inverse =
            cholesky::inverse(wide(&raised), 0.0).expect("A + rho I is positive definite");
        Matrix::from_fn(a.rows(), a.rows(), |i, j| inverse.row(i)[j] as f32)
    })
}

/// Runs `f` on panels of rows, each with the number of its first row.
fn by_rows(out: &mut Matrix, f: impl Fn(usize, MatrixMut<'_>) + Sync) {
    let k = out.cols();
    if k == 0 {
        return;
    }
    out.data_mut().par_chunks_mut(ROWS * k).enumerate().for_each(|(panel, rows)| {
        let count = rows.len() / k;
        f(panel * ROWS, MatrixMut::new(rows, count, k));
    });
}
