//! `pack_folder` and `unpack_folder`: packed models on disk.

use crate::background;
use crate::error::OpenworkError;
use openwork::sparse::Encoding;
use openwork_llm::model::Model;
use openwork_llm::output;
use openwork_llm::pack::{PackModelError, Patterns, ValueChoice, pack, unpack};
use openwork_llm::{Checkpoint, pack::Summary};
use pyo3::exceptions::PyRuntimeError;
use pyo3::prelude::*;
use std::path::{Path, PathBuf};

/// `OpenworkError` for invalid input, `RuntimeError` for a failure while running.
fn raised(error: PackModelError) -> PyErr {
    let words = match &error {
        PackModelError::NoPattern(_) => format!("{error}: spec="),
        error => error.to_string(),
    };
    if error.is_input() { OpenworkError::new_err(words) } else { PyRuntimeError::new_err(words) }
}

/// A value type that a keyword gives.
fn encoding(keyword: &str, name: Option<&str>, group: usize) -> PyResult<Option<Encoding>> {
    let parse = |name: &str| {
        Encoding::new(name, group)
            .map_err(|why| OpenworkError::new_err(format!("{keyword}={name}: {why}")))
    };
    name.map(parse).transpose()
}

/// Runs `work` on the model at `path` with the interpreter released.
fn with_model<T: Send>(
    py: Python<'_>,
    path: &Path,
    out: &Path,
    work: impl FnOnce(&Model<'_>) -> Result<T, PackModelError> + Send,
) -> PyResult<T> {
    output::check_folder(out, &[path])
        .map_err(|error| OpenworkError::new_err(error.to_string()))?;
    // Nothing can stop it: what is raised meanwhile is raised once the folder is complete.
    let done = background::run(
        py,
        |_| Ok(()),
        || {},
        || {
            let checkpoint = Checkpoint::open(path)?;
            work(&Model::open(&checkpoint)?)
        },
    );
    done?.map_err(raised)
}

/// Packs the model at `path` into the folder `out`; the sizes as JSON, and a note.
#[pyfunction]
#[pyo3(signature = (path, out, spec, values, head, group))]
pub fn pack_folder(
    py: Python<'_>,
    path: PathBuf,
    out: PathBuf,
    spec: Option<&str>,
    values: Option<&str>,
    head: Option<&str>,
    group: usize,
) -> PyResult<(String, Option<String>)> {
    let choice = ValueChoice {
        linears: encoding("values", values, group)?,
        head: encoding("head", head, group)?,
        ..ValueChoice::default()
    };
    let (summary, note): (Summary, _) = with_model(py, &path, &out, |model| {
        let patterns = Patterns::choose(spec, &choice, model.checkpoint())?;
        let choice = choice.with_record(model.checkpoint());
        let note = choice.note();
        Ok((pack(model, &patterns, choice, &out, &mut |_| {})?, note))
    })?;
    let json = serde_json::to_string(&summary);
    Ok((json.map_err(|error| PyRuntimeError::new_err(error.to_string()))?, note))
}

/// Restores the dense model of a packed one.
#[pyfunction]
pub fn unpack_folder(py: Python<'_>, path: PathBuf, out: PathBuf) -> PyResult<()> {
    with_model(py, &path, &out, |model| unpack(model, &out, &mut |_| {}))
}
