//! Defines a scene: everything a drawing of a spec shows, independent of whether
//! it becomes SVG or terminal text.

use crate::example::ExampleMask;
use crate::mask::{Choice, Mask};
use crate::spec::{Element, Spec, Tensor};
use std::collections::{BTreeMap, BTreeSet};

/// Most rows and columns shown of a tensor that is too large to show whole.
const CORNER: usize = 32;
/// Most rows and columns of a tensor that is shown whole.
const WHOLE: (usize, usize) = (36, 64);
/// Number of block colors.
pub(crate) const COLORS: usize = 8;

/// The index of a scope, and of a block within it.
pub type BlockId = (usize, usize);

/// A weight, or a padded position.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Cell {
    /// A weight of this scope and block.
    Weight(BlockId),
    /// A padded position of this scope and block, with no weight.
    Padding(BlockId),
    /// A weight outside the domain.
    Outside,
}

impl Cell {
    /// Its scope and block.
    pub fn block(self) -> Option<BlockId> {
        match self {
            Self::Weight(block) | Self::Padding(block) => Some(block),
            Self::Outside => None,
        }
    }

    /// Its scope.
    pub fn scope(self) -> Option<usize> {
        self.block().map(|(scope, _)| scope)
    }
}

/// What an example mask does with a weight.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum State {
    /// Every level keeps it.
    Kept,
    /// The outermost level drops it.
    Dropped,
    /// A level inside drops it.
    DroppedInside,
}

/// The most weights of a tensor for which the example of a spec with levels is drawn.
const MAX_CHOSEN: usize = 1 << 24;

/// The first rows and columns of one tensor.
#[derive(Clone, Debug)]
pub struct Panel {
    /// The tensor's name.
    pub name: String,
    /// The tensor's dims.
    pub dims: Vec<usize>,
    /// Rows shown.
    pub rows: usize,
    /// Columns shown.
    pub cols: usize,
    /// Rows and columns of the whole tensor as a matrix, including padding.
    pub all: (usize, usize),
    /// The cells shown and, where there are more, one row and one column beyond.
    cells: Vec<Cell>,
    pitch: usize,
}

impl Panel {
    /// The cell in a row and column, up to one beyond those shown; `None`
    /// outside the tensor.
    pub fn cell(&self, row: usize, col: usize) -> Option<Cell> {
        if col >= self.pitch {
            return None;
        }
        self.cells.get(row * self.pitch + col).copied()
    }

    /// Whether a scope ends between two cells. Cells outside the domain have none.
    pub fn is_border(&self, a: Option<Cell>, b: Option<Cell>) -> bool {
        a.and_then(Cell::scope) != b.and_then(Cell::scope)
    }

    /// The scope number at the first cell of each connected piece of a scope, if
    /// it `fits(digits, cells)` into the cells of that row.
    pub fn labels(&self, fits: impl Fn(usize, usize) -> bool) -> Vec<Label> {
        let mut labels = Vec::new();
        for row in 0..self.rows {
            for col in 0..self.cols {
                let here = self.cell(row, col);
                let Some(scope) = here.and_then(Cell::scope) else { continue };
                let left = col.checked_sub(1).and_then(|col| self.cell(row, col));
                let above = row.checked_sub(1).and_then(|row| self.cell(row, col));
                if !self.is_border(left, here) || !self.is_border(above, here) {
                    continue;
                }
                let width = (col..self.cols)
                    .take_while(|&col| !self.is_border(here, self.cell(row, col)))
                    .count();
                let text = scope.to_string();
                if fits(text.len(), width) {
                    labels.push(Label { row, col, text });
                }
            }
        }
        labels
    }

    /// Which part of the tensor is shown, unless all of it is.
    pub fn note(&self) -> Option<String> {
        let mut parts = Vec::new();
        if self.dims.len() > 2 {
            let rest: Vec<_> = self.dims[1..].iter().map(ToString::to_string).collect();
            parts.push(format!(
                "drawn as a matrix of {} rows and {} columns",
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

/// The number of a scope, and the cell it stands in.
#[derive(Clone, Debug)]
pub struct Label {
    /// Row of the cell.
    pub row: usize,
    /// Column of the cell.
    pub col: usize,
    /// The scope's index.
    pub text: String,
}

/// Everything a drawing of a spec shows.
#[derive(Clone, Debug)]
pub struct Scene {
    /// One per tensor.
    pub panels: Vec<Panel>,
    /// Notes for the reader, below the drawing.
    pub notes: Vec<String>,
    kept: BTreeMap<BlockId, bool>,
    colors: BTreeMap<BlockId, usize>,
    blocks_per_scope: usize,
    levels: Option<LevelsExample>,
}

/// The example mask of a spec with levels.
#[derive(Clone, Debug)]
struct LevelsExample {
    /// Of all levels, or `None` if the tensor is too large.
    mask: Option<Mask>,
    /// Whether dropped blocks are pruned by an `else`.
    otherwise: bool,
    /// Columns of the tensor as a matrix.
    cols: usize,
}

impl Scene {
    /// The scene of a spec; `seed` selects the example mask.
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
        let (mut kept, mut levels) = (BTreeMap::new(), None);
        if spec.has_levels() {
            let tensor = &spec.tensors()[0];
            let small = tensor.size() <= MAX_CHOSEN;
            let choice = small.then(|| Choice::example(spec, seed));
            if let Some(choice) = &choice {
                let blocks = panels[0].cells.iter().filter_map(|cell| cell.block());
                let count = spec.blocks_per_scope();
                kept.extend(blocks.map(|(s, b)| ((s, b), choice.kept().get(s * count + b))));
            } else {
                notes.push(format!("an example is drawn of at most {MAX_CHOSEN} weights"));
            }
            let (otherwise, cols) = (spec.otherwise().is_some(), tensor.matrix().1);
            let mask = choice.map(|choice| choice.mask(spec));
            levels = Some(LevelsExample { mask, otherwise, cols });
        } else {
            kept = example(spec, &panels, seed, &mut notes);
        }
        let colors = colors(&panels);
        Self { panels, notes, kept, colors, blocks_per_scope: spec.blocks_per_scope(), levels }
    }

    /// Whether the spec has levels.
    pub fn has_levels(&self) -> bool {
        self.levels.is_some()
    }

    /// What the example mask does with the weight of a block in a row and column of the
    /// tensor.
    pub fn state(&self, block: BlockId, row: usize, col: usize) -> State {
        let kept = self.keeps(block);
        let Some(levels) = &self.levels else {
            return if kept { State::Kept } else { State::Dropped };
        };
        let Some(mask) = &levels.mask else { return State::Kept };
        let offset = row * levels.cols + col;
        match mask.tensors()[0].get(offset) {
            true => State::Kept,
            false if kept || levels.otherwise => State::DroppedInside,
            false => State::Dropped,
        }
    }

    /// Whether the example has a weight in this state.
    pub fn any_state(&self, state: State) -> bool {
        let Some(panel) = self.panels.first() else { return false };
        let is = |row, col| match panel.cell(row, col) {
            Some(Cell::Weight(block)) => self.state(block, row, col) == state,
            _ => false,
        };
        (0..panel.rows).any(|row| (0..panel.cols).any(|col| is(row, col)))
    }

    /// Whether the example mask keeps a block that is shown.
    pub fn keeps(&self, block: BlockId) -> bool {
        self.kept.get(&block).copied().unwrap_or(true)
    }

    /// The color of a block, below 8. Adjacent blocks of a scope differ.
    pub fn color(&self, block: BlockId) -> usize {
        self.colors.get(&block).copied().unwrap_or(0)
    }

    /// Whether a color stands for one block of each scope shown.
    pub fn colors_are_unique(&self) -> bool {
        let mut seen = BTreeSet::new();
        self.colors.iter().all(|(&(scope, _), &color)| seen.insert((scope, color)))
    }

    /// Whether a scope has at most `most` blocks.
    pub(crate) fn fewer_blocks(&self, most: usize) -> bool {
        self.blocks_per_scope <= most
    }

    /// Whether `test` holds for some cell.
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
) -> BTreeMap<BlockId, bool> {
    let blocks: BTreeSet<BlockId> =
        panels.iter().flat_map(|panel| &panel.cells).filter_map(|cell| cell.block()).collect();
    let mut mask = ExampleMask::new(spec, seed);
    if !mask.is_exact() {
        notes.push(format!(
            "the example mask keeps each block with probability {}",
            super::percent(spec.block_density())
        ));
    }
    blocks.into_iter().map(|block| (block, mask.keeps(block))).collect()
}

/// A color for each block: its index within the scope modulo 8, or the next one
/// that no adjacent block of the same scope has.
fn colors(panels: &[Panel]) -> BTreeMap<BlockId, usize> {
    let mut near: BTreeMap<BlockId, BTreeSet<BlockId>> = BTreeMap::new();
    for panel in panels {
        for row in 0..panel.rows {
            for col in 0..panel.cols {
                let Some(a) = panel.cell(row, col).and_then(Cell::block) else { continue };
                near.entry(a).or_default();
                for next in [panel.cell(row, col + 1), panel.cell(row + 1, col)] {
                    let Some(b) = next.and_then(Cell::block) else { continue };
                    if a != b && a.0 == b.0 {
                        near.entry(a).or_default().insert(b);
                        near.entry(b).or_default().insert(a);
                    }
                }
            }
        }
    }
    let mut colors = BTreeMap::new();
    for (&block, others) in &near {
        let taken: Vec<usize> =
            others.iter().filter_map(|other| colors.get(other)).copied().collect();
        let wished = block.1 % COLORS;
        let color = (0..COLORS)
            .map(|turn| (wished + turn) % COLORS)
            .find(|color| !taken.contains(color))
            .unwrap_or(wished);
        colors.insert(block, color);
    }
    colors
}

/// The panel of tensor `number`.
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
    // The first dim is the row, the others are the column.
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

/// How many rows and columns to show: at most [`CORNER`], ending where scopes end
/// if they do so in the second half.
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
                    let shown = cell.block().is_none_or(|block| scene.keeps(block));
                    let offset = row * dims[1] + col;
                    assert_eq!(shown, mask.keeps(Element { tensor: 0, offset }), "{text}");
                }
            }
        }
    }

    #[test]
    fn neighbors_in_a_scope_differ_in_color() {
        for preset in crate::spec::PRESETS {
            let scene = Scene::new(&spec(preset.example, preset.shape), 0);
            let panel = &scene.panels[0];
            for row in 0..panel.rows {
                for col in 0..panel.cols {
                    let a = panel.cell(row, col).and_then(Cell::block).unwrap();
                    for next in [panel.cell(row, col + 1), panel.cell(row + 1, col)] {
                        let Some(b) = next.and_then(Cell::block) else { continue };
                        assert!(a == b || a.0 != b.0 || scene.color(a) != scene.color(b));
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
            (8, 36, "drawn as a matrix of 8 rows and 4x3x3 columns".to_string())
        );
        assert_eq!(size("2:4", &[64]).1, 64);
    }

    #[test]
    fn a_huge_scope_is_drawn_by_chance_and_says_so() {
        let scene = Scene::new(&spec("unstructured(50%)", &[9728, 9728]), 0);
        assert_eq!(scene.notes, ["the example mask keeps each block with probability 50%"]);
    }
}
