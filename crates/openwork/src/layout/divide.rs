//! Division: a layout as tiles and the rest.
//!
//! With a tiler `<T0,T1>` on a layout of three modes, and `R0`, `R1` what
//! remains of the first two:
//!
//! ```text
//! logical   ((T0,R0),(T1,R1),A2)
//! zipped    ((T0,T1),(R0,R1,A2))
//! tiled     ((T0,T1),R0,R1,A2)
//! flat      (T0,T1,R0,R1,A2)
//! ```
//!
//! A tile that does not divide the size rounds up: the last tile runs past
//! the end.

use super::{Layout, LayoutError, Tiler};

impl Layout {
    /// `A o (B, complement(B, size A))`: the elements of a tile `B`, and the
    /// tiles.
    ///
    /// ```
    /// use openwork::Layout;
    /// let a: Layout = "(4,2,3):(2,1,8)".parse()?;
    /// let tile: Layout = "4:2".parse()?;
    /// assert_eq!(a.logical_divide(&tile)?.to_string(), "((2,2),(2,3)):((4,1),(2,8))");
    /// # Ok::<(), openwork::layout::LayoutError>(())
    /// ```
    pub fn logical_divide(&self, tile: &Layout) -> Result<Layout, LayoutError> {
        let rest = tile.complement(self.size())?;
        let both = Layout::from_modes([tile.clone(), rest])?;
        self.composition(&both).or_else(|refusal| {
            // Where the last tile runs past the end of `(10,1)`, the size-1
            // leaf that extends gets in the way. Its stride is arbitrary:
            // extend the leaf before it instead.
            self.coalesce().and_then(|a| a.composition(&both)).map_err(|_| refusal)
        })
    }

    /// Divides mode by mode: `((T0,R0),(T1,R1),..)`.
    pub fn logical_divide_tiler(&self, tiler: &Tiler) -> Result<Layout, LayoutError> {
        tiler.by_mode(self, &Layout::logical_divide)
    }

    /// Divides mode by mode and gathers tiles and rests: `((T0,T1),(R0,R1,..))`.
    ///
    /// ```
    /// use openwork::Layout;
    /// let a: Layout = "(8,6):(1,8)".parse()?;
    /// let zipped = a.zipped_divide(&"<4,2>".parse()?)?;
    /// assert_eq!(zipped.to_string(), "((4,2),(2,3)):((1,8),(4,16))");
    /// # Ok::<(), openwork::layout::LayoutError>(())
    /// ```
    pub fn zipped_divide(&self, tiler: &Tiler) -> Result<Layout, LayoutError> {
        Layout::from_modes(tiler.zipped(self, &Layout::logical_divide)?)
    }

    /// As [`zipped_divide`](Self::zipped_divide) with the rests unpacked:
    /// `((T0,T1),R0,R1,..)`.
    pub fn tiled_divide(&self, tiler: &Tiler) -> Result<Layout, LayoutError> {
        let [tile, rest] = tiler.zipped(self, &Layout::logical_divide)?;
        Layout::from_modes(std::iter::once(tile).chain(rest.modes()))
    }

    /// As [`zipped_divide`](Self::zipped_divide) with both unpacked:
    /// `(T0,T1,R0,R1,..)`.
    pub fn flat_divide(&self, tiler: &Tiler) -> Result<Layout, LayoutError> {
        let [tile, rest] = tiler.zipped(self, &Layout::logical_divide)?;
        Layout::from_modes(tile.modes().into_iter().chain(rest.modes()))
    }
}
