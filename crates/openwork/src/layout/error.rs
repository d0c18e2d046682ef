//! Errors of the layout algebra.

use super::{IntTuple, Layout};

/// A layout that cannot be parsed, evaluated or combined.
///
/// Every message names what was asked, what was found and, where there is a
/// remedy, what to do.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum LayoutError {
    /// The text breaks the grammar.
    #[error("character {at} of \"{text}\": expected {expected}, found {found}")]
    Syntax {
        /// The position in characters, from 1.
        at: usize,
        /// The text around the place.
        text: String,
        /// What the grammar expects.
        expected: &'static str,
        /// What was found.
        found: String,
    },
    /// A number beyond 64 bits.
    #[error("character {at}: the number {digits} does not fit in 64 bits")]
    Number {
        /// The position in characters, from 1.
        at: usize,
        /// The digits, shortened if there are many.
        digits: String,
    },
    /// Brackets nested too deeply.
    #[error("character {at}: more than {limit} levels of brackets; write the tuple flatter")]
    TooDeep {
        /// The position in characters, from 1.
        at: usize,
        /// The limit.
        limit: usize,
    },
    /// The text is longer than any sensible layout.
    #[error("the text has {length} bytes, more than the limit of {limit}")]
    TooLong {
        /// Bytes given.
        length: usize,
        /// The limit.
        limit: usize,
    },
    /// More numbers than any sensible layout.
    #[error("character {at}: more than {limit} entries; merge modes or split the layout")]
    TooMany {
        /// The position in characters, from 1.
        at: usize,
        /// The limit.
        limit: usize,
    },
    /// Shape and stride have different profiles.
    #[error("shape {shape} and stride {stride} differ in profile; give one stride for each size")]
    Profile {
        /// The shape.
        shape: String,
        /// The stride.
        stride: String,
    },
    /// A size below one.
    #[error("shape {shape} has a mode of size {size}; sizes start at 1")]
    Size {
        /// The shape.
        shape: String,
        /// The first size below one.
        size: i64,
    },
    /// A number left the 64-bit range while computing.
    #[error("{what} does not fit in 64 bits")]
    Overflow {
        /// What was being computed.
        what: String,
    },
    /// Two tuples that should have one profile have two.
    #[error("{op} needs tuples of one profile, found {a} and {b}")]
    Operands {
        /// The operation.
        op: &'static str,
        /// The first tuple.
        a: String,
        /// The second tuple.
        b: String,
    },
    /// A shape cannot be divided.
    #[error("shape_div: neither of {a} and {b} divides the other")]
    Indivisible {
        /// The size to divide.
        a: i64,
        /// The size to divide by.
        b: i64,
    },
    /// A coordinate does not fit the shape.
    #[error("coordinate {coord} does not fit shape {shape}; give an index, or a tuple of its rank")]
    Coordinate {
        /// The coordinate, or the part of it that does not fit.
        coord: String,
        /// The shape, or the part of it that was addressed.
        shape: String,
    },
    /// A coordinate below zero.
    #[error("coordinate {coord} is negative; coordinates start at 0")]
    NegativeCoordinate {
        /// The coordinate.
        coord: i64,
    },
    /// `_` in a coordinate that must name one element.
    #[error("a coordinate with _ names no single element; use slice_and_offset to keep modes")]
    Kept,
    /// A list of offsets that would not fit in memory.
    #[error("the image of {layout} has {size} entries, more than the limit of {limit}")]
    Image {
        /// The layout.
        layout: String,
        /// Its size.
        size: i64,
        /// Entries listed at most.
        limit: i64,
    },
    /// A negative stride outside evaluation, cosize and slicing.
    #[error("{op} takes no negative strides, found {stride} in {layout}")]
    NegativeStride {
        /// The operation.
        op: &'static str,
        /// The first negative stride.
        stride: i64,
        /// The layout.
        layout: String,
    },
    /// A profile or tiler with more modes than the layout.
    #[error("the {what} has {given} modes, {layout} has {rank}; leave out the last {}", given - rank)]
    Rank {
        /// `profile` or `tiler`.
        what: &'static str,
        /// Modes of the profile or tiler.
        given: usize,
        /// The layout.
        layout: String,
        /// Its rank.
        rank: usize,
    },
    /// A leaf of B steps across a mode of A unevenly.
    #[error(
        "composition: {leaf} does not step evenly through mode {mode} of size {size} in {a}: {reason}"
    )]
    Uneven {
        /// The leaf of B.
        leaf: String,
        /// The mode of coalesced A, from 0.
        mode: usize,
        /// Its size.
        size: i64,
        /// A, coalesced.
        a: String,
        /// Which division failed, with its numbers.
        reason: String,
    },
    /// No layout is the composition: leaves of B together carry out of a mode of A.
    #[error(
        "composition: the modes of {b} together reach digit {reach} in mode {mode} of size {size} of {a} and carry, so no layout adds them"
    )]
    Carry {
        /// B.
        b: String,
        /// A, coalesced.
        a: String,
        /// The mode of coalesced A, from 0.
        mode: usize,
        /// Its size.
        size: i64,
        /// The largest sum of digits.
        reach: i128,
    },
    /// A complement or inverse of a layout that meets an offset twice, or might.
    #[error(
        "{op}: modes {low} and {high} of {layout} overlap; the stride {stride} should be at least {extent}"
    )]
    Overlap {
        /// The operation.
        op: &'static str,
        /// The mode of smaller stride.
        low: String,
        /// The mode of larger stride.
        high: String,
        /// The layout.
        layout: String,
        /// The larger stride.
        stride: i64,
        /// What the mode of smaller stride covers.
        extent: i64,
    },
    /// A left inverse of a layout that repeats offsets.
    #[error("left_inverse: mode {mode} of {layout} repeats its offset, so no inverse exists")]
    Broadcast {
        /// The mode of stride 0.
        mode: String,
        /// The layout.
        layout: String,
    },
    /// A left inverse that this algebra cannot write.
    #[error(
        "left_inverse: stride {low} does not divide stride {high} in {layout}, and no layout was found that undoes it"
    )]
    NoInverse {
        /// The smaller stride.
        low: i64,
        /// The larger stride.
        high: i64,
        /// The layout.
        layout: String,
    },
    /// A complement in fewer than one offset.
    #[error("complement: the cotarget is {cotarget}; it starts at 1")]
    Cotarget {
        /// The cotarget given.
        cotarget: i64,
    },
}

impl LayoutError {
    /// `what` left the 64-bit range.
    pub(crate) fn overflow(what: impl std::fmt::Display) -> Self {
        Self::Overflow { what: clip(what) }
    }

    /// `coord` cannot address `shape`.
    pub(crate) fn coordinate(coord: impl std::fmt::Display, shape: &IntTuple) -> Self {
        Self::Coordinate { coord: clip(coord), shape: clip(shape) }
    }

    /// A profile or tiler (`what`) with `given` modes is longer than `layout`.
    pub(crate) fn rank(what: &'static str, given: usize, layout: &Layout) -> Self {
        Self::Rank { what, given, layout: clip(layout), rank: layout.rank() }
    }
}

/// How much of a value an error repeats.
const CLIP: usize = 80;

/// The text of `value`, shortened so that an error stays readable.
pub(crate) fn clip(value: impl std::fmt::Display) -> String {
    let text = value.to_string();
    match text.char_indices().nth(CLIP) {
        None => text,
        Some((end, _)) => format!("{}..", &text[..end]),
    }
}
