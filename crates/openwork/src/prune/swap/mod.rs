//! `+swap`: local search on a mask, each step lowering the error.
//!
//! Scope by scope the blocks that go are chosen anew with all other columns
//! fitted along: where subsets are few, all of them are tried; in wide scopes
//! the kept blocks that are cheapest to lose are tried against the pruned ones
//! that gain most. A scope changes only if the cost falls, so the error falls
//! with every change, and the search ends where no scope wants another choice.
//! Then the weights are fitted once more from scratch.

mod local;
mod tableau;

use super::obs::{Rows, bundles};
use super::problem::scatter_row;
use super::refit::Refit;
use super::{Build, Method, OptionInfo, Problem, PruneError, Settings, Solution, Step, Watch};
use crate::hessian::Damping;
use crate::mask::Mask;
use crate::matrix::Matrix;
use crate::spec::{Element, Unit};
use local::Search;
use rayon::prelude::*;
use tableau::Tableau;

/// `+swap`.
pub const METHOD: Method = Method {
    name: "swap",
    summary: "local search: exchange blocks within scopes while the error falls, then fit the weights anew",
    options: &[
        OptionInfo {
            name: "rounds",
            values: "a whole number",
            default: "20",
            help: "passes over all scopes at the most; it ends sooner when nothing changes",
        },
        OptionInfo {
            name: "gain",
            values: "a number",
            default: "1e-4",
            help: "change a scope only if its cost falls by more than this part",
        },
    ],
    damping: Damping::Auto,
    build: Build::Step(build),
};

struct Swap {
    rounds: usize,
    gain: f64,
}

fn build(settings: &Settings) -> Result<Box<dyn Step>, String> {
    Ok(Box::new(Swap {
        rounds: settings.count("rounds", 20, 0)?,
        gain: settings.number("gain", 1e-4)?,
    }))
}

/// The new support and weights of a bundle.
struct Done {
    rows: Rows,
    columns: Vec<u32>,
    kept: Vec<bool>,
    w: Matrix,
}

impl Step for Swap {
    fn improve(
        &self,
        problem: &Problem<'_>,
        solution: Solution,
        watch: &dyn Watch,
    ) -> Result<Solution, PruneError> {
        let done = problem
            .each_unit(watch, |unit, shift| self.unit(problem, &solution.mask, unit, shift))?;
        let Solution { mut mask, mut weights, notes } = solution;
        for done in done {
            write(&done, &mut mask, &mut weights);
        }
        // The state has gone through many pivots: fit once more.
        Refit::default().improve(problem, Solution { mask, weights, notes }, watch)
    }
}

impl Swap {
    fn unit(
        &self,
        problem: &Problem<'_>,
        mask: &Mask,
        unit: &Unit,
        shift: &[usize],
    ) -> Result<Vec<Done>, PruneError> {
        let rows = bundles(problem, unit, shift)?;
        let support = |b: usize| -> Vec<bool> {
            let (bundle, rows) = (&unit.bundles[b], &rows[b]);
            let start = rows.rows[0] * problem.weights[bundle.tensor].cols();
            let keeps = |&j: &u32| {
                mask.keeps(Element { tensor: bundle.tensor, offset: start + j as usize })
            };
            bundle.columns.iter().map(keeps).collect()
        };
        let supports: Vec<Vec<bool>> = (0..rows.len()).map(support).collect();
        if supports.iter().flatten().all(|&kept| kept) {
            return Ok(Vec::new());
        }
        // One scope over bundles that no block joins: exchanging within bundles keeps
        // the scope's count and needs one state at a time.
        let apart = rows.len() > 1
            && unit.scopes.len() == 1
            && unit.blocks(&unit.scopes[0]).iter().all(|block| unit.pieces(block).len() == 1);
        let found = if apart {
            (0..rows.len())
                .into_par_iter()
                .map(|b| self.search(unit, &rows[b..=b], &supports[b..=b], b as u32)?.pop())
                .collect::<Option<Vec<_>>>()
        } else {
            self.search(unit, &rows, &supports, 0)
        };
        // Where rounding forbids a state the mask stays as it is.
        let Some(found) = found else { return Ok(Vec::new()) };
        let done = rows.into_iter().zip(found).zip(&unit.bundles);
        Ok(done
            .map(|((rows, found), bundle)| Done {
                rows,
                columns: bundle.columns.clone(),
                kept: found.kept,
                w: found.u,
            })
            .collect())
    }

    /// Searches from given supports; `rows` begins with bundle `first` of the unit.
    fn search(
        &self,
        unit: &Unit,
        rows: &[Rows],
        supports: &[Vec<bool>],
        first: u32,
    ) -> Option<Vec<Tableau>> {
        let tableaux: Vec<Tableau> = rows
            .iter()
            .zip(supports)
            .map(|(rows, kept)| Tableau::new(rows.curvature.matrix(), &rows.w, kept.clone()))
            .collect::<Option<_>>()?;
        let mut search = Search::new(unit, tableaux, first, self.gain);
        for _ in 0..self.rounds {
            if !search.round() {
                break;
            }
        }
        Some(search.tableaux)
    }
}

fn write(done: &Done, mask: &mut Mask, weights: &mut [Matrix]) {
    let tensor = done.rows.tensor;
    let cols = weights[tensor].cols();
    let mut w = done.w.clone();
    for (i, &row) in done.rows.rows.iter().enumerate() {
        for (at, (&column, &kept)) in done.columns.iter().zip(&done.kept).enumerate() {
            if !kept {
                w.row_mut(i)[at] = 0.0;
            }
            mask.set(Element { tensor, offset: row * cols + column as usize }, kept);
        }
        scatter_row(
            w.row(i),
            &done.columns,
            done.rows.curvature.scale(),
            weights[tensor].row_mut(row),
        );
    }
}
