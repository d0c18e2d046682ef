//! What a spec means, as a dict with the keys of `openwork show --json`.

use openwork::Spec;
use openwork::spec::{Coupling, Tensor};
use openwork::viz;
use pyo3::prelude::*;
use pyo3::types::PyDict;

/// The most densities that are listed one by one.
const MAX_DENSITIES: usize = 64;

/// Grids, scopes, densities and facts.
pub fn dict<'py>(py: Python<'py>, spec: &Spec) -> PyResult<Bound<'py, PyDict>> {
    let coupled = spec.coupling() == Coupling::Scopes;
    let facts = spec.facts();
    let sizes = &facts.block_sizes;
    let total = |of: fn(&Tensor) -> usize| spec.tensors().iter().map(of).sum::<usize>();
    let all = PyDict::new(py);
    all.set_item("spec", spec.text())?;
    all.set_item("expanded", spec.expanded())?;
    match (spec.tensors().len(), spec.coupling()) {
        (1, Coupling::Blocks) => all.set_item("coupling", py.None())?,
        (_, coupling) => all.set_item("coupling", coupling.to_string())?,
    }
    let tensors = spec.tensors().iter().map(|t| tensor(py, t, coupled));
    all.set_item("tensors", tensors.collect::<PyResult<Vec<_>>>()?)?;
    if coupled {
        let scopes: Vec<_> = spec.tensors().iter().map(|t| t.scope_tile().to_vec()).collect();
        all.set_item("scope", scopes)?;
    } else {
        all.set_item("scope", spec.tensors()[0].scope_tile())?;
    }
    all.set_item("scope_grid", spec.scope_grid())?;
    all.set_item("num_blocks", spec.blocks())?;
    if !coupled {
        all.set_item("block_size", sizes.iter().sum::<usize>())?;
    } else if sizes.iter().all(|size| size == &sizes[0]) {
        all.set_item("block_size", sizes[0])?;
    } else {
        all.set_item("block_size", sizes)?;
    }
    all.set_item("num_scopes", spec.scopes())?;
    all.set_item("blocks_per_scope", spec.blocks_per_scope())?;
    all.set_item("scope_size", total(|t| t.view().len()) / spec.scopes())?;
    all.set_item("keep", spec.keep())?;
    all.set_item("density", spec.density())?;
    all.set_item("sparsity", 1.0 - spec.density())?;
    all.set_item("domain_size", total(Tensor::domain_size))?;
    all.set_item("tensor_density", viz::tensor_density(spec))?;
    let more = PyDict::new(py);
    match viz::densities(spec, MAX_DENSITIES) {
        Some(list) => more.set_item("densities", list)?,
        None => {
            let blocks = spec.blocks_per_scope();
            more.set_item("densities", format!("k/{blocks} for k = 0 to {blocks}"))?;
        }
    }
    more.set_item("index_bits", facts.index_bits)?;
    more.set_item("least_index_bits", facts.least_index_bits)?;
    more.set_item("index_bits_per_kept", facts.index_bits_per_kept)?;
    let storage = facts.storage.iter().map(|storage| {
        let row = PyDict::new(py);
        row.set_item("value_bits", storage.value_bits)?;
        row.set_item("bits_per_weight", storage.bits_per_weight)?;
        row.set_item("ratio", storage.ratio)?;
        Ok(row)
    });
    more.set_item("storage", storage.collect::<PyResult<Vec<_>>>()?)?;
    more.set_item("memory", viz::memory(spec))?;
    all.set_item("facts", more)?;
    Ok(all)
}

fn tensor<'py>(py: Python<'py>, tensor: &Tensor, coupled: bool) -> PyResult<Bound<'py, PyDict>> {
    let row = PyDict::new(py);
    row.set_item("name", tensor.name())?;
    row.set_item("shape", tensor.dims())?;
    row.set_item("view", viz::layout(tensor.view()))?;
    row.set_item("block", tensor.blocks().tile())?;
    row.set_item("block_grid", tensor.blocks().counts())?;
    row.set_item("perm", tensor.perm())?;
    row.set_item("domain_size", tensor.domain_size())?;
    row.set_item("padding", tensor.view().len() - tensor.domain_size())?;
    if coupled {
        row.set_item("scope", tensor.scope_tile())?;
    }
    Ok(row)
}
