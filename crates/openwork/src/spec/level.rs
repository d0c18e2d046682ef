//! Specs inside specs: what a level keeps, or drops, is again a regular tensor.
//!
//! Every scope of a level keeps the same number of blocks. If its scopes run along one axis,
//! the kept blocks (or the dropped ones) of all scopes, pushed together along that axis in
//! rising order, form a smaller tensor, whose shape is known before any weight is seen. An
//! inner level is a spec bound to that compacted tensor. Once the outer level has chosen its
//! blocks, [`Spec::inside`] places the inner spec on the original tensor: its blocks are
//! then sets of the tensor's own weights, and every method, mask and drawing can use it as
//! any other spec over a part of the tensor.

use super::domain::{PADDING, Space};
use super::{Grid, Order, Spec, row_major};
use crate::layout::StridedLayout;
use std::sync::Arc;

/// The blocks of a level that an inner level prunes further.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum Side {
    /// The kept blocks: `then`.
    Kept,
    /// The dropped blocks: `else`.
    Dropped,
}

impl Side {
    /// Both, in the order in which they are written.
    pub const BOTH: [Self; 2] = [Self::Kept, Self::Dropped];

    /// Its word in the language.
    pub fn word(self) -> &'static str {
        match self {
            Self::Kept => "then",
            Self::Dropped => "else",
        }
    }

    /// The one of two things that belongs to this side.
    pub fn pick<T>(self, kept: T, dropped: T) -> T {
        match self {
            Self::Kept => kept,
            Self::Dropped => dropped,
        }
    }
}

/// A spec inside another, bound to the tensor that the outer one leaves.
#[derive(Clone, Debug)]
pub struct Level {
    spec: Spec,
    closing: Closing,
}

impl Level {
    pub(crate) fn new(spec: Spec, closing: Closing) -> Self {
        Self { spec, closing }
    }

    /// The spec, bound to the compacted tensor.
    pub fn spec(&self) -> &Spec {
        &self.spec
    }

    /// Which blocks of the outer level it is for.
    pub fn side(&self) -> Side {
        self.closing.side
    }

    /// Blocks of each scope of the outer level that it is for.
    pub fn blocks(&self) -> usize {
        self.closing.blocks.len()
    }

    /// Visits the positions of the compacted tensor that hold block `place` of those that
    /// remain of a scope, with the index of each within its block.
    pub(crate) fn visit_place(
        &self,
        scope: usize,
        place: usize,
        mut visit: impl FnMut(usize, usize),
    ) {
        let first = self.closing.scopes.at(scope) + self.closing.blocks.at(place);
        self.closing.elements.iter().enumerate().for_each(|(i, step)| visit(first + step, i));
    }

    /// Visits the same positions with the offset of `outer`'s tensor that each holds if the
    /// block there is `block`; `None` for padding.
    pub(crate) fn visit_block(
        &self,
        outer: &Spec,
        scope: usize,
        block: usize,
        place: usize,
        mut visit: impl FnMut(usize, Option<usize>),
    ) {
        let tensor = &outer.tensors[0];
        let from = tensor.scope().at(scope) + tensor.block().at(block);
        let to = self.closing.scopes.at(scope) + self.closing.blocks.at(place);
        for (step, closed) in tensor.element().iter().zip(self.closing.elements.iter()) {
            visit(to + closed, tensor.space.place(from + step));
        }
    }

    /// For each position of the compacted tensor, row-major, the offset of `outer`'s tensor
    /// that it holds, or [`PADDING`]. `keeps` says of each block of `outer`, by scope and
    /// index in it, whether it is kept.
    pub(crate) fn places(&self, outer: &Spec, keeps: impl Fn(usize, usize) -> bool) -> Vec<u32> {
        let (tensor, closing) = (&outer.tensors[0], &self.closing);
        let elements: Vec<(usize, usize)> =
            tensor.element().iter().zip(closing.elements.iter()).collect();
        let blocks: Vec<usize> = tensor.block().iter().collect();
        let slots: Vec<usize> = closing.blocks.iter().collect();
        let mut places = vec![PADDING; self.spec.tensors[0].size];
        for (scope, (first, closed)) in tensor.scope().iter().zip(closing.scopes.iter()).enumerate()
        {
            let side = |block: &usize| keeps(scope, *block) == (closing.side == Side::Kept);
            for (block, slot) in (0..blocks.len()).filter(side).zip(&slots) {
                for &(from, to) in &elements {
                    if let Some(offset) = tensor.space.place(first + blocks[block] + from) {
                        places[closed + slot + to] = offset as u32; // see MAX_LEVELS
                    }
                }
            }
        }
        places
    }
}

/// The maximum number of elements of a tensor whose spec has levels: offsets are listed in
/// 32 bits.
const MAX_LEVELS: usize = PADDING as usize;

/// The maximum number of positions of a compacted tensor, padding included, if the tensor has
/// fewer elements.
const MAX_PADDED: usize = 1 << 22;

/// How the blocks of a level are compacted.
#[derive(Clone, Debug)]
pub(crate) struct Closing {
    side: Side,
    /// The offsets, in the compacted tensor, of a block's elements, of a scope's remaining
    /// blocks and of the scopes.
    elements: StridedLayout,
    blocks: StridedLayout,
    scopes: StridedLayout,
    dims: Vec<usize>,
}

impl Closing {
    /// Compacts one side of `outer`, whose view has axes of these names. The error is what
    /// was asked, and what to do.
    pub fn new(outer: &Spec, side: Side, axes: &[String]) -> Result<Self, (String, String)> {
        let (tensor, word) = (&outer.tensors[0], side.word());
        if tensor.size >= MAX_LEVELS {
            let what = format!("tensor `{}` is too large for `{word}`", tensor.name);
            return Err((what, format!("levels need fewer than {MAX_LEVELS} elements")));
        }
        let mut tile = tensor.scope_tile().to_vec();
        let spanned: Vec<usize> = (0..tile.len()).filter(|&axis| tile[axis] > 1).collect();
        if let [.., last] = spanned[..]
            && spanned.len() > 1
        {
            let list: Vec<String> =
                spanned.iter().map(|&axis| format!("{axis} (`{}`)", axes[axis])).collect();
            let mut scope = vec!["1"; tile.len()];
            scope[last] = "_";
            return Err((
                format!("`{word}` needs scopes that run along one axis"),
                format!(
                    "these span axes {}; axis {last} would do: `scope ({})`",
                    list.join(" and "),
                    scope.join(",")
                ),
            ));
        }
        let (all, keep) = (outer.blocks_per_scope, outer.keep);
        let blocks = side.pick(keep, all - keep);
        if blocks == 0 {
            let (what, detail) = match side {
                Side::Kept => (
                    "`keep 0` cannot be followed by `then`: no block is left".to_string(),
                    "keep at least one block of each scope",
                ),
                Side::Dropped => (
                    format!("`keep all` cannot be followed by `else`: all {all} blocks stay"),
                    "keep fewer blocks, or leave `else` out",
                ),
            };
            return Err((what, detail.to_string()));
        }
        if let [axis] = spanned[..] {
            tile[axis] = blocks;
        }
        let block = tensor.blocks.tile();
        let scopes = tensor.scopes.counts().iter();
        let dims: Vec<usize> = scopes
            .zip(&tile)
            .zip(block)
            .map(|((scopes, tile), block)| scopes * tile * block)
            .collect();
        let size = dims.iter().try_fold(1usize, |size, &dim| size.checked_mul(dim));
        if size.is_none_or(|size| size > MAX_PADDED.max(4 * tensor.size)) {
            let what = format!("padding makes the tensor after `{word}` too large");
            return Err((what, format!("at most {MAX_PADDED} positions, or 4 for each element")));
        }
        let blocks = Grid::new(&row_major(&dims), block).expect("whole blocks");
        let scopes = Grid::new(blocks.division()[1], &tile).expect("whole scopes");
        Ok(Self {
            side,
            elements: blocks.within().clone(),
            blocks: scopes.within().clone(),
            scopes: scopes.firsts().clone(),
            dims,
        })
    }

    /// The dims of the compacted tensor.
    pub fn dims(&self) -> &[usize] {
        &self.dims
    }
}

impl Spec {
    /// The level that prunes the kept blocks further, if there is one.
    ///
    /// ```
    /// use openwork::Pattern;
    /// let venom: Pattern = "block (64,1) scope (1,8) keep 4 then 2:4".parse().unwrap();
    /// let spec = venom.bind(&[128, 64]).unwrap();
    /// let inner = spec.then().unwrap().spec();
    /// assert_eq!((inner.tensors()[0].dims(), inner.keep()), (&[128, 32][..], 2));
    /// assert_eq!(spec.density(), 0.25);
    /// ```
    pub fn then(&self) -> Option<&Level> {
        self.then.as_deref()
    }

    /// The level that prunes the dropped blocks instead of zeroing them, if there is one.
    pub fn otherwise(&self) -> Option<&Level> {
        self.otherwise.as_deref()
    }

    /// The inner level of a side.
    pub fn level(&self, side: Side) -> Option<&Level> {
        side.pick(self.then(), self.otherwise())
    }

    /// Whether it has a `then` or an `else`.
    pub fn has_levels(&self) -> bool {
        self.then.is_some() || self.otherwise.is_some()
    }

    /// The outermost level alone.
    pub fn outermost(&self) -> Self {
        Self { then: None, otherwise: None, ..self.clone() }
    }

    /// This level and all levels inside it, each with its path from the outermost: `then`
    /// or `else` for each step.
    pub fn levels(&self) -> Vec<(Vec<Side>, &Spec)> {
        let mut levels = vec![(Vec::new(), self)];
        for side in Side::BOTH {
            for (path, spec) in self.level(side).into_iter().flat_map(|level| level.spec.levels()) {
                levels.push(([vec![side], path].concat(), spec));
            }
        }
        levels
    }

    /// The inner level of a side, over this spec's own tensor, once the blocks of this level
    /// are chosen: `keeps` says of each block, by scope and index in it, whether it is kept.
    /// Exactly [`Spec::keep`] of each scope must be.
    ///
    /// ```
    /// use openwork::{Pattern, spec::Side};
    /// let spec = "scope (1,4) keep 2 then 1:2".parse::<Pattern>().unwrap().bind(&[1, 8]).unwrap();
    /// let inner = spec.inside(Side::Kept, |_, block| block % 2 == 1).unwrap();
    /// let offsets = |block| inner.elements(1, block).map(|e| e.offset).collect::<Vec<_>>();
    /// assert_eq!((offsets(0), offsets(1)), (vec![5], vec![7]));
    /// ```
    pub fn inside(&self, side: Side, keeps: impl Fn(usize, usize) -> bool) -> Option<Spec> {
        let level = self.level(side)?;
        Some(level.spec.placed(level.places(self, keeps), self))
    }

    /// This spec with position `i` of its tensor at offset `places[i]` of the tensor of
    /// `outer`.
    fn placed(&self, places: Vec<u32>, outer: &Spec) -> Spec {
        let mut spec = self.clone();
        let (tensor, whole) = (&mut spec.tensors[0], &outer.tensors[0]);
        let inner = std::mem::replace(&mut tensor.space, Space::Direct { first: 0 });
        tensor.space = Space::placed(inner, Arc::from(places), tensor.view.size() as usize);
        tensor.padded = tensor.space.has_padding(tensor.view.size() as usize);
        (tensor.name, tensor.dims, tensor.size) =
            (whole.name.clone(), whole.dims.clone(), whole.size);
        spec.order = Order::sorted(&spec.tensors[0], false);
        spec
    }
}

/// How a level is named in messages: `level 1`, then `level 2 (then)`, `level 3 (then else)`.
pub fn level_name(path: &[Side]) -> String {
    let words: Vec<&str> = path.iter().map(|side| side.word()).collect();
    let path = if words.is_empty() { String::new() } else { format!(" ({})", words.join(" ")) };
    format!("level {}{path}", words.len() + 1)
}
