//! SparseGPT (Frantar and Alistarh 2023) on any spec: prunes columns from left to
//! right and updates the columns to the right to compensate for each pruned weight.
//!
//! ```text
//! A^-1 = U'U
//! for column j:  choose the mask of every scope whose first column is j,
//!                dropping the blocks of least sum of (w_l / U_ll)^2
//!                e_j = w_j / U_jj where pruned, else 0
//!                w_l -= e_j U_jl   for l > j
//! ```
//!
//! Columns to the left are frozen, so one U serves all rows. Rows are grouped
//! by tensor and domain. Groups are swept one after the other; a scope that spans
//! several groups is decided in the first, using the current weights of the later
//! ones.

use super::batches::{GroupRows, RowBatch, RowBatches};
use super::problem::unscaled;
use super::{
    Build, Group, MethodInfo, Monitor, Needs, OptionInfo, Problem, PruneError, Pruner, Solution,
};
use crate::hessian::{Curvature, Damping};
use crate::linalg::{Threads, gemm, small};
use crate::mask::Mask;
use crate::matrix::{Matrix, MatrixMut, MatrixRef};
use crate::select::{Scratch, Selector};
use crate::spec::Element;
use rayon::prelude::*;
use std::sync::atomic::{AtomicUsize, Ordering};

/// `sparsegpt`.
pub const METHOD: MethodInfo = MethodInfo {
    name: "sparsegpt",
    summary: "prunes columns from left to right and compensates in the columns to the right; fast",
    options: &[OptionInfo {
        name: "block",
        values: "a whole number",
        default: "128",
        help: "columns swept before the remaining ones are updated; affects speed only",
    }],
    // As published.
    damping: Damping::Mean(0.01),
    build: Build::Base(|settings| {
        Ok(Box::new(SparseGpt { block: settings.count("block", BLOCK, 1)? }))
    }),
};

/// Columns swept before the remaining ones are updated, as published.
pub(super) const BLOCK: usize = 128;

/// Columns updated by one thread after a panel.
const TILE: usize = 256;

struct SparseGpt {
    block: usize,
}

impl Pruner for SparseGpt {
    fn needs(&self) -> Needs {
        Needs::Hessian
    }

    fn factor(&self, curvature: &Curvature) {
        curvature.upper();
    }

    fn prune(&self, problem: &Problem<'_>, monitor: &dyn Monitor) -> Result<Solution, PruneError> {
        let groups = problem.groups()?;
        let selector = Selector::new(problem.spec);
        let batches = RowBatches::new(problem.spec, &selector, &groups, monitor)?;
        let sweep = Sweep { problem, groups: &groups, selector: &selector, batches: &batches };
        let every: Vec<&RowBatch> = batches.batches.iter().collect();
        let swept = sweep.run(&every, self.block, monitor)?;

        let mut weights = problem.copies();
        let mut mask = Mask::full(problem.spec);
        for (batch, parts) in every.iter().zip(swept) {
            for (part, (w, gone)) in batch.parts.iter().zip(parts) {
                let group = &groups[part.group];
                let out = &mut weights[group.tensor];
                let cols = out.cols();
                for (i, &row) in part.rows.iter().enumerate() {
                    let row = group.rows[row as usize];
                    let old = out.row_mut(row);
                    for (j, (&column, &s)) in
                        group.columns.iter().zip(group.curvature.scale()).enumerate()
                    {
                        let old = &mut old[column as usize];
                        if gone.row(j)[i] != 0.0 {
                            *old = 0.0;
                            let offset = row * cols + column as usize;
                            mask.set(Element { tensor: group.tensor, offset }, false);
                        } else {
                            *old = unscaled(*old, w.row(j)[i], s);
                        }
                    }
                }
            }
        }
        Ok(Solution { mask, weights, notes: Vec::new() })
    }
}

/// The data shared by all batches.
pub(super) struct Sweep<'s> {
    pub problem: &'s Problem<'s>,
    pub groups: &'s [Group],
    pub selector: &'s Selector<'s>,
    pub batches: &'s RowBatches,
}

/// The scaled weights of a part, transposed, and 1 where they are dropped.
pub(super) type Swept = (Matrix, Matrix);

impl Sweep<'_> {
    /// Sweeps some batches; returns the parts of each, in order.
    pub fn run(
        &self,
        batches: &[&RowBatch],
        block: usize,
        monitor: &dyn Monitor,
    ) -> Result<Vec<Vec<Swept>>, PruneError> {
        // Factor before the parallel loop, or the batches would wait for one another.
        for group in self.groups {
            group.curvature.upper();
        }
        let done = AtomicUsize::new(0);
        batches
            .par_iter()
            .map(|batch| {
                let swept = self.batch(batch, block, monitor)?;
                let done = done.fetch_add(1, Ordering::Relaxed) + 1;
                monitor.progress(done as f64 / batches.len() as f64);
                Ok(swept)
            })
            .collect()
    }

    fn batch(
        &self,
        batch: &RowBatch,
        block: usize,
        monitor: &dyn Monitor,
    ) -> Result<Vec<Swept>, PruneError> {
        let mut state = State {
            w: batch.parts.iter().map(|part| self.gather(part)).collect(),
            gone: batch
                .parts
                .iter()
                .map(|part| Matrix::zeros(part.starts.len(), part.rows.len()))
                .collect(),
            pivots: batch
                .parts
                .iter()
                .map(|part| {
                    let u = self.groups[part.group].curvature.upper();
                    (0..u.rows()).map(|j| 1.0 / f64::from(u.row(j)[j])).collect()
                })
                .collect(),
        };
        let mut scratch = Scratch::default();
        for (p, part) in batch.parts.iter().enumerate() {
            let u = self.groups[part.group].curvature.upper();
            let (k, rows) = (part.starts.len(), part.rows.len());
            let mut panel = Panel { u, start: 0, done: vec![0; k], errors: Vec::new(), rows };
            for start in (0..k).step_by(block) {
                if monitor.cancelled() {
                    return Err(PruneError::Stopped);
                }
                let end = (start + block).min(k);
                panel.start = start;
                panel.errors.clear();
                for j in start..end {
                    for &scope in &part.starts[j] {
                        self.decide(scope as usize, p, j, &mut panel, &mut state, &mut scratch);
                    }
                    panel.update(state.w[p].row_mut(j), j, j);
                    let pivot = state.pivots[p][j] as f32;
                    let (w, gone) = (state.w[p].row_mut(j), state.gone[p].row(j));
                    panel.errors.extend(w.iter().zip(gone).map(|(w, gone)| w * gone * pivot));
                    for (w, &gone) in w.iter_mut().zip(gone) {
                        *w = if gone == 0.0 { *w } else { 0.0 };
                    }
                }
                panel.flush(&mut state.w[p], end);
            }
        }
        Ok(state.w.into_iter().zip(state.gone).collect())
    }

    /// Chooses the mask of a scope with columns before `j` of part `p` frozen.
    fn decide(
        &self,
        scope: usize,
        p: usize,
        j: usize,
        panel: &mut Panel<'_>,
        state: &mut State,
        scratch: &mut Scratch,
    ) {
        let State { w, gone, pivots } = state;
        let score = |element| {
            let (part, row, column) = self.batches.slot(element);
            if part == p && panel.done[column] < j {
                panel.update(w[p].row_mut(column), column, j);
            }
            let loss = f64::from(w[part].row(column)[row]) * pivots[part][column];
            loss * loss
        };
        self.selector.decide(scope, scratch, score, |element| {
            let (part, row, column) = self.batches.slot(element);
            gone[part].row_mut(column)[row] = 1.0;
        });
    }

    /// The scaled weights of a part, transposed.
    fn gather(&self, part: &GroupRows) -> Matrix {
        let group = &self.groups[part.group];
        let (w, scale) = (self.problem.weights[group.tensor], group.curvature.scale());
        Matrix::from_fn(part.starts.len(), part.rows.len(), |j, i| {
            let row = group.rows[part.rows[i] as usize];
            (f64::from(w.at(row, group.columns[j] as usize)) * scale[j]) as f32
        })
    }
}

/// The parts of a batch: scaled weights and 1 where they are dropped, both
/// transposed, and 1 / U_jj.
struct State {
    w: Vec<Matrix>,
    gone: Vec<Matrix>,
    pivots: Vec<Vec<f64>>,
}

/// Errors of the current columns that later columns have yet to compensate.
struct Panel<'u> {
    u: &'u Matrix,
    /// The first column of the panel.
    start: usize,
    /// For each column, the number of columns it is up to date with.
    done: Vec<usize>,
    /// e_j of the columns from `start` on, each over all rows.
    errors: Vec<f32>,
    rows: usize,
}

impl Panel<'_> {
    /// Brings column `l` up to date with all columns before `j`:
    ///
    /// ```text
    /// w_l -= sum over c of U_cl e_c        done_l <= c < j
    /// ```
    fn update(&mut self, w: &mut [f32], l: usize, j: usize) {
        let from = self.done[l].max(self.start);
        self.done[l] = j;
        let errors = &self.errors[(from - self.start) * self.rows..];
        small::subtract(w, j.saturating_sub(from), |c| self.u.row(from + c)[l], errors);
    }

    /// Brings all columns from `end` on up to date with those before it by one product;
    /// columns that are ahead have zero coefficients for what they already include.
    fn flush(&mut self, w: &mut Matrix, end: usize) {
        let (k, start, rows) = (w.rows(), self.start, self.rows);
        if end == k || rows == 0 {
            return;
        }
        let u = self.u.view().part(start, end - start, end, k - end);
        let rest: Option<Matrix> = self.done[end..].iter().any(|&done| done > start).then(|| {
            Matrix::from_fn(end - start, k - end, |c, l| {
                if start + c < self.done[end + l] { 0.0 } else { u.at(c, l) }
            })
        });
        let u = rest.as_ref().map_or(u, Matrix::view);
        let errors = MatrixRef::new(&self.errors, end - start, rows);
        w.data_mut()[end * rows..].par_chunks_mut(TILE * rows).enumerate().for_each(|(t, w)| {
            let columns = w.len() / rows;
            let u = u.part(0, end - start, t * TILE, columns).t();
            gemm(1.0, MatrixMut::new(w, columns, rows), -1.0, u, errors, Threads::One);
        });
        self.done[end..].fill(end);
    }
}
