//! Layout algebra: functions from coordinates to offsets, written as a shape
//! and a stride, and the ways to combine them.
//!
//! A [`Layout`] `(4,8):(1,4)` maps the coordinate `(i,j)` to `i*1 + j*4`. Its
//! shape and stride nest alike, so one layout has coordinates of several
//! kinds: a single index (which unfolds with the leftmost mode fastest), one
//! index for each mode, or the full nested tuple.
//!
//! Written without strides, a layout is *column-major* here: `(4,8)` means
//! `(4,8):(1,4)`. (The pattern language reads views and domains without
//! strides as row-major; this module never does.)
//!
//! The operations are those of CuTe, with one difference: an operation whose
//! defining equation no layout satisfies is refused. It never returns a
//! layout that is right only for some coordinates.
//!
//! | operation | defining equation |
//! |---|---|
//! | [`coalesce`](Layout::coalesce) | `R(i) = A(i)`, fewest modes |
//! | [`composition`](Layout::composition) | `R(c) = A(B(c))` |
//! | [`complement`](Layout::complement) | `R` is ordered, and meets `A` only in 0 |
//! | [`right_inverse`](Layout::right_inverse) | `A(R(i)) = i` |
//! | [`left_inverse`](Layout::left_inverse) | `R(A(i)) = i` |
//! | [`logical_divide`](Layout::logical_divide) | `A o (B, complement(B, size A))` |
//! | [`logical_product`](Layout::logical_product) | `(A, complement(A, size A * cosize B) o B)` |
//!
//! [`ops::OPS`] lists every operation by name.

mod coalesce;
mod composition;
mod coord;
mod divide;
mod error;
mod inverse;
pub mod ops;
mod parse;
mod product;
mod strided;
mod tiler;
mod tuple;

#[cfg(test)]
mod laws;
#[cfg(test)]
mod refusals;

pub use coord::Coord;
pub use error::LayoutError;
pub use parse::{MAX_DEPTH, MAX_ENTRIES, MAX_TEXT};
pub use strided::{StridedIter, StridedLayout};
pub use tiler::Tiler;
pub use tuple::IntTuple;

use coalesce::merged;
use error::clip;
use std::fmt;

/// The maximum number of offsets that [`Layout::image`] lists.
pub const MAX_IMAGE: i64 = 1 << 24;

/// A function from coordinates to offsets. Holds, once built:
///
/// 1. shape and stride are congruent;
/// 2. every size is at least 1;
/// 3. size and cosize fit in 64 bits, and with them every offset of the domain.
///
/// The stride of a mode of size 1 is arbitrary: it prints as 0, and layouts
/// that differ only there are equal.
///
/// ```
/// use openwork::Layout;
/// let layout: Layout = "(2,(3,4)):(12,(4,1))".parse()?;
/// assert_eq!((layout.size(), layout.cosize()), (24, 24));
/// assert_eq!(layout.at(5)?, 12 + 2 * 4);
/// assert_eq!(layout.eval(&"(1,(2,0))".parse()?)?, 20);
/// assert_eq!(layout.to_string(), "(2,(3,4)):(12,(4,1))");
/// # Ok::<(), openwork::layout::LayoutError>(())
/// ```
#[derive(Clone, Debug)]
pub struct Layout {
    shape: IntTuple,
    stride: IntTuple,
}

impl Layout {
    /// The layout of this shape and stride.
    pub fn new(shape: IntTuple, stride: IntTuple) -> Result<Self, LayoutError> {
        // Invariant 1.
        if !shape.congruent(&stride) {
            return Err(LayoutError::Profile { shape: clip(&shape), stride: clip(&stride) });
        }
        // Invariant 2.
        if let Some(size) = shape.below_one() {
            return Err(LayoutError::Size { shape: clip(&shape), size });
        }
        // Invariant 3. The sum of the `s - 1` is below the product of the `s`,
        // so the sum below stays under 2^63 * 2^63.
        shape.size()?;
        let layout = Self { shape, stride };
        let reach: i128 =
            layout.flat().iter().map(|&(s, d)| i128::from(s - 1) * i128::from(d).abs()).sum();
        if reach >= i128::from(i64::MAX) {
            return Err(LayoutError::overflow(format_args!("the cosize of {}", clip(&layout))));
        }
        Ok(layout)
    }

    /// The compact layout of this shape with the leftmost mode fastest.
    pub fn column_major(shape: IntTuple) -> Result<Self, LayoutError> {
        if let Some(size) = shape.below_one() {
            return Err(LayoutError::Size { shape: clip(&shape), size });
        }
        let stride = shape.prefix_product()?;
        Self::new(shape, stride)
    }

    /// The compact layout of this shape with the rightmost mode fastest.
    pub fn row_major(shape: IntTuple) -> Result<Self, LayoutError> {
        if let Some(size) = shape.below_one() {
            return Err(LayoutError::Size { shape: clip(&shape), size });
        }
        let stride = shape.reversed().prefix_product()?.reversed();
        Self::new(shape, stride)
    }

    /// The layout whose modes are these layouts.
    pub fn from_modes(modes: impl IntoIterator<Item = Layout>) -> Result<Self, LayoutError> {
        let (shapes, strides): (Vec<_>, Vec<_>) =
            modes.into_iter().map(|mode| (mode.shape, mode.stride)).unzip();
        Self::new(IntTuple::Tuple(shapes), IntTuple::Tuple(strides))
    }

    /// The layout of these leaves: `1:0` for none, an integer for one.
    pub(crate) fn from_flat(flat: &[(i64, i64)]) -> Result<Self, LayoutError> {
        match flat {
            [] => Ok(Self::one()),
            [(s, d)] => Self::new(IntTuple::Int(*s), IntTuple::Int(*d)),
            _ => Self::new(
                flat.iter().map(|leaf| leaf.0).collect(),
                flat.iter().map(|leaf| leaf.1).collect(),
            ),
        }
    }

    /// The same function of the index without inner brackets: `((2,3),4):((1,2),6)`
    /// becomes `(2,3,4):(1,2,6)`.
    pub fn flatten(&self) -> Self {
        Self { shape: self.shape.flatten(), stride: self.stride.flatten() }
    }

    /// The length of the contiguous run that starts at offset 0.
    pub(crate) fn run(&self) -> i64 {
        match merged(self.sorted().flat()).first() {
            Some(&(size, 1)) => size,
            _ => 1,
        }
    }

    /// The leaves by ascending stride without those of size 1: the same offsets in another
    /// order. Nested layouts with the same offsets are equal once sorted and coalesced (see
    /// [`is_nested`](Self::is_nested)).
    pub(crate) fn sorted(&self) -> Self {
        let mut flat = self.flat();
        flat.retain(|leaf| leaf.0 > 1);
        flat.sort_by_key(|&(s, d)| (d, s));
        let (shape, stride): (Vec<_>, Vec<_>) = flat.into_iter().unzip();
        // The invariants are those of `self`.
        Self { shape: shape.into_iter().collect(), stride: stride.into_iter().collect() }
    }

    /// Whether each stride exceeds the largest sum of the smaller ones, so that offsets are
    /// distinct and ascend lexicographically from the largest stride on.
    pub(crate) fn is_nested(&self) -> bool {
        let Self { shape, stride } = self.sorted();
        StridedLayout::from(&Self { shape: shape.reversed(), stride: stride.reversed() }).rises()
    }

    /// `1:0`.
    pub(crate) fn one() -> Self {
        Self { shape: IntTuple::Int(1), stride: IntTuple::Int(0) }
    }

    /// The sizes.
    pub fn shape(&self) -> &IntTuple {
        &self.shape
    }

    /// The strides as given, also those of size-1 modes.
    pub fn stride(&self) -> &IntTuple {
        &self.stride
    }

    /// The number of modes; a layout of integers has one.
    pub fn rank(&self) -> usize {
        self.shape.rank()
    }

    /// The modes as layouts; a layout of integers is its own single mode.
    pub fn modes(&self) -> Vec<Layout> {
        let pairs = self.shape.modes().iter().zip(self.stride.modes());
        pairs.map(|(s, d)| Self { shape: s.clone(), stride: d.clone() }).collect()
    }

    /// The leaves as (size, stride) from left to right.
    pub fn flat(&self) -> Vec<(i64, i64)> {
        self.shape.leaves().into_iter().zip(self.stride.leaves()).collect()
    }

    /// The number of coordinates.
    pub fn size(&self) -> i64 {
        self.shape.leaves().iter().product() // fits: invariant 3
    }

    /// One more than the largest distance from offset 0 that the strides
    /// add up to, taken without sign: `4:-1` has cosize 4.
    pub fn cosize(&self) -> i64 {
        // Fits: invariant 3. A size-1 leaf may have any stride, so skip it before `abs`.
        1 + self
            .flat()
            .iter()
            .filter(|leaf| leaf.0 > 1)
            .map(|&(s, d)| (s - 1) * d.abs())
            .sum::<i64>()
    }

    /// The offsets of all indices in order, up to [`MAX_IMAGE`] of them.
    pub fn image(&self) -> Result<Vec<i64>, LayoutError> {
        let size = self.size();
        if size > MAX_IMAGE {
            return Err(LayoutError::Image { layout: clip(self), size, limit: MAX_IMAGE });
        }
        // Leaf by leaf: every offset so far, moved by each multiple of the stride.
        let mut offsets = vec![0_i64];
        for (s, d) in self.flat() {
            let before = offsets.len();
            for step in 1..s {
                for i in 0..before {
                    offsets.push(offsets[i] + step * d); // fits: invariant 3
                }
            }
        }
        Ok(offsets)
    }

    /// The layout as printed: strides of size-1 leaves are 0.
    fn printed_stride(&self) -> IntTuple {
        fn normal(shape: &IntTuple, stride: &IntTuple) -> IntTuple {
            match (shape, stride) {
                (IntTuple::Int(1), _) => IntTuple::Int(0),
                (IntTuple::Tuple(s), IntTuple::Tuple(d)) => {
                    s.iter().zip(d).map(|(s, d)| normal(s, d)).collect()
                }
                _ => stride.clone(),
            }
        }
        normal(&self.shape, &self.stride)
    }

    /// Rejects negative strides for `op`.
    pub(crate) fn refuse_negative(&self, op: &'static str) -> Result<(), LayoutError> {
        match self.flat().into_iter().find(|&(s, d)| s > 1 && d < 0) {
            Some((_, stride)) => {
                Err(LayoutError::NegativeStride { op, stride, layout: clip(self) })
            }
            None => Ok(()),
        }
    }
}

impl PartialEq for Layout {
    fn eq(&self, other: &Self) -> bool {
        self.shape == other.shape && self.printed_stride() == other.printed_stride()
    }
}

impl Eq for Layout {}

impl fmt::Display for Layout {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}:{}", self.shape, self.printed_stride())
    }
}
