//! Equal tiles over a space: blocks over a view, then scopes over blocks.

/// Equal tiles covering a space. Holds, once built:
///
/// 1. space and tile have the same rank;
/// 2. no axis is empty;
/// 3. along every axis the tile divides the space.
///
/// ```
/// use openwork::spec::Grid;
/// let blocks = Grid::new(&[64, 64], &[16, 16]).unwrap();
/// let scopes = Grid::new(blocks.counts(), &[1, 4]).unwrap();
/// assert_eq!((scopes.counts(), scopes.tiles(), scopes.tile_size()), (&[4, 1][..], 4, 4));
/// ```
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Grid {
    counts: Vec<usize>,
    tile: Vec<usize>,
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
    /// An axis of the space or the tile has no entries.
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
    /// Tiles of extents `tile` over a space of extents `space`.
    pub fn new(space: &[usize], tile: &[usize]) -> Result<Self, GridError> {
        // Promise 1.
        if space.len() != tile.len() {
            return Err(GridError::Rank { tile: tile.len(), space: space.len() });
        }
        let mut counts = Vec::with_capacity(space.len());
        for (axis, (&extent, &by)) in space.iter().zip(tile).enumerate() {
            // Promise 2.
            if extent == 0 || by == 0 {
                return Err(GridError::Empty { axis });
            }
            // Promise 3.
            if extent % by != 0 {
                return Err(GridError::Divide { axis, extent, by });
            }
            counts.push(extent / by);
        }
        Ok(Self { counts, tile: tile.to_vec() })
    }

    /// How many tiles lie along each axis.
    pub fn counts(&self) -> &[usize] {
        &self.counts
    }

    /// The extents of one tile.
    pub fn tile(&self) -> &[usize] {
        &self.tile
    }

    /// How many tiles there are.
    pub fn tiles(&self) -> usize {
        self.counts.iter().product()
    }

    /// How many positions one tile has.
    pub fn tile_size(&self) -> usize {
        self.tile.iter().product()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn each_broken_promise_has_its_own_words() {
        let words =
            |space: &[usize], tile: &[usize]| Grid::new(space, tile).unwrap_err().to_string();
        assert_eq!(words(&[4, 10], &[1]), "the tile has 1 axes, the space 2");
        assert_eq!(words(&[4, 10], &[1, 0]), "axis 1 has extent 0; give 1 or more");
        assert_eq!(
            words(&[4, 10], &[1, 4]),
            "axis 1 has 10 entries, not a multiple of 4; pad it or narrow the domain"
        );
    }
}
