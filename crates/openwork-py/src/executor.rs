//! An executor in Python: objects there hold the hidden states and compute the
//! stages, and this side calls them in order:
//!
//! ```text
//! size      workers, and threads of each
//! start     the model, its dtype, the windows of every chunk
//! capture   sums of X'X, chunk by chunk in their order
//! share     the Hessians of a capture
//! work      jobs as JSON: settle a damping, prune a band
//! changed   new numbers of parameters, weights as they will be written
//! advance   the error of every chunk
//! train     a stage that trains the whole model: its models and windows
//! windows   the losses of windows with new weights, and their gradients, in their order
//! ```

use crate::error::OpenworkError;
use crate::worker::{BandJob, packed, packed_parameters, site, weights};
use numpy::{IntoPyArray, PyArray1, PyArray2, PyArrayMethods};
use openwork::hessian::{Damping, Hessian, HessianSum, SumParts};
use openwork::prune::measure::OutputError;
use openwork_llm::checkpoint::Dtype;
use openwork_llm::checkpoint::write::shard_name;
use openwork_llm::model::{Layer, Model, Parameter, Site};
use openwork_llm::pipeline::stages::{Sums, TaskResult, merge};
use openwork_llm::pipeline::{Capture, Executor, Job, Observer, PipelineError, Stage, TaskPlan};
use openwork_llm::recover::{Distillation, GradientSum, RecoverError, Student, WindowPasses};
use pyo3::exceptions::{PyKeyboardInterrupt, PyStopIteration};
use pyo3::prelude::*;
use pyo3::types::{PyDict, PyIterator, PyList, PyTuple};
use std::path::{Path, PathBuf};

/// A sum of X'X for Python: columns, first, count, held_count, fit, held.
pub type PackedSum<'py> =
    (usize, usize, usize, usize, Bound<'py, PyArray1<f64>>, Bound<'py, PyArray1<f64>>);

/// An executor that is a Python object.
pub struct PyExecutor {
    executor: Py<PyAny>,
    dtype: Dtype,
    chunks: usize,
}

impl PyExecutor {
    /// `executor` has the methods listed at the top of this file.
    pub fn new(executor: Py<PyAny>) -> Self {
        Self { executor, dtype: Dtype::BF16, chunks: 0 }
    }

    fn call<T>(
        &self,
        work: impl FnOnce(Python<'_>, &Bound<'_, PyAny>) -> PyResult<T>,
    ) -> Result<T, PipelineError> {
        Python::attach(|py| work(py, self.executor.bind(py)).map_err(|error| failed(py, &error)))
    }
}

/// A Python exception as an error of the run.
fn failed(py: Python<'_>, error: &PyErr) -> PipelineError {
    let words = error.value(py).to_string();
    if error.is_instance_of::<PyKeyboardInterrupt>(py) {
        PipelineError::Stopped
    } else if error.is_instance_of::<OpenworkError>(py) {
        PipelineError::Plan(words)
    } else {
        PipelineError::Executor(format!("{}: {words}", error.get_type(py)))
    }
}

impl Executor for PyExecutor {
    fn start(&mut self, job: &Job, model: &Model<'_>, folder: &Path) -> Result<(), PipelineError> {
        self.dtype = job.dtype;
        let calibration = &job.calibration;
        let layers = model.config().layers;
        self.chunks = calibration.chunks().count();
        self.call(|py, executor| {
            let chunks = PyList::empty(py);
            for windows in calibration.chunks() {
                chunks.append(PyArray2::from_vec2(py, windows)?)?;
            }
            let setup = PyDict::new(py);
            setup.set_item("model", on_every_node(model)?)?;
            setup.set_item("files", model.checkpoint().hashes())?;
            setup.set_item("dtype", job.dtype.name().to_lowercase())?;
            setup.set_item("state_bytes", calibration.state_bytes(model.config()))?;
            setup.set_item("state_memory_limit", job.state_memory_limit)?;
            let shards: Vec<String> = (0..layers)
                .map(|layer| folder.join(shard_name(layer + 2, layers + 1)).display().to_string())
                .collect();
            setup.set_item("shards", shards)?;
            executor.call_method1("start", (setup, chunks)).map(drop)
        })
    }

    fn capture(
        &mut self,
        layer: &Layer,
        capture: Capture<'_>,
        observer: &dyn Observer,
    ) -> Result<Sums, PipelineError> {
        let sites: Vec<String> = capture.sites.iter().map(ToString::to_string).collect();
        let chunks = self.call(|_, executor| {
            let given = (layer.index(), capture.begin, capture.attend, sites);
            Ok(executor.call_method1("capture", given)?.try_iter()?.unbind())
        })?;
        let mut total: Sums = Vec::new();
        for chunk in 0..self.chunks {
            observer.progress(
                layer.index(),
                Stage::Calibrate,
                chunk as f64 / self.chunks as f64,
            )?;
            let sums: Vec<(Site, SumParts)> = self.call(|py, _| {
                let next = chunks.bind(py).call_method0("__next__")?;
                let next: Vec<(String, PackedSum<'_>)> = next.extract()?;
                next.into_iter().map(|(name, parts)| Ok((site(&name)?, sum(&parts)?))).collect()
            })?;
            let sums = sums
                .into_iter()
                .map(|(site, parts)| {
                    let wrong = |error| {
                        let tensor = format!("model.layers.{}, {site}", layer.index());
                        PipelineError::Inputs { tensor, error }
                    };
                    Ok((site, HessianSum::from_parts(parts).map_err(wrong)?))
                })
                .collect::<Result<Sums, PipelineError>>()?;
            merge(&mut total, sums)?;
        }
        self.call(|py, _| ended(chunks.bind(py)))?;
        Ok(total)
    }

    fn prune(
        &mut self,
        tasks: &[&TaskPlan],
        layer: &Layer,
        hessians: &[(Site, Hessian)],
        observer: &dyn Observer,
    ) -> Result<Vec<TaskResult>, PipelineError> {
        let index = layer.index();
        self.call(|py, executor| {
            let all = PyDict::new(py);
            for (site, hessian) in hessians {
                all.set_item(site.to_string(), packed(py, hessian))?;
            }
            executor.call_method1("share", (index, all)).map(drop)
        })?;
        // Expensive tasks first, so that no worker ends with one alone.
        let cost = |task: &TaskPlan| {
            let sizes = task.spec.tensors().iter().map(|t| t.matrix());
            sizes.map(|(rows, cols)| rows * cols * cols).sum::<usize>()
        };
        let mut order: Vec<usize> = (0..tasks.len()).collect();
        order.sort_by_key(|&task| std::cmp::Reverse(cost(tasks[task])));
        let bands: Vec<usize> = tasks.iter().map(|task| task.bands().len()).collect();

        // A damping that several bands share is settled once.
        let mut settled: Vec<(Option<Damping>, Vec<String>)> =
            vec![Default::default(); tasks.len()];
        let open =
            |&&task: &&usize| bands[task] > 1 && tasks[task].method.damping() == Damping::Auto;
        let unsettled: Vec<usize> = order.iter().filter(open).copied().collect();
        let jobs = unsettled.iter().map(|&task| BandJob::settle(tasks[task]).to_json()).collect();
        for (&task, found) in unsettled.iter().zip(self.work(index, jobs, observer)?) {
            settled[task] = (found.damping, found.notes);
        }

        let mut jobs = Vec::new();
        for &task in &order {
            let damping = settled[task].0;
            jobs.extend(
                (0..bands[task]).map(|band| BandJob::prune(tasks[task], band, damping).to_json()),
            );
        }
        let mut results = self.work(index, jobs, observer)?.into_iter();
        let mut done: Vec<Option<TaskResult>> = (0..tasks.len()).map(|_| None).collect();
        for &task in &order {
            let parts: Vec<TaskResult> = results.by_ref().take(bands[task]).collect();
            done[task] = TaskResult::join(parts).map(|mut whole| {
                let notes = std::mem::take(&mut settled[task].1);
                whole.notes.splice(0..0, notes);
                whole
            });
        }
        let missing = || PipelineError::Executor("a worker gave no result".to_string());
        done.into_iter().map(|done| done.ok_or_else(missing)).collect()
    }

    fn changed(&mut self, layer: &Layer, parameters: &[Parameter]) -> Result<(), PipelineError> {
        let packed = packed_parameters(layer, parameters, self.dtype)?;
        self.call(|py, executor| {
            let all: Vec<(usize, Bound<'_, PyArray1<u8>>)> =
                packed.into_iter().map(|(index, bytes)| (index, bytes.into_pyarray(py))).collect();
            executor.call_method1("changed", (layer.index(), all)).map(drop)
        })
    }

    fn advance(
        &mut self,
        layer: &Layer,
        stage: Stage,
        observer: &dyn Observer,
    ) -> Result<Vec<OutputError>, PipelineError> {
        observer.progress(layer.index(), stage, 0.0)?;
        let errors: Vec<(f64, f64)> =
            self.call(|_, executor| executor.call_method1("advance", (layer.index(),))?.extract())?;
        Ok(errors.into_iter().map(|(change, size)| OutputError { change, size }).collect())
    }

    fn window_passes<'a>(
        &'a mut self,
        task: &'a Distillation<'a>,
    ) -> Result<Box<dyn WindowPasses + 'a>, PipelineError> {
        self.call(|py, executor| {
            let rounding = |model: &Model<'_>| {
                model.checkpoint().rounding().map(|dtype| dtype.name().to_lowercase())
            };
            let setup = PyDict::new(py);
            setup.set_item("model", std::path::absolute(task.model.checkpoint().path())?)?;
            setup.set_item("dtype", rounding(task.model))?;
            setup.set_item("reference", on_every_node(task.reference)?)?;
            setup.set_item("reference_dtype", rounding(task.reference))?;
            setup.set_item("files", task.reference.checkpoint().hashes())?;
            setup.set_item("stage", task.options.to_string())?;
            setup.set_item("state_memory_limit", task.memory)?;
            let windows = PyArray2::from_vec2(py, task.windows)?;
            let held_out = PyArray2::from_vec2(py, task.held_out)?;
            executor.call_method1("train", (setup, windows, held_out)).map(drop)
        })?;
        Ok(Box::new(PyPasses { executor: self }))
    }

    fn record(&mut self) -> Option<serde_json::Value> {
        let text: String =
            self.call(|_, executor| executor.call_method0("record")?.extract()).ok()?;
        serde_json::from_str(&text).ok()
    }
}

impl PyExecutor {
    /// Runs jobs on any workers; their results, in order.
    fn work(
        &self,
        layer: usize,
        jobs: Vec<String>,
        observer: &dyn Observer,
    ) -> Result<Vec<TaskResult>, PipelineError> {
        if jobs.is_empty() {
            return Ok(Vec::new());
        }
        observer.progress(layer, Stage::Prune, 0.0)?;
        self.call(|_, executor| {
            let results = executor.call_method1("work", (layer, jobs))?;
            let results: Vec<Bound<'_, PyTuple>> = results.extract()?;
            results
                .iter()
                .map(|result| {
                    let (matrices, errors, damping, seconds, notes): (
                        Vec<(usize, Bound<'_, PyArray1<u8>>)>,
                        Vec<(f64, f64)>,
                        Option<String>,
                        f64,
                        Vec<String>,
                    ) = result.extract()?;
                    let mut done = Vec::new();
                    for (cols, bytes) in &matrices {
                        done.push(weights(self.dtype, bytes.readonly().as_slice()?, *cols)?);
                    }
                    let errors = errors.into_iter();
                    Ok(TaskResult {
                        weights: done,
                        errors: errors.map(|(change, size)| OutputError { change, size }).collect(),
                        damping: damping.and_then(|text| text.parse().ok()),
                        seconds,
                        notes,
                    })
                })
                .collect()
        })
    }
}

/// The path of a model, for workers: they may have another working directory.
fn on_every_node(model: &Model<'_>) -> std::io::Result<PathBuf> {
    let path = model.checkpoint().path();
    if path.exists() { std::path::absolute(path) } else { Ok(path.to_path_buf()) }
}

/// The windows of a stage that trains the whole model, computed by workers.
struct PyPasses<'a> {
    executor: &'a PyExecutor,
}

impl WindowPasses for PyPasses<'_> {
    fn losses(
        &mut self,
        student: &Student<'_>,
        windows: &[usize],
        mut sum: Option<&mut GradientSum>,
    ) -> Result<Vec<f64>, RecoverError> {
        let weights = student.flat();
        let results = self.call(|py, executor| {
            let given = (weights.into_pyarray(py), windows, sum.is_some());
            Ok(executor.call_method1("windows", given)?.try_iter()?.unbind())
        })?;
        let mut losses = Vec::new();
        for _ in windows {
            let (loss, gradients): (f64, Option<Py<PyArray1<f32>>>) =
                self.call(|py, _| results.bind(py).call_method0("__next__")?.extract())?;
            if let Some(sum) = sum.as_deref_mut() {
                Python::attach(|py| match gradients {
                    Some(gradients) => match gradients.bind(py).readonly().as_slice() {
                        Ok(gradients) => sum.add_flat(gradients),
                        Err(error) => Err(RecoverError::Executor(error.to_string())),
                    },
                    None => Err(RecoverError::Executor("a worker sent no gradients".to_string())),
                })?;
            }
            losses.push(loss);
        }
        self.call(|py, _| ended(results.bind(py)))?;
        Ok(losses)
    }
}

impl PyPasses<'_> {
    fn call<T>(
        &self,
        work: impl FnOnce(Python<'_>, &Bound<'_, PyAny>) -> PyResult<T>,
    ) -> Result<T, RecoverError> {
        self.executor.call(work).map_err(|error| match error {
            PipelineError::Stopped => RecoverError::Stopped,
            error => RecoverError::Executor(error.to_string()),
        })
    }
}

/// Runs the rest of a generator, after its last value.
fn ended(generator: &Bound<'_, PyIterator>) -> PyResult<()> {
    match generator.call_method0("__next__") {
        Err(error) if error.is_instance_of::<PyStopIteration>(generator.py()) => Ok(()),
        other => other.map(drop),
    }
}

fn sum(parts: &PackedSum<'_>) -> PyResult<SumParts> {
    let (columns, first, count, held_count, fit, held) = parts;
    Ok(SumParts {
        columns: *columns,
        first: *first,
        count: *count,
        held_count: *held_count,
        fit: fit.readonly().as_slice()?.to_vec(),
        held: held.readonly().as_slice()?.to_vec(),
    })
}
