//! `+swap`: local search on a mask in which every step lowers the error.
//!
//! Each scope chooses its blocks again while all other columns are refitted: where
//! there are few subsets, all are tried; in wide scopes the kept blocks that are
//! cheapest to drop are exchanged for the dropped ones that gain most. A scope
//! changes only if the cost falls, so the error falls with every change, and the
//! search ends at a local minimum. It is then perturbed a few times (a "kick"): a
//! tenth of the scopes take their second-best choice, the search continues, and the
//! better of the two minima is kept. Finally the weights are refitted from scratch.
//!
//! The search runs in f32. If H is so close to singular that rounding misleads it,
//! which the cost of its weights shows, it runs again in f64; if that fails as well,
//! the mask is left unchanged.

mod local;
mod tableau;

use super::obs::{BundleResult, Rows, bundles, write};
use super::problem::gather;
use super::refit::Refit;
use super::{
    Build, MethodInfo, Modifier, Monitor, OptionInfo, Problem, PruneError, Settings, Solution,
};
use crate::hessian::Damping;
use crate::linalg::Scalar;
use crate::matrix::Matrix;
use crate::spec::{Element, Unit};
use local::Search;
use rayon::prelude::*;
use std::sync::Arc;
use tableau::Tableau;

/// `+swap`.
pub const METHOD: MethodInfo = MethodInfo {
    name: "swap",
    summary: "local search: exchanges blocks within scopes while the error falls, then refits",
    options: &[
        OptionInfo {
            name: "rounds",
            values: "a whole number",
            default: "20",
            help: "maximum number of passes over all scopes; stops earlier once nothing changes",
        },
        OptionInfo {
            name: "gain",
            values: "a number",
            default: "1e-4",
            help: "change a scope only if its cost falls by more than this fraction",
        },
        OptionInfo {
            name: "kicks",
            values: "a whole number",
            default: "4",
            help: "number of restarts, each after a tenth of the narrow scopes took their second-best \
                   choice; the best result is kept",
        },
    ],
    damping: Damping::Auto,
    build: Build::Modifier(build),
};

struct Swap {
    rounds: usize,
    gain: f64,
    kicks: usize,
}

fn build(settings: &Settings) -> Result<Box<dyn Modifier>, String> {
    Ok(Box::new(Swap {
        rounds: settings.count("rounds", 20, 0)?,
        gain: settings.number("gain", 1e-4)?,
        kicks: settings.count("kicks", 4, 0)?,
    }))
}

impl Modifier for Swap {
    fn improve(
        &self,
        problem: &Problem<'_>,
        solution: Solution,
        monitor: &dyn Monitor,
    ) -> Result<Solution, PruneError> {
        let done =
            problem.each_unit(monitor, |unit, shift| self.unit(problem, &solution, unit, shift))?;
        let Solution { mut mask, mut weights, notes } = solution;
        for done in done {
            write(done, &mut mask, &mut weights);
        }
        // The state has been through many pivots: refit.
        Refit::fine().improve(problem, Solution { mask, weights, notes }, monitor)
    }
}

impl Swap {
    fn unit(
        &self,
        problem: &Problem<'_>,
        solution: &Solution,
        unit: &Unit,
        shift: &[usize],
    ) -> Result<Vec<BundleResult>, PruneError> {
        let rows = bundles(problem, unit, shift)?;
        let support = |b: usize| -> Vec<bool> {
            let (bundle, rows) = (&unit.bundles[b], &rows[b]);
            let start = rows.rows[0] * problem.weights[bundle.tensor].cols();
            let keeps = |&j: &u32| {
                let offset = start + j as usize;
                solution.mask.keeps(Element { tensor: bundle.tensor, offset })
            };
            bundle.columns.iter().map(keeps).collect()
        };
        let supports: Vec<Vec<bool>> = (0..rows.len()).map(support).collect();
        if supports.iter().flatten().all(|&kept| kept) {
            return Ok(Vec::new());
        }
        let before = |b: usize| -> Matrix {
            let (bundle, rows) = (&unit.bundles[b], &rows[b]);
            let w = &solution.weights[bundle.tensor];
            gather(w.into(), &rows.rows, &bundle.columns, &rows.curvature)
        };
        // One scope over bundles, with every block inside one bundle: exchanges within a
        // bundle preserve the scope's count and need one state at a time.
        let apart = rows.len() > 1
            && unit.scopes.len() == 1
            && unit.blocks(&unit.scopes[0]).iter().all(|block| unit.pieces(block).len() == 1);
        let better = |first: usize, count: usize| -> Vec<BundleResult> {
            let here = first..first + count;
            let start = Start {
                unit,
                rows: &rows[here.clone()],
                supports: &supports[here.clone()],
                first: first as u32,
                cost: here.clone().map(|b| with_gradient(&rows[b], &before(b), |_| ())).sum(),
            };
            let found = self.search::<f32>(&start).or_else(|| self.search::<f64>(&start));
            let found = found.into_iter().flatten().zip(here);
            found
                .map(|((kept, w), b)| BundleResult {
                    tensor: rows[b].tensor,
                    rows: rows[b].rows.clone(),
                    curvature: Arc::clone(&rows[b].curvature),
                    columns: unit.bundles[b].columns.clone(),
                    kept,
                    w,
                })
                .collect()
        };
        Ok(if apart {
            (0..rows.len()).into_par_iter().flat_map_iter(|b| better(b, 1)).collect()
        } else {
            better(0, rows.len())
        })
    }

    /// Searches for better supports and returns each bundle's with its weights; an empty
    /// list if there is none, `None` if rounding spoils the result.
    fn search<T: Scalar>(&self, start: &Start<'_>) -> Option<Vec<(Vec<bool>, Matrix)>> {
        let tableaux: Vec<Tableau<T>> = start
            .rows
            .iter()
            .zip(start.supports)
            .map(|(rows, kept)| Tableau::new(rows.curvature.matrix(), &rows.w, kept.clone()))
            .collect::<Option<_>>()?;
        let mut search = Search::new(start.unit, tableaux, start.first, self.gain);
        search.settle(self.rounds);
        if self.rounds > 0 {
            self.escape(start, &mut search);
        }
        let tableaux = &search.tableaux;
        if tableaux.iter().zip(start.supports).all(|(tableau, old)| tableau.kept == *old) {
            return Some(Vec::new());
        }
        let found: Vec<(Vec<bool>, Matrix)> = tableaux
            .iter()
            .map(|Tableau { kept, u, .. }| {
                // Elsewhere u is the gradient.
                let weight = |i, j: usize| if kept[j] { u.row(i)[j].into() as f32 } else { 0.0 };
                (kept.clone(), Matrix::from_fn(u.rows(), u.cols(), weight))
            })
            .collect();
        // At the fit g_Q = 0; a nonzero g_j could still gain about g_j^2 B_jj. Any weights
        // on a mask bound the cost of its fit from above.
        let (mut cost, mut slack) = (0.0, 0.0);
        for ((rows, (_, w)), tableau) in start.rows.iter().zip(&found).zip(tableaux) {
            let inverse: Vec<f64> = (0..w.cols())
                .map(|j| if tableau.kept[j] { tableau.at(j, j).into().abs() } else { 0.0 })
                .collect();
            cost += with_gradient(rows, w, |g| {
                slack += g.iter().zip(&inverse).map(|(g, b)| g * g * b).sum::<f64>();
            });
        }
        (cost < start.cost && slack <= SLACK * cost).then_some(found)
    }
}

impl Swap {
    /// Leaves a local minimum for a lower one nearby, if a kick finds one.
    fn escape<T: Scalar>(&self, start: &Start<'_>, search: &mut Search<T>) {
        let cost = |search: &Search<T>| search.cost(start.rows.iter().map(|rows| &rows.w));
        let mut least = cost(search);
        for kick in 0..self.kicks as u64 {
            let mut other = search.clone();
            if !other.kick(kick) {
                return;
            }
            other.settle(self.rounds);
            let found = cost(&other);
            if found < least {
                (*search, least) = (other, found);
            }
        }
    }
}

/// A search has failed if refitted weights could lower the cost by more than this share.
const SLACK: f64 = 1e-3;

/// The start of a search.
struct Start<'s> {
    unit: &'s Unit,
    /// The bundles' rows; the first is bundle `first` of the unit.
    rows: &'s [Rows],
    supports: &'s [Vec<bool>],
    first: u32,
    /// The cost of the current weights.
    cost: f64,
}

/// tr((X - W) A (X - W)') of a bundle with new weights X, in f64; calls
/// `see` with the gradient of each row.
fn with_gradient(rows: &Rows, new: &Matrix, mut see: impl FnMut(&[f64])) -> f64 {
    let a = rows.curvature.matrix();
    let mut cost = 0.0;
    for i in 0..new.rows() {
        let change = new.row(i).iter().zip(rows.w.row(i));
        let change: Vec<f64> = change.map(|(x, w)| f64::from(*x) - f64::from(*w)).collect();
        let times = |a: &[f32]| a.iter().zip(&change).map(|(a, d)| f64::from(*a) * d).sum();
        let gradient: Vec<f64> = (0..a.rows()).map(|j| times(a.row(j))).collect();
        cost += change.iter().zip(&gradient).map(|(d, g)| d * g).sum::<f64>();
        see(&gradient);
    }
    cost
}
