//! Rows that scopes tie together, packed into lots that have nothing in common:
//! the parallel work of methods that go column by column.

use super::{Group, PruneError, Watch};
use crate::select::{Scratch, Selector};
use crate::spec::{Element, Spec, Tensor, TooWide};

/// Rows that a lot is filled up to, for each tensor: enough for vectors and
/// products at nearly full speed, and few enough that a panel of 128 columns
/// stays in the cache.
pub(super) const ROWS: usize = 96;

/// Where weights lie among the groups of a problem.
pub(crate) struct Places {
    tensors: Vec<Rows>,
    /// For each group the place of every column of the tensor among its own;
    /// nothing where it has them all.
    columns: Vec<Option<Vec<u32>>>,
}

/// The rows of one tensor.
struct Rows {
    cols: usize,
    /// The group of each row and its place there.
    rows: Vec<(u32, u32)>,
}

/// A weight of a group.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Place {
    pub group: usize,
    pub row: usize,
    pub column: usize,
}

impl Places {
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

    /// Where a weight of the domain lies.
    #[inline]
    pub fn of(&self, element: Element) -> Place {
        let tensor = &self.tensors[element.tensor];
        let (row, column) = (element.offset / tensor.cols, element.offset % tensor.cols);
        let (group, row) = tensor.rows[row];
        let column = match &self.columns[group as usize] {
            None => column,
            Some(at) => at[column] as usize,
        };
        Place { group: group as usize, row: row as usize, column }
    }
}

/// Rows that have no scope in common with any other lot.
#[derive(Default)]
pub(crate) struct Lot {
    /// The rows by group, groups rising.
    pub parts: Vec<Part>,
}

/// The rows of a lot that lie in one group.
pub(crate) struct Part {
    pub group: usize,
    /// Places in [`Group::rows`], rising.
    pub rows: Vec<u32>,
    /// For each column the scopes that are met there first: in no earlier group
    /// and in no earlier column of this one.
    pub starts: Vec<Vec<u32>>,
}

/// All lots of a problem.
pub(crate) struct Lots {
    pub places: Places,
    pub lots: Vec<Lot>,
    /// For each group and row the part of its lot and the place there.
    seats: Vec<Vec<(u32, u32)>>,
}

impl Lots {
    /// Ties rows together and fills lots, in the order of the rows.
    pub fn new(
        spec: &Spec,
        selector: &Selector<'_>,
        groups: &[Group],
        watch: &dyn Watch,
    ) -> Result<Self, PruneError> {
        let places = Places::new(spec, groups);
        let mut first_id = vec![0];
        first_id.extend(groups.iter().scan(0, |sum, group| {
            *sum += group.rows.len();
            Some(*sum)
        }));
        let rows = first_id[groups.len()];
        numbered(spec, rows)?;

        // 1. Rows of one scope are one set; note where each scope is met first.
        let mut sets = Sets::new(rows);
        let mut first: Vec<Option<Place>> = Vec::with_capacity(spec.scopes());
        let mut scratch = Scratch::default();
        for scope in 0..spec.scopes() {
            let (mut least, mut last): (Option<Place>, usize) = (None, usize::MAX);
            selector.visit(scope, &mut scratch, |_, element| {
                let place = places.of(element);
                let id = first_id[place.group] + place.row;
                if last != usize::MAX && last != id {
                    sets.unite(last, id);
                }
                last = id;
                if least.is_none_or(|l| (place.group, place.column) < (l.group, l.column)) {
                    least = Some(place);
                }
            });
            first.push(least);
            if scope % (1 << 16) == 0 && watch.stopped() {
                return Err(PruneError::Stopped);
            }
        }

        // 2. Sets fill lots in the order of their first rows.
        let full = ROWS * spec.tensors().len();
        let mut lots: Vec<Lot> = Vec::new();
        let mut lot_of_set = vec![usize::MAX; rows];
        let mut filled = vec![0; rows];
        let sizes = sets.sizes();
        let mut seats: Vec<Vec<(u32, u32)>> = Vec::with_capacity(groups.len());
        let mut lot_of_row = vec![0; rows];
        for (g, group) in groups.iter().enumerate() {
            let mut seats_here = Vec::with_capacity(group.rows.len());
            for row in 0..group.rows.len() {
                let id = first_id[g] + row;
                let set = sets.find(id);
                if lot_of_set[set] == usize::MAX {
                    if lots.is_empty() || filled[lots.len() - 1] >= full {
                        lots.push(Lot::default());
                    }
                    lot_of_set[set] = lots.len() - 1;
                    filled[lots.len() - 1] += sizes[set];
                }
                let parts = &mut lots[lot_of_set[set]].parts;
                if parts.last().is_none_or(|part| part.group != g) {
                    let starts = vec![Vec::new(); group.columns.len()];
                    parts.push(Part { group: g, rows: Vec::new(), starts });
                }
                let at = parts.len() - 1;
                seats_here.push((at as u32, parts[at].rows.len() as u32));
                parts[at].rows.push(row as u32);
                lot_of_row[id] = lot_of_set[set];
            }
            seats.push(seats_here);
        }

        // 3. Scopes go to the column where they are met first.
        for (scope, place) in first.into_iter().enumerate() {
            let Some(place) = place else { continue };
            let lot = &mut lots[lot_of_row[first_id[place.group] + place.row]];
            let part = seats[place.group][place.row].0 as usize;
            lot.parts[part].starts[place.column].push(scope as u32);
        }
        Ok(Self { places, lots, seats })
    }

    /// The part of its lot that a weight lies in, its row there and its column.
    #[inline]
    pub fn seat(&self, element: Element) -> (usize, usize, usize) {
        let place = self.places.of(element);
        let (part, row) = self.seats[place.group][place.row];
        (part as usize, row as usize, place.column)
    }
}

/// Refuses a problem whose weights cannot be numbered in 32 bits (16 GiB of f32
/// under one pattern).
pub(crate) fn numbered(spec: &Spec, rows: usize) -> Result<(), PruneError> {
    let elements: usize = spec.tensors().iter().map(Tensor::size).sum();
    let most = elements.max(spec.blocks());
    if u32::try_from(most).is_ok() { Ok(()) } else { Err(TooWide { rows, elements }.into()) }
}

/// Disjoint sets of numbers; the least number of a set stands for it.
struct Sets {
    parent: Vec<u32>,
}

impl Sets {
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

    /// How many numbers each set has, by the number that stands for it.
    fn sizes(&mut self) -> Vec<usize> {
        let mut sizes = vec![0; self.parent.len()];
        for i in 0..sizes.len() {
            sizes[self.find(i)] += 1;
        }
        sizes
    }
}
