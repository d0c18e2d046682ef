//! Budgets: distributes a mean density over the layers by their sensitivity.
//!
//! A cheap probe (wanda on a few windows, all earlier layers dense) measures each
//! layer's output error `e`, as a mean over tokens, at two densities around the mean.
//! Between and near them its square is close to exponential in the density,
//!
//! ```text
//! e_l(d)^2 = a_l exp(-b_l d)
//! ```
//!
//! and for a given mean the sum of the squares is least where all layers gain
//! equally from a little more density: `a_l b_l exp(-b_l d_l)` is the same for all
//! layers, except for those at the ends of the allowed range.

use super::PipelineError;
use super::calibration::Calibration;
use super::events::{Stage, StageObserver};
use super::plan::{Plan, TaskPlan};
use super::recipe::Budget;
use super::stages::{self, Chunk};
use crate::model::{Layer, Model, NoTap, Site, Storage};
use openwork::Matrix;
use openwork::hessian::Hessian;
use openwork::prune::Method;
use std::sync::Arc;

/// The method of the probe.
const PROBE: &str = "wanda";

/// The lowest density of a layer.
const LEAST: f64 = 0.02;

/// The largest distance below the mean at which errors are measured.
const FARTHEST: f64 = 0.25;

/// The density of each layer.
pub(super) fn shares(
    model: &Model<'_>,
    plan: &Plan,
    calibration: &Calibration,
    budget: Budget,
    seen: &dyn Fn(usize, f64) -> Result<(), PipelineError>,
) -> Result<Vec<f64>, PipelineError> {
    let variable: Vec<Vec<TaskPlan>> = plan
        .layers
        .iter()
        .map(|layer| layer.tasks.iter().filter(|task| task.is_variable()).cloned().collect())
        .collect();
    let windows = calibration.chunks().next().unwrap_or_default();
    let mut states = model.embed(windows)?;
    let (low, high) = probes(budget);
    let mut fits = Vec::new();
    for (index, tasks) in variable.iter().enumerate() {
        seen(index, index as f64 / variable.len() as f64)?;
        let layer = model.layer(index, Storage::F32)?;
        let weights: usize = tasks.iter().map(TaskPlan::weights).sum();
        let mut fit = Fit { weights: weights as f64, a: 0.0, b: 1.0 };
        if weights > 0 {
            let mut chunk = Chunk::new(0, states.copy());
            let hessians: Vec<(Site, Hessian)> = chunk
                .begin(&layer, &layer.info().sites())?
                .into_iter()
                .filter_map(|(site, sum)| Some((site, sum.finish().ok()?)))
                .collect();
            let target = chunk.target;
            let error = |density: f64| -> Result<f64, PipelineError> {
                let mut layer = model.layer(index, Storage::F32)?;
                prune_all(&mut layer, tasks, density, &hessians)?;
                let mut chunk = Chunk::new(0, states.copy());
                chunk.finish(&layer);
                Ok(token_error(chunk.hidden.states(), &target).max(f64::MIN_POSITIVE))
            };
            fit = Fit::through((low, error(low)?), (high, error(high)?), fit.weights);
        }
        fits.push(fit);
        layer.forward(&mut states, &mut NoTap);
        model.checkpoint().release();
    }
    Ok(solve(&fits, budget))
}

/// The mean over tokens of the squared distance of a state from its target, relative to
/// the target. It is not relative to all states together, because a few tokens have huge
/// states that would hide the errors of all others.
fn token_error(states: &Matrix, target: &[f32]) -> f64 {
    let square = |x: f32| f64::from(x) * f64::from(x);
    let token = |(i, target): (usize, &[f32])| {
        let (state, size) = (states.row(i), target.iter().map(|&y| square(y)).sum::<f64>());
        let change: f64 = state.iter().zip(target).map(|(x, y)| square(x - y)).sum();
        if size > 0.0 { change / size } else { 0.0 }
    };
    let total: f64 = target.chunks_exact(states.cols()).enumerate().map(token).sum();
    total / states.rows().max(1) as f64
}

/// Prunes all tasks of a layer with the probe's method.
fn prune_all(
    layer: &mut Layer,
    tasks: &[TaskPlan],
    density: f64,
    hessians: &[(Site, Hessian)],
) -> Result<(), PipelineError> {
    let method: Arc<Method> = Arc::new(PROBE.parse().expect("the probe's method exists"));
    for task in tasks {
        let task = TaskPlan { method: method.clone(), ..task.with_density(density) };
        let of = |site| hessians.iter().find(|(known, _)| *known == site).map(|(_, h)| h);
        let observer = StageObserver { observer: &(), layer: layer.index(), stage: Stage::Probe };
        let pruned = stages::prune_task(&task, layer, &of, &observer)?;
        for (&linear, weights) in task.linears.iter().zip(pruned.weights) {
            if let Some(matrix) = layer.linears_mut()[linear].matrix_mut() {
                *matrix = weights;
            }
        }
    }
    Ok(())
}

/// The densities at which errors are measured: the ends of the range, but not so
/// far away that the curve between them says nothing about the mean. Density 1 is not
/// used, because the error would be zero, which has no logarithm.
fn probes(Budget { density, spread }: Budget) -> (f64, f64) {
    let (below, above) = (spread.min(FARTHEST), spread.min((1.0 - density) / 2.0));
    ((density - below).max(LEAST), density + above)
}

/// The least and the greatest density of a layer.
fn range(budget: Budget) -> (f64, f64) {
    ((budget.density - budget.spread).max(LEAST), (budget.density + budget.spread).min(1.0))
}

/// `e^2 = a exp(-b d)` of a layer with `weights` weights.
#[derive(Clone, Copy, Debug)]
struct Fit {
    weights: f64,
    a: f64,
    b: f64,
}

impl Fit {
    /// The curve through two measured squares.
    fn through((low, at_low): (f64, f64), (high, at_high): (f64, f64), weights: f64) -> Self {
        // More weights should not increase the error; noise may suggest it.
        let b = ((at_low / at_high).ln() / (high - low).max(1e-9)).max(0.1);
        Self { weights, a: at_low * (b * low).exp(), b }
    }

    /// The density at which one more weight gains `exp(level)`.
    fn density(&self, level: f64, (low, high): (f64, f64)) -> f64 {
        (((self.a * self.b / self.weights).ln() - level) / self.b).clamp(low, high)
    }
}

/// The densities with the smallest sum of squares for the requested mean.
fn solve(fits: &[Fit], budget: Budget) -> Vec<f64> {
    let range = range(budget);
    let all: f64 = fits.iter().map(|fit| fit.weights).sum();
    let at = |level: f64| -> Vec<f64> {
        fits.iter()
            .map(|fit| if fit.weights > 0.0 { fit.density(level, range) } else { 1.0 })
            .collect()
    };
    let mean = |densities: &[f64]| {
        fits.iter().zip(densities).map(|(fit, d)| fit.weights * d).sum::<f64>() / all
    };
    // The mean falls as the level rises.
    let (mut low, mut high) = (-1e3, 1e3);
    for _ in 0..200 {
        let middle = 0.5 * (low + high);
        if mean(&at(middle)) > budget.density { low = middle } else { high = middle }
    }
    at(0.5 * (low + high))
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    proptest! {
        #[test]
        fn shares_keep_the_mean_and_no_exchange_helps(
            layers in prop::collection::vec((1.0f64..100.0, 0.001f64..10.0, 0.5f64..20.0), 2..12),
            density in 0.2f64..0.8,
        ) {
            let budget = Budget { density, spread: 0.15 };
            let fits: Vec<Fit> =
                layers.iter().map(|&(weights, a, b)| Fit { weights, a, b }).collect();
            let shares = solve(&fits, budget);
            let all: f64 = fits.iter().map(|fit| fit.weights).sum();
            let mean: f64 =
                fits.iter().zip(&shares).map(|(fit, d)| fit.weights * d).sum::<f64>() / all;
            prop_assert!((mean - density).abs() < 1e-6, "{mean} for {density}");
            let error = |fit: &Fit, d: f64| fit.a * (-fit.b * d).exp();
            let (low, high) = range(budget);
            for i in 0..fits.len() {
                for j in 0..fits.len() {
                    // A few weights from layer i to layer j.
                    let (di, dj) = (1e-3 / fits[i].weights, 1e-3 / fits[j].weights);
                    if i == j || shares[i] - di < low || shares[j] + dj > high {
                        continue;
                    }
                    let before = error(&fits[i], shares[i]) + error(&fits[j], shares[j]);
                    let after = error(&fits[i], shares[i] - di) + error(&fits[j], shares[j] + dj);
                    prop_assert!(after >= before - 1e-12, "{i} to {j}: {after} below {before}");
                }
            }
        }
    }

    #[test]
    fn a_token_with_a_huge_state_counts_as_much_as_any_other() {
        let target = [1.0, 0.0, 1e4, 0.0];
        let states = Matrix::from_vec(2, 2, vec![1.0, 0.5, 1e4, 1e3]);
        let error = token_error(&states, &target);
        assert!((error - (0.25 + 0.01) / 2.0).abs() < 1e-6, "{error}");
    }

    #[test]
    fn a_fit_goes_through_its_points() {
        let fit = Fit::through((0.4, 0.3), (0.6, 0.1), 5.0);
        let at = |d: f64| fit.a * (-fit.b * d).exp();
        assert!((at(0.4) - 0.3).abs() < 1e-12 && (at(0.6) - 0.1).abs() < 1e-12);
    }
}
