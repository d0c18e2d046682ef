//! Row batches: rows grouped so that no scope crosses from one batch to another.
//! Methods that sweep column by column process batches in parallel.

use super::{Group, Monitor, PruneError};
use crate::select::{Scratch, Selector};
use crate::spec::{Element, Spec, Tensor, TooWide};

/// Target number of rows of a batch, for each tensor: enough for vector
/// instructions and products at nearly full speed, and few enough that a panel of
/// 128 columns stays in the cache.
pub(super) const ROWS: usize = 96;

/// Maps elements to their positions in the groups of a problem.
pub(crate) struct Positions {
    tensors: Vec<Rows>,
    /// For each group, the index of every column of the tensor among the group's own;
    /// `None` where the group has all columns.
    columns: Vec<Option<Vec<u32>>>,
}

/// The rows of one tensor.
struct Rows {
    cols: usize,
    /// The group of each row and its index there.
    rows: Vec<(u32, u32)>,
}

/// The position of a weight in its group.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Position {
    pub group: usize,
    pub row: usize,
    pub column: usize,
}

impl Positions {
    pub fn new(spec: &Spec, groups: &[Group]) -> Self {
        let mut tensors: Vec<Rows> = spec
            .tensors()
            .iter()
            .map(|tensor| {
                let (rows, cols) = tensor.matrix();
                Rows { cols, rows: vec![(u32::MAX, 0); rows] }
            })
            .collect();
        let columns = groups
            .iter()
            .enumerate()
            .map(|(g, group)| {
                let rows = &mut tensors[group.tensor];
                for (i, &row) in group.rows.iter().enumerate() {
                    rows.rows[row] = (g as u32, i as u32);
                }
                (group.columns.len() < rows.cols).then(|| {
                    let mut at = vec![u32::MAX; rows.cols];
                    for (j, &column) in group.columns.iter().enumerate() {
                        at[column as usize] = j as u32;
                    }
                    at
                })
            })
            .collect();
        Self { tensors, columns }
    }

    /// The position of an element of the domain.
    #[inline]
    pub fn position(&self, element: Element) -> Position {
        let tensor = &self.tensors[element.tensor];
        let (row, column) = (element.offset / tensor.cols, element.offset % tensor.cols);
        let (group, row) = tensor.rows[row];
        let column = match &self.columns[group as usize] {
            None => column,
            Some(at) => at[column] as usize,
        };
        Position { group: group as usize, row: row as usize, column }
    }
}

/// Rows that share no scope with the rows of any other batch.
#[derive(Default)]
pub(crate) struct RowBatch {
    /// The rows by group, in ascending order of groups.
    pub parts: Vec<GroupRows>,
}

/// The rows of a batch that lie in one group.
pub(crate) struct GroupRows {
    pub group: usize,
    /// Indices into [`Group::rows`], ascending.
    pub rows: Vec<u32>,
    /// For each column, the scopes whose first element lies there: in no earlier
    /// group and in no earlier column of this one.
    pub starts: Vec<Vec<u32>>,
}

/// All batches of a problem.
pub(crate) struct RowBatches {
    pub positions: Positions,
    pub batches: Vec<RowBatch>,
    /// For each group and row, the part of its batch and the index there.
    slots: Vec<Vec<(u32, u32)>>,
}

impl RowBatches {
    /// Unites rows that share a scope and fills batches in the order of the rows.
    pub fn new(
        spec: &Spec,
        selector: &Selector<'_>,
        groups: &[Group],
        monitor: &dyn Monitor,
    ) -> Result<Self, PruneError> {
        let positions = Positions::new(spec, groups);
        let mut first_id = vec![0];
        first_id.extend(groups.iter().scan(0, |sum, group| {
            *sum += group.rows.len();
            Some(*sum)
        }));
        let rows = first_id[groups.len()];
        check_numbering(spec, rows)?;

        // 1. Unite the rows of each scope, and find its first column.
        let mut sets = DisjointSets::new(rows);
        let mut first: Vec<Option<Position>> = Vec::with_capacity(spec.scopes());
        let mut scratch = Scratch::default();
        for scope in 0..spec.scopes() {
            let (mut least, mut last): (Option<Position>, usize) = (None, usize::MAX);
            selector.visit(scope, &mut scratch, |_, element| {
                let position = positions.position(element);
                let id = first_id[position.group] + position.row;
                if last != usize::MAX && last != id {
                    sets.unite(last, id);
                }
                last = id;
                if least.is_none_or(|l| (position.group, position.column) < (l.group, l.column)) {
                    least = Some(position);
                }
            });
            first.push(least);
            if scope % (1 << 16) == 0 && monitor.cancelled() {
                return Err(PruneError::Stopped);
            }
        }

        // 2. Fill batches with sets in the order of their first rows.
        let full = ROWS * spec.tensors().len();
        let mut batches: Vec<RowBatch> = Vec::new();
        let mut batch_of_set = vec![usize::MAX; rows];
        let mut filled = vec![0; rows];
        let sizes = sets.sizes();
        let mut slots: Vec<Vec<(u32, u32)>> = Vec::with_capacity(groups.len());
        let mut batch_of_row = vec![0; rows];
        for (g, group) in groups.iter().enumerate() {
            let mut slots_here = Vec::with_capacity(group.rows.len());
            for row in 0..group.rows.len() {
                let id = first_id[g] + row;
                let set = sets.find(id);
                if batch_of_set[set] == usize::MAX {
                    if batches.is_empty() || filled[batches.len() - 1] >= full {
                        batches.push(RowBatch::default());
                    }
                    batch_of_set[set] = batches.len() - 1;
                    filled[batches.len() - 1] += sizes[set];
                }
                let parts = &mut batches[batch_of_set[set]].parts;
                if parts.last().is_none_or(|part| part.group != g) {
                    let starts = vec![Vec::new(); group.columns.len()];
                    parts.push(GroupRows { group: g, rows: Vec::new(), starts });
                }
                let at = parts.len() - 1;
                slots_here.push((at as u32, parts[at].rows.len() as u32));
                parts[at].rows.push(row as u32);
                batch_of_row[id] = batch_of_set[set];
            }
            slots.push(slots_here);
        }

        // 3. Attach each scope to its first column.
        for (scope, position) in first.into_iter().enumerate() {
            let Some(position) = position else { continue };
            let batch = &mut batches[batch_of_row[first_id[position.group] + position.row]];
            let part = slots[position.group][position.row].0 as usize;
            batch.parts[part].starts[position.column].push(scope as u32);
        }
        Ok(Self { positions, batches, slots })
    }

    /// The part of its batch that an element lies in, and its row and column there.
    #[inline]
    pub fn slot(&self, element: Element) -> (usize, usize, usize) {
        let position = self.positions.position(element);
        let (part, row) = self.slots[position.group][position.row];
        (part as usize, row as usize, position.column)
    }
}

/// Refuses a problem whose weights cannot be numbered in 32 bits (16 GiB of f32
/// under one pattern).
pub(crate) fn check_numbering(spec: &Spec, rows: usize) -> Result<(), PruneError> {
    let elements: usize = spec.tensors().iter().map(Tensor::size).sum();
    let most = elements.max(spec.blocks());
    if u32::try_from(most).is_ok() { Ok(()) } else { Err(TooWide { rows, elements }.into()) }
}

/// Union-find over numbers; the least number of a set represents it.
struct DisjointSets {
    parent: Vec<u32>,
}

impl DisjointSets {
    fn new(len: usize) -> Self {
        Self { parent: (0..len as u32).collect() }
    }

    fn find(&mut self, mut i: usize) -> usize {
        while self.parent[i] as usize != i {
            let up = self.parent[self.parent[i] as usize];
            self.parent[i] = up;
            i = up as usize;
        }
        i
    }

    fn unite(&mut self, a: usize, b: usize) {
        let (a, b) = (self.find(a), self.find(b));
        self.parent[a.max(b)] = a.min(b) as u32;
    }

    /// The size of each set, indexed by its representative.
    fn sizes(&mut self) -> Vec<usize> {
        let mut sizes = vec![0; self.parent.len()];
        for i in 0..sizes.len() {
            sizes[self.find(i)] += 1;
        }
        sizes
    }
}
