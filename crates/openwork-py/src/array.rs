//! Tensors from Python: pairs `(kind, array)` of a numpy array that shares the
//! tensor's memory and the type of its numbers, `f32`, `f64`, `f16` or `bf16`. The
//! 16-bit types arrive as `u16`, because numpy has no bf16.

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

/// The pair of a numpy array or torch tensor.
pub fn as_pair<'py>(tensor: &Bound<'py, PyAny>) -> PyResult<(String, Bound<'py, PyAny>)> {
    tensor.py().import("openwork._tensor")?.getattr("as_array")?.call1((tensor,))?.extract()
}

/// A number type.
pub trait Kind: Send + Sync + 'static {
    /// The element type of the numpy array.
    type Item: Element + Weight + PartialEq + Default;
    /// Its name.
    const NAME: &'static str;
    /// Converts to f32.
    fn to_f32(item: Self::Item) -> f32;
    /// Converts from f32, rounding to nearest.
    fn from_f32(x: f32) -> Self::Item;
}

macro_rules! kind {
    ($kind:ident, $item:ty, $name:literal, $widen:expr, $narrow:expr) => {
        #[doc = concat!("Numbers of type ", $name, ".")]
        pub struct $kind;
        impl Kind for $kind {
            type Item = $item;
            const NAME: &'static str = $name;
            #[inline]
            fn to_f32(item: $item) -> f32 {
                ($widen)(item)
            }
            #[inline]
            fn from_f32(x: f32) -> $item {
                ($narrow)(x)
            }
        }
    };
}

kind!(F32, f32, "f32", |x| x, |x| x);
kind!(F64, f64, "f64", |x: f64| x as f32, f64::from);
kind!(F16, u16, "f16", |x| f16::from_bits(x).to_f32(), |x| f16::from_f32(x).to_bits());
kind!(Bf16, u16, "bf16", |x| bf16::from_bits(x).to_f32(), |x| bf16::from_f32(x).to_bits());

/// A tensor borrowed from Python.
pub enum Tensor<'py> {
    /// f32.
    F32(Array<'py, F32>),
    /// f64, computed on as f32.
    F64(Array<'py, F64>),
    /// f16.
    F16(Array<'py, F16>),
    /// bf16.
    Bf16(Array<'py, Bf16>),
}

/// Matches a tensor of any kind.
macro_rules! each_kind {
    ($tensor:expr, $array:ident => $body:expr) => {
        match $tensor {
            $crate::array::Tensor::F32($array) => $body,
            $crate::array::Tensor::F64($array) => $body,
            $crate::array::Tensor::F16($array) => $body,
            $crate::array::Tensor::Bf16($array) => $body,
        }
    };
}
pub(crate) use each_kind;

/// A numpy array borrowed for reading or for writing.
pub enum Array<'py, K: Kind> {
    /// Shared.
    Read(PyReadonlyArrayDyn<'py, K::Item>),
    /// Exclusive.
    Write(PyReadwriteArrayDyn<'py, K::Item>),
}

impl<'py> Tensor<'py> {
    /// Borrows an array of the given kind.
    pub fn borrow(kind: &str, array: &Bound<'py, PyAny>, write: bool) -> PyResult<Self> {
        Ok(match kind {
            "f32" => Self::F32(Array::borrow(array, write)?),
            "f64" => Self::F64(Array::borrow(array, write)?),
            "f16" => Self::F16(Array::borrow(array, write)?),
            "bf16" => Self::Bf16(Array::borrow(array, write)?),
            other => {
                return Err(error::tensor(format!(
                    "tensors of type {other} cannot be pruned; use float32, float16 or bfloat16"
                )));
            }
        })
    }

    /// The shape.
    pub fn shape(&self) -> Vec<usize> {
        each_kind!(self, array => array.shape().to_vec())
    }

    /// The elements as f32 in row-major order, without a copy if they are stored so.
    pub fn read(&self) -> PyResult<Cow<'_, [f32]>> {
        match self {
            Self::F32(array) if array.slice().is_some() => {
                Ok(Cow::Borrowed(array.slice().expect("checked by the guard")))
            }
            _ => each_kind!(self, array => array.to_f32()).map(Cow::Owned),
        }
    }

    /// The elements in the tensor's own type, f64 as f32, in row-major order; copied
    /// if they are not stored so.
    pub fn values(&self) -> PyResult<ValuesCow<'_>> {
        Ok(match self {
            Self::F32(_) | Self::F64(_) => match self.read()? {
                Cow::Borrowed(all) => ValuesCow::Borrowed(ValuesRef::F32(all)),
                Cow::Owned(all) => ValuesCow::Owned(Values::F32(all)),
            },
            Self::F16(array) => match array.slice() {
                Some(all) => ValuesCow::Borrowed(ValuesRef::F16(all.reinterpret_cast())),
                None => ValuesCow::Owned(Values::F16(array.map_elements(f16::from_bits))),
            },
            Self::Bf16(array) => match array.slice() {
                Some(all) => ValuesCow::Borrowed(ValuesRef::Bf16(all.reinterpret_cast())),
                None => ValuesCow::Owned(Values::Bf16(array.map_elements(bf16::from_bits))),
            },
        })
    }

    /// Checks that the tensor's type can represent new weights.
    pub fn check(&self, name: &str, new: &[f32]) -> PyResult<()> {
        let Self::F16(_) = self else { return Ok(()) };
        rounded(new, &mut vec![f16::ZERO; new.len()]).map_err(|offset| {
            let (tensor, value) = (name.to_string(), new[offset]);
            let stored = ValueType::F16;
            error::prune(PruneError::Beyond { tensor, offset, value, stored })
        })
    }

    /// Stores new weights of the type that [`Tensor::values`] returned.
    pub fn store(&mut self, new: &Values) {
        match (self, new) {
            (Self::F16(array), Values::F16(new)) => array.store(new.reinterpret_cast()),
            (Self::Bf16(array), Values::Bf16(new)) => array.store(new.reinterpret_cast()),
            (tensor, Values::F32(new)) => tensor.store_f32(new),
            _ => unreachable!("values of the tensor's own type"),
        }
    }

    /// Stores new weights; those that did not change keep their bits.
    pub fn store_f32(&mut self, new: &[f32]) {
        each_kind!(self, array => array.store_f32(new));
    }
}

impl<'py, K: Kind> Array<'py, K> {
    fn borrow(array: &Bound<'py, PyAny>, write: bool) -> PyResult<Self> {
        let array = array
            .cast::<PyArrayDyn<K::Item>>()
            .map_err(|_| error::tensor(format!("the array does not hold {} numbers", K::NAME)))?;
        let wrong = |why: BorrowError| {
            error::tensor(match why {
                BorrowError::NotWriteable => {
                    "the array is read-only; copy it first, or use inplace=False"
                }
                _ => "the tensor is in use by another call; wait until it returns",
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

    /// The shape.
    pub fn shape(&self) -> &[usize] {
        self.array().shape()
    }

    /// All elements, if they are stored in row-major order.
    pub fn slice(&self) -> Option<&[K::Item]> {
        // `as_slice` alone also accepts column-major arrays.
        if !self.array().is_c_contiguous() {
            return None;
        }
        match self {
            Self::Read(array) => array.as_slice().ok(),
            Self::Write(array) => array.as_slice().ok(),
        }
    }

    /// All elements for writing, if they are stored in row-major order.
    pub fn slice_mut(&mut self) -> Option<&mut [K::Item]> {
        if !self.array().is_c_contiguous() {
            return None;
        }
        match self {
            Self::Read(_) => None,
            Self::Write(array) => array.as_slice_mut().ok(),
        }
    }

    /// The elements as f32 in row-major order.
    fn to_f32(&self) -> PyResult<Vec<f32>> {
        Ok(match self.slice() {
            Some(slice) => slice.par_iter().map(|&x| K::to_f32(x)).collect(),
            None => self.map_elements(K::to_f32),
        })
    }

    /// Applies `f` to each element in row-major order.
    fn map_elements<T>(&self, f: impl Fn(K::Item) -> T) -> Vec<T> {
        match self {
            Self::Read(array) => array.as_array().iter().map(|&x| f(x)).collect(),
            Self::Write(array) => array.as_array().iter().map(|&x| f(x)).collect(),
        }
    }

    fn store(&mut self, new: &[K::Item]) {
        if let Some(slice) = self.slice_mut() {
            slice.copy_from_slice(new);
        } else if let Self::Write(array) = self {
            array.as_array_mut().iter_mut().zip(new).for_each(|(item, &new)| *item = new);
        }
    }

    fn store_f32(&mut self, new: &[f32]) {
        // Branch-free: whether a weight changed is unpredictable.
        let put = |item: &mut K::Item, &new: &f32| {
            let old = *item;
            let changed = (K::to_f32(old) != new) | ((new == 0.0) & (old != K::Item::default()));
            *item = if changed { K::from_f32(new) } else { old };
        };
        if let Some(slice) = self.slice_mut() {
            slice.iter_mut().zip(new).for_each(|(item, new)| put(item, new));
        } else if let Self::Write(array) = self {
            array.as_array_mut().iter_mut().zip(new).for_each(|(item, new)| put(item, new));
        }
    }
}

/// The elements of a tensor in row-major order, borrowed or copied.
pub enum ValuesCow<'a> {
    /// The tensor's own memory.
    Borrowed(ValuesRef<'a>),
    /// A row-major copy.
    Owned(Values),
}

impl ValuesCow<'_> {
    /// The elements.
    pub fn view(&self) -> ValuesRef<'_> {
        match self {
            Self::Borrowed(all) => *all,
            Self::Owned(all) => all.view(),
        }
    }
}
