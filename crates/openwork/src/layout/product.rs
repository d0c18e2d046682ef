//! Products: a layout repeated over another.
//!
//! The logical, zipped, tiled and flat forms arrange their modes as those of
//! division do. The blocked and raked forms pair the modes of the two
//! layouts, so that a matrix of matrices is a matrix again:
//!
//! ```text
//! blocked   ((A0,B0),(A1,B1))      whole copies of A side by side
//! raked     ((B0,A0),(B1,A1))      copies of A interleaved
//! ```

use super::{Layout, LayoutError, Tiler};

impl Layout {
    /// `(A, complement(A, size A * cosize B) o B)`: a block `A`, and where
    /// its copies go.
    ///
    /// ```
    /// use openwork::Layout;
    /// let a: Layout = "(2,2):(4,1)".parse()?;
    /// let b: Layout = "6:1".parse()?;
    /// assert_eq!(a.logical_product(&b)?.to_string(), "((2,2),(2,3)):((4,1),(2,8))");
    /// # Ok::<(), openwork::layout::LayoutError>(())
    /// ```
    pub fn logical_product(&self, b: &Layout) -> Result<Layout, LayoutError> {
        b.refuse_negative("logical_product")?;
        let room = self.size().checked_mul(b.cosize()).ok_or_else(|| {
            LayoutError::overflow(format_args!("size {} times cosize {}", self.size(), b.cosize()))
        })?;
        let copies = self.complement(room)?.composition(b)?;
        Layout::from_modes([self.clone(), copies])
    }

    /// Multiplies mode by mode: `((A0,B0),(A1,B1),..)`.
    pub fn logical_product_tiler(&self, tiler: &Tiler) -> Result<Layout, LayoutError> {
        tiler.by_mode(self, &Layout::logical_product)
    }

    /// Multiplies mode by mode and gathers blocks and copies:
    /// `((A0,A1),(B0,B1,..))`.
    pub fn zipped_product(&self, tiler: &Tiler) -> Result<Layout, LayoutError> {
        Layout::from_modes(tiler.zipped(self, &Layout::logical_product)?)
    }

    /// As [`zipped_product`](Self::zipped_product) with the copies unpacked:
    /// `((A0,A1),B0,B1,..)`.
    pub fn tiled_product(&self, tiler: &Tiler) -> Result<Layout, LayoutError> {
        let [block, copies] = tiler.zipped(self, &Layout::logical_product)?;
        Layout::from_modes(std::iter::once(block).chain(copies.modes()))
    }

    /// As [`zipped_product`](Self::zipped_product) with both unpacked:
    /// `(A0,A1,B0,B1,..)`.
    pub fn flat_product(&self, tiler: &Tiler) -> Result<Layout, LayoutError> {
        let [block, copies] = tiler.zipped(self, &Layout::logical_product)?;
        Layout::from_modes(block.modes().into_iter().chain(copies.modes()))
    }

    /// The product with modes paired `((A0,B0),(A1,B1),..)`: every element of
    /// `b` becomes a block. The shorter of the two is padded with `1:0`.
    ///
    /// ```
    /// use openwork::Layout;
    /// let a: Layout = "(2,5):(5,1)".parse()?;
    /// let b: Layout = "(3,4):(1,3)".parse()?;
    /// assert_eq!(a.blocked_product(&b)?.to_string(), "((2,3),(5,4)):((5,10),(1,30))");
    /// assert_eq!(a.raked_product(&b)?.to_string(), "((3,2),(4,5)):((10,5),(30,1))");
    /// # Ok::<(), openwork::layout::LayoutError>(())
    /// ```
    pub fn blocked_product(&self, b: &Layout) -> Result<Layout, LayoutError> {
        let [blocks, copies] = padded_product(self, b)?;
        paired(blocks, copies)
    }

    /// The product with modes paired `((B0,A0),(B1,A1),..)`: the copies of
    /// the block are interleaved.
    pub fn raked_product(&self, b: &Layout) -> Result<Layout, LayoutError> {
        let [blocks, copies] = padded_product(self, b)?;
        paired(copies, blocks)
    }
}

/// The modes of the blocks and of the copies, equally many.
fn padded_product(a: &Layout, b: &Layout) -> Result<[Vec<Layout>; 2], LayoutError> {
    let rank = a.rank().max(b.rank());
    let pad = |layout: &Layout| {
        let mut modes = layout.modes();
        modes.resize(rank, Layout::one());
        Layout::from_modes(modes)
    };
    let product = pad(a)?.logical_product(&pad(b)?)?.modes();
    let [blocks, copies] = product.try_into().expect("a product has two modes");
    Ok([blocks.modes(), copies.modes()])
}

fn paired(first: Vec<Layout>, second: Vec<Layout>) -> Result<Layout, LayoutError> {
    let pairs: Result<Vec<_>, _> =
        first.into_iter().zip(second).map(|(x, y)| Layout::from_modes([x, y])).collect();
    Layout::from_modes(pairs?)
}
