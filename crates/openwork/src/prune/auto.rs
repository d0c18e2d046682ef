//! Damping `auto`: the share of the diagonal whose pruned weights have the least
//! error on held-out samples.

use super::batches::{RowBatch, RowBatches};
use super::measure::quadratic;
use super::problem::{Weights, loss_weight, unscaled};
use super::sparsegpt::{BLOCK, Sweep};
use super::{Problem, PruneError};
use crate::hessian::{self, Choice, Hessian, HessianError, Trial};
use crate::matrix::Matrix;
use crate::select::Selector;
use crate::spec::Spec;

/// Rows per tensor that a trial prunes, taken from evenly spaced batches.
const ROWS: usize = 96;

/// Why a trial failed.
enum Failed {
    Hessian(HessianError),
    Prune(PruneError),
}

impl From<HessianError> for Failed {
    fn from(error: HessianError) -> Self {
        Self::Hessian(error)
    }
}

/// Chooses the damping by the held-out error of SparseGPT with the same spec, summed
/// over tensors. Row batches are independent, so a sample of them suffices.
pub(super) fn choose(
    spec: &Spec,
    weights: &[Weights<'_>],
    hessian_of: &[usize],
    hessians: &[&Hessian],
    names: &[&str],
) -> Result<Choice, PruneError> {
    let selector = Selector::new(spec);
    let mut batches: Option<RowBatches> = None;
    let error = |trial: Trial<'_>| -> Result<f64, Failed> {
        let problem = Problem::new(
            spec,
            weights.to_vec(),
            hessian_of.to_vec(),
            trial.fit.iter().collect(),
            trial.damped.to_vec(),
        );
        let groups = problem.groups().map_err(Failed::Prune)?;
        // Batches depend on the spec alone.
        let batches = match &mut batches {
            Some(batches) => batches,
            none => {
                none.insert(RowBatches::new(spec, &selector, &groups, &()).map_err(Failed::Prune)?)
            }
        };
        let chosen = sample(&batches.batches, ROWS * spec.tensors().len());
        let sweep = Sweep { problem: &problem, groups: &groups, selector: &selector, batches };
        let swept = sweep.run(&chosen, BLOCK, &()).map_err(Failed::Prune)?;
        let mut error = 0.0;
        for (batch, parts) in chosen.iter().zip(swept) {
            for (part, (w, _)) in batch.parts.iter().zip(parts) {
                let group = &groups[part.group];
                let (old, scale) = (weights[group.tensor], group.curvature.scale());
                let held = trial.held_out[hessian_of[group.tensor]].matrix();
                let mut change = Matrix::<f64>::zeros(part.rows.len(), old.cols());
                for (i, &row) in part.rows.iter().enumerate() {
                    for (j, &column) in group.columns.iter().enumerate() {
                        let old = old.at(group.rows[row as usize], column as usize);
                        let new = unscaled(old, w.row(j)[i], scale[j]);
                        change.row_mut(i)[column as usize] = f64::from(new) - f64::from(old);
                    }
                }
                error += loss_weight(&spec.tensors()[group.tensor])
                    * quadratic(change.rows(), change.cols(), held.view(), |i, j| change.row(i)[j]);
            }
        }
        Ok(error)
    };
    hessian::choose(hessians, error).map_err(|failed| match failed {
        Failed::Hessian(error) => PruneError::hessian(names[0], error),
        Failed::Prune(error) => error,
    })
}

/// Evenly spaced batches with about `rows` rows in all, at least one batch.
fn sample(batches: &[RowBatch], rows: usize) -> Vec<&RowBatch> {
    let all: usize =
        batches.iter().flat_map(|batch| &batch.parts).map(|part| part.rows.len()).sum();
    let count = (batches.len() * rows).div_ceil(all.max(1)).min(batches.len());
    (0..count).map(|i| &batches[(2 * i + 1) * batches.len() / (2 * count)]).collect()
}
