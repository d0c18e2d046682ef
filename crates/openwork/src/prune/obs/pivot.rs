//! Wide scopes: drops the cheapest block, rescores all others, and repeats.
//!
//! ```text
//! D_j = A_jj for every block j        w, and G = the rows g of removed columns
//! drop block p:   T = C_p: - G_:p' G      each row of T, pivot by pivot, gives a g
//!                 w -= z g      D_j -= g_j' g_j
//! ```
//!
//! Only the diagonal blocks of A are stored; a row of A is computed when its column
//! is removed. That reads k rows of G instead of rewriting all of A: a quarter of the
//! memory traffic.

use super::{Rows, Scoring};
use crate::linalg::small;
use crate::spec::{Unit, UnitScope};
use rayon::prelude::*;

/// See [`super::panel`].
const FLOOR: f32 = 1e-6;

/// Prunes a unit and returns the dropped columns of each bundle.
pub(super) fn prune(unit: &Unit, bundles: &mut [Rows], scoring: Scoring) -> Vec<Vec<u32>> {
    let scored_once = scoring == Scoring::Independent;
    if let [scope] = unit.scopes.as_slice()
        && bundles.len() > 1
        && !scored_once
        && unit.blocks(scope).iter().all(|block| unit.pieces(block).len() == 1)
    {
        return merged(unit, scope, bundles);
    }
    let mut states: Vec<State> = bundles.iter().map(State::new).collect();
    for scope in &unit.scopes {
        let mut candidates = Candidates::new(unit, scope, bundles, &states);
        if scored_once {
            let mut order: Vec<usize> = (0..candidates.costs.len()).collect();
            order.sort_by(|&a, &b| {
                candidates.costs[a].total_cmp(&candidates.costs[b]).then(b.cmp(&a))
            });
            for &block in &order[..scope.dropped] {
                candidates.remove(block, bundles, &mut states);
            }
        } else {
            for _ in 0..scope.dropped {
                let block = candidates.cheapest();
                candidates.remove(block, bundles, &mut states);
            }
        }
    }
    for (rows, state) in bundles.iter_mut().zip(&states) {
        rows.w.data_mut().copy_from_slice(&state.w);
    }
    states.into_iter().map(|state| state.pruned).collect()
}

/// One scope over many bundles, with every block inside one bundle. The order in
/// which a bundle drops its blocks does not depend on the other bundles, so each is
/// followed separately, and the lists of costs are merged.
fn merged(unit: &Unit, scope: &UnitScope, bundles: &mut [Rows]) -> Vec<Vec<u32>> {
    /// How far a bundle is followed at first, relative to an even share.
    const SLACK: f64 = 1.3;
    let mut of: Vec<Vec<usize>> = vec![Vec::new(); bundles.len()];
    for (at, block) in unit.blocks(scope).iter().enumerate() {
        of[unit.pieces(block)[0].bundle as usize].push(at);
    }
    let share = scope.dropped as f64 / unit.blocks(scope).len() as f64;
    let mut depth: Vec<usize> = of
        .iter()
        .map(|blocks| ((blocks.len() as f64 * share * SLACK) as usize + 8).min(blocks.len()))
        .collect();
    let follow = |b: usize, depth: usize| -> Vec<f64> {
        let mut states = [State::new(&bundles[b])];
        let alone = std::slice::from_ref(&bundles[b]);
        let mut candidates = Candidates::new_with(unit, scope, &of[b], alone, &states, b as u32);
        (0..depth)
            .map(|_| {
                let block = candidates.cheapest();
                let cost = candidates.costs[block];
                candidates.remove(block, alone, &mut states);
                cost
            })
            .collect()
    };
    let mut costs: Vec<Vec<f64>> =
        depth.par_iter().enumerate().map(|(b, &depth)| follow(b, depth)).collect();
    let counts = loop {
        let counts = merge(&costs, scope.dropped);
        // A bundle used up to its depth might drop more.
        let short: Vec<usize> =
            (0..of.len()).filter(|&b| counts[b] == depth[b] && depth[b] < of[b].len()).collect();
        if short.is_empty() {
            break counts;
        }
        for &b in &short {
            depth[b] = (depth[b] * 2).min(of[b].len());
        }
        let longer: Vec<Vec<f64>> = short.par_iter().map(|&b| follow(b, depth[b])).collect();
        short.into_iter().zip(longer).for_each(|(b, new)| costs[b] = new);
    };
    bundles
        .par_iter_mut()
        .enumerate()
        .map(|(b, rows)| {
            let mut states = [State::new(rows)];
            let alone = std::slice::from_ref(&*rows);
            let mut candidates =
                Candidates::new_with(unit, scope, &of[b], alone, &states, b as u32);
            for _ in 0..counts[b] {
                let block = candidates.cheapest();
                candidates.remove(block, alone, &mut states);
            }
            let [state] = states;
            rows.w.data_mut().copy_from_slice(&state.w);
            state.pruned
        })
        .collect()
}

/// The number of blocks dropped from each list if, `total` times, the list with the
/// least next cost drops one; ties by index.
fn merge(costs: &[Vec<f64>], total: usize) -> Vec<usize> {
    use std::cmp::Reverse;
    use std::collections::BinaryHeap;
    /// Costs are not negative, so their bits have the same order.
    fn key(cost: f64) -> u64 {
        cost.max(0.0).to_bits()
    }
    let mut counts = vec![0; costs.len()];
    let mut heap: BinaryHeap<Reverse<(u64, Reverse<usize>)>> = costs
        .iter()
        .enumerate()
        .filter_map(|(b, c)| Some(Reverse((key(*c.first()?), Reverse(b)))))
        .collect();
    for _ in 0..total {
        let Some(Reverse((_, Reverse(b)))) = heap.pop() else { break };
        counts[b] += 1;
        if let Some(&next) = costs[b].get(counts[b]) {
            heap.push(Reverse((key(next), Reverse(b))));
        }
    }
    counts
}

/// The pruning state of a bundle.
struct State {
    n: usize,
    /// The weights, up to date in every column.
    w: Vec<f32>,
    /// One row of length n for each removed column.
    g: Vec<f32>,
    pruned: Vec<u32>,
}

impl State {
    fn new(rows: &Rows) -> Self {
        Self { n: rows.w.cols(), w: rows.w.data().to_vec(), g: Vec::new(), pruned: Vec::new() }
    }

    /// Removes columns, pivot by pivot.
    fn eliminate(&mut self, rows: &Rows, columns: &[u32]) {
        let n = self.n;
        if columns.len() == n {
            // All columns of these rows: none is left to compensate with.
            self.w.fill(0.0);
            self.pruned.extend_from_slice(columns);
            return;
        }
        let c = rows.curvature.inverse();
        for &q in columns {
            let q = q as usize;
            let mut t = c.row(q).to_vec();
            for g in self.g.chunks(n) {
                let g_q = g[q];
                t.iter_mut().zip(g).for_each(|(t, &g)| *t -= g_q * g);
            }
            let root = t[q].max(FLOOR).sqrt();
            t.iter_mut().for_each(|t| *t /= root);
            for w in self.w.chunks_mut(n) {
                let z = w[q] / root;
                w.iter_mut().zip(&t).for_each(|(w, &g)| *w -= z * g);
            }
            self.g.extend_from_slice(&t);
            self.pruned.push(q as u32);
        }
    }
}

/// The blocks of a scope and the cost of dropping each.
struct Candidates {
    blocks: Vec<Vec<PieceCost>>,
    costs: Vec<f64>,
    left: Vec<bool>,
}

/// The piece of a block in one bundle, with its diagonal block of A.
struct PieceCost {
    bundle: usize,
    columns: Vec<u32>,
    /// Empty if the piece is all columns of its rows.
    d: Vec<f32>,
    cost: f64,
}

impl Candidates {
    fn new(unit: &Unit, scope: &UnitScope, bundles: &[Rows], states: &[State]) -> Self {
        let all: Vec<usize> = (0..unit.blocks(scope).len()).collect();
        Self::new_with(unit, scope, &all, bundles, states, 0)
    }

    /// Some blocks of a scope; `bundles` begins with bundle `first` of the unit.
    fn new_with(
        unit: &Unit,
        scope: &UnitScope,
        blocks: &[usize],
        bundles: &[Rows],
        states: &[State],
        first: u32,
    ) -> Self {
        let blocks: Vec<Vec<PieceCost>> = blocks
            .iter()
            .map(|&at| {
                let pieces = unit.pieces(&unit.blocks(scope)[at]).iter();
                pieces
                    .map(|piece| {
                        let bundle = (piece.bundle - first) as usize;
                        let columns = unit.columns(piece).to_vec();
                        PieceCost::new(bundle, columns, &bundles[bundle], &states[bundle])
                    })
                    .collect()
            })
            .collect();
        let costs = blocks.iter().map(|parts| parts.iter().map(|part| part.cost).sum()).collect();
        let left = vec![true; blocks.len()];
        Self { blocks, costs, left }
    }

    /// The later block of equal costs: the lower index is kept.
    fn cheapest(&self) -> usize {
        let mut best = (f64::INFINITY, 0);
        for (block, (&cost, &left)) in self.costs.iter().zip(&self.left).enumerate() {
            if left && cost <= best.0 {
                best = (cost, block);
            }
        }
        best.1
    }

    fn remove(&mut self, block: usize, bundles: &[Rows], states: &mut [State]) {
        self.left[block] = false;
        let mut touched = vec![None; states.len()];
        for part in &self.blocks[block] {
            let state = &mut states[part.bundle];
            let before = state.g.len();
            state.eliminate(&bundles[part.bundle], &part.columns);
            touched[part.bundle] = Some(before);
        }
        for (block, parts) in self.blocks.iter_mut().enumerate() {
            if !self.left[block] {
                continue;
            }
            let mut changed = false;
            for part in parts.iter_mut() {
                if let Some(before) = touched[part.bundle] {
                    part.update(&states[part.bundle], before);
                    changed = true;
                }
            }
            if changed {
                self.costs[block] = parts.iter().map(|part| part.cost).sum();
            }
        }
    }
}

impl PieceCost {
    fn new(bundle: usize, columns: Vec<u32>, rows: &Rows, state: &State) -> Self {
        let whole = columns.len() == state.n;
        let c = if whole { rows.curvature.matrix() } else { rows.curvature.inverse() };
        if whole {
            // All columns of these rows: it costs w H w', the whole output.
            let cost = state
                .w
                .chunks(state.n)
                .map(|w| {
                    let each = w.iter().enumerate();
                    each.map(|(i, &x)| f64::from(x) * f64::from(small::dot(c.row(i), w)))
                        .sum::<f64>()
                })
                .sum();
            return Self { bundle, columns, d: Vec::new(), cost };
        }
        let d = columns
            .iter()
            .flat_map(|&i| columns.iter().map(move |&j| c.row(i as usize)[j as usize]))
            .collect();
        let mut part = Self { bundle, columns, d, cost: 0.0 };
        part.update(state, 0);
        part
    }

    /// Applies the rows of G from `before` on, and recomputes the cost.
    fn update(&mut self, state: &State, before: usize) {
        let (n, b) = (state.n, self.columns.len());
        if self.d.is_empty() {
            return;
        }
        for g in state.g[before..].chunks(n) {
            for (i, &column) in self.columns.iter().enumerate() {
                let g_i = g[column as usize];
                for (d, &other) in self.d[i * b..][..b].iter_mut().zip(&self.columns) {
                    *d -= g_i * g[other as usize];
                }
            }
        }
        self.cost = if b == 1 {
            let (q, d) = (self.columns[0] as usize, self.d[0].max(FLOOR));
            state.w.chunks(n).map(|w| f64::from(w[q] * w[q] / d)).sum()
        } else {
            let mut l = self.d.clone();
            match small::cholesky(&mut l, b, b, FLOOR) {
                Err(_) => f64::INFINITY,
                Ok(()) => {
                    let mut x = vec![0.0; b];
                    state
                        .w
                        .chunks(n)
                        .map(|w| {
                            x.iter_mut().zip(&self.columns).for_each(|(x, &q)| *x = w[q as usize]);
                            small::forward(&l, b, b, &mut x);
                            x.iter().map(|&x| f64::from(x) * f64::from(x)).sum::<f64>()
                        })
                        .sum()
                }
            }
        };
    }
}
