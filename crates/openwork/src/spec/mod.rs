//! Specs: which weights are pruned together, and which compete.
//!
//! A [`Pattern`] is text. Bound to shapes it becomes a [`Spec`], whose invariants are
//! checked once and which methods, masks, packed formats and drawings rely on.
//!
//! A view is a [`Layout`], the blocks are its zipped division, and the scopes
//! are the zipped division of the grid of blocks. So the offset of an element is a
//! sum: that of its scope, plus that of its block in the scope, plus its own in the
//! block, and a spec is a few short tables, not an index per weight.

mod axes;
mod bands;
mod bind;
mod bundle;
mod compose;
mod couple;
mod density;
mod display;
mod domain;
mod edit;
mod env;
mod error;
mod facts;
mod grid;
mod keep;
mod level;
mod like;
mod locate;
mod parse;
mod pattern;
mod preset;
mod profile;
mod region;
mod view;
mod walk;

pub use crate::suggest::distance;
pub use bands::{Band, bands};
pub use bundle::{Bundle, Piece, TooWide, Unit, UnitBlock, UnitScope, Units};
pub use density::Ratio;
pub use edit::{Edit, EditTarget};
pub use error::SpecError;
pub use facts::{Facts, Storage};
pub use grid::{Grid, GridError};
pub use level::{Level, Side, level_name};
pub use locate::Locator;
pub use pattern::Pattern;
pub use preset::{PRESETS, Preset};

pub(crate) use walk::Walker;

use crate::layout::{Layout, StridedLayout};
use domain::Space;
use grid::permuted;
use view::row_major;

/// One weight: a tensor of the spec and an offset in it.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct Element {
    /// The index of the tensor in the spec.
    pub tensor: usize,
    /// The row-major offset in that tensor.
    pub offset: usize,
}

/// How tensors are coupled.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Coupling {
    /// By blocks: those at the same position of the common grid are kept or dropped together.
    Blocks,
    /// By scopes: blocks of all tensors compete within a scope.
    Scopes,
}

/// One tensor of a spec.
#[derive(Clone, Debug)]
pub struct Tensor {
    name: String,
    dims: Vec<usize>,
    size: usize,
    space: Space,
    view: Layout,
    /// The view cut into blocks.
    blocks: Grid,
    /// The grid of blocks cut into scopes.
    scopes: Grid,
    /// The row-major indices of the blocks, cut alike.
    index: Grid,
    perm: Vec<usize>,
    /// Whether some positions of the view are padding.
    padded: bool,
    /// The weight of its loss in a coupled block.
    weight: f64,
    /// The view as it was written, if it is a composition.
    composition: Option<String>,
    /// The names of the view's axes, one for each extent.
    axes: Vec<String>,
}

impl Tensor {
    /// The weight of its loss relative to the other tensors of a coupling; 1 unless the
    /// pattern gives another.
    pub fn weight(&self) -> f64 {
        self.weight
    }

    /// Its name.
    pub fn name(&self) -> &str {
        &self.name
    }

    /// Its dims.
    pub fn dims(&self) -> &[usize] {
        &self.dims
    }

    /// The number of elements.
    pub fn size(&self) -> usize {
        self.size
    }

    /// The view: from positions to offsets.
    pub fn view(&self) -> &Layout {
        &self.view
    }

    /// The view as it was written, if it is a composition.
    pub fn composition(&self) -> Option<&str> {
        self.composition.as_deref()
    }

    /// The names of the view's axes: those of an arrow (`-> m g i j`), or else the names of
    /// the tensor's dims, or the usual names for that many axes.
    pub fn axes(&self) -> &[String] {
        &self.axes
    }

    /// The coordinate in the view of the element at an offset, one entry for each of the
    /// [axes](Tensor::axes); `None` outside the domain.
    pub fn coordinate(&self, offset: usize) -> Option<Vec<usize>> {
        let view = StridedLayout::from(&self.view);
        let mut index = view.index_of(self.space.unplace(offset)?)?;
        let mut at = vec![0; view.shape().len()];
        for (at, &extent) in at.iter_mut().zip(view.shape()).rev() {
            (*at, index) = (index % extent, index / extent);
        }
        Some(at)
    }

    /// The offset of the element at coordinate zero of the view; `None` if that is padding.
    pub fn first_offset(&self) -> Option<usize> {
        self.space.place(0)
    }

    /// The number of positions of the view, padded ones included.
    pub fn positions(&self) -> usize {
        self.view.size() as usize
    }

    /// The offsets of a block's elements from its first.
    pub(crate) fn element(&self) -> &StridedLayout {
        self.blocks.within()
    }

    /// The offsets of the blocks of a scope from its first.
    pub(crate) fn block(&self) -> &StridedLayout {
        self.scopes.within()
    }

    /// The elements of the blocks of a scope, as a layout of offsets from the first.
    pub(crate) fn scope_layout(&self) -> Layout {
        let [element, _] = self.blocks.division();
        let [block, _] = self.scopes.division();
        Layout::from_modes([block.clone(), element.clone()]).expect("part of the view")
    }

    /// The offsets of the scopes.
    pub(crate) fn scope(&self) -> &StridedLayout {
        self.scopes.firsts()
    }

    /// The blocks over the view.
    pub fn blocks(&self) -> &Grid {
        &self.blocks
    }

    /// The extents of a scope over the grid of blocks; for coupled blocks the
    /// common grid.
    pub fn scope_tile(&self) -> &[usize] {
        self.scopes.tile()
    }

    /// The axis of this tensor's grid for each axis of the common grid.
    pub fn perm(&self) -> &[usize] {
        &self.perm
    }

    /// Whether some positions of the view are padding.
    pub fn is_padded(&self) -> bool {
        self.padded
    }

    /// The first offset of a scope, if the view's strides are those of storage.
    pub(crate) fn scope_offset(&self, scope: usize) -> usize {
        let first = if let Space::Direct { first } = &self.space { *first } else { 0 };
        first + self.scope().at(scope)
    }

    /// The first offsets of the scopes from `scope` on, under the same condition.
    pub(crate) fn scope_offsets(&self, scope: usize) -> impl Iterator<Item = usize> + '_ {
        let first = if let Space::Direct { first } = &self.space { *first } else { 0 };
        self.scope().iter_from(scope).map(move |offset| first + offset)
    }

    /// Whether the view's strides are those of storage, and do not index a set or a padded
    /// domain.
    pub fn is_direct(&self) -> bool {
        matches!(self.space, Space::Direct { .. })
    }

    /// The padded dims, if the whole tensor is padded.
    pub fn padded_dims(&self) -> Option<&[usize]> {
        match &self.space {
            Space::Padded { padded, real, .. } if *real.shape() == self.dims => Some(padded),
            _ => None,
        }
    }
}

/// A checked spec over one or more tensors. Holds, once bound:
///
/// 1. every element of each tensor's domain is in exactly one block, every
///    block in exactly one scope, and no block reaches outside its domain;
/// 2. all scopes have the same number of blocks, of which `keep` are kept.
///
/// ```
/// let spec = "rows16".parse::<openwork::Pattern>().unwrap().bind(&[32, 64]).unwrap();
/// assert_eq!((spec.scopes(), spec.blocks_per_scope(), spec.keep()), (64, 2, 1));
/// // The second block of the first scope: row 8, columns 0 to 15.
/// let offsets: Vec<_> = spec.elements(0, 1).map(|e| e.offset).collect();
/// assert_eq!(offsets, (512..528).collect::<Vec<_>>());
/// ```
#[derive(Clone, Debug)]
pub struct Spec {
    coupling: Coupling,
    tensors: Vec<Tensor>,
    /// The scopes along each axis of the common grid.
    scope_grid: Vec<usize>,
    /// The common grid of blocks (coupled blocks) or of scopes (coupled scopes).
    grid: Vec<usize>,
    blocks_per_scope: usize,
    keep: usize,
    order: Order,
    text: String,
    expanded: String,
    /// The expanded text of this level alone; empty for a coupling.
    own: String,
    then: Option<Box<Level>>,
    otherwise: Option<Box<Level>>,
}

/// The order of scopes by ascending offset.
#[derive(Clone, Debug)]
enum Order {
    /// An odometer over the axes of the scope grid: row-major indices step by step.
    Axes(StridedLayout),
    /// Sorted, if strides interleave.
    Table(Vec<usize>),
}

impl Order {
    /// The maximum number of positions of a tensor whose scopes are sorted one by one.
    const MAX_SORTED: usize = 1 << 24;

    /// Orders scopes by their lowest offset in `lead`.
    fn new(lead: &Tensor, scope_grid: &[usize]) -> Result<Self, SpecError> {
        let rises = lead.space.rises_along(&lead.view);
        if rises && lead.view.is_nested() {
            let axes = by_falling_stride(lead.scope(), |_| true);
            return Ok(Self::Axes((&permuted(&row_major(scope_grid), &axes)).into()));
        }
        if lead.positions() > Self::MAX_SORTED {
            return Err(SpecError::whole(
                format!("the scopes of `{}` interleave in memory", lead.name),
                format!("this is supported up to {} positions", Self::MAX_SORTED),
            ));
        }
        Ok(Self::sorted(lead, rises))
    }

    /// Sorts the scopes one by one; `rises` says that positions of the view are in the order
    /// of the offsets.
    fn sorted(lead: &Tensor, rises: bool) -> Self {
        let mut table: Vec<usize> = (0..lead.scope().len()).collect();
        if rises {
            table.sort_by_key(|&scope| lead.scope().at(scope));
        } else {
            // A scope of padding alone comes last.
            table.sort_by_cached_key(|&scope| {
                let base = lead.scope().at(scope);
                lead.block()
                    .iter()
                    .flat_map(|block| lead.element().iter().map(move |step| base + block + step))
                    .filter_map(|v| lead.space.place(v))
                    .min()
                    .unwrap_or(usize::MAX)
            });
        }
        Self::Table(table)
    }
}

impl Spec {
    fn new(
        coupling: Coupling,
        tensors: Vec<Tensor>,
        scope_grid: Vec<usize>,
        grid: Vec<usize>,
        blocks_per_scope: usize,
        keep: usize,
    ) -> Result<Self, SpecError> {
        let order = Order::new(&tensors[0], &scope_grid)?;
        let (text, expanded) = (String::new(), String::new());
        Ok(Self {
            coupling,
            tensors,
            scope_grid,
            grid,
            blocks_per_scope,
            keep,
            order,
            text,
            expanded,
            own: String::new(),
            then: None,
            otherwise: None,
        })
    }

    fn with_text(self, text: String, expanded: String) -> Self {
        Self { text, expanded, ..self }
    }

    /// The pattern's text.
    pub fn text(&self) -> &str {
        &self.text
    }

    /// The pattern's text with presets expanded.
    pub fn expanded(&self) -> &str {
        &self.expanded
    }

    /// How the tensors are coupled.
    pub fn coupling(&self) -> Coupling {
        self.coupling
    }

    /// The tensors, in the pattern's order.
    pub fn tensors(&self) -> &[Tensor] {
        &self.tensors
    }

    /// The number of scopes.
    pub fn scopes(&self) -> usize {
        self.scope_grid.iter().product()
    }

    /// The scopes along each axis of the common grid.
    pub fn scope_grid(&self) -> &[usize] {
        &self.scope_grid
    }

    /// The common grid: of blocks where blocks are coupled, of scopes where
    /// scopes are.
    pub fn grid(&self) -> &[usize] {
        &self.grid
    }

    /// The number of blocks in each scope.
    pub fn blocks_per_scope(&self) -> usize {
        self.blocks_per_scope
    }

    /// The number of kept blocks of each scope.
    pub fn keep(&self) -> usize {
        self.keep
    }

    /// The expanded text of the outermost level.
    pub fn level_text(&self) -> &str {
        if self.own.is_empty() { &self.expanded } else { &self.own }
    }

    /// The same spec with another number of kept blocks.
    ///
    /// # Panics
    ///
    /// If `keep` exceeds the number of blocks of a scope, or the spec has levels, which
    /// depend on it.
    pub fn with_keep(&self, keep: usize) -> Self {
        assert!(!self.has_levels(), "the levels of `{}` depend on its keep", self.text);
        assert!(
            keep <= self.blocks_per_scope,
            "a scope has {} blocks, not {keep}",
            self.blocks_per_scope
        );
        Self { keep, ..self.clone() }
    }

    /// The number of blocks; a coupled block counts once.
    pub fn blocks(&self) -> usize {
        self.scopes() * self.blocks_per_scope
    }

    /// Scopes by ascending offset, so that two spellings of one pattern are pruned in the same
    /// order. A scope's number is its row-major index in the grid.
    pub fn order(&self) -> impl Iterator<Item = usize> + '_ {
        let (axes, table) = match &self.order {
            Order::Axes(axes) => (Some(axes.iter()), None),
            Order::Table(table) => (None, Some(table.iter().copied())),
        };
        axes.into_iter().flatten().chain(table.into_iter().flatten())
    }

    /// The tensors of a block of a scope, and its number among the blocks of the scope
    /// there.
    fn parts(&self, block: usize) -> (std::ops::Range<usize>, usize) {
        match self.coupling {
            Coupling::Blocks => (0..self.tensors.len(), block),
            Coupling::Scopes => {
                let mut left = block;
                for (t, tensor) in self.tensors.iter().enumerate() {
                    if left < tensor.block().len() {
                        return (t..t + 1, left);
                    }
                    left -= tensor.block().len();
                }
                panic!("a scope has {} blocks, not {block}", self.blocks_per_scope);
            }
        }
    }

    /// The elements of a block of a scope; padded positions are skipped.
    pub fn elements(&self, scope: usize, block: usize) -> impl Iterator<Item = Element> + '_ {
        let (tensors, block) = self.parts(block);
        tensors.flat_map(move |t| {
            let tensor = &self.tensors[t];
            let base = tensor.scope().at(scope) + tensor.block().at(block);
            tensor
                .element()
                .iter()
                .filter_map(move |step| tensor.space.place(base + step))
                .map(move |offset| Element { tensor: t, offset })
        })
    }

    /// Whether a block consists of padding only; such a block is never kept before a real
    /// one.
    pub fn is_padding(&self, scope: usize, block: usize) -> bool {
        let (mut tensors, _) = self.parts(block);
        tensors.all(|t| self.tensors[t].padded) && self.elements(scope, block).next().is_none()
    }

    /// The row-major index of a block in its grid, and the tensor if scopes are
    /// coupled.
    pub fn block_index(&self, scope: usize, block: usize) -> (Option<usize>, usize) {
        let (tensors, block) = self.parts(block);
        let tensor = &self.tensors[tensors.start];
        let index = tensor.index.firsts().at(scope) + tensor.index.within().at(block);
        ((self.coupling == Coupling::Scopes).then_some(tensors.start), index)
    }

    /// The scope of an element and its block there; `None` outside the domain.
    pub fn locate(&self, element: Element) -> Option<(usize, usize)> {
        let v = self.tensors[element.tensor].space.unplace(element.offset)?;
        self.locate_offset(element.tensor, v)
    }

    /// The scope and block of position `at` of a tensor's
    /// [padded dims](Tensor::padded_dims); `None` if there are none or it is out of bounds.
    pub fn locate_padded(&self, tensor: usize, at: &[usize]) -> Option<(usize, usize)> {
        let dims = self.tensors[tensor].padded_dims()?;
        if at.len() != dims.len() || at.iter().zip(dims).any(|(i, dim)| i >= dim) {
            return None;
        }
        self.locate_offset(tensor, at.iter().zip(dims).fold(0, |v, (i, dim)| v * dim + i))
    }

    /// The scope and block of offset `v` of a tensor's view: offsets are sums of one
    /// of a scope, one of a block and one of an element, and the index of such a sum
    /// counts scopes, then blocks, then elements.
    fn locate_offset(&self, t: usize, v: usize) -> Option<(usize, usize)> {
        let tensor = &self.tensors[t];
        let (blocks, elements) = (tensor.block(), tensor.element());
        let index = StridedLayout::concat(&[tensor.scope(), blocks, elements]).index_of(v)?;
        let block = index / elements.len();
        Some((block / blocks.len(), block % blocks.len() + self.own_blocks(t).start))
    }
}

/// Some axes of a layout, those of larger strides first.
fn by_falling_stride(layout: &StridedLayout, some: impl Fn(usize) -> bool) -> Vec<usize> {
    let mut axes: Vec<usize> = (0..layout.shape().len()).filter(|&axis| some(axis)).collect();
    axes.sort_by_key(|&axis| std::cmp::Reverse(layout.stride()[axis]));
    axes
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::collections::BTreeSet;

    /// `locate` is the inverse of `elements`, and nothing else is located.
    #[test]
    fn every_element_is_located_in_its_own_block() {
        for (text, dims) in [
            ("2:4@8", &[4, 32][..]),
            ("rows16", &[32, 32]),
            ("filter", &[4, 2, 3, 3]),
            ("pad (1,4) scope (1,4) keep 2", &[3, 10]),
            ("in (1,2)+(2,5) pad (1,4) scope (1,4) keep 2", &[4, 10]),
            ("in (4,5):(1,8) pad (1,4) scope (1,4) keep 2", &[5, 8]),
            ("in (4,3):(2,8)@1 scope (4,1) keep 2", &[4, 8]),
            ("in (2,3):(3,2) scope (2,1) keep 1", &[2, 8]),
            ("in (2,3):(3,2) pad (1,2) scope (1,2) keep 1", &[2, 8]),
            ("in ~((0,0)+(2,2) | (2,2)+(2,2)) scope (4) keep 2", &[4, 4]),
        ] {
            let spec = text.parse::<Pattern>().unwrap().bind(dims).unwrap();
            let mut met = BTreeSet::new();
            for scope in 0..spec.scopes() {
                for block in 0..spec.blocks_per_scope() {
                    for element in spec.elements(scope, block) {
                        assert_eq!(spec.locate(element), Some((scope, block)), "{text}");
                        met.insert(element.offset);
                    }
                }
            }
            assert_eq!(met.len(), spec.tensors()[0].domain_size(), "{text}");
            for offset in (0..spec.tensors()[0].size()).filter(|offset| !met.contains(offset)) {
                assert_eq!(spec.locate(Element { tensor: 0, offset }), None, "{text}");
            }
        }
    }
}
