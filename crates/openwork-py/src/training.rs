//! `TrainingWorker`: what one worker of a cluster holds and computes while the whole model is
//! trained, the windows of `openwork_llm::recover`.

use crate::error::{OpenworkError, raised};
use numpy::{IntoPyArray, PyArray1, PyReadonlyArray1, PyReadonlyArray2};
use openwork_llm::checkpoint::Checkpoint;
use openwork_llm::model::Model;
use openwork_llm::pipeline::{OutputDtype, PipelineError};
use openwork_llm::recover::{Distillation, RecoverError, Recovery, StageOptions, WindowWorker};
use pyo3::exceptions::PyRuntimeError;
use pyo3::prelude::*;
use std::path::{Path, PathBuf};

/// A worker's part of the training of the whole model.
#[pyclass(module = "openwork", name = "TrainingWorker")]
pub struct TrainingWorker {
    stage: Stage,
    worker: WindowWorker,
}

/// What the losses of windows depend on, except the weights in training.
struct Stage {
    model: Checkpoint,
    reference: Checkpoint,
    options: StageOptions,
    windows: Vec<Vec<u32>>,
    held_out: Vec<Vec<u32>>,
    memory: Option<u64>,
    folder: PathBuf,
}

impl Stage {
    /// Calls `work` with the stage and its models open.
    fn with<T>(
        &self,
        work: impl FnOnce(&Distillation<'_>) -> Result<T, RecoverError>,
    ) -> Result<T, PipelineError> {
        let (model, reference) = (Model::open(&self.model)?, Model::open(&self.reference)?);
        let task = Distillation {
            reference: &reference,
            model: &model,
            options: &self.options,
            windows: &self.windows,
            held_out: &self.held_out,
            memory: self.memory,
            folder: &self.folder,
        };
        Ok(work(&task)?)
    }
}

#[pymethods]
impl TrainingWorker {
    /// A worker for the stage with this text. `model` and `reference` are paths, each with the
    /// type that values are rounded to as they are read, if they are. Hidden states of more than
    /// `memory` bytes go to a file in `spill`.
    #[new]
    #[pyo3(signature = (model, reference, stage, windows, held_out, spill, memory=None))]
    fn new(
        py: Python<'_>,
        model: (PathBuf, Option<String>),
        reference: (PathBuf, Option<String>),
        stage: &str,
        windows: PyReadonlyArray2<'_, u32>,
        held_out: PyReadonlyArray2<'_, u32>,
        spill: PathBuf,
        memory: Option<u64>,
    ) -> PyResult<Self> {
        let recovery: Recovery =
            stage.parse().map_err(|error| PyRuntimeError::new_err(format!("{stage}: {error}")))?;
        let [options] = <[StageOptions; 1]>::try_from(recovery.stages)
            .map_err(|_| PyRuntimeError::new_err(format!("{stage} is not one stage")))?;
        let rows = |windows: PyReadonlyArray2<'_, u32>| -> Vec<Vec<u32>> {
            windows.as_array().rows().into_iter().map(|window| window.to_vec()).collect()
        };
        let stage = Stage {
            model: opened(&model)?,
            reference: opened(&reference)?,
            options,
            windows: rows(windows),
            held_out: rows(held_out),
            memory,
            folder: spill,
        };
        let worker = py.detach(|| stage.with(WindowWorker::new)).map_err(|error| raised(&error))?;
        Ok(Self { stage, worker })
    }

    /// The files of the reference model and their hashes.
    fn files(&self, py: Python<'_>) -> Vec<(String, String)> {
        py.detach(|| self.stage.reference.hashes())
    }

    /// Receives the weights of a step.
    fn receive(&mut self, py: Python<'_>, weights: PyReadonlyArray1<'_, f32>) -> PyResult<()> {
        let weights = weights.as_slice()?;
        py.detach(|| self.worker.receive(weights)).map_err(|error| raised(&error.into()))
    }

    /// The loss of a window.
    fn loss(&mut self, py: Python<'_>, window: usize) -> PyResult<f64> {
        let Self { stage, worker } = self;
        py.detach(|| stage.with(|task| worker.loss(task, window))).map_err(|error| raised(&error))
    }

    /// The loss of a window, and its gradients.
    fn gradients<'py>(
        &mut self,
        py: Python<'py>,
        window: usize,
    ) -> PyResult<(f64, Bound<'py, PyArray1<f32>>)> {
        let Self { stage, worker } = self;
        let (loss, gradients) = py
            .detach(|| stage.with(|task| worker.gradients(task, window)))
            .map_err(|error| raised(&error))?;
        Ok((loss, gradients.into_pyarray(py)))
    }
}

/// Opens a model, rounded to a type if one is given.
fn opened((path, dtype): &(PathBuf, Option<String>)) -> PyResult<Checkpoint> {
    let path: &Path = path;
    let source = Checkpoint::open(path).map_err(|e| OpenworkError::new_err(e.to_string()))?;
    match dtype {
        None => Ok(source),
        Some(dtype) => {
            let dtype = OutputDtype::parse(dtype).map_err(|error| raised(&error))?.0;
            Ok(source.rounded(dtype))
        }
    }
}
