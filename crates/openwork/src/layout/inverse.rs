//! What a layout leaves out, and how to go back: complement, right inverse,
//! left inverse.

use super::coalesce::merged;
use super::error::clip;
use super::{Layout, LayoutError};

/// Indices that [`Layout::left_inverse`] tries one by one where the strides
/// alone do not prove the answer.
const MAX_TRIED: i64 = 1 << 16;

impl Layout {
    /// The offsets that this layout leaves out, up to `cotarget`, as a layout
    /// `R`: ordered, and sharing only offset 0 with this one. Where strides
    /// divide evenly the two together reach every offset of `cotarget`.
    ///
    /// ```text
    /// modes s:d by rising stride; from current = 1:
    ///     emit (d / current):current, then current = s*d
    /// last, emit ceil(cotarget / current):current
    /// ```
    ///
    /// Modes of stride 0 play no part. A layout whose modes overlap is
    /// refused.
    ///
    /// ```
    /// use openwork::Layout;
    /// let layout: Layout = "4:2".parse()?;
    /// assert_eq!(layout.complement(24)?.to_string(), "(2,3):(1,8)");
    /// # Ok::<(), openwork::layout::LayoutError>(())
    /// ```
    pub fn complement(&self, cotarget: i64) -> Result<Layout, LayoutError> {
        self.refuse_negative("complement")?;
        if cotarget < 1 {
            return Err(LayoutError::Cotarget { cotarget });
        }
        let mut flat = self.flat();
        flat.retain(|&(s, d)| s > 1 && d != 0);
        let mut current = 1;
        let mut rest = Vec::new();
        for (s, d, _) in self.by_stride("complement", flat.into_iter().map(|(s, d)| (s, d, 0)))? {
            rest.push((d / current, current));
            current = end(s, d)?;
        }
        rest.push((cotarget / current + i64::from(cotarget % current != 0), current));
        Layout::from_flat(&merged(rest))
    }

    /// The largest `R` found with `A(R(i)) = i` for `i` in its domain: of the
    /// coalesced modes by rising stride, those whose stride is the extent
    /// covered so far. Modes of stride 0 are skipped.
    ///
    /// ```
    /// use openwork::Layout;
    /// let layout: Layout = "(8,4):(4,1)".parse()?;
    /// assert_eq!(layout.right_inverse()?.to_string(), "(4,8):(8,1)");
    /// # Ok::<(), openwork::layout::LayoutError>(())
    /// ```
    pub fn right_inverse(&self) -> Result<Layout, LayoutError> {
        self.refuse_negative("right_inverse")?;
        let mut modes = indexed(merged(self.flat()));
        modes.sort_by_key(|mode| mode.1);
        let mut covered = 1;
        let mut inverse = Vec::new();
        for (s, d, index) in modes {
            if d == covered {
                inverse.push((s, index));
                covered = end(s, d)?;
            }
        }
        Layout::from_flat(&merged(inverse))
    }

    /// `R` with `R(A(i)) = i` for every index `i`; `A` must not repeat an
    /// offset. Offsets that `A` leaves out may map anywhere.
    ///
    /// ```
    /// use openwork::Layout;
    /// let layout: Layout = "(4,2):(1,5)".parse()?;
    /// assert_eq!(layout.left_inverse()?.to_string(), "(5,2):(1,4)");
    /// # Ok::<(), openwork::layout::LayoutError>(())
    /// ```
    pub fn left_inverse(&self) -> Result<Layout, LayoutError> {
        self.refuse_negative("left_inverse")?;
        let modes = indexed(merged(self.flat()));
        if let Some((s, d, _)) = modes.iter().find(|mode| mode.1 == 0) {
            return Err(LayoutError::Broadcast { mode: format!("{s}:{d}"), layout: clip(self) });
        }
        let modes = self.by_stride("left_inverse", modes.into_iter())?;
        // Between stride d_k and the next, the offset divided by d_k is the
        // digit of mode k: one mode d_{k+1}/d_k:index_k, and d_0:0 below.
        let mut inverse = Vec::new();
        let mut uneven = None;
        if let Some(&(_, d, _)) = modes.first() {
            inverse.push((d, 0));
        }
        for (k, &(s, d, index)) in modes.iter().enumerate() {
            let above = modes.get(k + 1).map(|mode| mode.1);
            if let Some(high) = above.filter(|high| high % d != 0) {
                uneven = Some((d, high));
            }
            inverse.push((above.map_or(s, |high| high / d), index));
        }
        let inverse = Layout::from_flat(&merged(inverse))?;
        // Rounded down, the digits may still be right: (2,2):(2,5) has the
        // left inverse (2,4):(0,1). Try every index, if they are few.
        if let Some((low, high)) = uneven {
            let short = self.coalesce()?;
            let undoes = |i| short.at(i).and_then(|offset| inverse.at(offset)) == Ok(i);
            if self.size() > MAX_TRIED || !(0..self.size()).all(undoes) {
                return Err(LayoutError::NoInverse { low, high, layout: clip(self) });
            }
        }
        Ok(inverse)
    }

    /// Modes (size, stride, _) by rising stride; refused where one starts
    /// before the one below it ends. Otherwise all sums of them differ.
    fn by_stride(
        &self,
        op: &'static str,
        modes: impl Iterator<Item = (i64, i64, i64)>,
    ) -> Result<Vec<(i64, i64, i64)>, LayoutError> {
        let mut modes: Vec<_> = modes.collect();
        modes.sort_by_key(|mode| mode.1);
        for pair in modes.windows(2) {
            let (low, high) = (pair[0], pair[1]);
            let extent = end(low.0, low.1)?;
            if high.1 < extent {
                return Err(LayoutError::Overlap {
                    op,
                    low: format!("{}:{}", low.0, low.1),
                    high: format!("{}:{}", high.0, high.1),
                    layout: clip(self),
                    stride: high.1,
                    extent,
                });
            }
        }
        Ok(modes)
    }
}

/// Each leaf with the index at which it starts counting.
fn indexed(flat: Vec<(i64, i64)>) -> Vec<(i64, i64, i64)> {
    let mut index = 1;
    let with_index = |(s, d)| {
        let start = index;
        index *= s; // fits: it divides the size
        (s, d, start)
    };
    flat.into_iter().map(with_index).collect()
}

/// Where the mode `s:d` ends.
fn end(s: i64, d: i64) -> Result<i64, LayoutError> {
    s.checked_mul(d).ok_or_else(|| LayoutError::overflow(format_args!("the extent of {s}:{d}")))
}
