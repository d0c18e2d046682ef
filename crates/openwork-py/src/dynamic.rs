//! Mask updates for sparse training: drop blocks and grow others.

use crate::array::ValuesCow;
use crate::blocks::{Arrays, borrow, check_count, finite_values};
use crate::error;
use crate::spec::BoundSpec;
use numpy::{IntoPyArray, PyArray1, PyReadonlyArray1};
use openwork::Mask;
use openwork::blocks::Blocks;
use openwork::dynamic::{self, Schedule};
use openwork::prune::{Member, Method, Needs, Task, prune};
use openwork::saliency::SALIENCIES;
use openwork::values::ValuesRef;
use pyo3::prelude::*;

/// Selects exactly `keep` random blocks of every scope.
#[pyfunction]
pub fn random_blocks<'py>(
    py: Python<'py>,
    spec: &BoundSpec,
    seed: u64,
) -> Bound<'py, PyArray1<bool>> {
    py.detach(|| dynamic::random(&spec.0, seed)).into_pyarray(py)
}

/// The mask of all levels of a spec, over the weights of its tensor in row-major order: by
/// magnitude if the weights are given, otherwise at random.
#[pyfunction]
#[pyo3(signature = (spec, seed, arrays=None))]
pub fn level_mask<'py>(
    py: Python<'py>,
    spec: &BoundSpec,
    seed: u64,
    arrays: Option<Arrays<'py>>,
) -> PyResult<Bound<'py, PyArray1<bool>>> {
    let Some(arrays) = arrays else {
        let mask = py.detach(|| Mask::example(&spec.0, seed));
        return Ok(mask.tensors()[0].to_bools().into_pyarray(py));
    };
    let tensors = borrow(&spec.0, &arrays, false)?;
    let values = finite_values(&spec.0, &tensors, py)?;
    let members = values.iter().map(|v| Member { weights: v.view(), hessian: None }).collect();
    let task = Task { spec: &spec.0, members, monitor: &() };
    let magnitude: Method = "magnitude".parse().map_err(error::method)?;
    let pruned = py.detach(|| prune(&magnitude, &task)).map_err(error::prune)?;
    Ok(pruned.mask.tensors()[0].to_bools().into_pyarray(py))
}

/// The saliency of every block. `squares` holds the mean square of each input column
/// of each tensor, for saliencies that need it.
#[pyfunction]
#[pyo3(signature = (spec, arrays, name, squares=None))]
pub fn saliency<'py>(
    py: Python<'py>,
    spec: &BoundSpec,
    arrays: Arrays<'py>,
    name: &str,
    squares: Option<Vec<PyReadonlyArray1<'py, f64>>>,
) -> PyResult<Bound<'py, PyArray1<f64>>> {
    let kind = SALIENCIES.iter().find(|kind| kind.name == name).ok_or_else(|| {
        let names: Vec<_> = SALIENCIES.iter().map(|kind| kind.name).collect();
        error::MethodError::new_err(format!(
            "unknown saliency `{name}`; choose from {}",
            names.join(", ")
        ))
    })?;
    let tensors = borrow(&spec.0, &arrays, false)?;
    let values = finite_values(&spec.0, &tensors, py)?;
    let views: Vec<ValuesRef<'_>> = values.iter().map(ValuesCow::view).collect();
    let mut columns = Vec::new();
    for (t, tensor) in spec.0.tensors().iter().enumerate() {
        let cols = tensor.matrix().1;
        let given = squares.as_ref().and_then(|all| all.get(t)).map(|all| all.as_slice());
        columns.push(match given.transpose()? {
            Some(given) if given.len() == cols => given.to_vec(),
            Some(given) => {
                let found = given.len();
                return Err(error::tensor(format!(
                    "{found} mean squares were given for {cols} columns"
                )));
            }
            None if kind.needs == Needs::Weights => vec![1.0; cols],
            None => {
                return Err(error::tensor(format!(
                    "{name} needs input statistics of `{}`; give squares",
                    tensor.name()
                )));
            }
        });
    }
    let scores = py.detach(|| {
        Blocks::new(&spec.0).fold(0.0, |sum, e| {
            let squares = &columns[e.tensor];
            let w = f64::from(views[e.tensor].at(e.offset));
            sum + (kind.element)(w, squares[e.offset % squares.len()])
        })
    });
    Ok(scores.into_pyarray(py))
}

/// Drops a fraction of the kept blocks, those of lowest saliency, and grows as many in
/// the same scopes: those of highest `growth`, or random ones. Returns the kept blocks
/// and how many were replaced.
#[pyfunction]
#[pyo3(signature = (spec, kept, saliency, fraction, growth=None, seed=0))]
pub fn update_blocks<'py>(
    py: Python<'py>,
    spec: &BoundSpec,
    kept: PyReadonlyArray1<'py, bool>,
    saliency: PyReadonlyArray1<'py, f64>,
    fraction: f64,
    growth: Option<PyReadonlyArray1<'py, f64>>,
    seed: u64,
) -> PyResult<(Bound<'py, PyArray1<bool>>, usize)> {
    let spec = &spec.0;
    let mut kept = kept.as_slice()?.to_vec();
    let saliency = saliency.as_slice()?;
    check_count(spec, kept.len(), "entries")?;
    check_count(spec, saliency.len(), "saliencies")?;
    let random = growth.is_none().then(|| dynamic::numbers(seed, spec.blocks()));
    let growth = growth.as_ref().map(|all| all.as_slice()).transpose()?;
    let growth = growth.or(random.as_deref()).unwrap_or(&[]);
    check_count(spec, growth.len(), "growths")?;
    let moved = py.detach(|| dynamic::update(spec, &mut kept, saliency, growth, fraction));
    Ok((kept.into_pyarray(py), moved))
}

/// The fraction of blocks to replace at a step of the cosine schedule; `None` if no
/// update is due.
#[pyfunction]
pub fn update_fraction(step: u64, fraction: f64, every: u64, end: u64) -> Option<f64> {
    Schedule { fraction, every, end }.at(step)
}
