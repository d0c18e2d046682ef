//! Python exceptions: library errors as `ValueError` subclasses with the same text as
//! the command's.

use openwork_llm::pipeline::{PipelineError, Spelling};
use pyo3::PyErr;
use pyo3::create_exception;
use pyo3::exceptions::{PyRuntimeError, PyValueError};

create_exception!(
    openwork,
    OpenworkError,
    PyValueError,
    "An invalid argument or input file. Base class of all errors of openwork."
);
create_exception!(
    openwork,
    SpecError,
    OpenworkError,
    "A spec that cannot be parsed or does not fit the tensors."
);
create_exception!(openwork, MethodError, OpenworkError, "An unknown method or option.");
create_exception!(
    openwork,
    HessianError,
    OpenworkError,
    "Inputs or a matrix that do not form a valid Hessian."
);
create_exception!(
    openwork,
    PruneError,
    OpenworkError,
    "Weights that cannot be pruned as requested."
);

/// Converts a spec error.
pub fn spec(error: openwork::SpecError) -> PyErr {
    SpecError::new_err(error.to_string())
}

/// Converts a method error.
pub fn method(error: openwork::prune::MethodError) -> PyErr {
    MethodError::new_err(error.to_string())
}

/// Converts a Hessian error.
pub fn hessian(error: openwork::hessian::HessianError) -> PyErr {
    HessianError::new_err(error.to_string())
}

/// Converts a pruning error to the exception of its cause.
pub fn prune(error: openwork::prune::PruneError) -> PyErr {
    use openwork::prune::PruneError as Cause;
    match error {
        Cause::Hessian { .. } => HessianError::new_err(error.to_string()),
        Cause::TooWide(_) => SpecError::new_err(error.to_string()),
        _ => PruneError::new_err(error.to_string()),
    }
}

/// Converts an error of a run, with options as keywords.
pub fn raised(error: &PipelineError) -> PyErr {
    raised_as(error, Spelling::Keywords)
}

/// Converts an error of a run: `OpenworkError` for invalid input, `RuntimeError` for a
/// failure while running.
pub fn raised_as(error: &PipelineError, spelling: Spelling) -> PyErr {
    let words = error.spelled(spelling);
    if error.is_input() { OpenworkError::new_err(words) } else { PyRuntimeError::new_err(words) }
}

/// A `PruneError` about a tensor.
pub fn tensor(words: impl Into<String>) -> PyErr {
    PruneError::new_err(words.into())
}
