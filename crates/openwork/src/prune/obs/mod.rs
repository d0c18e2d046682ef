//! S-OBS: the paper's Algorithm 1, exact, on any spec.
//!
//! Rows share H and nothing else. A bundle of rows with weights `W` and inverse
//! curvature `C` is pruned scope by scope; the cost of removing columns `p` and the
//! state after it are
//!
//! ```text
//! cost(p) = sum over rows  w_p' (A_pp)^-1 w_p
//! w <- w - A_:p (A_pp)^-1 w_p        A <- A - A_:p (A_pp)^-1 A_p:
//! ```
//!
//! starting from `A = C`: `A` is the inverse of H restricted to the remaining
//! columns. It is never stored in full. With `P` the columns removed so far and
//! `C_PP = L L'`, its entries are `C_ij - Y_i' Y_j` where `Y = L^-1 C_P:`, so
//! [`panel`] updates narrow scopes a panel of columns at a time, and [`pivot`] keeps
//! the rows of `Y` for scopes as wide as a row.
//!
//! A block that spans bundles, rows or tensors costs the sum over its pieces.

mod panel;
mod pivot;

use super::problem::{gather, scatter_row};
use super::{
    Build, MethodInfo, Monitor, Needs, OptionInfo, Problem, PruneError, Pruner, Settings, Solution,
};
use crate::hessian::{Curvature, Damping};
use crate::mask::Mask;
use crate::matrix::Matrix;
use crate::spec::{Element, Unit};
use std::sync::Arc;

/// `s-obs`.
pub const METHOD: MethodInfo = MethodInfo {
    name: "s-obs",
    summary: "structured Optimal Brain Surgeon, exact: scores each scope by the inverse Hessian of the remaining columns",
    options: &[
        OptionInfo {
            name: "scoring",
            values: "auto | joint | greedy | independent",
            default: "auto",
            help: "how a scope chooses: joint tries all subsets, greedy drops one block at a time and \
                   rescores, independent scores all blocks once; auto is joint up to 80 subsets and \
                   greedy beyond, or where a scope spans more than 256 columns of a row",
        },
        OptionInfo {
            name: "panel",
            values: "a whole number",
            default: "32",
            help: "columns updated together; affects speed only",
        },
    ],
    damping: Damping::Auto,
    build: Build::Base(build),
};

/// The maximum number of subsets that `auto` tries: 2:4 has 6, 4:8 has 70, 3:9 has 84.
const MAX_SUBSETS: usize = 80;

/// The maximum number of columns of a scope in one bundle for [`panel`]; wider scopes
/// are chosen greedily by [`pivot`].
const WIDE: usize = 256;

/// How a scope chooses the blocks to drop.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Scoring {
    Auto,
    Joint,
    Greedy,
    Independent,
}

struct Obs {
    scoring: Scoring,
    panel: usize,
}

fn build(settings: &Settings) -> Result<Box<dyn Pruner>, String> {
    let choices = [
        ("auto", Scoring::Auto),
        ("joint", Scoring::Joint),
        ("greedy", Scoring::Greedy),
        ("independent", Scoring::Independent),
    ];
    Ok(Box::new(Obs {
        scoring: settings.choice("scoring", &choices, Scoring::Auto)?,
        panel: settings.count("panel", 32, 1)?,
    }))
}

/// The rows of a bundle, scaled by their curvature.
pub(crate) struct Rows {
    /// Their tensor, and their indices in it.
    pub tensor: usize,
    pub rows: Vec<usize>,
    pub curvature: Arc<Curvature>,
    /// One row for each, over the bundle's columns.
    pub w: Matrix,
}

/// The result for a bundle.
pub(crate) struct BundleResult {
    pub tensor: usize,
    pub rows: Vec<usize>,
    pub columns: Vec<u32>,
    pub curvature: Arc<Curvature>,
    /// The new weights; those of dropped columns are arbitrary.
    pub w: Matrix,
    /// Whether each column is kept.
    pub kept: Vec<bool>,
}

impl Pruner for Obs {
    fn needs(&self) -> Needs {
        Needs::Hessian
    }

    fn factor(&self, curvature: &Curvature) {
        curvature.inverse();
    }

    fn prune(&self, problem: &Problem<'_>, monitor: &dyn Monitor) -> Result<Solution, PruneError> {
        // Factor before the parallel loop, or the units would wait for one another.
        problem.groups()?.iter().for_each(|group| self.factor(&group.curvature));
        let done = problem.each_unit(monitor, |unit, shift| self.unit(problem, unit, shift))?;
        let mut mask = Mask::full(problem.spec);
        let mut weights = problem.copies();
        for done in done {
            write(done, &mut mask, &mut weights);
        }
        Ok(Solution { mask, weights, notes: Vec::new() })
    }
}

impl Obs {
    /// Prunes one unit.
    fn unit(
        &self,
        problem: &Problem<'_>,
        unit: &Unit,
        shift: &[usize],
    ) -> Result<Vec<BundleResult>, PruneError> {
        let mut bundles = bundles(problem, unit, shift)?;
        if unit.scopes.iter().all(|scope| scope.dropped == 0) {
            // Nothing is dropped, so nothing may change, not even by rounding.
            return Ok(Vec::new());
        }
        // The maximum number of columns of a scope in one bundle.
        let mut widest = 0;
        for scope in &unit.scopes {
            let mut widths = vec![0; unit.bundles.len()];
            for piece in unit.blocks(scope).iter().flat_map(|block| unit.pieces(block)) {
                widths[piece.bundle as usize] += unit.columns(piece).len();
            }
            widest = widest.max(widths.into_iter().max().unwrap_or(0));
        }
        let pruned = if widest <= WIDE {
            panel::prune(unit, &mut bundles, self.panel, self.scoring)
        } else {
            pivot::prune(unit, &mut bundles, self.scoring)
        };
        let rows = bundles.into_iter().zip(pruned).zip(&unit.bundles);
        Ok(rows
            .map(|((rows, pruned), bundle)| {
                let columns = bundle.columns.clone();
                let mut kept = vec![true; columns.len()];
                pruned.into_iter().for_each(|at| kept[at as usize] = false);
                BundleResult {
                    tensor: rows.tensor,
                    rows: rows.rows,
                    columns,
                    curvature: rows.curvature,
                    w: rows.w,
                    kept,
                }
            })
            .collect())
    }
}

/// The rows of each bundle of a unit.
pub(crate) fn bundles(
    problem: &Problem<'_>,
    unit: &Unit,
    shift: &[usize],
) -> Result<Vec<Rows>, PruneError> {
    unit.bundles
        .iter()
        .map(|bundle| {
            let tensor = bundle.tensor;
            let curvature = problem.curvature(tensor, &bundle.columns)?;
            let rows: Vec<usize> = bundle.rows.iter().map(|row| row + shift[tensor]).collect();
            let w = gather(problem.weights[tensor], &rows, &bundle.columns, &curvature);
            Ok(Rows { tensor, rows, curvature, w })
        })
        .collect()
}

/// Writes a bundle's mask and weights, with exact zeros where dropped.
pub(crate) fn write(done: BundleResult, mask: &mut Mask, weights: &mut [Matrix]) {
    let BundleResult { tensor, rows, columns, curvature, mut w, kept } = done;
    let cols = weights[tensor].cols();
    for (i, &row) in rows.iter().enumerate() {
        for ((w, &column), &kept) in w.row_mut(i).iter_mut().zip(&columns).zip(&kept) {
            *w = if kept { *w } else { 0.0 };
            mask.set(Element { tensor, offset: row * cols + column as usize }, kept);
        }
        scatter_row(w.row(i), &columns, curvature.scale(), weights[tensor].row_mut(row));
    }
}

/// `n choose k`, or `None` beyond [`MAX_SUBSETS`].
fn few_subsets(n: usize, k: usize) -> Option<usize> {
    let k = k.min(n - k);
    let mut count = 1usize;
    for i in 0..k {
        count = count * (n - i) / (i + 1);
        if count > MAX_SUBSETS {
            return None;
        }
    }
    Some(count)
}

impl Scoring {
    /// Whether to try all subsets of `dropped` out of `blocks`.
    pub(crate) fn is_joint(self, blocks: usize, dropped: usize) -> bool {
        match self {
            Self::Joint => true,
            Self::Auto => few_subsets(blocks, dropped).is_some(),
            Self::Greedy | Self::Independent => false,
        }
    }
}

/// The next subset of `0 .. n` in lexicographic order; false after the last.
pub(crate) fn next_subset(subset: &mut [usize], n: usize) -> bool {
    let k = subset.len();
    for i in (0..k).rev() {
        if subset[i] < n - k + i {
            subset[i] += 1;
            for j in i + 1..k {
                subset[j] = subset[j - 1] + 1;
            }
            return true;
        }
    }
    false
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn subsets_are_all_visited_once() {
        let mut subset = vec![0, 1];
        let mut all = vec![subset.clone()];
        while next_subset(&mut subset, 4) {
            all.push(subset.clone());
        }
        assert_eq!(all, [[0, 1], [0, 2], [0, 3], [1, 2], [1, 3], [2, 3]]);
        assert_eq!(
            (few_subsets(4, 2), few_subsets(8, 4), few_subsets(9, 3)),
            (Some(6), Some(70), None)
        );
    }
}
