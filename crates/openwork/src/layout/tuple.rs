//! Nested tuples of integers: shapes, strides and coordinates.

use super::LayoutError;
use super::error::clip;
use std::fmt;

/// An integer, or a tuple of integer tuples.
///
/// `(4)`, a tuple of rank 1, is not `4`.
///
/// ```
/// use openwork::IntTuple;
/// let shape: IntTuple = "(2,(3,4))".parse()?;
/// assert_eq!((shape.size()?, shape.rank(), shape.depth()), (24, 2, 2));
/// assert_eq!(shape.flatten().to_string(), "(2,3,4)");
/// # Ok::<(), openwork::layout::LayoutError>(())
/// ```
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub enum IntTuple {
    /// A leaf.
    Int(i64),
    /// A tuple, possibly empty.
    Tuple(Vec<IntTuple>),
}

use IntTuple::{Int, Tuple};

impl IntTuple {
    /// The product of the leaves; 1 for an empty tuple.
    pub fn size(&self) -> Result<i64, LayoutError> {
        match self {
            Int(n) => Ok(*n),
            Tuple(modes) => modes.iter().try_fold(1_i64, |product, mode| {
                let size = mode.size()?;
                product.checked_mul(size).ok_or_else(|| {
                    LayoutError::overflow(format_args!("the size of {}", clip(self)))
                })
            }),
        }
    }

    /// The number of modes; an integer has one.
    pub fn rank(&self) -> usize {
        self.modes().len()
    }

    /// The levels of brackets; an integer has none.
    pub fn depth(&self) -> usize {
        match self {
            Int(_) => 0,
            Tuple(modes) => 1 + modes.iter().map(Self::depth).max().unwrap_or(0),
        }
    }

    /// The modes; an integer is its own single mode.
    pub fn modes(&self) -> &[IntTuple] {
        match self {
            Int(_) => std::slice::from_ref(self),
            Tuple(modes) => modes,
        }
    }

    /// The leaves from left to right.
    pub fn leaves(&self) -> Vec<i64> {
        fn collect(tuple: &IntTuple, leaves: &mut Vec<i64>) {
            match tuple {
                Int(n) => leaves.push(*n),
                Tuple(modes) => modes.iter().for_each(|mode| collect(mode, leaves)),
            }
        }
        let mut leaves = Vec::new();
        collect(self, &mut leaves);
        leaves
    }

    /// The tuple of the leaves: `2` becomes `(2)`.
    pub fn flatten(&self) -> IntTuple {
        self.leaves().into_iter().collect()
    }

    /// The strides of the compact column-major layout of this shape:
    /// `(3,(2,4))` becomes `(1,(3,6))`.
    pub fn prefix_product(&self) -> Result<IntTuple, LayoutError> {
        // `None` once the product left 64 bits: fatal only if it is needed again.
        fn scan(tuple: &IntTuple, product: &mut Option<i64>) -> Option<IntTuple> {
            match tuple {
                Int(n) => {
                    let before = (*product)?;
                    *product = before.checked_mul(*n);
                    Some(Int(before))
                }
                Tuple(modes) => {
                    modes.iter().map(|mode| scan(mode, product)).collect::<Option<_>>().map(Tuple)
                }
            }
        }
        scan(self, &mut Some(1)).ok_or_else(|| {
            LayoutError::overflow(format_args!("the prefix product of {}", clip(self)))
        })
    }

    /// The sum of the products of matching leaves: `(1,2)` and `(3,2)` give 7.
    pub fn inner_product(&self, other: &IntTuple) -> Result<i64, LayoutError> {
        if !self.congruent(other) {
            return Err(LayoutError::Operands {
                op: "inner_product",
                a: clip(self),
                b: clip(other),
            });
        }
        let mut sum = 0_i64;
        for (a, b) in self.leaves().into_iter().zip(other.leaves()) {
            sum =
                a.checked_mul(b).and_then(|product| sum.checked_add(product)).ok_or_else(|| {
                    LayoutError::overflow(format_args!(
                        "the inner product of {} and {}",
                        clip(self),
                        clip(other)
                    ))
                })?;
        }
        Ok(sum)
    }

    /// This shape with its first `other` elements made one: sizes are divided
    /// from the left, and a size that `other` exceeds becomes 1 while the rest
    /// of `other` goes on to the next. `(3,4)` by `6` is `(1,2)`.
    pub fn shape_div(&self, other: &IntTuple) -> Result<IntTuple, LayoutError> {
        match (self, other) {
            (Tuple(a), Tuple(b)) if a.len() == b.len() => {
                a.iter().zip(b).map(|(a, b)| a.shape_div(b)).collect::<Result<_, _>>().map(Tuple)
            }
            (Tuple(_), Tuple(_)) => {
                Err(LayoutError::Operands { op: "shape_div", a: clip(self), b: clip(other) })
            }
            (Tuple(modes), Int(by)) => {
                let mut by = *by;
                let divide = |mode: &IntTuple| {
                    let quotient = mode.shape_div(&Int(by))?;
                    by = divide_size(by, mode.size()?)?;
                    Ok(quotient)
                };
                modes.iter().map(divide).collect::<Result<_, _>>().map(Tuple)
            }
            (Int(a), _) => Ok(Int(divide_size(*a, other.size()?)?)),
        }
    }

    /// Whether every coordinate of this shape is one of `other`: an integer
    /// fits any shape of its size, a tuple fits mode by mode.
    pub fn compatible(&self, other: &IntTuple) -> bool {
        match (self, other) {
            (Int(size), _) => other.size().is_ok_and(|other| other == *size),
            (Tuple(_), Int(_)) => false,
            (Tuple(a), Tuple(b)) => {
                a.len() == b.len() && a.iter().zip(b).all(|(a, b)| a.compatible(b))
            }
        }
    }

    /// Whether the two have the same brackets.
    pub fn congruent(&self, other: &IntTuple) -> bool {
        match (self, other) {
            (Int(_), Int(_)) => true,
            (Tuple(a), Tuple(b)) => {
                a.len() == b.len() && a.iter().zip(b).all(|(a, b)| a.congruent(b))
            }
            _ => false,
        }
    }

    /// The natural coordinate in `shape` of this index, leftmost mode
    /// fastest. The last leaf is not reduced, so indices past the end extend
    /// it. A tuple is taken mode by mode.
    pub fn idx2crd(&self, shape: &IntTuple) -> Result<IntTuple, LayoutError> {
        unfold(self, shape, false)
    }

    /// As [`idx2crd`](Self::idx2crd) with the rightmost mode fastest; the
    /// first leaf is not reduced.
    pub fn idx2crd_rowmajor(&self, shape: &IntTuple) -> Result<IntTuple, LayoutError> {
        unfold(self, shape, true)
    }

    /// The modes from right to left, on every level.
    pub(crate) fn reversed(&self) -> IntTuple {
        match self {
            Int(n) => Int(*n),
            Tuple(modes) => modes.iter().rev().map(Self::reversed).collect(),
        }
    }

    /// The same brackets around other leaves, of which there are as many.
    pub(crate) fn with_leaves(&self, leaves: &mut impl Iterator<Item = i64>) -> IntTuple {
        match self {
            Int(n) => Int(leaves.next().unwrap_or(*n)),
            Tuple(modes) => modes.iter().map(|mode| mode.with_leaves(leaves)).collect(),
        }
    }

    /// The first leaf below 1, if there is one.
    pub(crate) fn below_one(&self) -> Option<i64> {
        self.leaves().into_iter().find(|&size| size < 1)
    }
}

/// `ceil(a / b)` where one divides the other.
fn divide_size(a: i64, b: i64) -> Result<i64, LayoutError> {
    if a < 1 || b < 1 || (a % b != 0 && b % a != 0) {
        return Err(LayoutError::Indivisible { a, b });
    }
    Ok((a / b).max(1))
}

fn unfold(index: &IntTuple, shape: &IntTuple, rowmajor: bool) -> Result<IntTuple, LayoutError> {
    if let Some(size) = shape.below_one() {
        return Err(LayoutError::Size { shape: clip(shape), size });
    }
    match (index, shape) {
        (Int(i), _) if *i < 0 => Err(LayoutError::NegativeCoordinate { coord: *i }),
        (Int(_), Int(_)) => Ok(index.clone()),
        (Int(i), Tuple(modes)) => {
            let mut rest = *i;
            let mut crd = vec![Int(0); modes.len()];
            for step in 0..modes.len() {
                let at = if rowmajor { modes.len() - 1 - step } else { step };
                let last = step + 1 == modes.len();
                let size = modes[at].size()?;
                crd[at] =
                    unfold(&Int(if last { rest } else { rest % size }), &modes[at], rowmajor)?;
                rest = if last { 0 } else { rest / size };
            }
            // Only an empty tuple, which has no last mode, leaves a rest.
            if rest == 0 { Ok(Tuple(crd)) } else { Err(LayoutError::coordinate(index, shape)) }
        }
        (Tuple(indices), Tuple(modes)) if indices.len() == modes.len() => indices
            .iter()
            .zip(modes)
            .map(|(i, s)| unfold(i, s, rowmajor))
            .collect::<Result<_, _>>()
            .map(Tuple),
        (Tuple(_), _) => Err(LayoutError::coordinate(index, shape)),
    }
}

impl From<i64> for IntTuple {
    fn from(n: i64) -> Self {
        Int(n)
    }
}

impl FromIterator<i64> for IntTuple {
    fn from_iter<I: IntoIterator<Item = i64>>(leaves: I) -> Self {
        Tuple(leaves.into_iter().map(Int).collect())
    }
}

impl FromIterator<usize> for IntTuple {
    /// # Panics
    ///
    /// If a leaf is beyond 63 bits.
    fn from_iter<I: IntoIterator<Item = usize>>(leaves: I) -> Self {
        leaves.into_iter().map(|n| i64::try_from(n).expect("a leaf has 63 bits")).collect()
    }
}

impl FromIterator<IntTuple> for IntTuple {
    fn from_iter<I: IntoIterator<Item = IntTuple>>(modes: I) -> Self {
        Tuple(modes.into_iter().collect())
    }
}

impl fmt::Display for IntTuple {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Int(n) => write!(f, "{n}"),
            Tuple(modes) => list(f, "(", modes, ")"),
        }
    }
}

/// Writes `items` between brackets with commas and no spaces.
pub(crate) fn list<T: fmt::Display>(
    f: &mut fmt::Formatter<'_>,
    open: &str,
    items: &[T],
    close: &str,
) -> fmt::Result {
    f.write_str(open)?;
    for (i, item) in items.iter().enumerate() {
        if i > 0 {
            f.write_str(",")?;
        }
        write!(f, "{item}")?;
    }
    f.write_str(close)
}
