//! Errors in the command's words, as `ValueError`s.

use openwork_llm::pipeline::PipelineError;
use pyo3::PyErr;
use pyo3::create_exception;
use pyo3::exceptions::{PyRuntimeError, PyValueError};

create_exception!(
    openwork,
    OpenworkError,
    PyValueError,
    "Something is wrong with what was given: what was asked, what was found, what to do."
);
create_exception!(
    openwork,
    SpecError,
    OpenworkError,
    "A pattern that cannot be read or does not fit."
);
create_exception!(openwork, MethodError, OpenworkError, "A method or option that does not exist.");
create_exception!(
    openwork,
    HessianError,
    OpenworkError,
    "Inputs or a matrix that cannot be a Hessian."
);
create_exception!(openwork, PruneError, OpenworkError, "Weights that cannot be pruned as asked.");

/// An error of the library as one of Python's.
pub fn spec(error: openwork::SpecError) -> PyErr {
    SpecError::new_err(error.to_string())
}

/// An error of the library as one of Python's.
pub fn method(error: openwork::prune::MethodError) -> PyErr {
    MethodError::new_err(error.to_string())
}

/// An error of the library as one of Python's.
pub fn hessian(error: openwork::hessian::HessianError) -> PyErr {
    HessianError::new_err(error.to_string())
}

/// An error of the library as one of Python's.
pub fn prune(error: openwork::prune::PruneError) -> PyErr {
    use openwork::prune::PruneError as Why;
    match error {
        Why::Hessian { .. } => HessianError::new_err(error.to_string()),
        Why::TooWide(_) => SpecError::new_err(error.to_string()),
        _ => PruneError::new_err(error.to_string()),
    }
}

/// An error of a run: the user's, or the run's own.
pub fn raised(error: &PipelineError) -> PyErr {
    let words = error.to_string();
    if error.is_input() { OpenworkError::new_err(words) } else { PyRuntimeError::new_err(words) }
}

/// Something is wrong with a tensor.
pub fn tensor(words: impl Into<String>) -> PyErr {
    PruneError::new_err(words.into())
}
