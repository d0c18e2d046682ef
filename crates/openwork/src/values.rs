//! The values of a tensor, dense or packed, in one of three storage types.

use half::{bf16, f16};
use rayon::prelude::*;
use std::fmt;
use std::ops::Range;

/// The storage type of weights.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum ValueType {
    /// 4 bytes.
    F32,
    /// 2 bytes, IEEE half precision.
    F16,
    /// 2 bytes, the upper half of an f32.
    Bf16,
}

impl ValueType {
    /// Bytes of one value.
    pub fn bytes(self) -> usize {
        if self == Self::F32 { 4 } else { 2 }
    }

    /// `f32`, `f16` or `bf16`.
    pub fn name(self) -> &'static str {
        match self {
            Self::F32 => "f32",
            Self::F16 => "f16",
            Self::Bf16 => "bf16",
        }
    }
}

impl fmt::Display for ValueType {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(self.name())
    }
}

/// Values of one type.
#[derive(Clone, Debug)]
pub enum Values {
    /// 4 bytes each.
    F32(Vec<f32>),
    /// 2 bytes each.
    F16(Vec<f16>),
    /// 2 bytes each.
    Bf16(Vec<bf16>),
}

/// Borrowed values of one type.
#[derive(Clone, Copy, Debug)]
pub enum ValuesRef<'a> {
    /// 4 bytes each.
    F32(&'a [f32]),
    /// 2 bytes each.
    F16(&'a [f16]),
    /// 2 bytes each.
    Bf16(&'a [bf16]),
}

/// Runs `$body` with the slice or vector of the type at hand.
macro_rules! typed {
    ($kind:ident, $values:expr, $v:ident => $body:expr) => {
        match $values {
            $crate::values::$kind::F32($v) => $body,
            $crate::values::$kind::F16($v) => $body,
            $crate::values::$kind::Bf16($v) => $body,
        }
    };
}
pub(crate) use typed;

impl<'a> From<&'a [f32]> for ValuesRef<'a> {
    fn from(values: &'a [f32]) -> Self {
        Self::F32(values)
    }
}

impl<'a> ValuesRef<'a> {
    /// Value `i` as f32.
    #[inline]
    pub fn at(&self, i: usize) -> f32 {
        match self {
            Self::F32(v) => v[i],
            Self::F16(v) => v[i].to_f32(),
            Self::Bf16(v) => v[i].to_f32(),
        }
    }

    /// A subrange.
    ///
    /// # Panics
    ///
    /// If the range is out of bounds.
    pub fn slice(&self, range: Range<usize>) -> ValuesRef<'a> {
        match self {
            Self::F32(v) => ValuesRef::F32(&v[range]),
            Self::F16(v) => ValuesRef::F16(&v[range]),
            Self::Bf16(v) => ValuesRef::Bf16(&v[range]),
        }
    }

    /// All values as f32.
    pub fn to_f32(&self) -> Vec<f32> {
        match self {
            Self::F32(v) => v.to_vec(),
            Self::F16(v) => v.par_iter().map(|v| v.to_f32()).collect(),
            Self::Bf16(v) => v.par_iter().map(|v| v.to_f32()).collect(),
        }
    }

    /// The index and value of the first value that is not finite.
    pub fn first_not_finite(&self) -> Option<(usize, f32)> {
        let at = match self {
            Self::F32(v) => first_wrong(v, |v| v.is_finite()),
            Self::F16(v) => first_wrong(v, |v| v.is_finite()),
            Self::Bf16(v) => first_wrong(v, |v| v.is_finite()),
        }?;
        Some((at, self.at(at)))
    }

    /// The number of values.
    pub fn len(&self) -> usize {
        typed!(ValuesRef, self, v => v.len())
    }

    /// Whether there are none.
    pub fn is_empty(&self) -> bool {
        self.len() == 0
    }

    /// The storage type.
    pub fn value_type(&self) -> ValueType {
        match self {
            Self::F32(_) => ValueType::F32,
            Self::F16(_) => ValueType::F16,
            Self::Bf16(_) => ValueType::Bf16,
        }
    }
}

/// A storage type.
pub trait Number: Copy + Send + Sync {
    /// The type's tag.
    const TYPE: ValueType;
    /// The nearest number of this type.
    fn from_f32(wide: f32) -> Self;
    /// Whether it is neither infinite nor NaN.
    fn finite(self) -> bool;
}

macro_rules! number {
    ($number:ty, $type:ident, $of:expr) => {
        impl Number for $number {
            const TYPE: ValueType = ValueType::$type;
            #[inline]
            fn from_f32(wide: f32) -> Self {
                $of(wide)
            }
            #[inline]
            fn finite(self) -> bool {
                self.is_finite()
            }
        }
    };
}

number!(f32, F32, |wide| wide);
number!(f16, F16, f16::from_f32);
number!(bf16, Bf16, bf16::from_f32);

/// Rounds values; the error is the index of the first finite value outside the range
/// of the type.
pub fn rounded<T: Number>(wide: &[f32], out: &mut [T]) -> Result<(), usize> {
    out.iter_mut().zip(wide).for_each(|(out, &wide)| *out = T::from_f32(wide));
    let beyond = |(out, wide): (&T, &f32)| wide.is_finite() && !out.finite();
    out.iter().zip(wide).position(beyond).map_or(Ok(()), Err)
}

/// The index of the first entry that fails a test. Whole chunks are tested without a
/// branch, which is many times faster than testing entry by entry.
fn first_wrong<T: Copy + Sync>(all: &[T], right: impl Fn(T) -> bool + Sync) -> Option<usize> {
    const CHUNK: usize = 1 << 14;
    all.par_chunks(CHUNK).enumerate().find_map_first(|(number, chunk)| {
        if chunk.iter().fold(true, |all, &x| all & right(x)) {
            return None;
        }
        chunk.iter().position(|&x| !right(x)).map(|at| number * CHUNK + at)
    })
}

impl Values {
    /// Zeros of a type.
    pub fn zeros(value_type: ValueType, len: usize) -> Self {
        match value_type {
            ValueType::F32 => Self::F32(vec![0.0; len]),
            ValueType::F16 => Self::F16(vec![f16::ZERO; len]),
            ValueType::Bf16 => Self::Bf16(vec![bf16::ZERO; len]),
        }
    }

    /// A borrowed view.
    pub fn view(&self) -> ValuesRef<'_> {
        match self {
            Self::F32(v) => ValuesRef::F32(v),
            Self::F16(v) => ValuesRef::F16(v),
            Self::Bf16(v) => ValuesRef::Bf16(v),
        }
    }

    /// The number of values.
    pub fn len(&self) -> usize {
        self.view().len()
    }

    /// Whether there are none.
    pub fn is_empty(&self) -> bool {
        self.len() == 0
    }

    /// The storage type.
    pub fn value_type(&self) -> ValueType {
        self.view().value_type()
    }

    /// Values of a type from little-endian bytes; `None` if the length is not a multiple of
    /// the value size.
    pub fn from_le_bytes(value_type: ValueType, bytes: &[u8]) -> Option<Self> {
        if !bytes.len().is_multiple_of(value_type.bytes()) {
            return None;
        }
        let halves = || bytes.as_chunks::<2>().0.iter();
        Some(match value_type {
            ValueType::F32 => {
                Self::F32(bytes.as_chunks::<4>().0.iter().map(|&b| f32::from_le_bytes(b)).collect())
            }
            ValueType::F16 => Self::F16(halves().map(|&b| f16::from_le_bytes(b)).collect()),
            ValueType::Bf16 => Self::Bf16(halves().map(|&b| bf16::from_le_bytes(b)).collect()),
        })
    }

    /// The values as little-endian bytes.
    pub fn to_le_bytes(&self) -> Vec<u8> {
        typed!(Values, self, v => v.iter().flat_map(|v| v.to_le_bytes()).collect())
    }
}

/// Values are equal if their types and their bits are.
impl PartialEq for Values {
    fn eq(&self, other: &Self) -> bool {
        match (self, other) {
            (Self::F32(a), Self::F32(b)) => {
                a.len() == b.len() && a.iter().zip(b).all(|(a, b)| a.to_bits() == b.to_bits())
            }
            (Self::F16(a), Self::F16(b)) => {
                a.len() == b.len() && a.iter().zip(b).all(|(a, b)| a.to_bits() == b.to_bits())
            }
            (Self::Bf16(a), Self::Bf16(b)) => {
                a.len() == b.len() && a.iter().zip(b).all(|(a, b)| a.to_bits() == b.to_bits())
            }
            _ => false,
        }
    }
}
