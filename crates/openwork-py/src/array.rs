//! Tensors as Python hands them over: `(kind, array)`, where the array is
//! numpy's over the tensor's own memory and the kind is `f32`, `f64`, `f16` or
//! `bf16`. The last two come as 16-bit integers.

use crate::error;
use half::slice::{HalfBitsSliceExt, HalfFloatSliceExt};
use half::{bf16, f16};
use numpy::{
    BorrowError, Element, PyArrayDyn, PyArrayMethods, PyReadonlyArrayDyn, PyReadwriteArrayDyn,
    PyUntypedArrayMethods,
};
use openwork::blocks::Weight;
use openwork::prune::PruneError;
use openwork::values::{ValueType, Values, ValuesRef, rounded};
use pyo3::prelude::*;
use rayon::prelude::*;
use std::borrow::Cow;

/// A tensor of numpy or torch as a kind and an array over its memory.
pub fn adapted<'py>(tensor: &Bound<'py, PyAny>) -> PyResult<(String, Bound<'py, PyAny>)> {
    tensor.py().import("openwork._tensor")?.getattr("borrowed")?.call1((tensor,))?.extract()
}

/// What a number in memory means.
pub trait Kind: Send + Sync + 'static {
    /// How numpy holds it.
    type Item: Element + Weight + PartialEq + Default;
    /// Its name.
    const NAME: &'static str;
    /// As an f32.
    fn f32(item: Self::Item) -> f32;
    /// From an f32, rounded.
    fn of(x: f32) -> Self::Item;
}

macro_rules! kind {
    ($kind:ident, $item:ty, $name:literal, $widen:expr, $narrow:expr) => {
        #[doc = concat!("Numbers of type ", $name, ".")]
        pub struct $kind;
        impl Kind for $kind {
            type Item = $item;
            const NAME: &'static str = $name;
            #[inline]
            fn f32(item: $item) -> f32 {
                ($widen)(item)
            }
            #[inline]
            fn of(x: f32) -> $item {
                ($narrow)(x)
            }
        }
    };
}

kind!(F32, f32, "f32", |x| x, |x| x);
kind!(F64, f64, "f64", |x: f64| x as f32, f64::from);
kind!(F16, u16, "f16", |x| f16::from_bits(x).to_f32(), |x| f16::from_f32(x).to_bits());
kind!(Bf16, u16, "bf16", |x| bf16::from_bits(x).to_f32(), |x| bf16::from_f32(x).to_bits());

/// A tensor, borrowed from Python.
pub enum Tensor<'py> {
    /// f32.
    F32(Held<'py, F32>),
    /// f64: computed with as f32.
    F64(Held<'py, F64>),
    /// f16.
    F16(Held<'py, F16>),
    /// bf16.
    Bf16(Held<'py, Bf16>),
}

/// `match` over the kinds of a tensor.
macro_rules! each_kind {
    ($tensor:expr, $held:ident => $body:expr) => {
        match $tensor {
            $crate::array::Tensor::F32($held) => $body,
            $crate::array::Tensor::F64($held) => $body,
            $crate::array::Tensor::F16($held) => $body,
            $crate::array::Tensor::Bf16($held) => $body,
        }
    };
}
pub(crate) use each_kind;

/// An array for reading, or for writing too.
pub enum Held<'py, K: Kind> {
    /// Only read.
    Read(PyReadonlyArrayDyn<'py, K::Item>),
    /// Written to, and nobody else may.
    Write(PyReadwriteArrayDyn<'py, K::Item>),
}

impl<'py> Tensor<'py> {
    /// Borrows an array of the given kind.
    pub fn borrow(kind: &str, array: &Bound<'py, PyAny>, write: bool) -> PyResult<Self> {
        Ok(match kind {
            "f32" => Self::F32(Held::borrow(array, write)?),
            "f64" => Self::F64(Held::borrow(array, write)?),
            "f16" => Self::F16(Held::borrow(array, write)?),
            "bf16" => Self::Bf16(Held::borrow(array, write)?),
            other => {
                return Err(error::tensor(format!(
                    "tensors of type {other} cannot be pruned; use float32, float16 or bfloat16"
                )));
            }
        })
    }

    /// Its dims.
    pub fn shape(&self) -> Vec<usize> {
        each_kind!(self, held => held.shape().to_vec())
    }

    /// The numbers as f32, row-major: borrowed where they lie so in memory.
    pub fn read(&self) -> PyResult<Cow<'_, [f32]>> {
        match self {
            Self::F32(held) if held.slice().is_some() => {
                Ok(Cow::Borrowed(held.slice().expect("just looked")))
            }
            _ => each_kind!(self, held => held.widened()).map(Cow::Owned),
        }
    }

    /// The same in the tensor's own type; f64 as f32. What does not lie row-major
    /// is copied in that type.
    pub fn values(&self) -> PyResult<Read<'_>> {
        Ok(match self {
            Self::F32(_) | Self::F64(_) => match self.read()? {
                Cow::Borrowed(all) => Read::Lent(ValuesRef::F32(all)),
                Cow::Owned(all) => Read::Own(Values::F32(all)),
            },
            Self::F16(held) => match held.slice() {
                Some(all) => Read::Lent(ValuesRef::F16(all.reinterpret_cast())),
                None => Read::Own(Values::F16(held.copied(f16::from_bits))),
            },
            Self::Bf16(held) => match held.slice() {
                Some(all) => Read::Lent(ValuesRef::Bf16(all.reinterpret_cast())),
                None => Read::Own(Values::Bf16(held.copied(bf16::from_bits))),
            },
        })
    }

    /// Refuses new weights that the tensor's type cannot hold.
    pub fn check(&self, name: &str, new: &[f32]) -> PyResult<()> {
        let Self::F16(_) = self else { return Ok(()) };
        rounded(new, &mut vec![f16::ZERO; new.len()]).map_err(|offset| {
            let (tensor, value) = (name.to_string(), new[offset]);
            let stored = ValueType::F16;
            error::prune(PruneError::Beyond { tensor, offset, value, stored })
        })
    }

    /// Writes new weights of the type that [`Tensor::values`] gave.
    pub fn put(&mut self, new: &Values) {
        match (self, new) {
            (Self::F16(held), Values::F16(new)) => held.put(new.reinterpret_cast()),
            (Self::Bf16(held), Values::Bf16(new)) => held.put(new.reinterpret_cast()),
            (tensor, Values::F32(new)) => tensor.write(new),
            _ => unreachable!("values of the tensor's own type"),
        }
    }

    /// Writes new weights; those that did not change keep their bits.
    pub fn write(&mut self, new: &[f32]) {
        each_kind!(self, held => held.write(new));
    }
}

impl<'py, K: Kind> Held<'py, K> {
    fn borrow(array: &Bound<'py, PyAny>, write: bool) -> PyResult<Self> {
        let array = array
            .cast::<PyArrayDyn<K::Item>>()
            .map_err(|_| error::tensor(format!("this array does not hold {} numbers", K::NAME)))?;
        let wrong = |why: BorrowError| {
            error::tensor(match why {
                BorrowError::NotWriteable => {
                    "the array is read-only; copy it first, or use inplace=False"
                }
                _ => "the tensor is in use by another call; wait for that one to end",
            })
        };
        Ok(if write {
            Self::Write(array.try_readwrite().map_err(wrong)?)
        } else {
            Self::Read(array.try_readonly().map_err(wrong)?)
        })
    }

    fn array(&self) -> &Bound<'py, PyArrayDyn<K::Item>> {
        match self {
            Self::Read(array) => array,
            Self::Write(array) => array,
        }
    }

    /// Its dims.
    pub fn shape(&self) -> &[usize] {
        self.array().shape()
    }

    /// All numbers, where they lie row-major in memory.
    pub fn slice(&self) -> Option<&[K::Item]> {
        // `as_slice` alone would also give what lies column-major.
        if !self.array().is_c_contiguous() {
            return None;
        }
        match self {
            Self::Read(array) => array.as_slice().ok(),
            Self::Write(array) => array.as_slice().ok(),
        }
    }

    /// The same for writing.
    pub fn slice_mut(&mut self) -> Option<&mut [K::Item]> {
        if !self.array().is_c_contiguous() {
            return None;
        }
        match self {
            Self::Read(_) => None,
            Self::Write(array) => array.as_slice_mut().ok(),
        }
    }

    /// Numbers as f32.
    fn widened(&self) -> PyResult<Vec<f32>> {
        Ok(match self.slice() {
            Some(slice) => slice.par_iter().map(|&x| K::f32(x)).collect(),
            None => self.copied(K::f32),
        })
    }

    /// What `of` makes of each number, row-major.
    fn copied<T>(&self, of: impl Fn(K::Item) -> T) -> Vec<T> {
        match self {
            Self::Read(array) => array.as_array().iter().map(|&x| of(x)).collect(),
            Self::Write(array) => array.as_array().iter().map(|&x| of(x)).collect(),
        }
    }

    fn put(&mut self, new: &[K::Item]) {
        if let Some(slice) = self.slice_mut() {
            slice.copy_from_slice(new);
        } else if let Self::Write(array) = self {
            array.as_array_mut().iter_mut().zip(new).for_each(|(item, &new)| *item = new);
        }
    }

    fn write(&mut self, new: &[f32]) {
        // Without a branch, which half of the weights would take at random.
        let put = |item: &mut K::Item, &new: &f32| {
            let old = *item;
            let changed = (K::f32(old) != new) | ((new == 0.0) & (old != K::Item::default()));
            *item = if changed { K::of(new) } else { old };
        };
        if let Some(slice) = self.slice_mut() {
            slice.iter_mut().zip(new).for_each(|(item, new)| put(item, new));
        } else if let Self::Write(array) = self {
            array.as_array_mut().iter_mut().zip(new).for_each(|(item, new)| put(item, new));
        }
    }
}

/// Numbers by their row-major offset.
pub enum Read<'a> {
    /// In place.
    Lent(ValuesRef<'a>),
    /// A copy.
    Own(Values),
}

impl Read<'_> {
    /// All of them.
    pub fn view(&self) -> ValuesRef<'_> {
        match self {
            Self::Lent(all) => *all,
            Self::Own(all) => all.view(),
        }
    }
}
