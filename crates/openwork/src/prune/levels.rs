//! Pruning with specs inside specs: one driver for every method.
//!
//! A method prunes one level at a time and knows nothing of levels:
//!
//! 1. the outermost level on its domain. If it has an `else`, what it drops is not zeroed
//!    but pruned by that level, so the method is given the residual `R = W - C(W)` instead
//!    of `W`, where `C(W)` are the weights that the `else` level would leave: dropping a
//!    block of R loses what that level would lose on it;
//! 2. the level inside each side, on the weights that are left, with the compacted tensor
//!    as its domain (see [`Spec::inside`]);
//! 3. once, at the end and for methods that fit weights, least squares on the whole mask.

use super::refit::Refit;
use super::{Modifier, Monitor, Needs, Problem, PruneError, Solution, Weights};
use crate::choice::{Choice, keeps, kept_blocks};
use crate::matrix::Matrix;
use crate::spec::{Level, Side, Spec};

/// Prunes a problem whose spec has levels; `solve` prunes one without.
pub(super) fn prune(
    problem: &Problem<'_>,
    needs: Needs,
    monitor: &dyn Monitor,
    solve: Solve<'_>,
) -> Result<Solution, PruneError> {
    let Levels { mut weights, choice, notes } = levels(problem, solve)?;
    let mask = choice.mask(problem.spec);
    for (t, weights) in weights.iter_mut().enumerate() {
        mask.apply(t, weights.data_mut());
    }
    let solution = Solution { mask: mask.clone(), weights, notes };
    if needs < Needs::Hessian {
        return Ok(solution);
    }
    // The domain of the outermost level is that of all.
    let outermost = problem.spec.outermost();
    let whole = problem.with(&outermost, problem.weights.clone());
    let fitted = Refit::fine().improve(&whole, solution, monitor)?;
    Ok(Solution { mask, ..fitted })
}

/// The result of all levels of a spec.
struct Levels {
    weights: Vec<Matrix>,
    choice: Choice,
    notes: Vec<String>,
}

type Solve<'s> = &'s dyn Fn(&Problem<'_>) -> Result<Solution, PruneError>;

fn levels(problem: &Problem<'_>, solve: Solve<'_>) -> Result<Levels, PruneError> {
    let spec = problem.spec;
    let outermost = spec.outermost();
    let mut notes = Vec::new();
    let (kept, mut weights) = match spec.otherwise() {
        None => {
            let solution = solve(&problem.with(&outermost, problem.weights.clone()))?;
            notes.extend(solution.notes);
            (kept_blocks(&outermost, &solution.mask), solution.weights)
        }
        Some(level) => {
            let residual = residual(problem, level, solve)?;
            let residual = residual.iter().map(Weights::from).collect();
            let solution = solve(&problem.with(&outermost, residual))?;
            notes.extend(solution.notes);
            (kept_blocks(&outermost, &solution.mask), problem.copies())
        }
    };
    let mut inner = [None, None];
    for (side, inner) in Side::BOTH.into_iter().zip(&mut inner) {
        let Some(inside) = spec.inside(side, keeps(spec, &kept)) else { continue };
        let found = levels_inside(problem, &inside, &weights, solve)?;
        notes.extend(found.notes);
        (weights, *inner) = (found.weights, Some(found.choice));
    }
    Ok(Levels { weights, choice: Choice::from_levels(kept, inner), notes })
}

/// Prunes a spec that a level above has placed, starting from `weights`.
fn levels_inside(
    problem: &Problem<'_>,
    inside: &Spec,
    weights: &[Matrix],
    solve: Solve<'_>,
) -> Result<Levels, PruneError> {
    let problem = problem.with(inside, weights.iter().map(Weights::from).collect());
    if inside.has_levels() {
        return levels(&problem, solve);
    }
    let solution = solve(&problem)?;
    let kept = kept_blocks(inside, &solution.mask);
    let choice = Choice::from_levels(kept, [None, None]);
    Ok(Levels { weights: solution.weights, choice, notes: solution.notes })
}

/// What the `else` level would lose of each weight if its block were dropped.
///
/// The level is bound to as many blocks of each scope as are dropped, so it is tried on that
/// many neighboring blocks at a time; scopes of the level that lie within one block lose
/// the same whichever other blocks are dropped.
fn residual(
    problem: &Problem<'_>,
    level: &Level,
    solve: Solve<'_>,
) -> Result<Vec<Matrix>, PruneError> {
    let (spec, many) = (problem.spec, level.blocks());
    let count = spec.blocks_per_scope();
    let old = problem.copies();
    let mut residual = old.clone();
    let mut done = 0;
    while done < count {
        let first = done.min(count - many);
        let window = first..first + many;
        let inside = spec.inside(Side::Dropped, |_, block| !window.contains(&block));
        let Some(inside) = inside else { break };
        let found = levels_inside(problem, &inside, &old, solve)?;
        let (new, out) = (found.weights[0].data(), residual[0].data_mut());
        for scope in 0..spec.scopes() {
            for element in (done..first + many).flat_map(|block| spec.elements(scope, block)) {
                out[element.offset] -= new[element.offset];
            }
        }
        done = first + many;
    }
    Ok(residual)
}
