//! The command, and names on the Hugging Face Hub.

use crate::background::{self, Flag};
use crate::error::OpenworkError;
use openwork::prune::Monitor;
use openwork_llm::hub::{CachedPath, Download, HubError, OnDownload, resolve_model, resolve_text};
use pyo3::exceptions::PyRuntimeError;
use pyo3::prelude::*;
use std::ffi::OsString;
use std::ops::ControlFlow;
use std::path::{Path, PathBuf};

/// Runs `openwork` with these arguments, of which the first is the program's name; the
/// exit code.
#[pyfunction]
pub fn run_command(py: Python<'_>, arguments: Vec<OsString>) -> u8 {
    py.detach(|| openwork_cli::run(arguments))
}

/// A model as a path: a name on the Hub becomes the folder or file of its download.
#[pyfunction]
#[pyo3(signature = (path, offline=false))]
pub fn model_path(py: Python<'_>, path: PathBuf, offline: bool) -> PyResult<PathBuf> {
    fetch(py, &path, offline, resolve_model)
}

/// A text as a path.
#[pyfunction]
#[pyo3(signature = (path, offline=false))]
pub fn text_path(py: Python<'_>, path: PathBuf, offline: bool) -> PyResult<PathBuf> {
    fetch(py, &path, offline, resolve_text)
}

/// Resolves a name; Ctrl-C stops a download and keeps the bytes that arrived.
fn fetch(
    py: Python<'_>,
    path: &Path,
    offline: bool,
    resolve: fn(&Path, bool, OnDownload<'_>) -> Result<CachedPath, HubError>,
) -> PyResult<PathBuf> {
    let flag = Flag::default();
    let mut watch = |_: Download<'_>| match flag.cancelled() {
        true => ControlFlow::Break(()),
        false => ControlFlow::Continue(()),
    };
    let work = || resolve(path, offline, &mut watch);
    let found = background::run(py, |_| Ok(()), || flag.stop(), work)?.map_err(|error| {
        let words = error.to_string();
        match error.is_input() {
            true => OpenworkError::new_err(words),
            false => PyRuntimeError::new_err(words),
        }
    })?;
    Ok(found.path)
}
