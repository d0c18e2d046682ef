//! `StageWorker`: what one worker of a cluster holds and computes, the stages of
//! `openwork_llm::pipeline::stages` on some of the chunks.

use crate::error::{OpenworkError, raised};
use crate::executor::PackedSum;
use numpy::{IntoPyArray, PyArray1, PyArrayMethods, PyReadonlyArray1, PyReadonlyArray2};
use openwork::hessian::{Damping, Hessian};
use openwork::prune::{Factors, Method};
use openwork::spec::Band;
use openwork::{Matrix, Pattern};
use openwork_llm::checkpoint::write::encode;
use openwork_llm::checkpoint::{Checkpoint, Dtype};
use openwork_llm::model::{Layer, Model, Parameter, Site, Storage};
use openwork_llm::pipeline::stages::{BoundTask, Sums, TaskResult};
use openwork_llm::pipeline::{OutputDtype, PipelineError, States, TaskPlan};
use pyo3::exceptions::PyRuntimeError;
use pyo3::prelude::*;
use serde_json::{Value, json};
use std::path::PathBuf;
use std::sync::Arc;

/// A Hessian for Python: columns, samples, held-out samples, and the upper
/// triangles of both, row by row.
type PackedHessian<'py> =
    (usize, usize, usize, Bound<'py, PyArray1<f64>>, Bound<'py, PyArray1<f64>>);

/// The result of a job for Python: columns and bytes of each tensor, the change and
/// size of its outputs, damping, seconds, notes.
type PackedResult<'py> =
    (Vec<(usize, Bound<'py, PyArray1<u8>>)>, Vec<(f64, f64)>, Option<String>, f64, Vec<String>);

/// A job for a worker.
pub struct BandJob {
    linears: Vec<usize>,
    pattern: String,
    method: String,
    /// The band to prune; none to settle the damping.
    band: Option<usize>,
    damping: Option<Damping>,
}

impl BandJob {
    /// Settles the damping of a task.
    pub fn settle(task: &TaskPlan) -> Self {
        let (pattern, method) = (task.pattern.to_string(), task.method.to_string());
        Self { linears: task.linears.clone(), pattern, method, band: None, damping: None }
    }

    /// Prunes a band of a task, with a damping if that is settled.
    pub fn prune(task: &TaskPlan, band: usize, damping: Option<Damping>) -> Self {
        Self { band: Some(band), damping, ..Self::settle(task) }
    }

    /// The job as JSON.
    pub fn to_json(&self) -> String {
        let damping = self.damping.map(|damping| damping.to_string());
        json!({
            "linears": self.linears, "pattern": self.pattern, "method": self.method,
            "band": self.band, "damping": damping,
        })
        .to_string()
    }

    fn from_json(text: &str) -> Option<Self> {
        let value: Value = serde_json::from_str(text).ok()?;
        let number = |value: &Value| value.as_u64().map(|n| n as usize);
        let linears: Option<Vec<usize>> = value["linears"].as_array()?.iter().map(number).collect();
        let damping = match value["damping"].as_str() {
            Some(text) => Some(text.parse().ok()?),
            None => None,
        };
        Some(Self {
            linears: linears?,
            pattern: value["pattern"].as_str()?.to_string(),
            method: value["method"].as_str()?.to_string(),
            band: number(&value["band"]),
            damping,
        })
    }
}

/// A worker's part of a run: the hidden states of some chunks, one layer, and the
/// Hessians of the current capture.
#[pyclass(module = "openwork", name = "StageWorker")]
pub struct StageWorker {
    source: Checkpoint,
    dtype: Dtype,
    states: States,
    layer: Option<Layer>,
    hessians: Vec<(Site, Hessian)>,
    /// The task that was worked on last, its bands and what they share.
    last: Option<(String, TaskPlan, Vec<Band>, Option<Factors>)>,
}

#[pymethods]
impl StageWorker {
    /// A worker for the model at `path`; `chunks` are numbers of windows and of tokens
    /// per window. Hidden states go to files in `spill`, if given.
    #[new]
    #[pyo3(signature = (path, dtype, chunks, spill=None))]
    fn new(
        path: PathBuf,
        dtype: &str,
        chunks: Vec<[usize; 2]>,
        spill: Option<PathBuf>,
    ) -> PyResult<Self> {
        let source = Checkpoint::open(&path).map_err(|e| OpenworkError::new_err(e.to_string()))?;
        let dtype = OutputDtype::parse(dtype).map_err(|error| raised(&error))?.0;
        let source = source.rounded(dtype);
        let model = Model::open(&source).map_err(|error| raised(&error.into()))?;
        let states = States::new(&chunks, model.config(), spill.as_deref());
        let states = states.map_err(|error| raised(&error))?;
        drop(model);
        let (layer, hessians, last) = (None, Vec::new(), None);
        Ok(Self { source, dtype, states, layer, hessians, last })
    }

    /// The model's files and their hashes.
    fn files(&self, py: Python<'_>) -> Vec<(String, String)> {
        py.detach(|| self.source.hashes())
    }

    /// Embeds the windows of a chunk.
    fn embed(
        &mut self,
        py: Python<'_>,
        chunk: usize,
        windows: PyReadonlyArray2<'_, u32>,
    ) -> PyResult<()> {
        let windows: Vec<Vec<u32>> =
            windows.as_array().rows().into_iter().map(|window| window.to_vec()).collect();
        py.detach(|| {
            let hidden = Model::open(&self.source)?.embed(&windows)?;
            self.states.put(chunk, hidden)
        })
        .map_err(|error| raised(&error))
    }

    /// Runs a chunk through a layer and sums its inputs.
    fn capture<'py>(
        &mut self,
        py: Python<'py>,
        chunk: usize,
        layer: usize,
        begin: bool,
        attend: bool,
        sites: Vec<String>,
    ) -> PyResult<Vec<(String, PackedSum<'py>)>> {
        let sites = sites.iter().map(|name| site(name)).collect::<PyResult<Vec<_>>>()?;
        let sums: Sums = py
            .detach(|| {
                self.enter(layer)?;
                let Self { states, layer, .. } = self;
                let layer = layer.as_ref().ok_or(PipelineError::Stopped)?;
                match begin {
                    true => states.begin(chunk, layer, &sites),
                    false => states.look(chunk, layer, &sites, attend),
                }
            })
            .map_err(|error| raised(&error))?;
        let carried = |(site, sum): (Site, openwork::hessian::HessianSum)| {
            let p = sum.into_parts();
            let (fit, held) = (p.fit.into_pyarray(py), p.held.into_pyarray(py));
            (site.to_string(), (p.columns, p.first, p.count, p.held_count, fit, held))
        };
        Ok(sums.into_iter().map(carried).collect())
    }

    /// Receives the Hessians of the current capture, by the names of their sites.
    fn share(&mut self, hessians: Vec<(String, PackedHessian<'_>)>) -> PyResult<()> {
        self.last = None;
        self.hessians = hessians
            .into_iter()
            .map(|(name, packed)| Ok((site(&name)?, unpacked(&packed)?)))
            .collect::<PyResult<_>>()?;
        Ok(())
    }

    /// Runs one job on a layer.
    fn work<'py>(
        &mut self,
        py: Python<'py>,
        layer: usize,
        job: &str,
    ) -> PyResult<PackedResult<'py>> {
        let job = BandJob::from_json(job)
            .ok_or_else(|| PyRuntimeError::new_err(format!("not a job: {job}")))?;
        let done = py.detach(|| self.job(layer, &job)).map_err(|error| raised(&error))?;
        let mut matrices = Vec::new();
        for matrix in &done.weights {
            let mut bytes = Vec::new();
            let mut rounded = matrix.data().to_vec();
            self.dtype.round(&mut rounded);
            encode(self.dtype, &rounded, &mut bytes).map_err(|value| {
                PyRuntimeError::new_err(format!("{value} does not fit in {}", self.dtype))
            })?;
            matrices.push((matrix.cols(), bytes.into_pyarray(py)));
        }
        let errors = done.errors.iter().map(|error| (error.change, error.size)).collect();
        let damping = done.damping.map(|damping| damping.to_string());
        Ok((matrices, errors, damping, done.seconds, done.notes))
    }

    /// Receives new numbers of some parameters of a layer, as [`packed_parameters`] gives them.
    fn changed(
        &mut self,
        layer: usize,
        parameters: Vec<(usize, PyReadonlyArray1<'_, u8>)>,
    ) -> PyResult<()> {
        self.enter(layer).map_err(|error| raised(&error))?;
        let dtype = self.dtype;
        let Some(layer) = &mut self.layer else { return Ok(()) };
        let mut all: Vec<(Parameter, &mut [f32])> = layer.parameters_mut().collect();
        for (index, bytes) in parameters {
            let bytes = bytes.as_slice()?;
            let Some((parameter, numbers)) = all.get_mut(index) else {
                let words = format!("there is no parameter {index} in a layer of {}", all.len());
                return Err(PyRuntimeError::new_err(words));
            };
            let dtype = sent_as(*parameter, dtype);
            if bytes.len() != numbers.len() * dtype.block_bytes() {
                let (count, found) = (numbers.len(), bytes.len());
                let words = format!("{found} bytes are not {count} numbers in {dtype}");
                return Err(PyRuntimeError::new_err(words));
            }
            dtype.decode(bytes, numbers);
        }
        Ok(())
    }

    /// Advances a chunk through a layer; the distance of its outputs from the target.
    fn advance(&mut self, py: Python<'_>, chunk: usize, layer: usize) -> PyResult<(f64, f64)> {
        py.detach(|| {
            self.enter(layer)?;
            let Self { states, layer, .. } = self;
            let layer = layer.as_ref().ok_or(PipelineError::Stopped)?;
            let error = states.advance(chunk, layer)?;
            Ok((error.change, error.size))
        })
        .map_err(|error| raised(&error))
    }
}

impl StageWorker {
    /// Reads a layer of the model, unless it is the current one.
    fn enter(&mut self, index: usize) -> Result<(), PipelineError> {
        if self.layer.as_ref().is_none_or(|layer| layer.index() != index) {
            (self.layer, self.last) = (None, None);
            self.layer = Some(Model::open(&self.source)?.layer(index, Storage::F32)?);
            self.source.release();
        }
        Ok(())
    }

    fn job(&mut self, layer: usize, job: &BandJob) -> Result<TaskResult, PipelineError> {
        self.enter(layer)?;
        let Self { layer, hessians, last, .. } = self;
        let layer = layer.as_ref().ok_or(PipelineError::Stopped)?;
        let hessians: &[(Site, Hessian)] = hessians;
        let of = |site| hessians.iter().find(|(known, _)| *known == site).map(|(_, h)| h);
        // Jobs on one task come one after the other.
        let key = format!(
            "{} {:?} {} {} {:?}",
            layer.index(),
            job.linears,
            job.pattern,
            job.method,
            job.damping
        );
        if last.as_ref().is_none_or(|(known, ..)| *known != key) {
            let wrong = |error: &dyn std::fmt::Display| PipelineError::Plan(error.to_string());
            let pattern: Pattern = job.pattern.parse().map_err(|error| wrong(&error))?;
            let method: Method = job.method.parse().map_err(|error| wrong(&error))?;
            let method = match job.damping {
                Some(damping) => method.with_damping(damping),
                None => method,
            };
            let task = TaskPlan::new(job.linears.clone(), pattern, Arc::new(method), layer.info());
            let task = task.map_err(|error| wrong(&error))?;
            let bands = task.bands();
            *last = Some((key, task, bands, None));
        }
        let Some((_, task, bands, factors)) = last else { return Err(PipelineError::Stopped) };
        let work = BoundTask::new(task, layer, &of, &());
        let Some(band) = job.band else {
            let (damping, notes) = work.settle()?.unzip();
            let (weights, errors) = (Vec::new(), Vec::new());
            return Ok(TaskResult {
                weights,
                errors,
                damping,
                seconds: 0.0,
                notes: notes.unwrap_or_default(),
            });
        };
        let at = std::time::Instant::now();
        if factors.is_none() {
            *factors = Some(work.factors()?);
        }
        let factoring = at.elapsed().as_secs_f64();
        match (bands.get(band), factors) {
            (Some(band), Some(factors)) => {
                let mut done = work.prune(band, factors)?;
                done.seconds += factoring;
                Ok(done)
            }
            _ => {
                Err(PipelineError::Executor(format!("there is no band {band} of {}", job.pattern)))
            }
        }
    }
}

/// The type in which a parameter is sent: weights in the type they are written in, others
/// exactly, because the factors of a norm may include an offset.
fn sent_as(parameter: Parameter, dtype: Dtype) -> Dtype {
    match parameter {
        Parameter::Weight(_) => dtype,
        _ => Dtype::F32,
    }
}

/// Parameters of a layer for [`StageWorker::changed`]: the index of each among
/// [`Parameter::all`], and its numbers as bytes. Those that the layer does not have are
/// left out.
pub fn packed_parameters(
    layer: &Layer,
    parameters: &[Parameter],
    dtype: Dtype,
) -> Result<Vec<(usize, Vec<u8>)>, PipelineError> {
    let mut packed = Vec::new();
    for (index, parameter) in Parameter::all(layer.info()).enumerate() {
        if !parameters.contains(&parameter) {
            continue;
        }
        let numbers = layer.parameter(parameter);
        if numbers.is_empty() {
            continue;
        }
        let (dtype, mut bytes) = (sent_as(parameter, dtype), Vec::new());
        encode(dtype, numbers, &mut bytes)
            .map_err(|value| PipelineError::Executor(format!("{value} does not fit in {dtype}")))?;
        packed.push((index, bytes));
    }
    Ok(packed)
}

/// All parameters of a layer from its shard, as [`StageWorker::changed`] takes them.
#[pyfunction]
pub fn shard_parameters<'py>(
    py: Python<'py>,
    model: PathBuf,
    shard: PathBuf,
    dtype: &str,
    layer: usize,
) -> PyResult<Vec<(usize, Bound<'py, PyArray1<u8>>)>> {
    let read = || -> Result<Vec<(usize, Vec<u8>)>, PipelineError> {
        let source = Checkpoint::open(&model)?;
        let dtype = OutputDtype::parse(dtype)?.0;
        let shard = Checkpoint::open_shard(&shard, source.config().clone())?;
        let layer = Model::open(&source)?.layer_from(&shard, layer, Storage::F32)?;
        let all: Vec<Parameter> = Parameter::all(layer.info()).collect();
        packed_parameters(&layer, &all, dtype)
    };
    let all = py.detach(read).map_err(|error| raised(&error))?;
    Ok(all.into_iter().map(|(index, bytes)| (index, bytes.into_pyarray(py))).collect())
}

/// A site by its name.
pub fn site(name: &str) -> PyResult<Site> {
    name.parse().map_err(PyRuntimeError::new_err)
}

/// Weights from the bytes they are written as.
pub fn weights(dtype: Dtype, bytes: &[u8], cols: usize) -> PyResult<Matrix> {
    let len = bytes.len() / dtype.block_bytes();
    if cols == 0 || !len.is_multiple_of(cols) || !bytes.len().is_multiple_of(dtype.block_bytes()) {
        let words = format!("{} bytes are not rows of {cols} {dtype}", bytes.len());
        return Err(PyRuntimeError::new_err(words));
    }
    let mut data = vec![0.0; len];
    dtype.decode(bytes, &mut data);
    Ok(Matrix::from_vec(len / cols, cols, data))
}

/// A Hessian for another process.
pub fn packed<'py>(py: Python<'py>, hessian: &Hessian) -> PackedHessian<'py> {
    let triangle = |matrix: &Matrix<f64>| -> Vec<f64> {
        (0..matrix.rows()).flat_map(|i| matrix.row(i)[i..].iter().copied()).collect()
    };
    let (held, count) = match hessian.held_out() {
        Some((matrix, count)) => (triangle(matrix), count),
        None => (Vec::new(), 0),
    };
    let (columns, samples) = (hessian.columns(), hessian.samples().unwrap_or(0));
    let all = triangle(hessian.matrix());
    (columns, samples, count, all.into_pyarray(py), held.into_pyarray(py))
}

fn unpacked((columns, samples, held, all, part): &PackedHessian<'_>) -> PyResult<Hessian> {
    let k = *columns;
    let matrix = |data: &[f64]| -> PyResult<Matrix<f64>> {
        if data.len() != k * (k + 1) / 2 {
            return Err(PyRuntimeError::new_err("a Hessian arrived with another size"));
        }
        // Row i of the triangle begins after k + (k - 1) + .. entries.
        let start = |i: usize| i * (2 * k + 1 - i) / 2;
        Ok(Matrix::from_fn(k, k, |i, j| data[start(i.min(j)) + i.abs_diff(j)]))
    };
    let (all, part) = (all.readonly(), part.readonly());
    let held = match *held {
        0 => None,
        n => Some((matrix(part.as_slice()?)?, n)),
    };
    Hessian::from_parts(matrix(all.as_slice()?)?, *samples, held).map_err(crate::error::hessian)
}
