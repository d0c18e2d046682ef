//! Tiles: the cells of a rectangle of a panel as bytes, at full resolution or reduced.
//!
//! ```text
//! with numbers     scope of every cell (u32)   block (u32)   cell (u8)
//! at step 1        cell (u8)
//! reduced          cell (u8)                   share of kept weights, 0 to 255 (u8)
//! ```
//!
//! All arrays are row-major and little-endian, one after the other. A cell is
//! `color | kind << 3 | state << 5`; the colors of neighboring blocks of a scope differ.

use super::{Design, Keeps, Panel, matrix};
use crate::request::Response;
use openwork::spec::{Locator, Spec, Tensor};
use serde::Deserialize;

/// Most cells of a tile.
pub(super) const MAX_CELLS: usize = 1 << 18;
/// Number of colors.
const COLORS: usize = 8;
/// The number of a cell without a scope.
const NO_NUMBER: u32 = u32::MAX;

/// Kinds of cells.
const WEIGHT: u8 = 0;
const PADDING: u8 = 1;
const OUTSIDE: u8 = 2;
/// A reduced cell that covers several blocks.
const MIXED: u8 = 3;

/// What the example does with a cell.
const KEPT: u8 = 0;
const DROPPED: u8 = 1;
const DROPPED_INSIDE: u8 = 2;
const UNKNOWN: u8 = 3;

/// A rectangle of a panel of a design.
#[derive(Clone, Debug, Deserialize)]
pub(crate) struct TileRequest {
    #[serde(flatten)]
    pub spec: super::SpecRequest,
    #[serde(flatten)]
    pub tile: Tile,
}

/// A rectangle of a panel.
#[derive(Clone, Debug, Deserialize)]
pub(crate) struct Tile {
    pub panel: usize,
    pub row: usize,
    pub col: usize,
    /// Rows and columns of the answer.
    pub rows: usize,
    pub cols: usize,
    /// Each cell of the answer stands for `step` x `step` cells.
    pub step: usize,
    /// Whether scopes and blocks are numbered; needs a step of 1.
    pub numbers: bool,
    /// Whether the example mask is included; without it all cells are unknown.
    pub mask: bool,
}

/// The bytes of a tile.
pub(crate) fn tile(design: &Design, request: &Tile) -> Result<Vec<u8>, Response> {
    let Some((panel, spec, tensor)) = design.panel(request.panel) else {
        return Err(Response::error(404, format!("there is no panel {}", request.panel)));
    };
    let cells = request.rows.checked_mul(request.cols).filter(|&cells| cells <= MAX_CELLS);
    let Some(cells) = cells.filter(|_| request.step > 0 && (request.step == 1 || !request.numbers))
    else {
        let why = format!("a tile has at most {MAX_CELLS} cells, and numbers only at step 1");
        return Err(Response::error(400, why));
    };
    let mut picture = Picture::new(design, panel, spec, tensor, request.mask);
    let places = (0..cells).map(|i| {
        let place = |first: usize, i: usize| first.checked_add(i.checked_mul(request.step)?);
        (place(request.row, i / request.cols), place(request.col, i % request.cols))
    });
    if request.numbers {
        let (mut scopes, mut blocks) =
            (Vec::with_capacity(9 * cells), Vec::with_capacity(4 * cells));
        let mut bytes = Vec::with_capacity(cells);
        for place in places {
            let cell = picture.cell_at(place);
            let (scope, block) = cell.block.unwrap_or((NO_NUMBER as usize, NO_NUMBER as usize));
            scopes.extend((scope as u32).to_le_bytes());
            blocks.extend((block as u32).to_le_bytes());
            bytes.push(cell.byte());
        }
        scopes.extend(blocks);
        scopes.extend(bytes);
        return Ok(scopes);
    }
    if request.step == 1 {
        return Ok(places.map(|place| picture.cell_at(place).byte()).collect());
    }
    let (mut bytes, mut shares) = (Vec::with_capacity(2 * cells), Vec::with_capacity(cells));
    for place in places {
        let (byte, share) = picture.reduced(place, request.step);
        bytes.push(byte);
        shares.push(share);
    }
    bytes.extend(shares);
    Ok(bytes)
}

/// One cell.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
struct Cell {
    block: Option<(usize, usize)>,
    color: u8,
    kind: u8,
    state: u8,
}

impl Cell {
    const OUTSIDE: Self = Self { block: None, color: 0, kind: OUTSIDE, state: KEPT };

    fn byte(self) -> u8 {
        self.color | self.kind << 3 | self.state << 5
    }

    /// The cell and its share of kept weights.
    fn reduced(self) -> (u8, u8) {
        let share = if matches!(self.state, KEPT | UNKNOWN) { u8::MAX } else { 0 };
        (self.byte(), share)
    }
}

/// The block of a cell, and the offset of its weight.
#[derive(Clone, Copy, Debug)]
struct CellBlock {
    block: Option<(usize, usize)>,
    kind: u8,
    offset: Option<usize>,
}

/// A panel whose cells are asked for.
struct Picture<'a> {
    spec: &'a Spec,
    tensor: &'a Tensor,
    number: usize,
    locator: Locator<'a>,
    keeps: Keeps<'a>,
    /// Of a spec with levels, on the outermost panel: the weights that all levels keep.
    mask: Option<&'a openwork::Mask>,
    otherwise: bool,
    all: (usize, usize),
    first_block: usize,
}

impl<'a> Picture<'a> {
    fn new(
        design: &'a Design,
        panel: &Panel,
        spec: &'a Spec,
        tensor: &'a Tensor,
        mask: bool,
    ) -> Self {
        let outermost = panel.path.is_empty() && spec.has_levels() && mask;
        let before = spec.tensors()[..panel.tensor].iter();
        let coupled = spec.coupling() == openwork::spec::Coupling::Scopes;
        let blocks = |tensor: &Tensor| tensor.scope_tile().iter().product::<usize>();
        Self {
            spec,
            tensor,
            number: panel.tensor,
            locator: Locator::new(spec, panel.tensor),
            keeps: if mask { design.keeps(panel, spec) } else { Keeps::Unknown },
            mask: if outermost { design.mask() } else { None },
            otherwise: spec.otherwise().is_some(),
            all: matrix(tensor),
            first_block: if coupled { before.map(blocks).sum() } else { 0 },
        }
    }

    fn cell_at(&mut self, place: (Option<usize>, Option<usize>)) -> Cell {
        match place {
            (Some(row), Some(col)) => self.cell(row, col),
            _ => Cell::OUTSIDE,
        }
    }

    fn cell(&mut self, row: usize, col: usize) -> Cell {
        let CellBlock { block: Some((scope, number)), kind, offset } = self.locate(row, col) else {
            return Cell::OUTSIDE;
        };
        let state = self.state((scope, number), offset);
        Cell { block: Some((scope, number)), color: self.color(number), kind, state }
    }

    /// The block of a row and column.
    fn locate(&self, row: usize, col: usize) -> CellBlock {
        if row >= self.all.0 || col >= self.all.1 {
            return CellBlock { block: None, kind: OUTSIDE, offset: None };
        }
        let Some(padded) = self.tensor.padded_dims() else {
            let offset = row * self.all.1 + col;
            let block = self.locator.locate(offset);
            return CellBlock { block, kind: WEIGHT, offset: Some(offset) };
        };
        let (at, dims) = (coordinate(padded, row, col), self.tensor.dims());
        if at.iter().zip(dims).any(|(i, dim)| i >= dim) {
            let block = self.spec.locate_padded(self.number, &at);
            return CellBlock { block, kind: PADDING, offset: None };
        }
        let offset = at.iter().zip(dims).fold(0, |v, (i, dim)| v * dim + i);
        CellBlock { block: self.locator.locate(offset), kind: WEIGHT, offset: Some(offset) }
    }

    /// What the example does with a weight of a block.
    fn state(&mut self, (scope, number): (usize, usize), offset: Option<usize>) -> u8 {
        match (self.keeps.keeps(scope, number), self.mask, offset) {
            (None, ..) => UNKNOWN,
            (Some(kept), Some(mask), Some(offset)) => match mask.tensors()[0].get(offset) {
                true => KEPT,
                false if kept || self.otherwise => DROPPED_INSIDE,
                false => DROPPED,
            },
            (Some(true), ..) => KEPT,
            (Some(false), ..) => DROPPED,
        }
    }

    /// A color that differs from those of the next blocks along every axis of the scope.
    fn color(&self, block: usize) -> u8 {
        const STEPS: [usize; 4] = [1, 3, 5, 7];
        let (mut left, mut color) = (block - self.first_block, 0);
        for (i, &extent) in self.tensor.scope_tile().iter().rev().filter(|e| **e > 1).enumerate() {
            color += left % extent * STEPS[i % STEPS.len()];
            left /= extent;
        }
        (color % COLORS) as u8
    }

    /// The cells from `place` on, `step` in each direction, as one.
    fn reduced(&mut self, place: (Option<usize>, Option<usize>), step: usize) -> (u8, u8) {
        let (Some(row), Some(col)) = place else { return Cell::OUTSIDE.reduced() };
        if row >= self.all.0 || col >= self.all.1 {
            return Cell::OUTSIDE.reduced();
        }
        let (last, half) = (step - 1, step / 2);
        // Corners, the center and some point of no symmetry.
        let points =
            [(0, 0), (0, last), (last, 0), (last, last), (half, half), (step / 3, step / 3 * 2)];
        let near = |first: usize, i: usize, all: usize| first.saturating_add(i).min(all - 1);
        let places =
            points.map(|(i, j)| self.locate(near(row, i, self.all.0), near(col, j, self.all.1)));
        let first = places[0];
        let outside = |place: &CellBlock| place.block.is_none();
        if places.iter().all(|place| (place.block, place.kind) == (first.block, first.kind)) {
            let Some(block) = first.block else { return Cell::OUTSIDE.reduced() };
            // Levels inside a block make its weights differ.
            let states = places.map(|place| self.state(block, place.offset));
            let kept = states.iter().filter(|state| matches!(**state, KEPT | UNKNOWN)).count();
            let share = (kept * 255 / states.len()) as u8;
            let state = states[0];
            let cell =
                Cell { block: first.block, color: self.color(block.1), kind: first.kind, state };
            return (cell.byte(), share);
        }
        // Blocks smaller than a pixel: what they keep on average.
        let outside = places.iter().filter(|place| outside(place)).count() as f64;
        let outside = outside / places.len() as f64;
        let kept = outside + (1.0 - outside) * self.spec.density();
        let state = if matches!(self.keeps, Keeps::Unknown) { UNKNOWN } else { KEPT };
        (MIXED << 3 | state << 5, (kept * 255.0).round() as u8)
    }
}

/// The coordinate in `dims` of a row and a column, which stands for all dims but the first.
pub(super) fn coordinate(dims: &[usize], row: usize, col: usize) -> Vec<usize> {
    let (mut at, mut left) = (vec![0; dims.len()], col);
    for axis in (usize::from(dims.len() > 1)..dims.len()).rev() {
        at[axis] = left % dims[axis];
        left /= dims[axis];
    }
    if dims.len() > 1 {
        at[0] = row;
    }
    at
}
