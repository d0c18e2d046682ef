//! The run itself.

use super::PipelineError;
use super::budget;
use super::calibration::Calibration;
use super::card;
use super::estimate::peak_rss_bytes;
use super::events::{Event, Observer, Stage};
use super::executor::{Capture, Executor, LocalExecutor};
use super::plan::{LayerPlan, Plan, TaskPlan};
use super::run_dir::{Fingerprint, LayerDone, RECIPE, RECORD, RunDir, Start, files};
use super::stages::{Sums, TaskResult};
use crate::checkpoint::write::{self, Data, Listed, Part};
use crate::checkpoint::{Checkpoint, Dtype};
use crate::evaluate::{ScoredWindows, nats};
use crate::model::{LINEARS, Layer, Model, Site, Storage};
use crate::report::{self, EvaluationRecord, LayerRecord, LinearRecord, Record, Totals};
use openwork::hessian::{Hessian, HessianSum};
use openwork::prune::measure::OutputError;
use std::path::Path;
use std::time::Instant;

/// A text that perplexity is measured on.
#[derive(Clone, Debug)]
pub struct Evaluation {
    /// The text's name, for the record.
    pub text: String,
    /// The text as windows.
    pub scored: ScoredWindows,
    /// Measure after every so many layers, beside the end.
    pub every: Option<usize>,
}

/// What to do.
#[derive(Debug)]
pub struct Job<'a> {
    /// The model, read as it will be written ([`Checkpoint::rounded`]).
    pub source: &'a Checkpoint,
    /// What to do to each tensor.
    pub plan: Plan,
    /// What to measure inputs on.
    pub calibration: Calibration,
    /// What to measure perplexity on.
    pub evaluation: Option<Evaluation>,
    /// Type of the written weights.
    pub dtype: Dtype,
    /// Whether inputs are captured anew after each site.
    pub sequential: bool,
    /// Bytes of hidden states that one process keeps in memory; where there are
    /// more, they are in files.
    pub state_memory_limit: Option<u64>,
    /// For the record.
    pub include: Option<String>,
    /// For the record.
    pub exclude: Option<String>,
}

/// Everything that determines the result of a job, which has `layers` layers.
pub fn fingerprint(job: &Job<'_>, layers: usize) -> Result<Fingerprint, PipelineError> {
    Ok(Fingerprint {
        openwork: env!("CARGO_PKG_VERSION").to_string(),
        model: job.source.hashes(),
        calibration: job.calibration.record(),
        seed: job.calibration.seed,
        dtype: job.dtype.name().to_lowercase(),
        sequential: job.sequential,
        include: job.include.clone(),
        exclude: job.exclude.clone(),
        recipe: job.plan.recipe.clone(),
        plan: job.plan.lines(),
        files: files(job.source, layers)?,
    })
}

/// Prunes a model into `folder`, or goes on with a run that was stopped there.
pub fn run(
    job: &Job<'_>,
    folder: &Path,
    start: Start,
    observer: &dyn Observer,
) -> Result<Record, PipelineError> {
    run_with(job, folder, start, observer, &mut LocalExecutor::default())
}

/// The same by a executor.
pub fn run_with(
    job: &Job<'_>,
    folder: &Path,
    start: Start,
    observer: &dyn Observer,
    executor: &mut dyn Executor,
) -> Result<Record, PipelineError> {
    let model = Model::open(job.source)?;
    let layers = model.config().layers;
    let dir = RunDir::open(folder, layers, &fingerprint(job, layers)?, start)?;
    let mut run = Run { job, model, dir, observer, executor, started: Instant::now(), before: 0.0 };
    run.whole()
}

/// A run in progress.
struct Run<'a> {
    job: &'a Job<'a>,
    model: Model<'a>,
    dir: RunDir,
    observer: &'a dyn Observer,
    executor: &'a mut dyn Executor,
    started: Instant,
    /// Seconds of earlier starts.
    before: f64,
}

impl Run<'_> {
    fn whole(&mut self) -> Result<Record, PipelineError> {
        let layers = self.model.config().layers;
        let mut done = self.dir.done()?;
        self.before = done.last().map_or(0.0, |last| last.elapsed);
        self.observer.on_event(Event::Start { first: done.len(), layers });
        let finished = self.dir.finished().filter(|_| done.len() == layers);
        let measured = |record: &Record| self.job.evaluation.is_none() || record.last().is_some();
        if let Some(record) = finished.as_ref().filter(|record| measured(record)) {
            return Ok(record.clone());
        }
        let dense = self.dense()?;
        let shares = self.shares()?;

        if done.len() < layers {
            self.executor.start(self.job, &self.model, self.dir.folder())?;
            for index in 0..done.len() {
                let shard = self.shard(index)?;
                let layer = self.model.layer_from(&shard, index, Storage::F32)?;
                let tasks = &self.job.plan.layers[index].tasks;
                let pruned: Vec<usize> =
                    tasks.iter().flat_map(|task| task.linears.iter().copied()).collect();
                self.executor.changed(&layer, &pruned)?;
                self.executor.advance(&layer, Stage::Replay, self.observer)?;
            }
            for index in done.len()..layers {
                let (record, sha256) = self.layer(index, shares.as_deref())?;
                let every = self.job.evaluation.as_ref().and_then(|e| e.every);
                let now = index + 1 < layers && every.is_some_and(|n| (index + 1) % n.max(1) == 0);
                let evaluation = if now { self.evaluate(Some(index))? } else { None };
                let elapsed = self.before + self.started.elapsed().as_secs_f64();
                let state = LayerDone { record, sha256, evaluation, elapsed };
                self.dir.save(index, &state)?;
                self.observer.on_event(Event::Layer(&state.record));
                done.push(state);
                self.job.source.release();
            }
        }
        if let Some(mut record) = finished {
            // Only the perplexity is new; what the run itself measured stays.
            let last = self.evaluate(layers.checked_sub(1))?;
            record.evaluations = dense.into_iter().chain(last).collect();
            self.write_record(&record)?;
            return Ok(record);
        }
        self.finish(done, dense)
    }

    /// The perplexity of the dense model, measured once.
    fn dense(&self) -> Result<Option<EvaluationRecord>, PipelineError> {
        if let Some(known) = self.dir.dense()? {
            return Ok(Some(known));
        }
        let found = self.evaluate(None)?;
        if let Some(found) = &found {
            self.dir.save_dense(found)?;
        }
        Ok(found)
    }

    /// The densities of the layers, where a budget asks for them; measured once.
    fn shares(&self) -> Result<Option<Vec<f64>>, PipelineError> {
        let Some(budget) = self.job.plan.recipe.budget else { return Ok(None) };
        if let Some(known) = self.dir.shares()? {
            return Ok(Some(known));
        }
        let seen = |layer, share| self.stage(layer, Stage::Probe, share);
        let shares =
            budget::shares(&self.model, &self.job.plan, &self.job.calibration, budget, &seen)?;
        self.dir.save_shares(&shares)?;
        Ok(Some(shares))
    }

    /// Prunes one layer and writes its shard; the states go through it.
    fn layer(
        &mut self,
        index: usize,
        shares: Option<&[f64]>,
    ) -> Result<(LayerRecord, String), PipelineError> {
        let started = Instant::now();
        let (mut forward_seconds, mut prune_seconds) = (0.0, 0.0);
        let mut layer = self.model.layer(index, Storage::F32)?;
        let plan = with_share(&self.job.plan.layers[index], shares.map(|shares| shares[index]));
        let mut linears = dense_linears(&layer);
        let mut attended = false;

        for (capture, sites) in plan.captures.iter().enumerate() {
            let at = Instant::now();
            let attend = capture > 0 && !attended && sites.first() >= Some(&Site::GateUp);
            attended |= attend;
            let asked = Capture { begin: capture == 0, attend, sites };
            let sums = self.executor.capture(&layer, asked, self.observer)?;
            let hessians = finished(index, sums)?;
            forward_seconds += at.elapsed().as_secs_f64();

            let at = Instant::now();
            let fed = |task: &&TaskPlan| task.sites().iter().all(|site| sites.contains(site));
            let ready: Vec<&TaskPlan> = plan.tasks.iter().filter(fed).collect();
            let done = self.executor.prune(&ready, &layer, &hessians, self.observer)?;
            for (task, done) in ready.iter().zip(done) {
                self.put(task, done, &mut layer, &mut linears)?;
            }
            let pruned: Vec<usize> =
                ready.iter().flat_map(|task| task.linears.iter().copied()).collect();
            self.executor.changed(&layer, &pruned)?;
            prune_seconds += at.elapsed().as_secs_f64();
        }

        let at = Instant::now();
        if plan.captures.is_empty() {
            // Nothing to prune here: the layer only takes the states along.
            let asked = Capture { begin: true, attend: false, sites: &[] };
            self.executor.capture(&layer, asked, self.observer)?;
        }
        let errors = self.executor.advance(&layer, Stage::Advance, self.observer)?;
        let decoder_error = errors.into_iter().sum::<OutputError>().relative();
        if !decoder_error.is_finite() {
            return Err(PipelineError::Plan(format!(
                "the outputs of layer {index} are NaN or infinite after pruning; use a higher damping"
            )));
        }
        forward_seconds += at.elapsed().as_secs_f64();
        let sha256 = self.write_layer(&layer)?;
        let seconds = started.elapsed().as_secs_f64();
        let record =
            LayerRecord { index, seconds, forward_seconds, prune_seconds, decoder_error, linears };
        Ok((record, sha256))
    }

    /// Puts the new weights, rounded as they will be written, into the layer.
    fn put(
        &self,
        task: &TaskPlan,
        pruned: TaskResult,
        layer: &mut Layer,
        linears: &mut [LinearRecord],
    ) -> Result<(), PipelineError> {
        let count = task.linears.len() as f64;
        for ((&linear, mut weights), error) in
            task.linears.iter().zip(pruned.weights).zip(&pruned.errors)
        {
            self.job.dtype.round(weights.data_mut());
            let record = &mut linears[linear];
            record.density = density(weights.data());
            record.error = error.relative();
            let spec = task.pattern.to_string();
            record.spec_as_written = (task.written != spec).then(|| task.written.clone());
            record.spec = Some(spec);
            record.method = Some(task.method.clone());
            record.damping = pruned.damping.map(|damping| damping.to_string());
            record.seconds = pruned.seconds / count;
            record.notes = pruned.notes.clone();
            if let Some(matrix) = layer.linears_mut()[linear].matrix_mut() {
                *matrix = weights;
            }
            self.observer.on_event(Event::Pruned { layer: layer.index(), linear: record });
        }
        Ok(())
    }

    /// Writes the shard of a layer, new linears and all else as it was; its hash.
    fn write_layer(&self, layer: &Layer) -> Result<String, PipelineError> {
        let mut parts = Vec::new();
        for name in self.model.layer_tensors(layer.index()) {
            let tensor = self.job.source.tensor(&name)?;
            let linear = (0..LINEARS.len()).find(|&i| Layer::weight_name(layer.index(), i) == name);
            let data = match linear.and_then(|i| layer.linears()[i].matrix()) {
                Some(matrix) => Data::F32(matrix.data()),
                None => Data::Tensor(tensor),
            };
            parts.push(Part::new(&name, self.job.dtype, tensor.shape(), data));
        }
        Ok(write::shard(&self.dir.shard(layer.index()), &parts, &[])?.sha256)
    }

    fn shard(&self, layer: usize) -> Result<Checkpoint, PipelineError> {
        Ok(Checkpoint::open_shard(&self.dir.shard(layer), self.job.source.config().clone())?)
    }

    /// Perplexity with the layers up to `after` pruned; nothing if no text was given.
    fn evaluate(&self, after: Option<usize>) -> Result<Option<EvaluationRecord>, PipelineError> {
        let Some(Evaluation { scored, .. }) = &self.job.evaluation else { return Ok(None) };
        let started = Instant::now();
        let at = after.unwrap_or(0);
        let mut layer = |index: usize| match after {
            Some(last) if index <= last => {
                let path = self.dir.shard(index);
                let shard = Checkpoint::open_shard(&path, self.job.source.config().clone())?;
                self.model.layer_from(&shard, index, Storage::F32)
            }
            _ => self.model.layer(index, Storage::F32),
        };
        let mut stopped = false;
        let nats = nats(&self.model, &mut layer, &scored.windows, &mut |progress| {
            let share = progress.done as f64 / progress.total.max(1) as f64;
            stopped |= self.stage(at, Stage::Evaluate, share).is_err();
        })?;
        if stopped {
            return Err(PipelineError::Stopped);
        }
        self.job.source.release();
        let record = EvaluationRecord {
            after_layer: after,
            token_perplexity: (nats / scored.tokens as f64).exp(),
            word_perplexity: (nats / scored.words as f64).exp(),
            tokens: scored.tokens,
            seconds: started.elapsed().as_secs_f64(),
        };
        self.observer.on_event(Event::Evaluated(&record));
        Ok(Some(record))
    }

    /// Everything beside the layers, the record, and last the index.
    fn finish(
        &mut self,
        done: Vec<LayerDone>,
        dense: Option<EvaluationRecord>,
    ) -> Result<Record, PipelineError> {
        let layers = done.len();
        let mut listed = vec![self.write_rest()?];
        for layer in 0..layers {
            let tensors = self.model.layer_tensors(layer);
            let mut bytes = 0;
            for name in &tensors {
                bytes +=
                    (self.job.source.tensor(name)?.len() * self.job.dtype.block_bytes()) as u64;
            }
            let path = self.dir.shard(layer);
            let shard = path.file_name().unwrap_or_default().to_string_lossy().into_owned();
            listed.push(Listed { shard, tensors, bytes });
        }
        let last = self.evaluate(layers.checked_sub(1))?;
        let mut record = self.record(done, dense, last);
        record.cluster = self.executor.record();
        write::companions(self.job.source, self.dir.folder(), self.job.dtype, |_| {})?;
        self.dir.write(RECIPE, &self.job.plan.recipe.to_toml())?;
        self.write_record(&record)?;
        write::index(self.dir.folder(), &listed)?;
        Ok(record)
    }

    fn write_record(&self, record: &Record) -> Result<(), PipelineError> {
        self.dir.write(RECORD, &serde_json::to_string_pretty(record).unwrap_or_default())?;
        self.dir.write("README.md", &card::text(record))
    }

    fn write_rest(&self) -> Result<Listed, PipelineError> {
        let in_layers = |name: &str| name.starts_with("model.layers.");
        let tied = self.model.config().tied;
        let parts: Vec<Part<'_>> = self
            .job
            .source
            .tensors()
            .filter(|t| !in_layers(t.name()))
            .filter(|t| !tied || t.name() != "lm_head.weight")
            .map(|t| Part::new(t.name(), self.job.dtype, t.shape(), Data::Tensor(t)))
            .collect();
        Ok(write::listed_shard(&self.dir.rest(), &parts, &[])?)
    }

    fn record(
        &self,
        done: Vec<LayerDone>,
        dense: Option<EvaluationRecord>,
        last: Option<EvaluationRecord>,
    ) -> Record {
        let job = self.job;
        let evaluations = dense
            .into_iter()
            .chain(done.iter().filter_map(|state| state.evaluation.clone()))
            .chain(last)
            .collect();
        let layers: Vec<LayerRecord> = done.into_iter().map(|state| state.record).collect();
        let linears: Vec<&LinearRecord> = layers.iter().flat_map(|layer| &layer.linears).collect();
        let pruned = || linears.iter().filter(|linear| linear.spec.is_some());
        let weights = |linear: &LinearRecord| (linear.shape[0] * linear.shape[1]) as f64;
        let all: f64 = linears.iter().map(|linear| weights(linear)).sum();
        let kept: f64 = linears.iter().map(|linear| linear.density * weights(linear)).sum();
        let totals = Totals {
            seconds: self.before + self.started.elapsed().as_secs_f64(),
            peak_rss_bytes: peak_rss_bytes(),
            mean_error: pruned().map(|linear| linear.error).sum::<f64>()
                / pruned().count().max(1) as f64,
            density: kept / all.max(1.0),
            weights: all as u64,
        };
        let name = job.source.path().file_name().unwrap_or_default().to_string_lossy();
        Record {
            openwork: env!("CARGO_PKG_VERSION").to_string(),
            model: name.into_owned(),
            family: self.model.config().family.name.to_string(),
            spec: several(pruned().filter_map(|linear| linear.spec.clone())),
            method: several(pruned().filter_map(|linear| linear.method.clone())),
            options: report::Options {
                dtype: job.dtype.name().to_lowercase(),
                sequential: job.sequential,
                threads: rayon::current_num_threads(),
                include: job.include.clone(),
                exclude: job.exclude.clone(),
            },
            seed: job.calibration.seed,
            calibration: job.calibration.record(),
            evaluation: job.evaluation.as_ref().map(Evaluation::record),
            sizes: None,
            layers,
            evaluations,
            totals,
            notes: job.plan.notes.clone(),
            passes: Vec::new(),
            cluster: None,
        }
    }

    fn stage(&self, layer: usize, stage: Stage, share: f64) -> Result<(), PipelineError> {
        if self.observer.stopped() {
            return Err(PipelineError::Stopped);
        }
        self.observer.on_event(Event::Progress { layer, stage, share });
        Ok(())
    }
}

/// The statistics of a layer's sites.
fn finished(layer: usize, sums: Sums) -> Result<Vec<(Site, Hessian)>, PipelineError> {
    let finish = |(site, sum): (Site, HessianSum)| {
        let hessian = sum.finish().map_err(|error| PipelineError::Inputs {
            tensor: format!("model.layers.{layer}, {}", site.name()),
            error,
        })?;
        Ok((site, hessian))
    };
    sums.into_iter().map(finish).collect()
}

/// The plan of a layer with its share of the budget.
fn with_share(plan: &LayerPlan, share: Option<f64>) -> LayerPlan {
    let mut plan = plan.clone();
    if let Some(share) = share {
        for task in plan.tasks.iter_mut().filter(|task| task.is_variable()) {
            *task = task.with_density(share);
        }
    }
    plan
}

/// The record of a layer's linears before anything is pruned.
fn dense_linears(layer: &Layer) -> Vec<LinearRecord> {
    layer
        .linears()
        .iter()
        .enumerate()
        .map(|(i, linear)| LinearRecord {
            name: Layer::weight_name(layer.index(), i),
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

fn density(weights: &[f32]) -> f64 {
    let kept = weights.iter().filter(|w| **w != 0.0).count();
    kept as f64 / weights.len().max(1) as f64
}

/// Texts that occur, each once, in the order of their first.
fn several(texts: impl Iterator<Item = String>) -> String {
    let mut seen: Vec<String> = Vec::new();
    for text in texts {
        if !seen.contains(&text) {
            seen.push(text);
        }
    }
    seen.join(" | ")
}
