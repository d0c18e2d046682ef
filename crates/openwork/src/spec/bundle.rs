//! Rows that must be pruned together: the units of parallel work.
//!
//! A tensor is viewed as a matrix whose rows share one Hessian. Rows with the same
//! assignment of columns to blocks form a *bundle*: the same columns are pruned in all of
//! them, so they share one state. Bundles that share a scope form a *unit*. Units are
//! independent, so they run in parallel.

use super::domain::Space;
use super::{Spec, Tensor, by_falling_stride, permuted, row_major};
use crate::layout::StridedLayout;
use crate::random::mix;
use std::collections::HashMap;

/// The maximum number of elements of a unit.
const MAX_LISTED: usize = 1 << 27;

impl Tensor {
    /// Rows and columns of the tensor as a matrix: the first dim, and all others
    /// together (the im2col columns of a convolution); one row for a vector.
    pub fn matrix(&self) -> (usize, usize) {
        let cols = match self.dims.as_slice() {
            [n] => *n,
            [_, rest @ ..] => rest.iter().product(),
            [] => 1,
        };
        (self.size / cols, cols)
    }

    /// The number of elements in the domain.
    pub fn domain_size(&self) -> usize {
        self.space.weights(self.positions())
    }

    /// Whether each axis of the view moves along rows; `None` if an axis moves along rows and
    /// columns.
    fn row_axes(&self) -> Option<Vec<bool>> {
        let Space::Direct { first } = self.space else { return None };
        let (_, cols) = self.matrix();
        let view = StridedLayout::from(&self.view);
        let row = |&stride: &usize| stride % cols == 0;
        let mut reach = first % cols;
        for (&extent, stride) in view.shape().iter().zip(view.stride()) {
            if extent > 1 && !row(stride) {
                reach += (extent - 1) * stride;
            }
        }
        (reach < cols).then(|| view.stride().iter().map(row).collect())
    }
}

/// The pattern couples too many rows.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error(
    "the pattern couples {rows} rows and {elements} weights, too many for this method; \
     use a narrower scope (for example rowwise) or another method"
)]
pub struct TooWide {
    /// Rows that must be pruned together.
    pub rows: usize,
    /// Weights in them.
    pub elements: usize,
}

/// All units of a spec.
#[derive(Debug)]
pub struct Units<'a> {
    spec: &'a Spec,
    kind: Kind,
}

#[derive(Debug)]
enum Kind {
    /// All units are alike except for their rows: the first one, and the row offsets of each
    /// tensor.
    Repeated { first: Unit, shifts: Vec<StridedLayout> },
    /// The scopes of each unit.
    Listed(Vec<Vec<usize>>),
}

/// Rows of one tensor that are pruned alike.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Bundle {
    /// The tensor.
    pub tensor: usize,
    /// Its rows; those of the first unit where units repeat.
    pub rows: Vec<usize>,
    /// The columns of the domain in these rows, ascending. Columns of pieces are indices into
    /// this list.
    pub columns: Vec<u32>,
}

/// The part of a block in one bundle.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Piece {
    /// The bundle.
    pub bundle: u32,
    start: u32,
    end: u32,
}

/// A block of a scope of a unit.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct UnitBlock {
    /// Its number in the scope, as in the spec.
    pub block: u32,
    start: u32,
    end: u32,
}

/// A scope of a unit: its blocks, and how many are dropped. Blocks of padding only are left
/// out; they are dropped first.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct UnitScope {
    /// Its number in the spec; that of the first unit where units repeat.
    pub scope: usize,
    /// The number of listed blocks to drop.
    pub dropped: usize,
    start: u32,
    end: u32,
}

/// The structure of a unit.
#[derive(Clone, Debug, Default)]
pub struct Unit {
    /// Rows that are pruned alike.
    pub bundles: Vec<Bundle>,
    /// Scopes by ascending offset.
    pub scopes: Vec<UnitScope>,
    blocks: Vec<UnitBlock>,
    pieces: Vec<Piece>,
    columns: Vec<u32>,
}

impl Unit {
    /// Whether another unit has the same structure, apart from its rows and scope numbers.
    pub(super) fn alike(&self, other: &Self) -> bool {
        let bundles = |unit: &Self| -> Vec<(usize, usize, Vec<u32>)> {
            let facts = |b: &Bundle| (b.tensor, b.rows.len(), b.columns.clone());
            unit.bundles.iter().map(facts).collect()
        };
        let scopes = |unit: &Self| -> Vec<(usize, u32, u32)> {
            unit.scopes.iter().map(|s| (s.dropped, s.start, s.end)).collect()
        };
        bundles(self) == bundles(other)
            && scopes(self) == scopes(other)
            && self.blocks == other.blocks
            && self.pieces == other.pieces
            && self.columns == other.columns
    }

    /// The blocks of a scope.
    pub fn blocks(&self, scope: &UnitScope) -> &[UnitBlock] {
        &self.blocks[scope.start as usize..scope.end as usize]
    }

    /// The pieces of a block, one for each bundle it lies in.
    pub fn pieces(&self, block: &UnitBlock) -> &[Piece] {
        &self.pieces[block.start as usize..block.end as usize]
    }

    /// The columns of a piece, as indices into its bundle's list of columns.
    pub fn columns(&self, piece: &Piece) -> &[u32] {
        &self.columns[piece.start as usize..piece.end as usize]
    }

    /// Lists the structure of some scopes.
    fn build(spec: &Spec, scopes: impl Iterator<Item = usize> + Clone) -> Self {
        let widths: Vec<usize> = spec.tensors().iter().map(|t| t.matrix().1).collect();
        // First pass: a hash of each row's assignment of columns to blocks.
        let mut slots: HashMap<(usize, usize), usize> = HashMap::new();
        let mut rows: Vec<(usize, usize, u64, u32)> = Vec::new();
        let mut last = ((usize::MAX, 0), 0);
        let mut slot_of = |rows: &mut Vec<(usize, usize, u64, u32)>, key: (usize, usize)| {
            if last.0 != key {
                let slot = *slots.entry(key).or_insert_with(|| {
                    rows.push((key.0, key.1, 0, 0));
                    rows.len() - 1
                });
                last = (key, slot);
            }
            last.1
        };
        for (s, scope) in scopes.clone().enumerate() {
            for block in 0..spec.blocks_per_scope() {
                for element in spec.elements(scope, block) {
                    let width = widths[element.tensor];
                    let slot = slot_of(&mut rows, (element.tensor, element.offset / width));
                    let column = (element.offset % width) as u64;
                    let block = (s * spec.blocks_per_scope() + block) as u64;
                    rows[slot].2 = rows[slot].2.wrapping_add(mix(column << 40 ^ block));
                    rows[slot].3 += 1;
                }
            }
        }
        // Rows with equal hashes form a bundle, represented by the first of them.
        let mut bundle_of: HashMap<(usize, u64, u32), usize> = HashMap::new();
        let mut unit = Self::default();
        let mut leads: Vec<Option<usize>> = vec![None; rows.len()];
        for (slot, &(tensor, row, print, count)) in rows.iter().enumerate() {
            let bundle = *bundle_of.entry((tensor, print, count)).or_insert_with(|| {
                leads[slot] = Some(unit.bundles.len());
                unit.bundles.push(Bundle {
                    tensor,
                    rows: Vec::new(),
                    columns: Vec::with_capacity(count as usize),
                });
                unit.bundles.len() - 1
            });
            unit.bundles[bundle].rows.push(row);
        }
        // Second pass: the columns of the representatives.
        for scope in scopes {
            let start = unit.blocks.len() as u32;
            for block in 0..spec.blocks_per_scope() {
                let first = unit.pieces.len() as u32;
                for element in spec.elements(scope, block) {
                    let width = widths[element.tensor];
                    let slot = slot_of(&mut rows, (element.tensor, element.offset / width));
                    let Some(bundle) = leads[slot] else { continue };
                    let at = unit.columns.len() as u32;
                    match unit.pieces[first as usize..].last_mut() {
                        Some(piece) if piece.bundle == bundle as u32 => piece.end += 1,
                        _ => unit.pieces.push(Piece {
                            bundle: bundle as u32,
                            start: at,
                            end: at + 1,
                        }),
                    }
                    let column = (element.offset % width) as u32;
                    unit.columns.push(column);
                    unit.bundles[bundle].columns.push(column);
                }
                join_pieces(&mut unit, first as usize);
                let end = unit.pieces.len() as u32;
                if end > first {
                    unit.blocks.push(UnitBlock { block: block as u32, start: first, end });
                }
            }
            let end = unit.blocks.len() as u32;
            let dropped = ((end - start) as usize).saturating_sub(spec.keep());
            unit.scopes.push(UnitScope { scope, dropped, start, end });
        }
        // From columns of the tensor to indices into the bundle's list.
        for bundle in &mut unit.bundles {
            bundle.columns.sort_unstable();
            bundle.rows.sort_unstable();
        }
        for piece in &unit.pieces {
            let list = &unit.bundles[piece.bundle as usize].columns;
            let whole = list.last().is_some_and(|&last| last as usize + 1 == list.len());
            let columns = &mut unit.columns[piece.start as usize..piece.end as usize];
            if !whole {
                for column in columns.iter_mut() {
                    *column =
                        list.binary_search(column).expect("a piece's columns are its bundle's")
                            as u32;
                }
            }
            columns.sort_unstable();
        }
        unit
    }
}

/// Joins the pieces from `first` on that are in one bundle but not adjacent, which happens
/// if a block's elements return to a row.
fn join_pieces(unit: &mut Unit, first: usize) {
    let pieces = &unit.pieces[first..];
    let mut seen = std::collections::HashSet::new();
    if pieces.len() < 2 || pieces.iter().all(|piece| seen.insert(piece.bundle)) {
        return;
    }
    let start = pieces[0].start as usize;
    let mut by_bundle: Vec<(u32, u32)> = pieces
        .iter()
        .flat_map(|piece| {
            (piece.start..piece.end).map(|at| (piece.bundle, unit.columns[at as usize]))
        })
        .collect();
    by_bundle.sort_by_key(|&(bundle, _)| bundle);
    unit.pieces.truncate(first);
    for (at, &(bundle, column)) in by_bundle.iter().enumerate() {
        let at = start + at;
        unit.columns[at] = column;
        match unit.pieces[first..].last_mut() {
            Some(piece) if piece.bundle == bundle => piece.end += 1,
            _ => unit.pieces.push(Piece { bundle, start: at as u32, end: at as u32 + 1 }),
        }
    }
}

impl Spec {
    /// The units of the spec: rows that must be pruned together.
    pub fn units(&self) -> Result<Units<'_>, TooWide> {
        let outer = self.outer_axes();
        let all: usize = self.tensors().iter().map(Tensor::domain_size).sum();
        let kind = match outer {
            Some(outer) if outer.iter().any(|&axis| axis) || self.scopes() == 1 => {
                let count: usize = self
                    .scope_grid
                    .iter()
                    .zip(&outer)
                    .filter(|(_, outer)| **outer)
                    .map(|(n, _)| n)
                    .product();
                if all / count.max(1) > MAX_LISTED {
                    let rows: usize = self.tensors().iter().map(|t| t.matrix().0).sum();
                    return Err(TooWide {
                        rows: rows / count.max(1),
                        elements: all / count.max(1),
                    });
                }
                // The scopes of the first unit: no step along the outer axes.
                let lead = self.tensors()[0].scope();
                let inner = by_falling_stride(lead, |axis| !outer[axis]);
                let scopes = StridedLayout::from(&permuted(&row_major(&self.scope_grid), &inner));
                let outer = by_falling_stride(lead, |axis| outer[axis]);
                let shifts = self
                    .tensors()
                    .iter()
                    .map(|tensor| {
                        let (_, cols) = tensor.matrix();
                        let counts = outer.iter().map(|&axis| self.scope_grid[axis]).collect();
                        let rows = outer.iter().map(|&axis| tensor.scope().stride()[axis] / cols);
                        StridedLayout::new(counts, rows.collect())
                    })
                    .collect();
                Kind::Repeated { first: Unit::build(self, scopes.iter()), shifts }
            }
            _ => self.listed(all)?,
        };
        Ok(Units { spec: self, kind })
    }

    /// For each axis of the scope grid, whether a step along it moves to other rows of every
    /// tensor at the same columns; `None` if strides do not tell.
    fn outer_axes(&self) -> Option<Vec<bool>> {
        if matches!(self.order, super::Order::Table(_)) {
            return None;
        }
        let mut outer = vec![true; self.scope_grid.len()];
        for tensor in self.tensors() {
            let rows = tensor.row_axes()?;
            for (axis, outer) in outer.iter_mut().enumerate() {
                let own = tensor.perm[axis];
                let moves = self.scope_grid[axis] > 1;
                *outer &= !moves || (rows[own] && tensor.scope().stride()[axis] > 0);
            }
        }
        Some(outer)
    }

    /// Finds units by uniting the rows of each scope.
    fn listed(&self, all: usize) -> Result<Kind, TooWide> {
        let shapes: Vec<(usize, usize)> = self.tensors().iter().map(Tensor::matrix).collect();
        let rows: usize = shapes.iter().map(|(rows, _)| rows).sum();
        if all > MAX_LISTED {
            return Err(TooWide { rows, elements: all });
        }
        let starts: Vec<usize> = shapes
            .iter()
            .scan(0, |start, (rows, _)| {
                *start += rows;
                Some(*start - rows)
            })
            .collect();
        let mut parent: Vec<usize> = (0..rows).collect();
        let mut leads = Vec::with_capacity(self.scopes());
        for scope in self.order() {
            let mut lead = None;
            for element in
                (0..self.blocks_per_scope()).flat_map(|block| self.elements(scope, block))
            {
                let row = starts[element.tensor] + element.offset / shapes[element.tensor].1;
                let root = find(&mut parent, row);
                let first = *lead.get_or_insert(root);
                let first = find(&mut parent, first);
                // The lower row represents the set, so that units are in order of rows.
                parent[root.max(first)] = root.min(first);
            }
            leads.push((scope, lead));
        }
        let mut units: Vec<Vec<usize>> = Vec::new();
        let mut unit_of: HashMap<usize, usize> = HashMap::new();
        for (scope, lead) in leads {
            // A scope of padding only has no rows and nothing to decide.
            let Some(lead) = lead else { continue };
            let root = find(&mut parent, lead);
            let unit = *unit_of.entry(root).or_insert_with(|| {
                units.push(Vec::new());
                units.len() - 1
            });
            units[unit].push(scope);
        }
        Ok(Kind::Listed(units))
    }
}

fn find(parent: &mut [usize], mut row: usize) -> usize {
    while parent[row] != row {
        parent[row] = parent[parent[row]];
        row = parent[row];
    }
    row
}

impl Units<'_> {
    /// The number of units.
    pub fn len(&self) -> usize {
        match &self.kind {
            Kind::Repeated { shifts, .. } => shifts[0].len(),
            Kind::Listed(units) => units.len(),
        }
    }

    /// Whether there are none.
    pub fn is_empty(&self) -> bool {
        self.len() == 0
    }

    /// Whether all are alike except for their rows.
    pub(super) fn repeat(&self) -> bool {
        matches!(self.kind, Kind::Repeated { .. })
    }

    /// Calls `work` with the structure of unit `index` and, for each tensor, the distance of
    /// its rows from those listed in the bundles.
    pub fn with<T>(&self, index: usize, work: impl FnOnce(&Unit, &[usize]) -> T) -> T {
        match &self.kind {
            Kind::Repeated { first, shifts } => {
                let shift: Vec<usize> = shifts.iter().map(|rows| rows.at(index)).collect();
                work(first, &shift)
            }
            Kind::Listed(units) => {
                let unit = Unit::build(self.spec, units[index].iter().copied());
                work(&unit, &vec![0; self.spec.tensors().len()])
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use crate::Pattern;
    use crate::spec::PRESETS;

    /// (units, rows of each bundle of the first unit)
    fn units(text: &str, dims: &[usize]) -> (usize, Vec<Vec<usize>>) {
        let spec = text.parse::<Pattern>().unwrap().bind(dims).unwrap();
        let units = spec.units().unwrap();
        let bundles =
            units.with(0, |unit, _| unit.bundles.iter().map(|b| b.rows.clone()).collect());
        (units.len(), bundles)
    }

    #[test]
    fn units_are_the_rows_that_scopes_tie_together() {
        assert_eq!(units("2:4", &[4, 8]), (4, vec![vec![0]]));
        assert_eq!(units("rows16", &[32, 16]), (16, vec![vec![0], vec![8]]));
        assert_eq!(units("block(2,4)", &[4, 8]), (2, vec![vec![0, 1]]));
        assert_eq!(units("columns", &[3, 4]), (1, vec![vec![0, 1, 2]]));
        assert_eq!(units("unstructured(50%)", &[2, 4]), (1, vec![vec![0], vec![1]]));
        assert_eq!(units("2:4", &[4, 2, 2, 2]), (4, vec![vec![0]]));
    }

    #[test]
    fn strided_and_listed_units_agree() {
        for (text, dims) in PRESETS.iter().map(|preset| (preset.example, preset.shape)) {
            let spec = text.parse::<Pattern>().unwrap().bind(dims).unwrap();
            let all = spec.tensors()[0].domain_size();
            let listed = super::Units { spec: &spec, kind: spec.listed(all).unwrap() };
            let strided = spec.units().unwrap();
            assert_eq!(strided.len(), listed.len());
            for index in 0..listed.len() {
                let facts = |unit: &super::Unit, shift: &[usize]| {
                    let bundles: Vec<_> = unit
                        .bundles
                        .iter()
                        .map(|b| {
                            (
                                b.rows.iter().map(|r| r + shift[b.tensor]).collect::<Vec<_>>(),
                                b.columns.clone(),
                            )
                        })
                        .collect();
                    let dropped: Vec<_> = unit.scopes.iter().map(|s| s.dropped).collect();
                    (
                        bundles,
                        dropped,
                        unit.blocks.clone(),
                        unit.pieces.clone(),
                        unit.columns.clone(),
                    )
                };
                assert_eq!(
                    strided.with(index, facts),
                    listed.with(index, facts),
                    "{text} unit {index}"
                );
            }
        }
    }

    #[test]
    fn columns_outside_the_domain_are_left_out() {
        let spec =
            "in (0,4)+(4,8) scope (1,4) keep 2".parse::<Pattern>().unwrap().bind(&[4, 16]).unwrap();
        spec.units().unwrap().with(2, |unit, shift| {
            assert_eq!(shift, [2]);
            assert_eq!(unit.bundles[0].columns, (4..12).collect::<Vec<_>>());
            let scope = &unit.scopes[1];
            let piece = unit.pieces(&unit.blocks(scope)[0])[0];
            assert_eq!(unit.columns(&piece), [4]);
        });
    }
}
