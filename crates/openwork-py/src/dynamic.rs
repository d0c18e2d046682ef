//! Drop and grow, for sparse training.

use crate::array::Read;
use crate::blocks::{Arrays, borrow, count, finite};
use crate::error;
use crate::spec::BoundSpec;
use numpy::{IntoPyArray, PyArray1, PyReadonlyArray1};
use openwork::blocks::Blocks;
use openwork::dynamic::{self, Schedule};
use openwork::prune::Needs;
use openwork::saliency::SALIENCIES;
use openwork::values::ValuesRef;
use pyo3::prelude::*;

/// A mask at random: exactly `keep` blocks of every scope stay.
#[pyfunction]
pub fn random_stays<'py>(
    py: Python<'py>,
    spec: &BoundSpec,
    seed: u64,
) -> Bound<'py, PyArray1<bool>> {
    py.detach(|| dynamic::random(&spec.0, seed)).into_pyarray(py)
}

/// The saliency of every block by name; `squares` has the mean square of each
/// column's input, tensor by tensor, where the saliency needs it.
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
            "there is no saliency `{name}`; there are {}",
            names.join(", ")
        ))
    })?;
    let tensors = borrow(&spec.0, &arrays, false)?;
    let read = finite(&spec.0, &tensors, py)?;
    let views: Vec<ValuesRef<'_>> = read.iter().map(Read::view).collect();
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
                    "{name} needs statistics of the inputs of `{}`",
                    tensor.name()
                )));
            }
        });
    }
    let scores = py.detach(|| {
        Blocks::new(&spec.0).fold(0.0, |sum, e| {
            let of = &columns[e.tensor];
            let w = f64::from(views[e.tensor].at(e.offset));
            sum + (kind.element)(w, of[e.offset % of.len()])
        })
    });
    Ok(scores.into_pyarray(py))
}

/// Drops the share `fraction` of the blocks that stay, of least saliency, and
/// grows as many in the same scopes: those of highest `growth`, or at random by
/// `seed`. Gives what stays now, and how many moved.
#[pyfunction]
#[pyo3(signature = (spec, stays, saliency, fraction, growth=None, seed=0))]
pub fn update_stays<'py>(
    py: Python<'py>,
    spec: &BoundSpec,
    stays: PyReadonlyArray1<'py, bool>,
    saliency: PyReadonlyArray1<'py, f64>,
    fraction: f64,
    growth: Option<PyReadonlyArray1<'py, f64>>,
    seed: u64,
) -> PyResult<(Bound<'py, PyArray1<bool>>, usize)> {
    let spec = &spec.0;
    let mut stays = stays.as_slice()?.to_vec();
    let saliency = saliency.as_slice()?;
    count(spec, stays.len(), "entries")?;
    count(spec, saliency.len(), "saliencies")?;
    let chance = growth.is_none().then(|| dynamic::numbers(seed, spec.blocks()));
    let growth = growth.as_ref().map(|all| all.as_slice()).transpose()?;
    let growth = growth.or(chance.as_deref()).unwrap_or(&[]);
    count(spec, growth.len(), "growths")?;
    let moved = py.detach(|| dynamic::update(spec, &mut stays, saliency, growth, fraction));
    Ok((stays.into_pyarray(py), moved))
}

/// The share that moves at a step by the cosine schedule; `None` if none is due.
#[pyfunction]
pub fn scheduled(step: u64, fraction: f64, every: u64, end: u64) -> Option<f64> {
    Schedule { fraction, every, end }.at(step)
}
