//! Fewer modes for the same function: coalesce, coalesce by profile, filter.

use super::{IntTuple, Layout, LayoutError};

impl Layout {
    /// The same function of the index with the fewest modes: `R(i) = A(i)` on
    /// `[0, size)`. Modes of size 1 go, and `s0:d0` followed by `s1:d1`
    /// merges to `s0*s1:d0` where `s0*d0 = d1`.
    ///
    /// ```
    /// use openwork::Layout;
    /// let layout: Layout = "(2,(1,6)):(1,(6,2))".parse()?;
    /// assert_eq!(layout.coalesce()?.to_string(), "12:1");
    /// # Ok::<(), openwork::layout::LayoutError>(())
    /// ```
    pub fn coalesce(&self) -> Result<Layout, LayoutError> {
        self.refuse_negative("coalesce")?;
        Layout::from_flat(&merged(self.flat()))
    }

    /// Coalesces mode by mode where `profile` is a tuple, and wholly where it
    /// is an integer. Modes past the profile's are kept as they are.
    ///
    /// ```
    /// use openwork::Layout;
    /// let layout: Layout = "(2,(1,6)):(1,(6,2))".parse()?;
    /// assert_eq!(layout.coalesce_profile(&"(1,1)".parse()?)?.to_string(), "(2,6):(1,2)");
    /// # Ok::<(), openwork::layout::LayoutError>(())
    /// ```
    pub fn coalesce_profile(&self, profile: &IntTuple) -> Result<Layout, LayoutError> {
        let IntTuple::Tuple(profiles) = profile else { return self.coalesce() };
        if profiles.len() > self.rank() {
            return Err(LayoutError::rank("profile", profiles.len(), self));
        }
        let mut modes = self.modes();
        for (mode, profile) in modes.iter_mut().zip(profiles) {
            *mode = mode.coalesce_profile(profile)?;
        }
        Layout::from_modes(modes)
    }

    /// The same offsets without repetition by stride 0: modes of size 1 or
    /// stride 0 go, and the rest coalesces.
    pub fn filter(&self) -> Result<Layout, LayoutError> {
        self.refuse_negative("filter")?;
        let mut flat = self.flat();
        flat.retain(|leaf| leaf.1 != 0);
        Layout::from_flat(&merged(flat))
    }
}

/// The leaves without those of size 1, neighbors merged where they can be.
pub(super) fn merged(flat: Vec<(i64, i64)>) -> Vec<(i64, i64)> {
    let mut result: Vec<(i64, i64)> = Vec::new();
    for (s, d) in flat {
        match result.last_mut() {
            _ if s == 1 => {}
            // The merged size divides the layout's, so it fits.
            Some(last) if follows(*last, d) => last.0 *= s,
            _ => result.push((s, d)),
        }
    }
    result
}

/// Whether stride `d` goes on where `leaf` ends: `s0*d0 = d`.
pub(super) fn follows(leaf: (i64, i64), d: i64) -> bool {
    i128::from(leaf.0) * i128::from(leaf.1) == i128::from(d)
}
