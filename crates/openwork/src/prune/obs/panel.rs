//! Narrow scopes: updates a panel of columns, lets its scopes choose one after the
//! other, and appends the removed columns to the factor.
//!
//! ```text
//! Y = L^-1 C_PJ        A = C_JJ - Y'Y        w = W_J - Z'Y          for a panel J
//! remove column q:           g = A_q: / sqrt(A_qq)     z = w_q / sqrt(A_qq)
//!                            A -= g'g    w -= z g      Y gains g, Z gains z
//! L gains, for each q, column q of Y
//! W <- W - (C_:P L^-T Z)'                                            in the end
//! ```
//!
//! Nearly all work is in Y: (rho K)^3 / 3 flops per row for a dropped share rho, in
//! products of narrow panels. A K x K matrix per row would cost K^3 and its memory.

use super::{Rows, Scoring, next_subset};
use crate::linalg::{Threads, gemm, small};
use crate::matrix::{Matrix, MatrixMut, MatrixRef};
use crate::spec::{Unit, UnitScope};

/// Rows of L that are stored and solved with together.
const TILE: usize = 64;

/// Pivots below this are rounding errors. In exact arithmetic A_qq is at least 1: it is
/// an entry of the inverse of a matrix with a unit diagonal.
const FLOOR: f32 = 1e-6;

/// Prunes a unit and returns the dropped columns of each bundle.
pub(super) fn prune(
    unit: &Unit,
    bundles: &mut [Rows],
    width: usize,
    scoring: Scoring,
) -> Vec<Vec<u32>> {
    let mut factors: Vec<Factor> = bundles.iter().map(|rows| Factor::new(rows.w.rows())).collect();
    let mut panels: Vec<Panel> = bundles.iter().map(|_| Panel::default()).collect();
    let mut scratch = Scratch::default();
    let mut start = 0;
    while start < unit.scopes.len() {
        let end = panel_end(unit, start, width);
        let scopes = &unit.scopes[start..end];
        for (b, panel) in panels.iter_mut().enumerate() {
            panel.move_to(unit, scopes, b as u32);
            panel.bring_up_to_date(&bundles[b], &factors[b]);
        }
        for (s, scope) in scopes.iter().enumerate() {
            if scope.dropped > 0 {
                let places = ScopeColumns::new(unit, scope, s, &panels);
                choose(&places, scope.dropped, scoring, &mut panels, &mut scratch);
            }
        }
        for (panel, factor) in panels.iter().zip(&mut factors) {
            panel.add_to(factor);
        }
        start = end;
    }
    for (rows, factor) in bundles.iter_mut().zip(&mut factors) {
        factor.finish(rows);
    }
    factors.into_iter().map(|factor| factor.pruned).collect()
}

/// The end of the run of scopes that fits a panel of `width` columns.
fn panel_end(unit: &Unit, start: usize, width: usize) -> usize {
    let mut widths = vec![0; unit.bundles.len()];
    for (s, scope) in unit.scopes.iter().enumerate().skip(start) {
        for piece in unit.blocks(scope).iter().flat_map(|block| unit.pieces(block)) {
            widths[piece.bundle as usize] += unit.columns(piece).len();
        }
        if s > start && widths.iter().any(|&w| w > width) {
            return s;
        }
    }
    unit.scopes.len()
}

/// L, Z and P of one bundle.
struct Factor {
    pruned: Vec<u32>,
    /// L by tiles of rows; tile `i` holds `TILE` rows of `(i + 1) TILE` entries.
    tiles: Vec<Vec<f32>>,
    /// The inverses of the diagonal blocks of full tiles.
    inverses: Vec<Vec<f32>>,
    /// Z of each row: an entry for each pruned column.
    z: Vec<Vec<f32>>,
}

impl Factor {
    fn new(rows: usize) -> Self {
        Self {
            pruned: Vec::new(),
            tiles: Vec::new(),
            inverses: Vec::new(),
            z: vec![Vec::new(); rows],
        }
    }

    fn len(&self) -> usize {
        self.pruned.len()
    }

    /// Appends a row of L: column `q` of `y`, whose rows are `m` wide.
    fn push(&mut self, column: u32, y: &[f32], m: usize, q: usize) {
        let k = self.len();
        let (tile, row) = (k / TILE, k % TILE);
        if row == 0 {
            self.tiles.push(vec![0.0; TILE * (tile + 1) * TILE]);
        }
        let stride = (tile + 1) * TILE;
        let l = &mut self.tiles[tile][row * stride..][..=k];
        for (l, y) in l.iter_mut().zip(y[q..].iter().step_by(m)) {
            *l = *y;
        }
        self.pruned.push(column);
        if row + 1 == TILE {
            let mut inverse = vec![0.0; TILE * TILE];
            for (i, to) in inverse.chunks_mut(TILE).enumerate() {
                to[..=i].copy_from_slice(&self.tiles[tile][i * stride + tile * TILE..][..=i]);
            }
            small::invert_lower(&mut inverse, TILE, TILE);
            self.inverses.push(inverse);
        }
    }

    /// Y <- L^-1 Y for the first `len` rows of `y`, which are `m` wide.
    fn solve(&self, y: &mut [f32], m: usize) {
        let mut solved = Matrix::zeros(TILE, m);
        for (tile, l) in self.tiles.iter().enumerate() {
            let (top, stride) = (tile * TILE, (tile + 1) * TILE);
            let count = TILE.min(self.len() - top);
            let (above, rest) = y.split_at_mut(top * m);
            let mut here = MatrixMut::new(&mut rest[..count * m], count, m);
            if tile > 0 {
                let left = MatrixRef::with_strides(l, count, top, stride, 1);
                let above = MatrixRef::new(above, top, m);
                gemm(1.0, here.reborrow(), -1.0, left, above, Threads::One);
            }
            if let Some(inverse) = self.inverses.get(tile) {
                let inverse = MatrixRef::new(inverse, TILE, TILE);
                gemm(0.0, solved.view_mut(), 1.0, inverse, here.view(), Threads::One);
                here.data_mut()[..count * m].copy_from_slice(solved.data());
            } else {
                small::forward_many(&l[top..], count, stride, here.data_mut(), m, m);
            }
        }
    }

    /// W <- W - (C_:P L^-T Z)'.
    fn finish(&mut self, rows: &mut Rows) {
        let c = rows.curvature.inverse();
        for (i, z) in self.z.iter_mut().enumerate() {
            for k in (0..self.pruned.len()).rev() {
                let (tile, row) = (k / TILE, k % TILE);
                let l = &self.tiles[tile][row * (tile + 1) * TILE..][..=k];
                let v = z[k] / l[k];
                z[k] = v;
                z[..k].iter_mut().zip(l).for_each(|(z, &l)| *z -= v * l);
            }
            let w = rows.w.row_mut(i);
            for (&p, &v) in self.pruned.iter().zip(&*z) {
                w.iter_mut().zip(c.row(p as usize)).for_each(|(w, &c)| *w -= v * c);
            }
        }
    }
}

/// A panel of one bundle's columns, scope after scope, block after block.
#[derive(Default)]
struct Panel {
    bundle: u32,
    columns: Vec<u32>,
    /// Where each scope's columns begin; one entry more than scopes.
    starts: Vec<usize>,
    /// The scope that each place belongs to begins here.
    scope_start: Vec<usize>,
    /// Rows of Y from before this panel.
    before: usize,
    a: Vec<f32>,
    w: Vec<f32>,
    y: Vec<f32>,
    /// Z of each row, for the columns that go in this panel.
    z: Vec<Vec<f32>>,
    /// The removed columns, in order.
    gone: Vec<usize>,
}

impl Panel {
    /// Makes this the panel of other scopes; the room it has is used again.
    fn move_to(&mut self, unit: &Unit, scopes: &[UnitScope], bundle: u32) {
        self.bundle = bundle;
        self.columns.clear();
        self.starts.clear();
        self.starts.push(0);
        self.scope_start.clear();
        self.gone.clear();
        for values in [&mut self.a, &mut self.w, &mut self.y] {
            values.clear();
        }
        for scope in scopes {
            let start = self.columns.len();
            for piece in unit.blocks(scope).iter().flat_map(|block| unit.pieces(block)) {
                if piece.bundle == bundle {
                    self.columns.extend_from_slice(unit.columns(piece));
                }
            }
            self.scope_start.resize(self.columns.len(), start);
            self.starts.push(self.columns.len());
        }
    }

    fn width(&self) -> usize {
        self.columns.len()
    }

    fn bring_up_to_date(&mut self, rows: &Rows, factor: &Factor) {
        let (m, k, r) = (self.width(), factor.len(), factor.z.len());
        self.before = k;
        self.z.resize(r, Vec::new());
        self.z.iter_mut().for_each(Vec::clear);
        if m == 0 {
            return;
        }
        let c = rows.curvature.inverse();
        let first = self.columns[0] as usize;
        let neighbors = self.columns.iter().enumerate().all(|(i, &j)| j as usize == first + i);
        let gather = |row: &[f32], out: &mut Vec<f32>| {
            if neighbors {
                out.extend_from_slice(&row[first..first + m]);
            } else {
                out.extend(self.columns.iter().map(|&j| row[j as usize]));
            }
        };
        // Capacity for one row of Y per column that may be dropped.
        self.y.reserve((k + m) * m);
        for &p in &factor.pruned {
            gather(c.row(p as usize), &mut self.y);
        }
        factor.solve(&mut self.y, m);
        for &j in &self.columns {
            gather(c.row(j as usize), &mut self.a);
        }
        for i in 0..r {
            gather(rows.w.row(i), &mut self.w);
        }
        if k > 0 {
            let y = MatrixRef::new(&self.y, k, m);
            gemm(1.0, MatrixMut::new(&mut self.a, m, m), -1.0, y.t(), y, Threads::One);
            if r < 4 {
                for (w, z) in self.w.chunks_mut(m).zip(&factor.z) {
                    for (y, &z) in self.y.chunks(m).zip(z) {
                        w.iter_mut().zip(y).for_each(|(w, &y)| *w -= z * y);
                    }
                }
            } else {
                let z = Matrix::from_vec(r, k, factor.z.concat());
                gemm(1.0, MatrixMut::new(&mut self.w, r, m), -1.0, z.view(), y, Threads::One);
            }
        }
    }

    /// Takes the column at place `q` away; places before `from` are settled.
    fn eliminate(&mut self, q: usize, from: usize) {
        let m = self.width();
        let root = self.a[q * m + q].max(FLOOR).sqrt();
        let at = self.y.len();
        self.y.resize(at + m, 0.0);
        let g = &mut self.y[at..];
        for (g, &a) in g[from..].iter_mut().zip(&self.a[q * m + from..][..m - from]) {
            *g = a / root;
        }
        g[q] = root;
        let g = &self.y[at..];
        for i in from..m {
            // Within the current scope both halves are needed; of later scopes the
            // places from their own scope on.
            let lo = self.scope_start[i].max(from);
            let g_i = g[i];
            let row = &mut self.a[i * m + lo..][..m - lo];
            row.iter_mut().zip(&g[lo..]).for_each(|(a, &g)| *a -= g_i * g);
        }
        for (w, z) in self.w.chunks_mut(m).zip(&mut self.z) {
            let z_q = w[q] / root;
            w[from..].iter_mut().zip(&g[from..]).for_each(|(w, &g)| *w -= z_q * g);
            z.push(z_q);
        }
        self.gone.push(q);
    }

    /// Appends the removed columns to the factor.
    fn add_to(&self, factor: &mut Factor) {
        let m = self.width();
        for (r, &q) in self.gone.iter().enumerate() {
            let rows = self.before + r + 1;
            factor.push(self.columns[q], &self.y[..rows * m], m, q);
        }
        factor.z.iter_mut().zip(&self.z).for_each(|(z, new)| z.extend_from_slice(new));
    }
}

/// The columns of a scope's blocks in the panels.
struct ScopeColumns {
    /// The pieces of each block: panel, first column, number of columns.
    blocks: Vec<Vec<(usize, usize, usize)>>,
    /// The first column of the scope in each panel.
    from: Vec<usize>,
}

impl ScopeColumns {
    fn new(unit: &Unit, scope: &UnitScope, s: usize, panels: &[Panel]) -> Self {
        let from: Vec<usize> = panels.iter().map(|panel| panel.starts[s]).collect();
        let mut next = from.clone();
        let blocks = unit
            .blocks(scope)
            .iter()
            .map(|block| {
                let pieces = unit.pieces(block).iter();
                pieces
                    .map(|piece| {
                        let (b, n) = (piece.bundle as usize, unit.columns(piece).len());
                        debug_assert_eq!(panels[b].bundle, piece.bundle);
                        next[b] += n;
                        (b, next[b] - n, n)
                    })
                    .collect()
            })
            .collect();
        Self { blocks, from }
    }
}

#[derive(Default)]
struct Scratch {
    a: Vec<f32>,
    w: Vec<f32>,
    places: Vec<usize>,
}

/// Chooses the blocks to drop and removes them.
fn choose(
    places: &ScopeColumns,
    dropped: usize,
    scoring: Scoring,
    panels: &mut [Panel],
    scratch: &mut Scratch,
) {
    let blocks = places.blocks.len();
    let remove = |panels: &mut [Panel], block: usize| {
        for &(b, start, n) in &places.blocks[block] {
            (start..start + n).for_each(|q| panels[b].eliminate(q, places.from[b]));
        }
    };
    if scoring.is_joint(blocks, dropped) {
        let mut subset: Vec<usize> = (0..dropped).collect();
        let (mut best, mut least) = (subset.clone(), f64::INFINITY);
        loop {
            let cost = cost(places, &subset, panels, scratch);
            // The later subset of equal costs is dropped: lower indices are kept.
            if cost <= least {
                (least, best) = (cost, subset.clone());
            }
            if !next_subset(&mut subset, blocks) {
                break;
            }
        }
        best.into_iter().for_each(|block| remove(panels, block));
        return;
    }
    let mut left: Vec<usize> = (0..blocks).collect();
    if scoring == Scoring::Independent {
        let costs: Vec<f64> =
            left.iter().map(|&block| cost(places, &[block], panels, scratch)).collect();
        left.sort_by(|&a, &b| costs[a].total_cmp(&costs[b]).then(b.cmp(&a)));
        left[..dropped].iter().for_each(|&block| remove(panels, block));
        return;
    }
    for _ in 0..dropped {
        // The later block of equal costs is dropped: the lower index is kept.
        let mut cheapest = (f64::INFINITY, 0);
        for (at, &block) in left.iter().enumerate() {
            let cost = cost(places, &[block], panels, scratch);
            if cost <= cheapest.0 {
                cheapest = (cost, at);
            }
        }
        let block = left.remove(cheapest.1);
        remove(panels, block);
    }
}

/// The cost of dropping some blocks together: the sum over panels and rows of
/// `w_p' (A_pp)^-1 w_p`; infinite where rounding has made `A_pp`
/// indefinite.
fn cost(places: &ScopeColumns, blocks: &[usize], panels: &[Panel], scratch: &mut Scratch) -> f64 {
    let mut sum = 0.0;
    for (b, panel) in panels.iter().enumerate() {
        let m = panel.width();
        let p = &mut scratch.places;
        p.clear();
        for &block in blocks {
            for &(_, start, n) in places.blocks[block].iter().filter(|piece| piece.0 == b) {
                p.extend(start..start + n);
            }
        }
        match p[..] {
            [] => {}
            [i] => {
                let a = panel.a[i * m + i].max(FLOOR);
                sum += panel.w.chunks(m).map(|w| f64::from(w[i] * w[i] / a)).sum::<f64>();
            }
            [i, j] => {
                let (a, c, d) = (panel.a[i * m + i], panel.a[i * m + j], panel.a[j * m + j]);
                let det = a * d - c * c;
                if det <= FLOOR {
                    return f64::INFINITY;
                }
                let square =
                    |w: &[f32]| (w[i] * w[i] * d - 2.0 * w[i] * w[j] * c + w[j] * w[j] * a) / det;
                sum += panel.w.chunks(m).map(|w| f64::from(square(w))).sum::<f64>();
            }
            _ => {
                let n = p.len();
                scratch.a.clear();
                scratch
                    .a
                    .extend(p.iter().flat_map(|&i| p.iter().map(move |&j| panel.a[i * m + j])));
                if small::cholesky(&mut scratch.a, n, n, FLOOR).is_err() {
                    return f64::INFINITY;
                }
                for w in panel.w.chunks(m) {
                    scratch.w.clear();
                    scratch.w.extend(p.iter().map(|&i| w[i]));
                    small::forward(&scratch.a, n, n, &mut scratch.w);
                    sum += scratch.w.iter().map(|&x| f64::from(x) * f64::from(x)).sum::<f64>();
                }
            }
        }
    }
    sum
}
