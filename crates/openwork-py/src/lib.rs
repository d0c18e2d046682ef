//! The native part of the Python package `openwork`. It is thin: convert,
//! release the interpreter, call the library, convert back. What a user sees is
//! in `python/openwork`; every item here has its type in `_native.pyi`.

mod array;
mod background;
mod blocks;
mod dynamic;
mod error;
mod executor;
mod hessian;
mod model;
mod prune;
mod spec;
mod tables;
mod worker;

/// The module `openwork._native`.
#[pyo3::pymodule(gil_used = true)]
mod _native {
    use pyo3::prelude::*;

    #[pymodule_export]
    use super::blocks::{
        block_elements, clear, fold, grid_order, masks, scale, stays, stays_by, threshold,
    };
    #[pymodule_export]
    use super::dynamic::{random_stays, saliency, scheduled, update_stays};
    #[pymodule_export]
    use super::error::{HessianError, MethodError, OpenworkError, PruneError, SpecError};
    #[pymodule_export]
    use super::hessian::Hessian;
    #[pymodule_export]
    use super::model::prune_folder;
    #[pymodule_export]
    use super::prune::prune;
    #[pymodule_export]
    use super::spec::{BoundSpec, Spec};
    #[pymodule_export]
    use super::tables::{instructions, methods, presets, set_threads};
    #[pymodule_export]
    use super::worker::{StageWorker, shard_linears};

    #[pymodule_init]
    fn init(module: &Bound<'_, PyModule>) -> PyResult<()> {
        module.add("__version__", env!("CARGO_PKG_VERSION"))
    }
}
