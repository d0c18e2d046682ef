//! Tilers: a layout for each mode.

use super::tuple::list;
use super::{Layout, LayoutError};
use std::fmt;

/// How to treat the modes of a layout one by one, written `<3:4,_,8>`.
///
/// An integer `n` means `n:1`, and `_` keeps a mode. A layout alone treats
/// the whole. A tuple without strides is a tiler too: `(4,8)` is `<4,8>`, as
/// in CuTe; for the layout write its strides, `(4,8):(1,4)`.
///
/// ```
/// use openwork::layout::{Layout, Tiler};
/// let layout: Layout = "(12,(4,8)):(59,(13,1))".parse()?;
/// let tiler: Tiler = "<3:4,8:2>".parse()?;
/// assert_eq!(layout.composition_tiler(&tiler)?.to_string(), "(3,(2,4)):(236,(26,1))");
/// # Ok::<(), openwork::layout::LayoutError>(())
/// ```
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Tiler {
    /// `_`: keeps the mode.
    Keep,
    /// One layout for the whole.
    Layout(Layout),
    /// A tiler for each of the first modes.
    Modes(Vec<Tiler>),
}

impl Tiler {
    /// Applies `each` to the layouts of this tiler and the modes of `a` they
    /// stand at; the modes of `a` past the tiler's are kept.
    pub(crate) fn by_mode(
        &self,
        a: &Layout,
        each: &impl Fn(&Layout, &Layout) -> Result<Layout, LayoutError>,
    ) -> Result<Layout, LayoutError> {
        match self {
            Self::Keep => Ok(a.clone()),
            Self::Layout(b) => each(a, b),
            Self::Modes(tilers) => {
                let mut modes = paired(tilers, a)?;
                for (mode, tiler) in modes.iter_mut().zip(tilers) {
                    *mode = tiler.by_mode(mode, each)?;
                }
                Layout::from_modes(modes)
            }
        }
    }

    /// As [`by_mode`](Self::by_mode) where `each` yields two modes, gathered
    /// as `((first, first, ..), (second, second, .., kept modes ..))`.
    pub(crate) fn zipped(
        &self,
        a: &Layout,
        each: &impl Fn(&Layout, &Layout) -> Result<Layout, LayoutError>,
    ) -> Result<[Layout; 2], LayoutError> {
        match self {
            Self::Keep => Ok([Layout::one(), a.clone()]),
            Self::Layout(b) => {
                let pair = each(a, b)?.modes();
                Ok(pair.try_into().expect("divide and product have two modes"))
            }
            Self::Modes(tilers) => {
                let modes = paired(tilers, a)?;
                let (mut firsts, mut seconds) = (Vec::new(), Vec::new());
                for (mode, tiler) in modes.iter().zip(tilers) {
                    let [first, second] = tiler.zipped(mode, each)?;
                    firsts.push(first);
                    seconds.push(second);
                }
                seconds.extend_from_slice(&modes[tilers.len()..]);
                Ok([Layout::from_modes(firsts)?, Layout::from_modes(seconds)?])
            }
        }
    }
}

/// The modes of `a`, at least one for each tiler.
fn paired(tilers: &[Tiler], a: &Layout) -> Result<Vec<Layout>, LayoutError> {
    if tilers.len() > a.rank() {
        return Err(LayoutError::rank("tiler", tilers.len(), a));
    }
    Ok(a.modes())
}

impl FromIterator<i64> for Tiler {
    /// The tiler `<n0,n1,..>` of positive integers.
    ///
    /// # Panics
    ///
    /// If one is not.
    fn from_iter<I: IntoIterator<Item = i64>>(sizes: I) -> Self {
        let leaf = |n| Layout::from_flat(&[(n, 1)]).expect("the size of a tile is 1 or more");
        Self::Modes(sizes.into_iter().map(leaf).map(Self::Layout).collect())
    }
}

impl From<Layout> for Tiler {
    fn from(layout: Layout) -> Self {
        Self::Layout(layout)
    }
}

impl fmt::Display for Tiler {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Keep => f.write_str("_"),
            Self::Layout(layout) => write!(f, "{layout}"),
            Self::Modes(modes) => list(f, "<", modes, ">"),
        }
    }
}
