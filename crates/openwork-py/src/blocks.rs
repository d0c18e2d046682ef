//! Numbers over blocks, in place: reductions, thresholds, masks.

use crate::array::{Held, Kind, Read, Tensor, each_kind};
use crate::error;
use crate::spec::BoundSpec;
use numpy::{IntoPyArray, PyArray1, PyArrayDyn, PyArrayMethods, PyReadonlyArray1};
use openwork::blocks::Blocks;
use openwork::spec::Coupling;
use openwork::values::ValuesRef;
use pyo3::prelude::*;

/// Tensors as `(kind, array)` pairs.
pub type Arrays<'py> = Vec<(String, Bound<'py, PyAny>)>;

/// Borrows all tensors of a spec.
pub fn borrow<'py>(
    spec: &openwork::Spec,
    arrays: &Arrays<'py>,
    write: bool,
) -> PyResult<Vec<Tensor<'py>>> {
    let tensors = arrays
        .iter()
        .map(|(kind, array)| Tensor::borrow(kind, array, write))
        .collect::<PyResult<Vec<_>>>()?;
    fits(spec, &tensors)?;
    Ok(tensors)
}

/// Checks that tensors are those of the spec.
pub fn fits(spec: &openwork::Spec, tensors: &[Tensor<'_>]) -> PyResult<()> {
    let (found, expected) = (tensors.len(), spec.tensors().len());
    if found != expected {
        let error = openwork::prune::PruneError::Count { found, expected };
        return Err(error::prune(error));
    }
    for (tensor, wanted) in tensors.iter().zip(spec.tensors()) {
        if tensor.shape() != wanted.dims() {
            return Err(error::tensor(format!(
                "tensor `{}` has shape {:?}, the spec is bound to {:?}",
                wanted.name(),
                tensor.shape(),
                wanted.dims()
            )));
        }
    }
    Ok(())
}

/// The numbers of all tensors; those that are not finite are refused.
pub fn finite<'a>(
    spec: &openwork::Spec,
    tensors: &'a [Tensor<'_>],
    py: Python<'_>,
) -> PyResult<Vec<Read<'a>>> {
    let read = tensors.iter().map(Tensor::values).collect::<PyResult<Vec<_>>>()?;
    for (read, tensor) in read.iter().zip(spec.tensors()) {
        if let Some((at, value)) = py.detach(|| read.view().first_not_finite()) {
            let cols = tensor.matrix().1;
            return Err(error::prune(openwork::prune::PruneError::Weight {
                tensor: tensor.name().to_string(),
                row: at / cols,
                column: at % cols,
                value,
            }));
        }
    }
    Ok(read)
}

/// One number for each block: `sum`, `min`, `max`, `nnz`, or the p-norm.
#[pyfunction]
#[pyo3(signature = (spec, arrays, how, p=2.0))]
pub fn fold<'py>(
    py: Python<'py>,
    spec: &BoundSpec,
    arrays: Arrays<'py>,
    how: &str,
    p: f64,
) -> PyResult<Bound<'py, PyArray1<f64>>> {
    let tensors = borrow(&spec.0, &arrays, false)?;
    let read = tensors.iter().map(Tensor::values).collect::<PyResult<Vec<_>>>()?;
    let views: Vec<ValuesRef<'_>> = read.iter().map(Read::view).collect();
    let blocks = Blocks::new(&spec.0);
    let at = |e: openwork::Element| f64::from(views[e.tensor].at(e.offset));
    let folded = py.detach(|| match how {
        "sum" => Some(blocks.fold(0.0, |a, e| a + at(e))),
        "min" => Some(blocks.fold(f64::INFINITY, |a: f64, e| a.min(at(e)))),
        "max" => Some(blocks.fold(f64::NEG_INFINITY, |a: f64, e| a.max(at(e)))),
        "nnz" => Some(blocks.fold(0.0, |a, e| a + f64::from(u8::from(at(e) != 0.0)))),
        "norm" if p == 0.0 => Some(blocks.fold(0.0, |a, e| a + f64::from(u8::from(at(e) != 0.0)))),
        "norm" if p == 1.0 => Some(blocks.fold(0.0, |a, e| a + at(e).abs())),
        "norm" if p == 2.0 => {
            let squares = blocks.fold(0.0, |a, e| a + at(e) * at(e));
            Some(squares.into_iter().map(f64::sqrt).collect())
        }
        "norm" if p == f64::INFINITY => Some(blocks.fold(0.0, |a: f64, e| a.max(at(e).abs()))),
        "norm" if p > 0.0 => {
            let sums = blocks.fold(0.0, |a, e| a + at(e).abs().powf(p));
            Some(sums.into_iter().map(|s: f64| s.powf(1.0 / p)).collect::<Vec<f64>>())
        }
        _ => None,
    });
    let folded = folded.ok_or_else(|| {
        error::tensor(format!("there is no reduction `{how}` with p = {p}; p must not be negative"))
    })?;
    Ok(folded.into_pyarray(py))
}

/// Which blocks stay: in every scope those of highest L2 norm.
#[pyfunction]
pub fn stays<'py>(
    py: Python<'py>,
    spec: &BoundSpec,
    arrays: Arrays<'py>,
) -> PyResult<Bound<'py, PyArray1<bool>>> {
    let tensors = borrow(&spec.0, &arrays, false)?;
    let read = finite(&spec.0, &tensors, py)?;
    let views: Vec<ValuesRef<'_>> = read.iter().map(Read::view).collect();
    let stays = py.detach(|| {
        Blocks::new(&spec.0).stays(|e| {
            let w = f64::from(views[e.tensor].at(e.offset));
            w * w
        })
    });
    Ok(stays.into_pyarray(py))
}

/// The same by scores, one for each block.
#[pyfunction]
pub fn stays_by<'py>(
    py: Python<'py>,
    spec: &BoundSpec,
    scores: PyReadonlyArray1<'py, f64>,
) -> PyResult<Bound<'py, PyArray1<bool>>> {
    let scores = scores.as_slice()?;
    count(&spec.0, scores.len(), "scores")?;
    Ok(py.detach(|| Blocks::new(&spec.0).stays_by(scores)).into_pyarray(py))
}

/// Refuses anything but one entry for each block.
pub fn count(spec: &openwork::Spec, found: usize, what: &str) -> PyResult<()> {
    if found == spec.blocks() {
        return Ok(());
    }
    let blocks = spec.blocks();
    Err(error::tensor(format!("{found} {what} were given, but there are {blocks} blocks")))
}

/// Keeps the blocks of highest L2 norm of every scope and writes zeros to the
/// others: `stays` and `clear` in one.
#[pyfunction]
pub fn threshold<'py>(py: Python<'py>, spec: &BoundSpec, arrays: Arrays<'py>) -> PyResult<()> {
    let mut tensors = borrow(&spec.0, &arrays, true)?;
    finite(&spec.0, &tensors, py)?;
    let blocks = Blocks::new(&spec.0);
    if let [tensor] = &mut tensors[..]
        && each_kind!(tensor, held => in_place(py, &blocks, held))
    {
        return Ok(());
    }
    drop(tensors);
    let stays = stays(py, spec, arrays.clone())?;
    clear(py, spec, arrays, stays.readonly())
}

/// Thresholds a tensor that lies row-major in memory; says whether it does.
fn in_place<K: Kind>(py: Python<'_>, blocks: &Blocks<'_>, held: &mut Held<'_, K>) -> bool {
    let Some(all) = held.slice_mut() else { return false };
    py.detach(|| blocks.threshold(all, K::f32));
    true
}

/// Writes zero to every weight of a block that does not stay.
#[pyfunction]
pub fn clear<'py>(
    py: Python<'py>,
    spec: &BoundSpec,
    arrays: Arrays<'py>,
    stays: PyReadonlyArray1<'py, bool>,
) -> PyResult<()> {
    let stays = stays.as_slice()?;
    count(&spec.0, stays.len(), "entries")?;
    let mut tensors = borrow(&spec.0, &arrays, true)?;
    let blocks = Blocks::new(&spec.0);
    for (t, tensor) in tensors.iter_mut().enumerate() {
        // In place where the tensor lies row-major in memory.
        let in_place = each_kind!(tensor, held => match held.slice_mut() {
            Some(all) => {
                py.detach(|| blocks.update(t, all, |block, w| zero(w, stays[block])));
                true
            }
            None => false,
        });
        if !in_place {
            let mut all = tensor.read()?.into_owned();
            py.detach(|| blocks.update(t, &mut all, |block, w| zero(w, stays[block])));
            tensor.write(&all);
        }
    }
    Ok(())
}

/// A zero, unless the weight stays.
fn zero<T: Default>(w: &mut T, stays: bool) {
    if !stays {
        *w = T::default();
    }
}

/// Multiplies every weight by the factor of its block.
#[pyfunction]
pub fn scale<'py>(
    py: Python<'py>,
    spec: &BoundSpec,
    arrays: Arrays<'py>,
    factors: PyReadonlyArray1<'py, f64>,
) -> PyResult<()> {
    let factors = factors.as_slice()?;
    count(&spec.0, factors.len(), "factors")?;
    let mut tensors = borrow(&spec.0, &arrays, true)?;
    let blocks = Blocks::new(&spec.0);
    let mut new = Vec::with_capacity(tensors.len());
    for (t, tensor) in tensors.iter().enumerate() {
        let mut all = tensor.read()?.into_owned();
        py.detach(|| {
            blocks.update(t, &mut all, |block, w| *w = (f64::from(*w) * factors[block]) as f32);
        });
        tensor.check(spec.0.tensors()[t].name(), &all)?;
        new.push(all);
    }
    tensors.iter_mut().zip(new).for_each(|(tensor, new)| tensor.write(&new));
    Ok(())
}

/// A mask for each tensor, in its shape; true where a weight stays, and outside
/// the domain.
#[pyfunction]
pub fn masks<'py>(
    py: Python<'py>,
    spec: &BoundSpec,
    stays: PyReadonlyArray1<'py, bool>,
) -> PyResult<Vec<Bound<'py, PyArrayDyn<bool>>>> {
    let stays = stays.as_slice()?;
    count(&spec.0, stays.len(), "entries")?;
    let blocks = Blocks::new(&spec.0);
    let mut masks = Vec::new();
    for (t, tensor) in spec.0.tensors().iter().enumerate() {
        let mut all = vec![true; tensor.size()];
        py.detach(|| blocks.update(t, &mut all, |block, bit| *bit = stays[block]));
        masks.push(all.into_pyarray(py).reshape(tensor.dims())?);
    }
    Ok(masks)
}

/// For each block, scope after scope, its row-major place in the grid of blocks;
/// where scopes are coupled, in the grids of all tensors, one after the other.
#[pyfunction]
pub fn grid_order<'py>(py: Python<'py>, spec: &BoundSpec) -> Bound<'py, PyArray1<i64>> {
    let spec = &spec.0;
    let order = py.detach(|| {
        let mut firsts = vec![0];
        for tensor in spec.tensors() {
            firsts.push(firsts[firsts.len() - 1] + tensor.blocks().tiles());
        }
        let coupled = spec.coupling() == Coupling::Scopes;
        (0..spec.scopes())
            .flat_map(|scope| (0..spec.blocks_per_scope()).map(move |block| (scope, block)))
            .map(|(scope, block)| {
                let (tensor, index) = spec.block_index(scope, block);
                let first = if coupled { firsts[tensor.unwrap_or(0)] } else { 0 };
                (first + index) as i64
            })
            .collect::<Vec<_>>()
    });
    order.into_pyarray(py)
}

/// The row-major offsets of some blocks' weights in one tensor, block after
/// block.
#[pyfunction]
pub fn block_elements<'py>(
    py: Python<'py>,
    spec: &BoundSpec,
    numbers: PyReadonlyArray1<'py, i64>,
    tensor: usize,
) -> PyResult<Bound<'py, PyArray1<i64>>> {
    let (spec, numbers) = (&spec.0, numbers.as_slice()?);
    let (count, blocks) = (spec.blocks_per_scope(), spec.blocks());
    let mut offsets = Vec::new();
    for &number in numbers {
        let block = usize::try_from(number).ok().filter(|&block| block < blocks);
        let block = block.ok_or_else(|| {
            error::tensor(format!("there is no block {number}; there are {blocks}"))
        })?;
        let here = spec.elements(block / count, block % count).filter(|e| e.tensor == tensor);
        offsets.extend(here.map(|e| e.offset as i64));
    }
    Ok(offsets.into_pyarray(py))
}
