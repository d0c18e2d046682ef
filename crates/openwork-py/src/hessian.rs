//! `Hessian`: input statistics X'X/n of a layer, accumulated batch by batch.

use crate::array::{Tensor, as_pair};
use crate::error;
use numpy::{IntoPyArray, PyArray2, PyArrayMethods};
use openwork::hessian::{Hessian as CoreHessian, HessianError, HessianSum};
use openwork::values::ValuesRef;
use openwork::{Matrix, MatrixRef};
use openwork_llm::tensors::TensorFile;
use openwork_llm::tensors::hessian::{self, MAX_COLUMNS};
use pyo3::prelude::*;
use std::path::PathBuf;
use std::sync::{Arc, Mutex, PoisonError};

/// The Hessian H = X'X / n of a layer with inputs X, one sample per row. Batches are
/// numpy arrays or torch tensors of float32, float16 or bfloat16; the last axis is the
/// columns.
///
/// >>> import numpy
/// >>> from openwork import Hessian
/// >>> h = Hessian(2)
/// >>> h.add(numpy.array([[1, 2], [3, 4]], "float32"))
/// >>> h.matrix().tolist(), h.samples
/// ([[5.0, 7.0], [7.0, 10.0]], 2)
#[pyclass(frozen, module = "openwork", name = "Hessian")]
pub struct Hessian(Mutex<State>);

/// Checks the number of columns before memory is allocated.
fn check_columns(columns: usize) -> PyResult<()> {
    match (1..=MAX_COLUMNS).contains(&columns) {
        true => Ok(()),
        false => Err(hessian_error(format!(
            "H would have {columns} columns; it may have 1 to {MAX_COLUMNS}"
        ))),
    }
}

/// Converts any error about a Hessian.
fn hessian_error(error: impl std::fmt::Display) -> PyErr {
    error::HessianError::new_err(error.to_string())
}

enum State {
    /// Accepts samples; the Hessian of those so far is cached.
    Open(Box<HessianSum>, Option<Arc<CoreHessian>>),
    /// From a matrix or a file; accepts no samples.
    Closed(Arc<CoreHessian>),
}

impl Hessian {
    /// The Hessian of the samples so far.
    pub fn finish(&self) -> Result<Arc<CoreHessian>, HessianError> {
        let mut state = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        match &mut *state {
            State::Closed(hessian) | State::Open(_, Some(hessian)) => Ok(hessian.clone()),
            State::Open(sum, cache) => {
                let hessian = Arc::new(HessianSum::clone(sum).finish()?);
                *cache = Some(hessian.clone());
                Ok(hessian)
            }
        }
    }

    fn closed(hessian: CoreHessian) -> Self {
        Self(Mutex::new(State::Closed(Arc::new(hessian))))
    }
}

#[pymethods]
impl Hessian {
    #[new]
    fn new(columns: usize) -> PyResult<Self> {
        check_columns(columns)?;
        Ok(Self(Mutex::new(State::Open(Box::new(HessianSum::new(columns)), None))))
    }

    /// The Hessian of inputs X.
    ///
    /// >>> import numpy
    /// >>> Hessian.from_inputs(numpy.ones((3, 4), "float32")).columns
    /// 4
    #[staticmethod]
    fn from_inputs(py: Python<'_>, inputs: &Bound<'_, PyAny>) -> PyResult<Self> {
        let (kind, array) = as_pair(inputs)?;
        let shape = Tensor::borrow(&kind, &array, false)?.shape();
        let columns = shape.last().copied().unwrap_or(0);
        let hessian = Self::new(columns)?;
        hessian.add(py, inputs)?;
        Ok(hessian)
    }

    /// The Hessian from a precomputed matrix X'X / n.
    ///
    /// >>> import numpy
    /// >>> Hessian.from_matrix(numpy.eye(3)).columns
    /// 3
    #[staticmethod]
    #[pyo3(signature = (h, samples=None))]
    fn from_matrix(py: Python<'_>, h: &Bound<'_, PyAny>, samples: Option<usize>) -> PyResult<Self> {
        let (kind, array) = as_pair(h)?;
        let tensor = Tensor::borrow(&kind, &array, false)?;
        let &[rows, cols] = &tensor.shape()[..] else {
            let shape = tensor.shape();
            return Err(error::HessianError::new_err(format!(
                "h has shape {shape:?}; it must be a square matrix"
            )));
        };
        check_columns(cols)?;
        let data: Vec<f64> = match &tensor {
            Tensor::F64(array) if array.slice().is_some() => {
                array.slice().expect("checked by the guard").to_vec()
            }
            Tensor::F64(_) => {
                let contiguous = array.call_method1("ravel", ())?;
                let list = contiguous.cast::<numpy::PyArray1<f64>>().map_err(PyErr::from)?;
                list.readonly().as_slice()?.to_vec()
            }
            other => other.read()?.iter().map(|&x| f64::from(x)).collect(),
        };
        let matrix = Matrix::from_vec(rows, cols, data);
        py.detach(|| CoreHessian::from_matrix(matrix, samples))
            .map(Self::closed)
            .map_err(error::hessian)
    }

    /// Adds a batch of samples. On an error nothing is added.
    fn add(&self, py: Python<'_>, batch: &Bound<'_, PyAny>) -> PyResult<()> {
        let (kind, array) = as_pair(batch)?;
        let tensor = Tensor::borrow(&kind, &array, false)?;
        let shape = tensor.shape();
        let columns = match shape.split_last() {
            Some((&columns, _)) if shape.len() > 1 => columns,
            _ => {
                return Err(error::HessianError::new_err(format!(
                    "the batch has shape {shape:?}; it must be [samples, columns] or \
                     [batch, positions, columns]"
                )));
            }
        };
        let rows = shape[..shape.len() - 1].iter().product();
        let values = tensor.values()?;
        py.detach(|| {
            let mut state = self.0.lock().unwrap_or_else(PoisonError::into_inner);
            let State::Open(sum, cache) = &mut *state else { return Ok(false) };
            match values.view() {
                ValuesRef::F32(all) => sum.add(MatrixRef::new(all, rows, columns)),
                ValuesRef::F16(all) => sum.add(MatrixRef::new(all, rows, columns)),
                ValuesRef::Bf16(all) => sum.add(MatrixRef::new(all, rows, columns)),
            }?;
            *cache = None;
            Ok(true)
        })
        .map_err(error::hessian)
        .and_then(|open| {
            if open {
                return Ok(());
            }
            Err(error::HessianError::new_err(
                "this Hessian was made from a matrix or a file; start one with Hessian(columns) to add samples",
            ))
        })
    }

    /// Number of columns.
    #[getter]
    fn columns(&self, py: Python<'_>) -> usize {
        py.detach(|| match &*self.0.lock().unwrap_or_else(PoisonError::into_inner) {
            State::Open(sum, _) => sum.columns(),
            State::Closed(hessian) => hessian.columns(),
        })
    }

    /// Number of samples; `None` if unknown.
    #[getter]
    fn samples(&self, py: Python<'_>) -> Option<usize> {
        py.detach(|| match &*self.0.lock().unwrap_or_else(PoisonError::into_inner) {
            State::Open(sum, _) => Some(sum.samples()),
            State::Closed(hessian) => hessian.samples(),
        })
    }

    /// The matrix H in float64.
    fn matrix<'py>(&self, py: Python<'py>) -> PyResult<Bound<'py, PyArray2<f64>>> {
        let hessian = py.detach(|| self.finish()).map_err(error::hessian)?;
        let k = hessian.columns();
        hessian.matrix().data().to_vec().into_pyarray(py).reshape([k, k])
    }

    /// Writes the Hessian to a safetensors file that `openwork tensor --hessian` reads.
    #[pyo3(signature = (path, name="H"))]
    fn save(&self, py: Python<'_>, path: PathBuf, name: &str) -> PyResult<()> {
        py.detach(|| {
            let finished = self.finish().map_err(error::hessian)?;
            hessian::save(&path, &[(name, &finished)]).map(|_| ()).map_err(hessian_error)
        })
    }

    /// Reads a Hessian from a safetensors file.
    #[staticmethod]
    #[pyo3(signature = (path, name="H"))]
    fn load(py: Python<'_>, path: PathBuf, name: &str) -> PyResult<Self> {
        let load = || TensorFile::open(&path).and_then(|file| hessian::load(&file, name));
        py.detach(load).map(Self::closed).map_err(hessian_error)
    }

    fn __repr__(&self, py: Python<'_>) -> String {
        match self.samples(py) {
            Some(samples) => format!("Hessian({} columns, {samples} samples)", self.columns(py)),
            None => format!("Hessian({} columns)", self.columns(py)),
        }
    }
}
