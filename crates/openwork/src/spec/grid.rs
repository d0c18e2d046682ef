//! Equal tiles of a layout: blocks of a view, then scopes of the grid of blocks.

use crate::layout::{Layout, StridedLayout, Tiler};

/// A layout cut into equal tiles: its zipped division. Holds, once built:
///
/// 1. space and tile have the same rank;
/// 2. no axis is empty;
/// 3. along every axis the tile divides the space.
///
/// ```
/// use openwork::spec::Grid;
/// let view = "(64,64):(64,1)".parse().unwrap();
/// let blocks = Grid::new(&view, &[16, 16]).unwrap();
/// assert_eq!(blocks.division().map(ToString::to_string), ["(16,16):(64,1)", "(4,4):(1024,16)"]);
/// let [_, grid] = blocks.division();
/// let scopes = Grid::new(grid, &[1, 4]).unwrap();
/// assert_eq!((scopes.counts(), scopes.tiles(), scopes.tile_size()), (&[4, 1][..], 4, 4));
/// ```
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Grid {
    /// The positions of the first tile, and the first position of every tile.
    division: [Layout; 2],
    /// The same for inner loops.
    within: StridedLayout,
    firsts: StridedLayout,
}

/// Why tiles do not cover a space.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum GridError {
    /// Space and tile differ in rank.
    #[error("the tile has {tile} axes, the space {space}")]
    Rank {
        /// Axes of the tile.
        tile: usize,
        /// Axes of the space.
        space: usize,
    },
    /// An axis of the tile has no entries.
    #[error("axis {axis} has extent 0; give 1 or more")]
    Empty {
        /// The axis.
        axis: usize,
    },
    /// The tile does not divide an axis.
    #[error(
        "axis {axis} has {extent} entries, not a multiple of {by}; pad it or narrow the domain"
    )]
    Divide {
        /// The axis.
        axis: usize,
        /// Its entries.
        extent: usize,
        /// The tile's extent there.
        by: usize,
    },
}

impl GridError {
    /// The axis at fault, if it is one.
    pub fn axis(&self) -> Option<usize> {
        match *self {
            Self::Rank { .. } => None,
            Self::Empty { axis } | Self::Divide { axis, .. } => Some(axis),
        }
    }
}

impl Grid {
    /// Cuts a layout, leaf by leaf, into tiles of extents `tile`.
    pub fn new(space: &Layout, tile: &[usize]) -> Result<Self, GridError> {
        let flat = space.flat();
        // Promise 1.
        if flat.len() != tile.len() {
            return Err(GridError::Rank { tile: tile.len(), space: flat.len() });
        }
        for (axis, (&(extent, _), &by)) in flat.iter().zip(tile).enumerate() {
            let extent = extent as usize; // at least 1
            // Promise 2.
            if by == 0 {
                return Err(GridError::Empty { axis });
            }
            // Promise 3.
            if !extent.is_multiple_of(by) {
                return Err(GridError::Divide { axis, extent, by });
            }
        }
        let tiler: Tiler = tile.iter().map(|&by| by as i64).collect(); // at most the extent
        let division = space.flatten().zipped_divide(&tiler);
        let division = division.expect("a tile that divides its axis has a layout");
        let [within, firsts] = division.modes().try_into().expect("a division has two modes");
        Ok(Self::from_division([within, firsts]))
    }

    fn from_division(division: [Layout; 2]) -> Self {
        let [within, firsts] = [0, 1].map(|i| StridedLayout::from(&division[i]));
        Self { division, within, firsts }
    }

    /// The same tiles with axis `k` of the grid being axis `perm[k]` of this one.
    pub(crate) fn permuted(&self, perm: &[usize]) -> Self {
        let [within, firsts] = &self.division;
        Self::from_division([within.clone(), permuted(firsts, perm)])
    }

    /// The zipped division: the layout of one tile's positions, and that of the
    /// tiles' first positions.
    pub fn division(&self) -> [&Layout; 2] {
        self.division.each_ref()
    }

    /// The offsets of one tile's positions from its first.
    pub(crate) fn within(&self) -> &StridedLayout {
        &self.within
    }

    /// The offsets of the tiles' first positions.
    pub(crate) fn firsts(&self) -> &StridedLayout {
        &self.firsts
    }

    /// The number of tiles along each axis.
    pub fn counts(&self) -> &[usize] {
        self.firsts.shape()
    }

    /// The extents of one tile.
    pub fn tile(&self) -> &[usize] {
        self.within.shape()
    }

    /// The number of tiles.
    pub fn tiles(&self) -> usize {
        self.firsts.len()
    }

    /// The number of positions in one tile.
    pub fn tile_size(&self) -> usize {
        self.within.len()
    }
}

/// The layout whose leaf `k` is leaf `perm[k]` of `layout`.
pub(crate) fn permuted(layout: &Layout, perm: &[usize]) -> Layout {
    let flat = layout.flat();
    let (shape, stride): (Vec<i64>, Vec<i64>) = perm.iter().map(|&axis| flat[axis]).unzip();
    Layout::new(shape.into_iter().collect(), stride.into_iter().collect())
        .expect("the leaves of a layout in another order")
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn each_broken_promise_has_its_own_words() {
        let words = |space: &str, tile: &[usize]| {
            Grid::new(&space.parse().unwrap(), tile).unwrap_err().to_string()
        };
        assert_eq!(words("(4,10):(10,1)", &[1]), "the tile has 1 axes, the space 2");
        assert_eq!(words("(4,10):(10,1)", &[1, 0]), "axis 1 has extent 0; give 1 or more");
        assert_eq!(
            words("(4,10):(10,1)", &[1, 4]),
            "axis 1 has 10 entries, not a multiple of 4; pad it or narrow the domain"
        );
    }
}
