//! The tables of presets and methods, and settings of the process.

use crate::error::OpenworkError;
use openwork::prune::{METHODS, MODIFIERS, Method, MethodInfo, Needs};
use openwork::spec::PRESETS;
use openwork_llm::recover::{
    LossKind, RateTrial, Recovery, RecoveryError, Schedule, StageOptions, Trained, Unit,
    chosen_rates, next_rate, trial_steps,
};
use pyo3::prelude::*;
use pyo3::types::PyDict;

/// All presets, each with its name, an example, a shape for it and a summary.
///
/// >>> import openwork
/// >>> openwork.presets()[0]["example"]
/// '2:4'
#[pyfunction]
pub fn presets(py: Python<'_>) -> PyResult<Vec<Bound<'_, PyDict>>> {
    let row = |preset: &openwork::spec::Preset| {
        let row = PyDict::new(py);
        row.set_item("name", preset.name)?;
        row.set_item("example", preset.example)?;
        row.set_item("shape", preset.shape)?;
        row.set_item("summary", preset.summary)?;
        Ok(row)
    };
    PRESETS.iter().map(row).collect()
}

/// All methods and modifiers, each with what it needs and its options.
///
/// >>> import openwork
/// >>> [row["name"] for row in openwork.methods()][:3]
/// ['magnitude', 'wanda', 's-obd']
#[pyfunction]
pub fn methods(py: Python<'_>) -> PyResult<Vec<Bound<'_, PyDict>>> {
    let base = METHODS.iter().map(|method| row(py, method, ""));
    base.chain(MODIFIERS.iter().map(|method| row(py, method, "+"))).collect()
}

fn row<'py>(py: Python<'py>, method: &MethodInfo, plus: &str) -> PyResult<Bound<'py, PyDict>> {
    let needs = match method.name.parse::<Method>().map(|method| method.needs()) {
        Ok(Needs::Weights) => "weights",
        Ok(Needs::Norms) => "norms",
        // Every modifier needs the Hessian.
        Ok(Needs::Hessian) | Err(_) => "hessian",
    };
    let row = PyDict::new(py);
    row.set_item("name", format!("{plus}{}", method.name))?;
    row.set_item("summary", method.summary)?;
    row.set_item("needs", needs)?;
    let options = method.options.iter().map(|option| {
        let row = PyDict::new(py);
        row.set_item("name", option.name)?;
        row.set_item("values", option.values)?;
        row.set_item("default", option.default)?;
        row.set_item("help", option.help)?;
        Ok(row)
    });
    row.set_item("options", options.collect::<PyResult<Vec<_>>>()?)?;
    Ok(row)
}

/// The instruction set used for matrix products; results may differ in rounding
/// between machines that differ in it.
///
/// >>> from openwork import _native
/// >>> _native.instructions() == _native.instructions() != ""
/// True
#[pyfunction]
pub fn instructions() -> String {
    openwork::linalg::instructions()
}

/// Sets the number of threads shared by all calls, by default `RAYON_NUM_THREADS` or
/// the number of cores. Must be called before the first long call; returns whether it
/// had an effect.
#[pyfunction]
pub fn set_threads(threads: usize) -> bool {
    rayon::ThreadPoolBuilder::new().num_threads(threads).build_global().is_ok()
}

/// The stages of a recovery with their options: `blocks[epochs=2]+model`.
#[pyfunction]
pub fn recovery_stages<'py>(py: Python<'py>, text: &str) -> PyResult<Vec<Bound<'py, PyDict>>> {
    let recovery: Recovery =
        text.parse().map_err(|error: RecoveryError| OpenworkError::new_err(error.to_string()))?;
    let row = |stage: &StageOptions| {
        let row = PyDict::new(py);
        row.set_item("stage", stage.to_string())?;
        row.set_item(
            "unit",
            match stage.unit {
                Unit::Block => "blocks",
                Unit::Half => "halves",
                Unit::Model => "model",
            },
        )?;
        row.set_item("epochs", stage.epochs)?;
        row.set_item("steps", stage.steps)?;
        row.set_item("batch", stage.batch)?;
        row.set_item("decay", stage.decay)?;
        row.set_item("regrow", stage.regrow)?;
        row.set_item("states", stage.states)?;
        row.set_item("temperature", stage.temperature)?;
        row.set_item("rates", stage.rates())?;
        row.set_item("trial_steps", trial_steps(stage.steps))?;
        row.set_item("weights", stage.trained != Trained::Norms)?;
        row.set_item("norms", stage.trained.norms())?;
        let (kl, ce) = match stage.loss {
            LossKind::Kl => (1.0, 0.0),
            LossKind::CrossEntropy => (0.0, 1.0),
            LossKind::Mix => (0.5, 0.5),
        };
        row.set_item("kl", kl)?;
        row.set_item("ce", ce)?;
        row.set_item(
            "schedule",
            match stage.schedule {
                Schedule::Linear => "linear",
                Schedule::Cosine => "cosine",
                Schedule::Constant => "constant",
            },
        )?;
        Ok(row)
    };
    recovery.stages.iter().map(row).collect()
}

/// The search for a learning rate, given the rates that were tried for a short time and
/// their held-out losses (`None` if training diverged): the rate to try next, or `None` and
/// the rates to train with until one lowers the loss.
#[pyfunction]
pub fn search_learning_rate(trials: Vec<(f64, Option<f64>)>) -> (Option<f64>, Vec<f64>) {
    let trials: Vec<RateTrial> =
        trials.into_iter().map(|(lr, held_out)| RateTrial { lr, held_out }).collect();
    match next_rate(&trials) {
        Some(rate) => (Some(rate), Vec::new()),
        None => (None, chosen_rates(&trials)),
    }
}
