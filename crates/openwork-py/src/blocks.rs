//! Operations on the blocks of tensors: reductions, selection, masks and updates in
//! place. One number per block is passed as an array ordered by scope.

use crate::array::{Array, Kind, Tensor, ValuesCow, each_kind};
use crate::error;
use crate::spec::BoundSpec;
use numpy::{IntoPyArray, PyArray1, PyArrayDyn, PyArrayMethods, PyReadonlyArray1};
use openwork::blocks::Blocks;
use openwork::spec::Coupling;
use openwork::values::ValuesRef;
use pyo3::prelude::*;

/// Tensors as `(kind, array)` pairs.
pub type Arrays<'py> = Vec<(String, Bound<'py, PyAny>)>;

/// Borrows the tensors of a spec.
pub fn borrow<'py>(
    spec: &openwork::Spec,
    arrays: &Arrays<'py>,
    write: bool,
) -> PyResult<Vec<Tensor<'py>>> {
    let tensors = arrays
        .iter()
        .map(|(kind, array)| Tensor::borrow(kind, array, write))
        .collect::<PyResult<Vec<_>>>()?;
    check_shapes(spec, &tensors)?;
    Ok(tensors)
}

/// Checks that tensors have the number and shapes the spec is bound to.
pub fn check_shapes(spec: &openwork::Spec, tensors: &[Tensor<'_>]) -> PyResult<()> {
    let (found, expected) = (tensors.len(), spec.tensors().len());
    if found != expected {
        let error = openwork::prune::PruneError::Count { found, expected };
        return Err(error::prune(error));
    }
    for (tensor, wanted) in tensors.iter().zip(spec.tensors()) {
        if tensor.shape() != wanted.dims() {
            return Err(error::tensor(format!(
                "tensor `{}` has shape {:?}, but the spec is bound to {:?}",
                wanted.name(),
                tensor.shape(),
                wanted.dims()
            )));
        }
    }
    Ok(())
}

/// The elements of all tensors; an error if any is not finite.
pub fn finite_values<'a>(
    spec: &openwork::Spec,
    tensors: &'a [Tensor<'_>],
    py: Python<'_>,
) -> PyResult<Vec<ValuesCow<'a>>> {
    let values = tensors.iter().map(Tensor::values).collect::<PyResult<Vec<_>>>()?;
    for (read, tensor) in values.iter().zip(spec.tensors()) {
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
    Ok(values)
}

/// Reduces each block by `sum`, `min`, `max`, `nnz` or `norm` (the p-norm).
#[pyfunction]
#[pyo3(signature = (spec, arrays, how, p=2.0))]
pub fn reduce_blocks<'py>(
    py: Python<'py>,
    spec: &BoundSpec,
    arrays: Arrays<'py>,
    how: &str,
    p: f64,
) -> PyResult<Bound<'py, PyArray1<f64>>> {
    let tensors = borrow(&spec.0, &arrays, false)?;
    let values = tensors.iter().map(Tensor::values).collect::<PyResult<Vec<_>>>()?;
    let views: Vec<ValuesRef<'_>> = values.iter().map(ValuesCow::view).collect();
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
        error::tensor(format!(
            "unknown reduction `{how}` with p = {p}; use sum, min, max, nnz or norm with p >= 0"
        ))
    })?;
    Ok(folded.into_pyarray(py))
}

/// Selects the blocks to keep: those of highest L2 norm in every scope.
#[pyfunction]
pub fn top_blocks<'py>(
    py: Python<'py>,
    spec: &BoundSpec,
    arrays: Arrays<'py>,
) -> PyResult<Bound<'py, PyArray1<bool>>> {
    let tensors = borrow(&spec.0, &arrays, false)?;
    let values = finite_values(&spec.0, &tensors, py)?;
    let views: Vec<ValuesRef<'_>> = values.iter().map(ValuesCow::view).collect();
    let kept = py.detach(|| {
        Blocks::new(&spec.0).kept(|e| {
            let w = f64::from(views[e.tensor].at(e.offset));
            w * w
        })
    });
    Ok(kept.into_pyarray(py))
}

/// Selects the blocks to keep: those of highest score in every scope.
#[pyfunction]
pub fn top_blocks_by_score<'py>(
    py: Python<'py>,
    spec: &BoundSpec,
    scores: PyReadonlyArray1<'py, f64>,
) -> PyResult<Bound<'py, PyArray1<bool>>> {
    let scores = scores.as_slice()?;
    check_count(&spec.0, scores.len(), "scores")?;
    Ok(py.detach(|| Blocks::new(&spec.0).kept_by(scores)).into_pyarray(py))
}

/// Checks that there is one entry per block.
pub fn check_count(spec: &openwork::Spec, found: usize, what: &str) -> PyResult<()> {
    if found == spec.blocks() {
        return Ok(());
    }
    let blocks = spec.blocks();
    Err(error::tensor(format!("{found} {what} were given for {blocks} blocks")))
}

/// Zeroes all but the blocks of highest L2 norm of every scope: `top_blocks` and
/// `zero_blocks` in one pass.
#[pyfunction]
pub fn keep_top_blocks<'py>(
    py: Python<'py>,
    spec: &BoundSpec,
    arrays: Arrays<'py>,
) -> PyResult<()> {
    let mut tensors = borrow(&spec.0, &arrays, true)?;
    finite_values(&spec.0, &tensors, py)?;
    let blocks = Blocks::new(&spec.0);
    if let [tensor] = &mut tensors[..]
        && each_kind!(tensor, array => keep_top_in_place(py, &blocks, array))
    {
        return Ok(());
    }
    drop(tensors);
    let kept = top_blocks(py, spec, arrays.clone())?;
    zero_blocks(py, spec, arrays, kept.readonly())
}

/// Does it without a copy if the tensor is stored in row-major order; otherwise
/// returns false.
fn keep_top_in_place<K: Kind>(
    py: Python<'_>,
    blocks: &Blocks<'_>,
    array: &mut Array<'_, K>,
) -> bool {
    let Some(all) = array.slice_mut() else { return false };
    py.detach(|| blocks.threshold(all, K::to_f32));
    true
}

/// Zeroes the blocks that are not kept.
#[pyfunction]
pub fn zero_blocks<'py>(
    py: Python<'py>,
    spec: &BoundSpec,
    arrays: Arrays<'py>,
    kept: PyReadonlyArray1<'py, bool>,
) -> PyResult<()> {
    let kept = kept.as_slice()?;
    check_count(&spec.0, kept.len(), "entries")?;
    let mut tensors = borrow(&spec.0, &arrays, true)?;
    let blocks = Blocks::new(&spec.0);
    for (t, tensor) in tensors.iter_mut().enumerate() {
        // Without a copy if the tensor is stored in row-major order.
        let in_place = each_kind!(tensor, array => match array.slice_mut() {
            Some(all) => {
                py.detach(|| blocks.update(t, all, |block, w| zero_unless(w, kept[block])));
                true
            }
            None => false,
        });
        if !in_place {
            let mut all = tensor.read()?.into_owned();
            py.detach(|| blocks.update(t, &mut all, |block, w| zero_unless(w, kept[block])));
            tensor.store_f32(&all);
        }
    }
    Ok(())
}

/// Zeroes a weight unless it is kept.
fn zero_unless<T: Default>(w: &mut T, kept: bool) {
    if !kept {
        *w = T::default();
    }
}

/// Multiplies each block by its factor.
#[pyfunction]
pub fn scale_blocks<'py>(
    py: Python<'py>,
    spec: &BoundSpec,
    arrays: Arrays<'py>,
    factors: PyReadonlyArray1<'py, f64>,
) -> PyResult<()> {
    let factors = factors.as_slice()?;
    check_count(&spec.0, factors.len(), "factors")?;
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
    tensors.iter_mut().zip(new).for_each(|(tensor, new)| tensor.store_f32(&new));
    Ok(())
}

/// Expands a mask over blocks to one mask per tensor, true where a weight is kept or
/// outside the domain.
#[pyfunction]
pub fn block_masks<'py>(
    py: Python<'py>,
    spec: &BoundSpec,
    kept: PyReadonlyArray1<'py, bool>,
) -> PyResult<Vec<Bound<'py, PyArrayDyn<bool>>>> {
    let kept = kept.as_slice()?;
    check_count(&spec.0, kept.len(), "entries")?;
    let blocks = Blocks::new(&spec.0);
    let mut masks = Vec::new();
    for (t, tensor) in spec.0.tensors().iter().enumerate() {
        let mut all = vec![true; tensor.size()];
        py.detach(|| blocks.update(t, &mut all, |block, bit| *bit = kept[block]));
        masks.push(all.into_pyarray(py).reshape(tensor.dims())?);
    }
    Ok(masks)
}

/// The row-major index in the grid of blocks of each block, ordered by scope. For
/// coupled scopes, the grids of all tensors are concatenated.
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

/// The row-major offsets in one tensor of the weights of some blocks, ordered by
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
            error::tensor(format!("block {number} does not exist; there are {blocks} blocks"))
        })?;
        let here = spec.elements(block / count, block % count).filter(|e| e.tensor == tensor);
        offsets.extend(here.map(|e| e.offset as i64));
    }
    Ok(offsets.into_pyarray(py))
}
