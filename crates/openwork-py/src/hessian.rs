//! `Hessian`: statistics of a layer's inputs, batch by batch.

use crate::array::{Tensor, adapted};
use crate::error;
use numpy::{IntoPyArray, PyArray2, PyArrayMethods};
use openwork::hessian::{Hessian as Known, HessianError, HessianSum};
use openwork::values::ValuesRef;
use openwork::{Matrix, MatrixRef};
use openwork_llm::tensors::TensorFile;
use openwork_llm::tensors::hessian::{self, MAX_COLUMNS};
use pyo3::prelude::*;
use std::path::PathBuf;
use std::sync::{Arc, Mutex, PoisonError};

/// H = X'X / n over the inputs of a layer, one sample in each row of X. Batches
/// are added as they come, float32, float16 or bfloat16, of numpy or torch; of a
/// batch with more axes the last one is the columns.
///
/// >>> import numpy
/// >>> from openwork import Hessian
/// >>> h = Hessian(2)
/// >>> h.add(numpy.array([[1, 2], [3, 4]], "float32"))
/// >>> h.matrix().tolist(), h.samples
/// ([[5.0, 7.0], [7.0, 10.0]], 2)
#[pyclass(frozen, module = "openwork", name = "Hessian")]
pub struct Hessian(Mutex<State>);

/// Refuses an H that no machine holds, or that has no columns.
fn check_columns(columns: usize) -> PyResult<()> {
    match (1..=MAX_COLUMNS).contains(&columns) {
        true => Ok(()),
        false => {
            Err(wrong(format!("H would have {columns} columns; it may have 1 to {MAX_COLUMNS}")))
        }
    }
}

fn wrong(error: impl std::fmt::Display) -> PyErr {
    error::HessianError::new_err(error.to_string())
}

enum State {
    /// Samples still come; what was made of those so far.
    Open(Box<HessianSum>, Option<Arc<Known>>),
    /// From a matrix or a file.
    Closed(Arc<Known>),
}

impl Hessian {
    /// The finished Hessian.
    pub fn known(&self) -> Result<Arc<Known>, HessianError> {
        let mut state = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        match &mut *state {
            State::Closed(known) | State::Open(_, Some(known)) => Ok(known.clone()),
            State::Open(sum, made) => {
                let known = Arc::new(HessianSum::clone(sum).finish()?);
                *made = Some(known.clone());
                Ok(known)
            }
        }
    }

    fn closed(known: Known) -> Self {
        Self(Mutex::new(State::Closed(Arc::new(known))))
    }
}

#[pymethods]
impl Hessian {
    #[new]
    fn new(columns: usize) -> PyResult<Self> {
        check_columns(columns)?;
        Ok(Self(Mutex::new(State::Open(Box::new(HessianSum::new(columns)), None))))
    }

    /// H of inputs at hand.
    ///
    /// >>> import numpy
    /// >>> Hessian.of(numpy.ones((3, 4), "float32")).columns
    /// 4
    #[staticmethod]
    fn of(py: Python<'_>, inputs: &Bound<'_, PyAny>) -> PyResult<Self> {
        let (kind, array) = adapted(inputs)?;
        let shape = Tensor::borrow(&kind, &array, false)?.shape();
        let columns = shape.last().copied().unwrap_or(0);
        let hessian = Self::new(columns)?;
        hessian.add(py, inputs)?;
        Ok(hessian)
    }

    /// H that someone else made, float32 or float64.
    ///
    /// >>> import numpy
    /// >>> Hessian.from_matrix(numpy.eye(3)).columns
    /// 3
    #[staticmethod]
    #[pyo3(signature = (h, samples=None))]
    fn from_matrix(py: Python<'_>, h: &Bound<'_, PyAny>, samples: Option<usize>) -> PyResult<Self> {
        let (kind, array) = adapted(h)?;
        let tensor = Tensor::borrow(&kind, &array, false)?;
        let &[rows, cols] = &tensor.shape()[..] else {
            let shape = tensor.shape();
            return Err(error::HessianError::new_err(format!(
                "H has shape {shape:?}; it must be a square matrix"
            )));
        };
        check_columns(cols)?;
        let data: Vec<f64> = match &tensor {
            Tensor::F64(held) if held.slice().is_some() => {
                held.slice().expect("just looked").to_vec()
            }
            Tensor::F64(_) => {
                let contiguous = array.call_method1("ravel", ())?;
                let list = contiguous.cast::<numpy::PyArray1<f64>>().map_err(PyErr::from)?;
                list.readonly().as_slice()?.to_vec()
            }
            other => other.read()?.iter().map(|&x| f64::from(x)).collect(),
        };
        let matrix = Matrix::from_vec(rows, cols, data);
        py.detach(|| Known::from_matrix(matrix, samples)).map(Self::closed).map_err(error::hessian)
    }

    /// Adds samples. On an error nothing was added.
    fn add(&self, py: Python<'_>, batch: &Bound<'_, PyAny>) -> PyResult<()> {
        let (kind, array) = adapted(batch)?;
        let tensor = Tensor::borrow(&kind, &array, false)?;
        let shape = tensor.shape();
        let columns = match shape.split_last() {
            Some((&columns, _)) if shape.len() > 1 => columns,
            _ => {
                return Err(error::HessianError::new_err(format!(
                    "a batch has shape {shape:?}; inputs are [samples, columns] or \
                     [batch, positions, columns]"
                )));
            }
        };
        let rows = shape[..shape.len() - 1].iter().product();
        let read = tensor.values()?;
        py.detach(|| {
            let mut state = self.0.lock().unwrap_or_else(PoisonError::into_inner);
            let State::Open(sum, made) = &mut *state else { return Ok(false) };
            match read.view() {
                ValuesRef::F32(all) => sum.add(MatrixRef::new(all, rows, columns)),
                ValuesRef::F16(all) => sum.add(MatrixRef::new(all, rows, columns)),
                ValuesRef::Bf16(all) => sum.add(MatrixRef::new(all, rows, columns)),
            }?;
            *made = None;
            Ok(true)
        })
        .map_err(error::hessian)
        .and_then(|open| {
            if open {
                return Ok(());
            }
            Err(error::HessianError::new_err(
                "this H came from a matrix or a file; samples can be added to Hessian(columns) only",
            ))
        })
    }

    /// The number of columns.
    #[getter]
    fn columns(&self, py: Python<'_>) -> usize {
        py.detach(|| match &*self.0.lock().unwrap_or_else(PoisonError::into_inner) {
            State::Open(sum, _) => sum.columns(),
            State::Closed(known) => known.columns(),
        })
    }

    /// The samples in H, where known.
    #[getter]
    fn samples(&self, py: Python<'_>) -> Option<usize> {
        py.detach(|| match &*self.0.lock().unwrap_or_else(PoisonError::into_inner) {
            State::Open(sum, _) => Some(sum.samples()),
            State::Closed(known) => known.samples(),
        })
    }

    /// H, in float64.
    fn matrix<'py>(&self, py: Python<'py>) -> PyResult<Bound<'py, PyArray2<f64>>> {
        let known = py.detach(|| self.known()).map_err(error::hessian)?;
        let k = known.columns();
        known.matrix().data().to_vec().into_pyarray(py).reshape([k, k])
    }

    /// Writes H to a safetensors file, as `openwork hessian` does.
    #[pyo3(signature = (path, name="H"))]
    fn save(&self, py: Python<'_>, path: PathBuf, name: &str) -> PyResult<()> {
        py.detach(|| {
            let known = self.known().map_err(error::hessian)?;
            hessian::save(&path, &[(name, &known)]).map(|_| ()).map_err(wrong)
        })
    }

    /// Reads H from a safetensors file.
    #[staticmethod]
    #[pyo3(signature = (path, name="H"))]
    fn load(py: Python<'_>, path: PathBuf, name: &str) -> PyResult<Self> {
        let load = || TensorFile::open(&path).and_then(|file| hessian::load(&file, name));
        py.detach(load).map(Self::closed).map_err(wrong)
    }

    fn __repr__(&self, py: Python<'_>) -> String {
        match self.samples(py) {
            Some(samples) => format!("Hessian({} columns, {samples} samples)", self.columns(py)),
            None => format!("Hessian({} columns)", self.columns(py)),
        }
    }
}
