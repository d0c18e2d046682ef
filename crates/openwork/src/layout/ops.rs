//! Every operation of the algebra by name, from text to a value.
//!
//! The command's calculator, its batch mode, its help and the shared test
//! cases all read [`OPS`]. To add an operation, list it here.

use super::{Coord, IntTuple, Layout, LayoutError, Tiler};
use crate::suggest::distance;

/// The result of an operation.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Value {
    /// A number.
    Int(i64),
    /// A truth value.
    Bool(bool),
    /// A tuple or a layout, as text.
    Text(String),
    /// A list of offsets.
    List(Vec<i64>),
    /// A layout, as text, and its offset.
    Slice(String, i64),
}

/// An operation of the algebra.
pub struct Op {
    /// Its name.
    pub name: &'static str,
    /// The names of its inputs, in order.
    pub inputs: &'static [&'static str],
    /// One line of help.
    pub summary: &'static str,
    /// Inputs to try it with.
    pub example: &'static [&'static str],
    /// Reads one text for each input and computes.
    run: fn(&[&str]) -> Result<Value, LayoutError>,
}

impl Op {
    /// Runs the operation on one text for each of its inputs.
    ///
    /// ```
    /// use openwork::layout::ops::{find, Value};
    /// let op = find("complement").unwrap();
    /// assert_eq!(op.run(&["4:1", "24"])?, Value::Text("6:4".into()));
    /// # Ok::<(), openwork::layout::LayoutError>(())
    /// ```
    ///
    /// # Panics
    ///
    /// If there is not one text per input.
    pub fn run(&self, texts: &[&str]) -> Result<Value, LayoutError> {
        assert_eq!(texts.len(), self.inputs.len(), "{} takes {:?}", self.name, self.inputs);
        (self.run)(texts)
    }
}

macro_rules! op {
    ($name:literal, [$($input:literal),*], [$($example:literal),*], $summary:literal, $run:expr) => {
        Op {
            name: $name,
            inputs: &[$($input),*],
            summary: $summary,
            example: &[$($example),*],
            run: $run,
        }
    };
}

/// Every operation.
#[rustfmt::skip]
pub const OPS: &[Op] = &[
    op!("parse", ["text"], ["(2,(3,4)):(12,(4,1))"],
        "a layout as it prints; without strides it is column-major", |t| text(layout(t[0])?)),
    op!("size", ["shape"], ["(2,(3,4))"],
        "the product of the sizes", |t| int(shape(t[0])?.size()?)),
    op!("rank", ["tuple"], ["(2,(3,4))"],
        "the number of modes", |t| count(shape(t[0])?.rank())),
    op!("depth", ["tuple"], ["(2,(3,4))"],
        "the levels of brackets", |t| count(shape(t[0])?.depth())),
    op!("flatten", ["tuple"], ["(2,(3,4))"],
        "the tuple of the leaves", |t| text(tuple(t[0])?.flatten())),
    op!("prefix_product", ["shape"], ["(3,(2,4))"],
        "compact column-major strides", |t| text_or_int(tuple(t[0])?.prefix_product()?)),
    op!("inner_product", ["a", "b"], ["(1,2)", "(3,2)"],
        "the sum of the products of leaves", |t| int(tuple(t[0])?.inner_product(&tuple(t[1])?)?)),
    op!("shape_div", ["a", "b"], ["(3,4)", "6"],
        "sizes divided from the left", |t| text_or_int(tuple(t[0])?.shape_div(&tuple(t[1])?)?)),
    op!("compatible", ["a", "b"], ["24", "(2,(3,4))"],
        "whether coordinates of a are coordinates of b", |t| truth(tuple(t[0])?.compatible(&tuple(t[1])?))),
    op!("congruent", ["a", "b"], ["(1,(1,1))", "(2,(3,4))"],
        "whether the brackets agree", |t| truth(tuple(t[0])?.congruent(&tuple(t[1])?))),
    op!("idx2crd", ["idx", "shape"], ["5", "(4,2,2)"],
        "the coordinate of an index, leftmost mode fastest", |t| text_or_int(tuple(t[0])?.idx2crd(&tuple(t[1])?)?)),
    op!("idx2crd_rowmajor", ["idx", "shape"], ["13", "(4,8)"],
        "the coordinate of an index, rightmost mode fastest", |t| text_or_int(tuple(t[0])?.idx2crd_rowmajor(&tuple(t[1])?)?)),
    op!("cosize", ["layout"], ["(4,8):(1,8)"],
        "one more than the largest offset", |t| int(layout(t[0])?.cosize())),
    op!("image", ["layout"], ["(2,3):(3,1)"],
        "the offsets of all indices in order", |t| Ok(Value::List(layout(t[0])?.image()?))),
    op!("eval", ["layout", "coord"], ["(4,8):(1,4)", "(3,2)"],
        "the offset of a coordinate", |t| int(layout(t[0])?.eval(&coord(t[1])?)?)),
    op!("slice_and_offset", ["layout", "coord"], ["(4,8):(1,4)", "(_,3)"],
        "the modes kept by _, and the offset of the rest", |t| {
            let (kept, offset) = layout(t[0])?.slice(&coord(t[1])?)?;
            Ok(Value::Slice(kept.to_string(), offset))
        }),
    op!("coalesce", ["layout"], ["(2,(1,6)):(1,(6,2))"],
        "the same function with the fewest modes", |t| text(layout(t[0])?.coalesce()?)),
    op!("coalesce_profile", ["layout", "profile"], ["(2,(1,6)):(1,(6,2))", "(1,1)"],
        "coalesce mode by mode", |t| text(layout(t[0])?.coalesce_profile(&tuple(t[1])?)?)),
    op!("filter", ["layout"], ["(4,2,3):(1,0,4)"],
        "without modes of size 1 or stride 0", |t| text(layout(t[0])?.filter()?)),
    op!("composition", ["a", "b"], ["(6,2):(8,2)", "(4,3):(3,1)"],
        "R(c) = A(B(c))", |t| text(layout(t[0])?.composition_tiler(&whole(t[1])?)?)),
    op!("composition_tiler", ["a", "tiler"], ["(12,(4,8)):(59,(13,1))", "<3:4,8:2>"],
        "composition mode by mode", |t| text(layout(t[0])?.composition_tiler(&tiler(t[1])?)?)),
    op!("complement", ["layout", "cotarget"], ["4:2", "24"],
        "the offsets left out, below the cotarget", |t| text(layout(t[0])?.complement(shape(t[1])?.size()?)?)),
    op!("right_inverse", ["layout"], ["(8,4):(4,1)"],
        "A(R(i)) = i", |t| text(layout(t[0])?.right_inverse()?)),
    op!("left_inverse", ["layout"], ["(4,2):(1,5)"],
        "R(A(i)) = i", |t| text(layout(t[0])?.left_inverse()?)),
    op!("logical_divide", ["a", "b"], ["(4,2,3):(2,1,8)", "4:2"],
        "(tile, rest)", |t| text(layout(t[0])?.logical_divide_tiler(&whole(t[1])?)?)),
    op!("logical_divide_tiler", ["a", "tiler"], ["(9,(4,8)):(59,(13,1))", "<3:3,(2,4):(1,8)>"],
        "((T0,R0),(T1,R1),..)", |t| text(layout(t[0])?.logical_divide_tiler(&tiler(t[1])?)?)),
    op!("zipped_divide", ["a", "tiler"], ["(8,6):(1,8)", "<4,2>"],
        "((T0,T1),(R0,R1,..))", |t| text(layout(t[0])?.zipped_divide(&tiler(t[1])?)?)),
    op!("tiled_divide", ["a", "tiler"], ["(8,6):(1,8)", "<4,2>"],
        "((T0,T1),R0,R1,..)", |t| text(layout(t[0])?.tiled_divide(&tiler(t[1])?)?)),
    op!("flat_divide", ["a", "tiler"], ["(8,6):(1,8)", "<4,2>"],
        "(T0,T1,R0,R1,..)", |t| text(layout(t[0])?.flat_divide(&tiler(t[1])?)?)),
    op!("logical_product", ["a", "b"], ["(2,2):(4,1)", "6:1"],
        "(block, copies)", |t| text(layout(t[0])?.logical_product_tiler(&whole(t[1])?)?)),
    op!("zipped_product", ["a", "tiler"], ["(2,5):(5,1)", "<3:5,4:6>"],
        "((A0,A1),(B0,B1,..))", |t| text(layout(t[0])?.zipped_product(&tiler(t[1])?)?)),
    op!("tiled_product", ["a", "tiler"], ["(2,5):(5,1)", "<3:5,4:6>"],
        "((A0,A1),B0,B1,..)", |t| text(layout(t[0])?.tiled_product(&tiler(t[1])?)?)),
    op!("flat_product", ["a", "tiler"], ["(2,5):(5,1)", "<3:5,4:6>"],
        "(A0,A1,B0,B1,..)", |t| text(layout(t[0])?.flat_product(&tiler(t[1])?)?)),
    op!("blocked_product", ["a", "b"], ["(2,5):(5,1)", "(3,4):(1,3)"],
        "((A0,B0),(A1,B1),..)", |t| text(layout(t[0])?.blocked_product(&layout(t[1])?)?)),
    op!("raked_product", ["a", "b"], ["(2,5):(5,1)", "(3,4):(1,3)"],
        "((B0,A0),(B1,A1),..)", |t| text(layout(t[0])?.raked_product(&layout(t[1])?)?)),
];

/// The operation of this name.
pub fn find(name: &str) -> Option<&'static Op> {
    OPS.iter().find(|op| op.name == name)
}

/// The three operations with the most similar names, nearest first.
///
/// ```
/// assert_eq!(openwork::layout::ops::nearest("colaesce")[0], "coalesce");
/// ```
pub fn nearest(name: &str) -> Vec<&'static str> {
    let mut names: Vec<_> = OPS.iter().map(|op| op.name).collect();
    names.sort_by_key(|known| distance(name, known));
    names.truncate(3);
    names
}

fn tuple(text: &str) -> Result<IntTuple, LayoutError> {
    text.parse()
}

/// A shape, or that of a layout.
fn shape(text: &str) -> Result<IntTuple, LayoutError> {
    if text.contains(':') { Ok(layout(text)?.shape().clone()) } else { tuple(text) }
}

fn layout(text: &str) -> Result<Layout, LayoutError> {
    text.parse()
}

fn coord(text: &str) -> Result<Coord, LayoutError> {
    text.parse()
}

fn tiler(text: &str) -> Result<Tiler, LayoutError> {
    text.parse()
}

/// A layout for the whole; written `<..>` or `_`, a tiler.
fn whole(text: &str) -> Result<Tiler, LayoutError> {
    if text.trim_start().starts_with(['<', '_']) {
        tiler(text)
    } else {
        layout(text).map(Tiler::Layout)
    }
}

fn int(n: i64) -> Result<Value, LayoutError> {
    Ok(Value::Int(n))
}

fn count(n: usize) -> Result<Value, LayoutError> {
    Ok(Value::Int(i64::try_from(n).expect("a tuple in memory has fewer than 2^63 modes")))
}

fn truth(b: bool) -> Result<Value, LayoutError> {
    Ok(Value::Bool(b))
}

fn text(value: impl std::fmt::Display) -> Result<Value, LayoutError> {
    Ok(Value::Text(value.to_string()))
}

/// A tuple is text, an integer is a number.
fn text_or_int(tuple: IntTuple) -> Result<Value, LayoutError> {
    match tuple {
        IntTuple::Int(n) => int(n),
        IntTuple::Tuple(_) => text(tuple),
    }
}
