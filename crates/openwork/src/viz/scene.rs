//! What a picture of a spec shows, before it is drawn.

use crate::example::ExampleMask;
use crate::spec::{Element, Spec, Tensor};
use std::collections::{BTreeMap, BTreeSet};

/// The most rows and columns that are shown of a tensor that does not fit whole.
const CORNER: usize = 32;
/// The most rows and columns of a tensor that is shown whole.
const WHOLE: (usize, usize) = (36, 64);
/// How many colours there are for blocks.
pub(crate) const COLOURS: usize = 8;

/// The number of a scope, and of a block within it.
pub type Place = (usize, usize);

/// One weight, or one padded position.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Cell {
    /// A weight of this scope and block.
    Weight(Place),
    /// A padded position of this scope and block: no weight is there.
    Padding(Place),
    /// A weight outside the domain.
    Outside,
}

impl Cell {
    /// Its scope and block.
    pub fn place(self) -> Option<Place> {
        match self {
            Self::Weight(place) | Self::Padding(place) => Some(place),
            Self::Outside => None,
        }
    }

    /// Its scope.
    pub fn scope(self) -> Option<usize> {
        self.place().map(|(scope, _)| scope)
    }
}

/// A window on the first rows and columns of one tensor.
#[derive(Clone, Debug)]
pub struct Panel {
    /// The tensor's name.
    pub name: String,
    /// The tensor's dims.
    pub dims: Vec<usize>,
    /// Rows and columns shown.
    pub rows: usize,
    /// Columns shown.
    pub cols: usize,
    /// All rows and columns of the tensor as a matrix, padding too.
    pub all: (usize, usize),
    /// The cells shown and, where there is more, one row and one column beyond.
    cells: Vec<Cell>,
    pitch: usize,
}

impl Panel {
    /// The cell in a row and column; also one beyond those shown, nothing
    /// beyond the tensor.
    pub fn cell(&self, row: usize, col: usize) -> Option<Cell> {
        if col >= self.pitch {
            return None;
        }
        self.cells.get(row * self.pitch + col).copied()
    }

    /// Whether a scope ends between two cells. Outside the domain there is none.
    pub fn is_border(&self, a: Option<Cell>, b: Option<Cell>) -> bool {
        a.and_then(Cell::scope) != b.and_then(Cell::scope)
    }

    /// What part of the tensor is shown, unless it is all of it.
    pub fn note(&self) -> Option<String> {
        let mut parts = Vec::new();
        if self.dims.len() > 2 {
            let rest: Vec<_> = self.dims[1..].iter().map(ToString::to_string).collect();
            parts.push(format!(
                "drawn as a matrix: {} rows, {} columns each",
                self.dims[0],
                rest.join("x")
            ));
        }
        let part = |what: &str, shown: usize, all: usize| {
            (shown < all).then(|| format!("{what} 0-{} of {all}", shown - 1))
        };
        parts.extend(part("rows", self.rows, self.all.0));
        parts.extend(part("columns", self.cols, self.all.1));
        (!parts.is_empty()).then(|| parts.join(", "))
    }
}

/// What any picture of a spec shows.
#[derive(Clone, Debug)]
pub struct Scene {
    /// One for each tensor.
    pub panels: Vec<Panel>,
    /// What a reader should know beyond the cells.
    pub notes: Vec<String>,
    kept: BTreeMap<Place, bool>,
    colours: BTreeMap<Place, usize>,
}

impl Scene {
    /// The scene of a spec; `seed` chooses the example mask.
    ///
    /// ```
    /// let spec = "2:4".parse::<openwork::Pattern>().unwrap().bind(&[8, 16]).unwrap();
    /// let scene = openwork::viz::Scene::new(&spec, 0);
    /// let kept = (0..4).filter(|&block| scene.keeps((0, block))).count();
    /// assert_eq!(kept, 2);
    /// ```
    pub fn new(spec: &Spec, seed: u64) -> Self {
        let panels: Vec<_> = (0..spec.tensors().len()).map(|t| panel(spec, t)).collect();
        let mut notes = Vec::new();
        for tensor in spec.tensors().iter().filter(|t| t.is_padded() && t.padded_dims().is_none()) {
            notes.push(format!("the padding of `{}` is not drawn", tensor.name()));
        }
        let kept = example(spec, &panels, seed, &mut notes);
        let colours = colours(&panels);
        Self { panels, notes, kept, colours }
    }

    /// Whether the example keeps a block that is shown.
    pub fn keeps(&self, place: Place) -> bool {
        self.kept.get(&place).copied().unwrap_or(true)
    }

    /// The colour of a block, a number below 8. Neighbours in one scope differ.
    pub fn colour(&self, place: Place) -> usize {
        self.colours.get(&place).copied().unwrap_or(0)
    }

    /// Whether some cell is as `test` says.
    pub fn any(&self, test: impl Fn(Cell) -> bool) -> bool {
        self.panels.iter().any(|panel| {
            (0..panel.rows)
                .any(|row| (0..panel.cols).any(|col| panel.cell(row, col).is_some_and(&test)))
        })
    }
}

/// Which of the blocks shown the example mask keeps.
fn example(
    spec: &Spec,
    panels: &[Panel],
    seed: u64,
    notes: &mut Vec<String>,
) -> BTreeMap<Place, bool> {
    let places: BTreeSet<Place> =
        panels.iter().flat_map(|panel| &panel.cells).filter_map(|cell| cell.place()).collect();
    let mut mask = ExampleMask::new(spec, seed);
    if !mask.is_exact() {
        notes.push(format!(
            "the example mask keeps each block with probability {}",
            super::percent(spec.density())
        ));
    }
    places.into_iter().map(|place| (place, mask.keeps(place))).collect()
}

/// A colour for each block: its number in the scope, moved on where a neighbour
/// of the same scope has that colour.
fn colours(panels: &[Panel]) -> BTreeMap<Place, usize> {
    let mut near: BTreeMap<Place, BTreeSet<Place>> = BTreeMap::new();
    for panel in panels {
        for row in 0..panel.rows {
            for col in 0..panel.cols {
                let Some(a) = panel.cell(row, col).and_then(Cell::place) else { continue };
                near.entry(a).or_default();
                for next in [panel.cell(row, col + 1), panel.cell(row + 1, col)] {
                    let Some(b) = next.and_then(Cell::place) else { continue };
                    if a != b && a.0 == b.0 {
                        near.entry(a).or_default().insert(b);
                        near.entry(b).or_default().insert(a);
                    }
                }
            }
        }
    }
    let mut colours = BTreeMap::new();
    for (&place, others) in &near {
        let taken: Vec<usize> =
            others.iter().filter_map(|other| colours.get(other)).copied().collect();
        let wished = place.1 % COLOURS;
        let colour = (0..COLOURS)
            .map(|turn| (wished + turn) % COLOURS)
            .find(|colour| !taken.contains(colour))
            .unwrap_or(wished);
        colours.insert(place, colour);
    }
    colours
}

/// The window on tensor `number`.
fn panel(spec: &Spec, number: usize) -> Panel {
    let tensor = &spec.tensors()[number];
    let dims = tensor.padded_dims().unwrap_or(tensor.dims());
    let all = match dims {
        [cols] => (1, *cols),
        [rows, rest @ ..] => (*rows, rest.iter().product()),
        [] => (1, 1),
    };
    let at = |row: usize, col: usize| cell(spec, tensor, number, dims, row, col);
    let whole = all.0 <= WHOLE.0 && all.1 <= WHOLE.1;
    let (rows, cols) = if whole { all } else { corner(all, at) };
    let (halo, pitch) = (all.0.min(rows + 1), all.1.min(cols + 1));
    let cells = (0..halo * pitch).map(|i| at(i / pitch, i % pitch)).collect();
    let (name, dims) = (tensor.name().to_string(), tensor.dims().to_vec());
    Panel { name, dims, rows, cols, all, cells, pitch }
}

fn cell(
    spec: &Spec,
    tensor: &Tensor,
    number: usize,
    dims: &[usize],
    row: usize,
    col: usize,
) -> Cell {
    // Coordinates of the canvas: the first dim is the row, the rest the column.
    let mut at = vec![0; dims.len()];
    let mut left = col;
    for axis in (usize::from(dims.len() > 1)..dims.len()).rev() {
        at[axis] = left % dims[axis];
        left /= dims[axis];
    }
    if dims.len() > 1 {
        at[0] = row;
    }
    if at.iter().zip(tensor.dims()).any(|(i, dim)| i >= dim) {
        return spec.locate_padded(number, &at).map_or(Cell::Outside, Cell::Padding);
    }
    let offset = at.iter().zip(tensor.dims()).fold(0, |offset, (i, dim)| offset * dim + i);
    spec.locate(Element { tensor: number, offset }).map_or(Cell::Outside, Cell::Weight)
}

/// How many rows and columns to show: up to [`CORNER`], ending where scopes end
/// if some such place is not too near.
fn corner(all: (usize, usize), at: impl Fn(usize, usize) -> Cell) -> (usize, usize) {
    let limit = (all.0.min(CORNER), all.1.min(CORNER));
    let wide = (all.0.min(2 * CORNER), all.1.min(2 * CORNER));
    // For each scope met, its first and last row and column.
    let mut rows: BTreeMap<usize, (usize, usize)> = BTreeMap::new();
    let mut cols = rows.clone();
    for row in 0..wide.0 {
        for col in 0..wide.1 {
            let Some(scope) = at(row, col).scope() else { continue };
            if col < limit.1 {
                let (first, last) = rows.entry(scope).or_insert((row, row));
                (*first, *last) = ((*first).min(row), (*last).max(row));
            }
            if row < limit.0 {
                let (first, last) = cols.entry(scope).or_insert((col, col));
                (*first, *last) = ((*first).min(col), (*last).max(col));
            }
        }
    }
    let cut = |limit: usize, all: usize, spans: &BTreeMap<usize, (usize, usize)>| {
        let clean = |end: usize| spans.values().all(|&(first, last)| last < end || first >= end);
        if limit == all {
            return all;
        }
        (limit / 2..=limit).rev().find(|&end| clean(end)).unwrap_or(limit)
    };
    (cut(limit.0, all.0, &rows), cut(limit.1, all.1, &cols))
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::example::score;
    use crate::{Mask, Pattern};

    fn spec(text: &str, dims: &[usize]) -> Spec {
        text.parse::<Pattern>().unwrap().bind(dims).unwrap()
    }

    #[test]
    fn the_example_is_a_corner_of_a_mask_of_the_spec() {
        for (text, dims) in [
            ("2:4", &[8, 16][..]),
            ("2:4@8", &[40, 128]),
            ("rows16", &[64, 64]),
            ("pad (1,4) scope (1,4) keep 2", &[5, 10]),
            ("in (1,0)+(4,8) scope (1,4) keep 1", &[6, 8]),
        ] {
            let spec = spec(text, dims);
            let mask = Mask::select(&spec, |scope, block| score(7, scope, block));
            assert_eq!(mask.conforms(&spec), Ok(()));
            let scene = Scene::new(&spec, 7);
            let panel = &scene.panels[0];
            for row in 0..panel.rows {
                for col in 0..panel.cols.min(dims[1]) {
                    let cell = panel.cell(row, col).unwrap();
                    let shown = cell.place().is_none_or(|place| scene.keeps(place));
                    let offset = row * dims[1] + col;
                    assert_eq!(shown, mask.keeps(Element { tensor: 0, offset }), "{text}");
                }
            }
        }
    }

    #[test]
    fn neighbours_in_a_scope_differ_in_colour() {
        for preset in crate::spec::PRESETS {
            let scene = Scene::new(&spec(preset.example, preset.shape), 0);
            let panel = &scene.panels[0];
            for row in 0..panel.rows {
                for col in 0..panel.cols {
                    let a = panel.cell(row, col).and_then(Cell::place).unwrap();
                    for next in [panel.cell(row, col + 1), panel.cell(row + 1, col)] {
                        let Some(b) = next.and_then(Cell::place) else { continue };
                        assert!(a == b || a.0 != b.0 || scene.colour(a) != scene.colour(b));
                    }
                }
            }
        }
    }

    #[test]
    fn a_corner_ends_where_scopes_end() {
        let size = |text: &str, dims: &[usize]| {
            let panel = Scene::new(&spec(text, dims), 0).panels.remove(0);
            (panel.rows, panel.cols, panel.note().unwrap_or_default())
        };
        assert_eq!(
            size("2:6", &[4096, 4098]),
            (32, 30, "rows 0-31 of 4096, columns 0-29 of 4098".to_string())
        );
        assert_eq!(size("block(20,20)", &[4000, 4000]).0, 20);
        // A row does not fit: it is cut.
        assert_eq!(size("rowwise(50%)", &[8, 4096]).1, 32);
        assert_eq!(
            size("filter", &[8, 4, 3, 3]),
            (8, 36, "drawn as a matrix: 8 rows, 4x3x3 columns each".to_string())
        );
        assert_eq!(size("2:4", &[64]).1, 64);
    }

    #[test]
    fn a_huge_scope_is_drawn_by_chance_and_says_so() {
        let scene = Scene::new(&spec("unstructured(50%)", &[9728, 9728]), 0);
        assert_eq!(scene.notes, ["the example mask keeps each block with probability 50%"]);
    }
}
