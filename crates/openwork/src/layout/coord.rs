//! Coordinates, evaluation and slicing.

use super::tuple::list;
use super::{IntTuple, Layout, LayoutError};
use std::fmt;

/// A coordinate of a layout: an index, `_` to keep a whole mode, or a tuple
/// of these for each mode.
///
/// ```
/// use openwork::Layout;
/// let layout: Layout = "(4,8):(1,4)".parse()?;
/// let (row, offset) = layout.slice(&"(3,_)".parse()?)?;
/// assert_eq!((row.to_string().as_str(), offset), ("(8):(4)", 3));
/// # Ok::<(), openwork::layout::LayoutError>(())
/// ```
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Coord {
    /// `_`: the whole mode.
    Keep,
    /// An index into the mode, leftmost leaf fastest.
    Int(i64),
    /// A coordinate for each mode.
    Tuple(Vec<Coord>),
}

impl Coord {
    fn keeps(&self) -> bool {
        match self {
            Self::Keep => true,
            Self::Int(_) => false,
            Self::Tuple(modes) => modes.iter().any(Self::keeps),
        }
    }
}

impl Layout {
    /// The offset of a coordinate. An index past the end of a mode extends
    /// the mode's last leaf.
    pub fn eval(&self, coord: &Coord) -> Result<i64, LayoutError> {
        if coord.keeps() {
            return Err(LayoutError::Kept);
        }
        offset(coord, self.shape(), self.stride())
    }

    /// The offset of the index `i`.
    pub fn at(&self, i: i64) -> Result<i64, LayoutError> {
        self.eval(&Coord::Int(i))
    }

    /// The layout of the modes that `coord` keeps with `_`, as a flat list of
    /// them, and the offset of the rest.
    pub fn slice(&self, coord: &Coord) -> Result<(Layout, i64), LayoutError> {
        let at = offset(coord, self.shape(), self.stride())?;
        let (mut shape, mut stride) = (Vec::new(), Vec::new());
        kept(coord, self.shape(), &mut shape);
        kept(coord, self.stride(), &mut stride);
        Ok((Layout::new(IntTuple::Tuple(shape), IntTuple::Tuple(stride))?, at))
    }
}

/// The offset of `coord`, with 0 in place of `_`.
fn offset(coord: &Coord, shape: &IntTuple, stride: &IntTuple) -> Result<i64, LayoutError> {
    let overflow = || LayoutError::overflow(format_args!("the offset of coordinate {coord}"));
    match (coord, shape, stride) {
        (Coord::Keep, ..) => Ok(0),
        (Coord::Int(i), ..) if *i < 0 => Err(LayoutError::NegativeCoordinate { coord: *i }),
        (Coord::Int(i), IntTuple::Int(_), IntTuple::Int(d)) => {
            i.checked_mul(*d).ok_or_else(overflow)
        }
        (Coord::Int(i), IntTuple::Tuple(_), IntTuple::Tuple(_)) => {
            let (sizes, strides) = (shape.leaves(), stride.leaves());
            let (mut rest, mut sum) = (*i, 0_i64);
            for (at, (s, d)) in sizes.iter().zip(strides).enumerate() {
                let digit = if at + 1 == sizes.len() { rest } else { rest % s };
                rest /= s;
                sum = digit
                    .checked_mul(d)
                    .and_then(|step| sum.checked_add(step))
                    .ok_or_else(overflow)?;
            }
            // Without leaves there is one element, and nothing to extend.
            if sizes.is_empty() && rest > 0 {
                return Err(LayoutError::coordinate(coord, shape));
            }
            Ok(sum)
        }
        (Coord::Tuple(coords), IntTuple::Tuple(sizes), IntTuple::Tuple(strides))
            if coords.len() == sizes.len() =>
        {
            let mut sum = 0_i64;
            for ((c, s), d) in coords.iter().zip(sizes).zip(strides) {
                sum = sum.checked_add(offset(c, s, d)?).ok_or_else(overflow)?;
            }
            Ok(sum)
        }
        _ => Err(LayoutError::coordinate(coord, shape)),
    }
}

/// Appends the parts of `of` that `coord` keeps; the two fit, as `offset` checked.
fn kept(coord: &Coord, of: &IntTuple, parts: &mut Vec<IntTuple>) {
    match (coord, of) {
        (Coord::Keep, _) => parts.push(of.clone()),
        (Coord::Tuple(coords), IntTuple::Tuple(modes)) => {
            coords.iter().zip(modes).for_each(|(c, mode)| kept(c, mode, parts));
        }
        _ => {}
    }
}

impl From<i64> for Coord {
    fn from(index: i64) -> Self {
        Self::Int(index)
    }
}

impl From<&IntTuple> for Coord {
    fn from(tuple: &IntTuple) -> Self {
        match tuple {
            IntTuple::Int(index) => Self::Int(*index),
            IntTuple::Tuple(modes) => Self::Tuple(modes.iter().map(Self::from).collect()),
        }
    }
}

impl fmt::Display for Coord {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Keep => f.write_str("_"),
            Self::Int(index) => write!(f, "{index}"),
            Self::Tuple(modes) => list(f, "(", modes, ")"),
        }
    }
}
