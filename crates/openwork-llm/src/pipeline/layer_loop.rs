//! The layer loop of a pass: prunes a model into a folder, layer by layer.

use super::PipelineError;
use super::budget;
use super::events::{Event, Observer, Stage};
use super::executor::{Capture, Executor};
use super::plan::{LayerPlan, Plan, TaskPlan};
use super::recovery::LayerRecoverer;
use super::run::Job;
use super::run_dir::{LayerDone, RunDir};
use super::stages::TaskResult;
use super::statistics::SiteStatistics;
use crate::checkpoint::write::{self, Data, Listed, Part};
use crate::checkpoint::{Checkpoint, Dtype, Tensor};
use crate::model::{Half, Layer, Model, ModelError, Parameter, Site, Storage, split_layer_name};
use crate::report::{EvaluationRecord, LayerRecord, LinearRecord};
use openwork::prune::measure::OutputError;
use std::borrow::Cow;
use std::path::Path;
use std::time::Instant;

/// Prunes every layer of one model.
pub(super) struct LayerLoop<'a> {
    pub job: &'a Job,
    pub model: &'a Model<'a>,
    pub plan: &'a Plan,
    pub dir: &'a RunDir,
    pub observer: &'a dyn Observer,
    pub executor: &'a mut dyn Executor,
    /// Trains each layer after it is pruned, if requested.
    pub recoverer: Option<LayerRecoverer<'a>>,
}

impl LayerLoop<'_> {
    /// Continues after the layers that are `done`; returns all layers. `evaluate` measures
    /// perplexity after a layer, if requested.
    pub fn run(
        &mut self,
        mut done: Vec<LayerDone>,
        evaluate: &dyn Fn(usize) -> Result<Option<EvaluationRecord>, PipelineError>,
    ) -> Result<Vec<LayerDone>, PipelineError> {
        let layers = self.model.config().layers;
        if done.len() == layers {
            return Ok(done);
        }
        let started = Instant::now();
        let earlier = done.last().map_or(0.0, |last| last.elapsed);
        let densities = self.densities()?;
        let prunes = self.plan.layers.iter().any(|layer| !layer.tasks.is_empty());
        if prunes {
            self.executor.start(self.job, self.model, self.dir.folder())?;
        }
        for index in 0..done.len() {
            let mut layer = pruned_layer(self.model, self.dir, index)?;
            if let Some(recoverer) = &mut self.recoverer {
                self.observer.progress(index, Stage::Replay, 0.0)?;
                recoverer.replay(&mut layer)?;
            }
            if !prunes {
                continue;
            }
            let changed = match self.recoverer {
                Some(_) => Parameter::all(layer.info()).collect(),
                None => pruned_weights(&self.plan.layers[index].tasks),
            };
            self.executor.changed(&layer, &changed)?;
            self.executor.advance(&layer, Stage::Replay, self.observer)?;
        }
        for index in done.len()..layers {
            let (record, sha256) = self.layer(index, densities.as_deref(), prunes)?;
            self.observer.on_event(Event::Layer(&record));
            let evaluation = evaluate(index)?;
            let elapsed = earlier + started.elapsed().as_secs_f64();
            let state = LayerDone { record, sha256, evaluation, elapsed };
            self.dir.save(index, &state)?;
            done.push(state);
            self.model.checkpoint().release();
        }
        Ok(done)
    }

    /// The densities of the layers, if there is a budget; measured once.
    fn densities(&self) -> Result<Option<Vec<f64>>, PipelineError> {
        let Some(budget) = self.plan.budget else { return Ok(None) };
        if let Some(known) = self.dir.shares()? {
            return Ok(Some(known));
        }
        let seen = |layer, share| self.observer.progress(layer, Stage::Probe, share);
        let densities =
            budget::shares(self.model, self.plan, &self.job.calibration, budget, &seen)?;
        self.dir.save_shares(&densities)?;
        Ok(Some(densities))
    }

    /// Prunes one layer, trains its kept weights, writes its shard, and runs the windows
    /// through it, unless the pass prunes nothing.
    fn layer(
        &mut self,
        index: usize,
        densities: Option<&[f64]>,
        prunes: bool,
    ) -> Result<(LayerRecord, String), PipelineError> {
        let started = Instant::now();
        let (mut forward_seconds, mut prune_seconds) = (0.0, 0.0);
        let mut layer = self.model.layer(index, Storage::F32)?;
        let plan = self.plan.layers[index].with_density(densities.map(|all| all[index]));
        let mut linears = dense_linears(&layer);
        let mut attended = false;

        for (number, sites) in plan.captures.iter().enumerate() {
            let at = Instant::now();
            let attend = number > 0
                && !attended
                && sites.first().is_some_and(|site| site.input.half() == Half::Mlp);
            attended |= attend;
            let capture = Capture { begin: number == 0, attend, sites };
            let sums = self.executor.capture(&layer, capture, self.observer)?;
            let statistics = SiteStatistics::new(layer.info(), sites, sums)?;
            forward_seconds += at.elapsed().as_secs_f64();

            let at = Instant::now();
            let fed = |task: &&TaskPlan| task.sites().iter().all(|site| sites.contains(site));
            let ready: Vec<&TaskPlan> = plan.tasks.iter().filter(fed).collect();
            let results =
                self.executor.prune(&ready, &layer, &statistics.hessians, self.observer)?;
            for (task, mut result) in ready.iter().zip(results) {
                let of_task = |(site, _): &&(Site, String)| task.sites().contains(site);
                let notes = statistics.notes.iter().filter(of_task);
                result.notes.extend(notes.map(|(_, note)| note.clone()));
                self.update(task, result, &mut layer, &mut linears);
            }
            self.executor.changed(&layer, &pruned_weights(ready.iter().copied()))?;
            prune_seconds += at.elapsed().as_secs_f64();
        }

        let at = Instant::now();
        let recovery = match &mut self.recoverer {
            Some(recoverer) => Some(recoverer.train(&mut layer, self.observer)?),
            None => None,
        };
        if recovery.is_some() {
            for (i, record) in linears.iter_mut().enumerate() {
                record.density = layer.linears()[i].matrix().map_or(1.0, |m| density(m.data()));
            }
            if prunes {
                let all: Vec<Parameter> = Parameter::all(layer.info()).collect();
                self.executor.changed(&layer, &all)?;
            }
        }
        let trained = at.elapsed().as_secs_f64();
        let mut decoder_error = 0.0;
        if prunes {
            decoder_error = self.advance(&layer, &plan)?;
        }
        forward_seconds += at.elapsed().as_secs_f64() - trained;
        let sha256 = self.write_layer(&layer, recovery.is_some())?;
        let seconds = started.elapsed().as_secs_f64();
        let record = LayerRecord {
            index,
            seconds,
            forward_seconds,
            prune_seconds,
            decoder_error,
            linears,
            recovery,
        };
        Ok((record, sha256))
    }

    /// Runs the windows through a finished layer; returns the error of its outputs.
    fn advance(&mut self, layer: &Layer, plan: &LayerPlan) -> Result<f64, PipelineError> {
        if plan.captures.is_empty() {
            // Nothing to prune: the windows only go through the layer.
            let capture = Capture { begin: true, attend: false, sites: &[] };
            self.executor.capture(layer, capture, self.observer)?;
        }
        let index = layer.index();
        let errors = self.executor.advance(layer, Stage::Advance, self.observer)?;
        let decoder_error = errors.into_iter().sum::<OutputError>().relative();
        if !decoder_error.is_finite() {
            return Err(PipelineError::Plan(format!(
                "the outputs of layer {index} are NaN or infinite after pruning; give {{method}} a higher damping, such as s-obs[damping=diag:0.3]"
            )));
        }
        Ok(decoder_error)
    }

    /// Puts new weights, rounded to the output type, into the layer.
    fn update(
        &self,
        task: &TaskPlan,
        result: TaskResult,
        layer: &mut Layer,
        linears: &mut [LinearRecord],
    ) {
        let count = task.linears.len() as f64;
        for ((&linear, mut weights), error) in
            task.linears.iter().zip(result.weights).zip(&result.errors)
        {
            self.job.dtype.round(weights.data_mut());
            let record = &mut linears[linear];
            record.density = density(weights.data());
            record.error = error.relative();
            let spec = task.pattern.to_string();
            record.spec_as_written = (task.written != spec).then(|| task.written.clone());
            record.spec = Some(spec);
            record.method = Some(task.method.to_string());
            record.damping = result.damping.map(|damping| damping.to_string());
            record.seconds = result.seconds / count;
            record.notes = result.notes.clone();
            if let Some(matrix) = layer.linears_mut()[linear].matrix_mut() {
                *matrix = weights;
            }
            self.observer.on_event(Event::Pruned { layer: layer.index(), linear: record });
        }
    }

    /// Writes the shard of a layer; returns its hash.
    fn write_layer(&self, layer: &Layer, trained: bool) -> Result<String, PipelineError> {
        let tensors = tensor_parts(self.model, layer, trained)?;
        let parts: Vec<Part<'_>> =
            tensors.iter().map(|tensor| tensor.part(self.job.dtype)).collect();
        let parts = write::fused(parts, self.model.config().family);
        Ok(write::shard(&self.dir.shard(layer.index()), &parts, &[])?.sha256)
    }
}

/// A tensor of a layer, with new numbers if it may have changed.
pub(super) struct LayerTensor<'a> {
    tensor: Tensor<'a>,
    numbers: Option<Cow<'a, [f32]>>,
}

impl LayerTensor<'_> {
    /// The tensor, to be written.
    pub fn part(&self, dtype: Dtype) -> Part<'_> {
        let data = match &self.numbers {
            Some(numbers) => Data::F32(numbers),
            None => Data::Tensor(self.tensor),
        };
        Part::new(self.tensor.name(), dtype, self.tensor.shape(), data)
    }
}

/// The tensors of a layer: the weights of linears from the layer, norms and biases from
/// the layer if they were `trained`, otherwise from the file.
pub(super) fn tensor_parts<'a>(
    model: &'a Model<'_>,
    layer: &'a Layer,
    trained: bool,
) -> Result<Vec<LayerTensor<'a>>, PipelineError> {
    let tensor = |name: String| {
        let parameter = Layer::parameter_named(model.config(), layer.index(), &name);
        let changed = |p: &Parameter| trained || matches!(p, Parameter::Weight(_));
        Ok(LayerTensor {
            tensor: model.checkpoint().tensor(&name)?,
            numbers: parameter.filter(changed).map(|parameter| layer.stored(parameter)),
        })
    };
    model.layer_tensors(layer.index()).into_iter().map(tensor).collect()
}

/// A pruned layer, from its shard.
pub(super) fn pruned_layer(
    model: &Model<'_>,
    dir: &RunDir,
    index: usize,
) -> Result<Layer, ModelError> {
    let config = model.checkpoint().config().clone();
    let shard = Checkpoint::open_shard(&dir.shard(index), config)?;
    model.layer_from(&shard, index, Storage::F32)
}

/// Writes everything except the layers and the index; returns the index entries.
pub(super) fn write_rest(
    model: &Model<'_>,
    job: &Job,
    dir: &RunDir,
) -> Result<Vec<Listed>, PipelineError> {
    let source = model.checkpoint();
    let in_layers = |name: &str| split_layer_name(name).is_some();
    let tied = model.config().tied;
    let parts: Vec<Part<'_>> = source
        .tensors()
        .filter(|t| !in_layers(t.name()))
        .filter(|t| !tied || t.name() != "lm_head.weight")
        .map(|t| Part::new(t.name(), job.dtype, t.shape(), Data::Tensor(t)))
        .collect();
    let mut listed = vec![write::listed_shard(&dir.rest(), &parts, &[])?];
    for layer in 0..model.config().layers {
        let tensors = model.layer_tensors(layer);
        let mut bytes = 0;
        for name in &tensors {
            bytes += (source.tensor(name)?.len() * job.dtype.block_bytes()) as u64;
        }
        let tensors = write::fused_names(tensors, model.config().family);
        listed.push(Listed { shard: shard_name(&dir.shard(layer)), tensors, bytes });
    }
    write::companions(source, dir.folder(), job.dtype, |_| {})?;
    Ok(listed)
}

fn shard_name(path: &Path) -> String {
    path.file_name().unwrap_or_default().to_string_lossy().into_owned()
}

/// The record of a layer's linears before anything is pruned.
fn dense_linears(layer: &Layer) -> Vec<LinearRecord> {
    layer
        .linears()
        .iter()
        .enumerate()
        .map(|(i, linear)| LinearRecord {
            name: layer.info().weight_name(i),
            shape: [linear.weight().rows(), linear.weight().cols()],
            spec: None,
            spec_as_written: None,
            method: None,
            error: 0.0,
            density: linear.matrix().map_or(1.0, |matrix| density(matrix.data())),
            damping: None,
            seconds: 0.0,
            notes: Vec::new(),
        })
        .collect()
}

/// The weights that tasks prune.
fn pruned_weights<'a>(tasks: impl IntoIterator<Item = &'a TaskPlan>) -> Vec<Parameter> {
    let linears = tasks.into_iter().flat_map(|task| &task.linears);
    linears.map(|&linear| Parameter::Weight(linear)).collect()
}

fn density(weights: &[f32]) -> f64 {
    let kept = weights.iter().filter(|w| **w != 0.0).count();
    kept as f64 / weights.len().max(1) as f64
}
