//! The choice of one scope while all other columns are refitted.

use super::tableau::{Pivot, Tableau};
use crate::dynamic::numbers;
use crate::linalg::{Scalar, small};
use crate::matrix::Matrix;
use crate::prune::obs::{Scoring, next_subset};
use crate::spec::{Unit, UnitScope};

/// Kept blocks tried in a wide scope, cheapest first.
const CHEAPEST: usize = 8;
/// Dropped blocks tried against each of them, best first.
const BEST: usize = 32;
/// Maximum number of columns of a scope whose submatrix of T is maintained.
const NARROW: usize = 64;
/// The share of the scopes that a kick changes. With four kicks, 0.1, 0.2 and 0.5
/// gained the same, and 0.02 less; 0.1 is the fastest.
const KICKED: f64 = 0.1;
/// Pivots below this many machine epsilons are rounding errors.
const ROUNDING: f64 = 8.0;

/// A search over all scopes of a unit.
#[derive(Clone)]
pub(super) struct Search<T: Scalar> {
    pub tableaux: Vec<Tableau<T>>,
    scopes: Vec<ScopeSearch<T>>,
    gain: f64,
}

/// A scope: its blocks, and their submatrices of T.
#[derive(Clone)]
struct ScopeSearch<T> {
    /// The pieces of each block.
    blocks: Vec<Vec<Piece>>,
    /// Whether each block is kept.
    kept: Vec<bool>,
    parts: Vec<Submatrix<T>>,
    /// Whether one submatrix per bundle spans all blocks, so that all subsets can be
    /// tried.
    joint: bool,
}

/// Columns of a bundle and T between them.
#[derive(Clone)]
struct Submatrix<T> {
    bundle: usize,
    columns: Vec<u32>,
    t: Vec<T>,
}

/// T and u of a submatrix with all columns of its scope kept.
struct Whole<T> {
    t: Vec<T>,
    u: Vec<Vec<T>>,
}

/// The columns of a block in a submatrix.
#[derive(Clone, Copy)]
struct Piece {
    part: usize,
    start: usize,
    len: usize,
}

impl<T: Scalar> Search<T> {
    /// A search over tableaux that start with bundle `first` of the unit.
    pub fn new(unit: &Unit, tableaux: Vec<Tableau<T>>, first: u32, gain: f64) -> Self {
        let here = first..first + tableaux.len() as u32;
        let scopes = unit
            .scopes
            .iter()
            .filter_map(|scope| ScopeSearch::new(unit, scope, &tableaux, &here))
            .collect();
        Self { tableaux, scopes, gain }
    }

    /// Lets every scope choose again until none changes, at most `rounds` times.
    pub fn settle(&mut self, rounds: usize) {
        for _ in 0..rounds {
            if !self.round() {
                break;
            }
        }
    }

    /// Lets every scope choose again; false if none changed.
    fn round(&mut self) -> bool {
        let mut changed = false;
        for s in 0..self.scopes.len() {
            if self.scopes[s].joint {
                if let Some(kept) = self.scopes[s].best_subset(&self.tableaux, self.gain) {
                    self.change(s, &kept);
                    changed = true;
                }
            } else {
                // At most as many exchanges as there are blocks: each lowers the cost.
                for _ in 0..self.scopes[s].blocks.len() {
                    let Some(kept) = self.scopes[s].best_exchange(&self.tableaux, self.gain) else {
                        break;
                    };
                    self.change(s, &kept);
                    changed = true;
                }
            }
        }
        changed
    }

    /// Gives some scopes, sampled by `seed`, their second-best choice; false if none
    /// changed. Wide scopes are left alone.
    pub fn kick(&mut self, seed: u64) -> bool {
        let mut changed = false;
        for (s, chance) in numbers(seed, self.scopes.len()).into_iter().enumerate() {
            if chance < KICKED
                && self.scopes[s].joint
                && let Some(kept) = self.scopes[s].second_best(&self.tableaux)
            {
                self.change(s, &kept);
                changed = true;
            }
        }
        changed
    }

    /// The cost of the current choice; `weights` are those before pruning, one matrix
    /// per tableau.
    pub fn cost<'w>(&self, weights: impl Iterator<Item = &'w Matrix>) -> f64 {
        let costs = self.tableaux.iter().zip(weights).map(|(tableau, w)| tableau.cost(w));
        costs.sum()
    }

    /// Changes the choice of scope `s`: first restores blocks, then drops others.
    fn change(&mut self, s: usize, kept: &[bool]) {
        for restore in [true, false] {
            for block in 0..kept.len() {
                if kept[block] != restore || self.scopes[s].kept[block] == restore {
                    continue;
                }
                for at in 0..self.scopes[s].blocks[block].len() {
                    let piece = self.scopes[s].blocks[block][at];
                    let part = &self.scopes[s].parts[piece.part];
                    let bundle = part.bundle;
                    let columns = part.columns[piece.start..][..piece.len].to_vec();
                    for column in columns {
                        let pivot = self.tableaux[bundle].pivot(column as usize);
                        self.tell(bundle, &pivot);
                    }
                }
            }
        }
        self.scopes[s].kept.copy_from_slice(kept);
    }

    fn tell(&mut self, bundle: usize, pivot: &Pivot<T>) {
        for part in self.scopes.iter_mut().flat_map(|scope| &mut scope.parts) {
            if part.bundle == bundle {
                pivot.update(&part.columns, &mut part.t);
            }
        }
    }
}

impl<T: Scalar> ScopeSearch<T> {
    /// The part of a scope inside these bundles; `None` if it has no choice.
    fn new(
        unit: &Unit,
        scope: &UnitScope,
        tableaux: &[Tableau<T>],
        here: &std::ops::Range<u32>,
    ) -> Option<Self> {
        let mut blocks: Vec<Vec<(usize, Vec<u32>)>> = Vec::new();
        for block in unit.blocks(scope) {
            let pieces = unit.pieces(block).iter().filter(|piece| here.contains(&piece.bundle));
            let pieces: Vec<_> = pieces
                .map(|p| ((p.bundle - here.start) as usize, unit.columns(p).to_vec()))
                .collect();
            if !pieces.is_empty() {
                blocks.push(pieces);
            }
        }
        let kept: Vec<bool> = blocks
            .iter()
            .map(|pieces| tableaux[pieces[0].0].kept[pieces[0].1[0] as usize])
            .collect();
        let dropped = kept.iter().filter(|&&kept| !kept).count();
        if dropped == 0 || dropped == kept.len() {
            return None;
        }
        let columns: usize = blocks.iter().flatten().map(|(_, columns)| columns.len()).sum();
        let joint = columns <= NARROW && Scoring::Auto.is_joint(blocks.len(), dropped);
        let mut local = Self { blocks: Vec::new(), kept, parts: Vec::new(), joint };
        for pieces in blocks {
            let mut places = Vec::new();
            for (bundle, columns) in pieces {
                let old = local.parts.iter().position(|part| joint && part.bundle == bundle);
                let part = old.unwrap_or(local.parts.len());
                if old.is_none() {
                    local.parts.push(Submatrix { bundle, columns: Vec::new(), t: Vec::new() });
                }
                let start = local.parts[part].columns.len();
                places.push(Piece { part, start, len: columns.len() });
                local.parts[part].columns.extend(columns);
            }
            local.blocks.push(places);
        }
        for part in &mut local.parts {
            let (tableau, columns) = (&tableaux[part.bundle], &part.columns);
            part.t = columns
                .iter()
                .flat_map(|&i| columns.iter().map(move |&j| tableau.at(i as usize, j as usize)))
                .collect();
        }
        Some(local)
    }

    /// The best choice, if it is better than the current one.
    fn best_subset(&self, tableaux: &[Tableau<T>], gain: f64) -> Option<Vec<bool>> {
        let whole = self.whole(tableaux)?;
        let present = self.gone();
        let best = self.cheapest(&whole, |_| true)?;
        (best.0 < self.cost(&whole, &present) * (1.0 - gain)).then(|| self.without(&best.1))
    }

    /// The best choice other than the current one.
    fn second_best(&self, tableaux: &[Tableau<T>]) -> Option<Vec<bool>> {
        let whole = self.whole(tableaux)?;
        let present = self.gone();
        let best = self.cheapest(&whole, |gone| gone != present)?;
        best.0.is_finite().then(|| self.without(&best.1))
    }

    /// The cheapest of some choices, with its cost.
    fn cheapest(
        &self,
        whole: &[Whole<T>],
        counts: impl Fn(&[usize]) -> bool,
    ) -> Option<(f64, Vec<usize>)> {
        let mut best: Option<(f64, Vec<usize>)> = None;
        let mut subset: Vec<usize> = (0..self.gone().len()).collect();
        loop {
            if counts(&subset) {
                let cost = self.cost(whole, &subset);
                if best.as_ref().is_none_or(|(least, _)| cost < *least) {
                    best = Some((cost, subset.clone()));
                }
            }
            if !next_subset(&mut subset, self.blocks.len()) {
                return best;
            }
        }
    }

    /// The dropped blocks.
    fn gone(&self) -> Vec<usize> {
        (0..self.kept.len()).filter(|&block| !self.kept[block]).collect()
    }

    /// Whether each block is kept if these are dropped.
    fn without(&self, gone: &[usize]) -> Vec<bool> {
        (0..self.kept.len()).map(|block| !gone.contains(&block)).collect()
    }

    /// The submatrices with all columns of the scope kept; `None` if rounding prevents
    /// it.
    fn whole(&self, tableaux: &[Tableau<T>]) -> Option<Vec<Whole<T>>> {
        let restored = |part: &Submatrix<T>| {
            let tableau = &tableaux[part.bundle];
            let mut t = part.t.clone();
            let mut u: Vec<Vec<T>> = (0..tableau.u.rows())
                .map(|i| part.columns.iter().map(|&j| tableau.u.row(i)[j as usize]).collect())
                .collect();
            for (k, &column) in part.columns.iter().enumerate() {
                if !tableau.kept[column as usize] {
                    restore(&mut t, &mut u, k)?;
                }
            }
            Some(Whole { t, u })
        };
        self.parts.iter().map(restored).collect()
    }

    /// The cost of dropping some blocks once all are kept.
    fn cost(&self, whole: &[Whole<T>], gone: &[usize]) -> f64 {
        let mut sum = 0.0;
        for (part, Whole { t, u }) in whole.iter().enumerate() {
            let places: Vec<usize> = gone
                .iter()
                .flat_map(|&block| &self.blocks[block])
                .filter(|piece| piece.part == part)
                .flat_map(|piece| piece.start..piece.start + piece.len)
                .collect();
            sum += loss(t, u, &places);
        }
        sum
    }

    /// The best exchange of a kept block for a dropped one, if it lowers the cost.
    fn best_exchange(&self, tableaux: &[Tableau<T>], gain: f64) -> Option<Vec<bool>> {
        // The cost of dropping a kept block, or the gain of restoring a dropped one.
        let alone = |block: usize| -> f64 {
            let pieces = self.blocks[block].iter();
            pieces
                .map(|piece| {
                    let part = &self.parts[piece.part];
                    let u = &tableaux[part.bundle].u;
                    let sign = if self.kept[block] { T::ONE } else { -T::ONE };
                    let t: Vec<T> = part.t.iter().map(|&x| sign * x).collect();
                    let u: Vec<Vec<T>> = (0..u.rows())
                        .map(|i| part.columns.iter().map(|&j| u.row(i)[j as usize]).collect())
                        .collect();
                    let all: Vec<usize> = (0..part.columns.len()).collect();
                    loss(&t, &u, &all)
                })
                .sum()
        };
        let scores: Vec<f64> = (0..self.blocks.len()).map(alone).collect();
        let ranked = |kept: bool, count: usize| -> Vec<usize> {
            let mut blocks: Vec<usize> = (0..self.blocks.len())
                .filter(|&b| self.kept[b] == kept && scores[b].is_finite())
                .collect();
            blocks.sort_by(|&a, &b| {
                let order = scores[a].total_cmp(&scores[b]);
                (if kept { order } else { order.reverse() }).then(a.cmp(&b))
            });
            blocks.truncate(count);
            blocks
        };
        let (cheapest, best) = (ranked(true, CHEAPEST), ranked(false, BEST));
        let mut winner: Option<(f64, usize, usize)> = None;
        for &out in &cheapest {
            // Rows of T for the columns of the block to drop.
            let rows: Vec<Vec<Vec<T>>> = self.blocks[out]
                .iter()
                .map(|piece| {
                    let part = &self.parts[piece.part];
                    part.columns.iter().map(|&i| tableaux[part.bundle].row(i as usize)).collect()
                })
                .collect();
            for &back in &best {
                // Restoring gains scores[back]; the exchange helps only if dropping then
                // costs less.
                let Some(cost) = self.after_restoring(tableaux, out, back, &rows) else { continue };
                let change = cost - scores[back];
                let better = change < -gain * scores[back].max(cost);
                if better && winner.is_none_or(|(least, ..)| change < least) {
                    winner = Some((change, out, back));
                }
            }
        }
        winner.map(|(_, out, back)| {
            let mut kept = self.kept.clone();
            (kept[out], kept[back]) = (false, true);
            kept
        })
    }

    /// The cost of dropping block `out` once block `back` is restored.
    fn after_restoring(
        &self,
        tableaux: &[Tableau<T>],
        out: usize,
        back: usize,
        rows: &[Vec<Vec<T>>],
    ) -> Option<f64> {
        let mut sum = 0.0;
        for (piece, rows) in self.blocks[out].iter().zip(rows) {
            let part = &self.parts[piece.part];
            let bundle = part.bundle;
            let tableau = &tableaux[bundle];
            let other: Option<&Submatrix<T>> =
                self.blocks[back].iter().map(|p| &self.parts[p.part]).find(|p| p.bundle == bundle);
            let mut columns = part.columns.clone();
            columns.extend(other.iter().flat_map(|p| &p.columns));
            let (b, n) = (part.columns.len(), columns.len());
            let mut t = vec![T::ZERO; n * n];
            for i in 0..n {
                for j in 0..n {
                    t[i * n + j] = match (i < b, j < b) {
                        (true, true) => part.t[i * b + j],
                        (true, false) => rows[i][columns[j] as usize],
                        (false, true) => rows[j][columns[i] as usize],
                        (false, false) => other?.t[(i - b) * (n - b) + j - b],
                    };
                }
            }
            let mut u: Vec<Vec<T>> = (0..tableau.u.rows())
                .map(|i| columns.iter().map(|&j| tableau.u.row(i)[j as usize]).collect())
                .collect();
            for k in b..n {
                restore(&mut t, &mut u, k)?;
            }
            let places: Vec<usize> = (0..b).collect();
            sum += loss(&t, &u, &places);
        }
        Some(sum)
    }
}

fn floor<T: Scalar>() -> T {
    T::EPSILON * T::from_f64(ROUNDING)
}

/// Restores column `k` within a submatrix of T; `None` if its pivot is a rounding error.
fn restore<T: Scalar>(t: &mut [T], u: &mut [Vec<T>], k: usize) -> Option<()> {
    let n = t.len().isqrt();
    let d = t[k * n + k];
    if d > -floor::<T>() {
        return None;
    }
    let row: Vec<T> = t[k * n..][..n].to_vec();
    for i in 0..n {
        let f = row[i] / d;
        for j in 0..n {
            t[i * n + j] = match (i == k, j == k) {
                (true, true) => -T::ONE / d,
                (true, false) => row[j] / d,
                (false, true) => row[i] / d,
                (false, false) => t[i * n + j] - f * row[j],
            };
        }
    }
    for u in u {
        let f = u[k] / d;
        u.iter_mut().zip(&row).for_each(|(u, &t)| *u -= f * t);
        u[k] = f;
    }
    Some(())
}

/// sum over rows of `u_p' (T_pp)^-1 u_p`; infinite where rounding has made T_pp
/// indefinite.
fn loss<T: Scalar>(t: &[T], u: &[Vec<T>], p: &[usize]) -> f64 {
    let (n, b) = (t.len().isqrt(), p.len());
    if b == 1 {
        let (k, d) = (p[0], t[p[0] * n + p[0]]);
        if d < floor() {
            return f64::INFINITY;
        }
        return u.iter().map(|u| (u[k] * u[k] / d).into()).sum();
    }
    let mut l: Vec<T> = p.iter().flat_map(|&i| p.iter().map(move |&j| t[i * n + j])).collect();
    if small::cholesky(&mut l, b, b, T::ZERO).is_err() {
        return f64::INFINITY;
    }
    let mut x = vec![T::ZERO; b];
    u.iter()
        .map(|u| {
            x.iter_mut().zip(p).for_each(|(x, &k)| *x = u[k]);
            small::forward(&l, b, b, &mut x);
            x.iter().map(|&x| x.into() * x.into()).sum::<f64>()
        })
        .sum()
}
