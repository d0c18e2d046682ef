//! `openwork._native`, the Rust half of the Python package. Each function converts
//! its arguments, releases the interpreter, calls the library and converts the
//! result back. The public API is in `python/openwork`; types are declared in
//! `_native.pyi`.

mod array;
mod background;
mod blocks;
mod command;
mod dynamic;
mod error;
mod executor;
mod hessian;
mod language_model;
mod model;
mod packing;
mod prune;
mod spec;
mod tables;
mod training;
mod worker;

/// The module `openwork._native`.
#[pyo3::pymodule(gil_used = true)]
mod _native {
    use pyo3::prelude::*;

    #[pymodule_export]
    use super::blocks::{
        block_elements, block_masks, grid_order, keep_top_blocks, reduce_blocks, scale_blocks,
        top_blocks, top_blocks_by_score, zero_blocks,
    };
    #[pymodule_export]
    use super::command::{model_path, run_command, text_path};
    #[pymodule_export]
    use super::dynamic::{level_mask, random_blocks, saliency, update_blocks, update_fraction};
    #[pymodule_export]
    use super::error::{HessianError, MethodError, OpenworkError, PruneError, SpecError};
    #[pymodule_export]
    use super::hessian::Hessian;
    #[pymodule_export]
    use super::language_model::LanguageModel;
    #[pymodule_export]
    use super::model::{prune_folder, run_options};
    #[pymodule_export]
    use super::packing::{pack_folder, unpack_folder};
    #[pymodule_export]
    use super::prune::prune;
    #[pymodule_export]
    use super::spec::{BoundSpec, Spec};
    #[pymodule_export]
    use super::tables::{
        instructions, methods, presets, recovery_stages, search_learning_rate, set_threads,
    };
    #[pymodule_export]
    use super::training::TrainingWorker;
    #[pymodule_export]
    use super::worker::{StageWorker, shard_parameters};

    #[pymodule_init]
    fn init(module: &Bound<'_, PyModule>) -> PyResult<()> {
        module.add("__version__", env!("CARGO_PKG_VERSION"))?;
        module.add("DEFAULT_METHOD", openwork_llm::pipeline::METHOD)
    }
}
