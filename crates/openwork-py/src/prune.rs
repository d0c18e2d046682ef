//! `prune`: prunes tensors in memory.

use crate::blocks::{Arrays, borrow};
use crate::hessian::Hessian;
use crate::spec::BoundSpec;
use crate::{array::Tensor, background, error};
use half::vec::HalfFloatVecExt;
use numpy::{IntoPyArray, PyArrayMethods};
use openwork::prune::{Member, Method, Task, prune_stored};
use openwork::values::Values;
use pyo3::prelude::*;
use pyo3::types::PyDict;
use std::sync::Arc;
use std::time::Instant;

/// Prunes tensors under one spec. In place, they are modified when pruning has
/// finished; an error or an interruption leaves them unchanged.
#[pyfunction]
#[pyo3(signature = (spec, arrays, hessians, method, inplace=true, progress=None))]
pub fn prune<'py>(
    py: Python<'py>,
    spec: &BoundSpec,
    arrays: Arrays<'py>,
    hessians: Vec<Option<Py<Hessian>>>,
    method: &str,
    inplace: bool,
    progress: Option<Py<PyAny>>,
) -> PyResult<Bound<'py, PyDict>> {
    let method: Method = method.parse().map_err(error::method)?;
    let spec = &spec.0;
    let mut tensors = borrow(spec, &arrays, inplace)?;
    let hessians = hessians
        .iter()
        .map(|h| h.as_ref().map(|h| py.detach(|| h.get().finish())).transpose())
        .collect::<Result<Vec<_>, _>>()
        .map_err(error::hessian)?;
    if hessians.len() != tensors.len() {
        return Err(error::tensor(format!(
            "{} Hessians were given for {} tensors",
            hessians.len(),
            tensors.len()
        )));
    }
    let values = tensors.iter().map(Tensor::values).collect::<PyResult<Vec<_>>>()?;
    let members: Vec<Member<'_>> = values
        .iter()
        .zip(&hessians)
        .map(|(values, h)| Member { weights: values.view(), hessian: h.as_ref().map(Arc::as_ref) })
        .collect();
    let flag = background::Flag::default();
    let tell = |py: Python<'_>| match &progress {
        Some(progress) => progress.call1(py, (flag.share(),)).map(drop),
        None => Ok(()),
    };
    let pruned = background::run(
        py,
        tell,
        || flag.stop(),
        || {
            let started = Instant::now();
            let pruned = prune_stored(&method, &Task { spec, members, monitor: &flag });
            pruned.map(|pruned| (pruned, started.elapsed().as_secs_f64()))
        },
    )?
    .map_err(error::prune)?;
    let (pruned, total) = pruned;
    drop(values);

    let result = PyDict::new(py);
    result.set_item("error", pruned.error)?;
    result.set_item("errors", &pruned.errors)?;
    result.set_item("damping", pruned.damping.map(|damping| damping.to_string()))?;
    result.set_item("seconds", pruned.seconds)?;
    result.set_item("total_seconds", total)?;
    result.set_item("notes", &pruned.notes)?;
    let (mut masks, mut weights) = (Vec::new(), Vec::new());
    for (bits, tensor) in pruned.mask.tensors().iter().zip(spec.tensors()) {
        masks.push(bits.to_bools().into_pyarray(py).reshape(tensor.dims())?);
    }
    result.set_item("masks", masks)?;
    if inplace {
        for (new, tensor) in pruned.weights.iter().zip(&mut tensors) {
            tensor.store(new);
        }
    } else {
        for (new, tensor) in pruned.weights.into_iter().zip(spec.tensors()) {
            weights.push(into_array(py, new, tensor.dims())?);
        }
    }
    result.set_item("weights", weights)?;
    Ok(result)
}

/// New weights as an array; f16 and bf16 as `u16`.
fn into_array<'py>(py: Python<'py>, new: Values, dims: &[usize]) -> PyResult<Bound<'py, PyAny>> {
    Ok(match new {
        Values::F32(new) => new.into_pyarray(py).reshape(dims)?.into_any(),
        Values::F16(new) => new.reinterpret_into().into_pyarray(py).reshape(dims)?.into_any(),
        Values::Bf16(new) => new.reinterpret_into().into_pyarray(py).reshape(dims)?.into_any(),
    })
}
