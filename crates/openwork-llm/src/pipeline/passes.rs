//! Several runs one after the other, and structures left out of the tensors.
//!
//! ```text
//! pass-1/masked   a run like any other: it can be resumed
//! pass-1/small    what it left, smaller; the next pass reads it
//! ```
//!
//! These lie in the folder `work` within `DIR/openwork`; `DIR` itself becomes the
//! last of them and is evaluated from there. `work` goes when the folder is whole.

use super::card;
use super::depth;
use super::estimate::peak_rss_bytes;
use super::events::{Event, Observer, Stage};
use super::executor::Executor;
use super::plan::{Plan, TensorFilter};
use super::recipe::Recipe;
use super::run::{Job, fingerprint, run_with};
use super::run_dir::{Fingerprint, RECIPE, RECORD, RunDir, Start, WORK};
use super::structure;
use super::{Evaluation, PipelineError};
use crate::checkpoint::Checkpoint;
use crate::evaluate::nats;
use crate::model::{Config, LINEARS, Layer, Model, Storage};
use crate::report::{
    self, EvaluationRecord, LayerRecord, ModelSize, PassRecord, Record, SizeChange,
};
use crate::shrink::{self, Change, Cut, ShrinkError, Sizes, Spare, Uneven};
use openwork::Mask;
use std::collections::BTreeMap;
use std::path::{Path, PathBuf};
use std::time::Instant;

/// What will be done in one pass.
#[derive(Clone, Debug)]
pub struct Pass {
    /// What is done to every tensor; nothing where layers are dropped.
    pub plan: Plan,
    /// Layers to keep, in a pass that drops layers.
    pub depth: Option<usize>,
    /// Sizes of the model before and after.
    pub change: Change,
}

/// All passes of a recipe, bound to a model.
#[derive(Clone, Debug)]
pub struct Passes {
    /// In their order, at least one.
    pub list: Vec<Pass>,
    /// What was asked for.
    pub recipe: Recipe,
    filter: TensorFilter,
}

impl Passes {
    /// Binds a recipe to a model: each pass to the shapes that the one before leaves.
    pub fn new(
        recipe: &Recipe,
        filter: &TensorFilter,
        config: &Config,
        sequential: bool,
    ) -> Result<Self, PipelineError> {
        recipe.check().map_err(|error| PipelineError::Plan(error.to_string()))?;
        let mut config = config.clone();
        let mut list = Vec::new();
        let asked = recipe.each_pass();
        for (number, recipe) in asked.iter().enumerate() {
            let pass = Pass::new(recipe, filter, &config, sequential);
            let pass = pass.map_err(|error| match (asked.len(), error) {
                (1, error) => error,
                (_, error) => PipelineError::Plan(format!("[[pass]] {}: {error}", number + 1)),
            })?;
            config = pass.change.after.config(&config);
            list.push(pass);
        }
        Ok(Self { list, recipe: recipe.clone(), filter: filter.clone() })
    }

    /// Whether it is one run that leaves all shapes as they are.
    pub fn is_plain(&self) -> bool {
        matches!(self.list.as_slice(), [pass] if pass.depth.is_none() && !pass.plan.recipe.remove)
    }

    fn lines(&self) -> Vec<String> {
        let line = |(i, pass): (usize, &Pass)| {
            let number = i + 1;
            let remove = if pass.plan.recipe.remove { ", removed" } else { "" };
            let mut lines: Vec<String> = pass
                .plan
                .lines()
                .iter()
                .map(|line| format!("pass {number}: {line}{remove}"))
                .collect();
            lines.extend(pass.depth.map(|kept| format!("pass {number}: keep {kept} layers")));
            lines
        };
        self.list.iter().enumerate().flat_map(line).collect()
    }
}

impl Pass {
    fn new(
        recipe: &Recipe,
        filter: &TensorFilter,
        config: &Config,
        sequential: bool,
    ) -> Result<Self, PipelineError> {
        let wrong = |why: &str| Err(PipelineError::Plan(why.to_string()));
        let before = Sizes::of(config);
        let asked = recipe.spec.as_deref().map(structure::read).transpose();
        let asked = asked.map_err(|error| PipelineError::Plan(error.to_string()))?.flatten();
        if let Some(asked) = asked.filter(|asked| asked.structure.name == "layers") {
            if recipe.budget.is_some() || !recipe.rules.is_empty() {
                return wrong(
                    "a pass that drops layers does nothing else; give rules and budget a [[pass]] of their own",
                );
            }
            let kept =
                asked.kept(config).map_err(|error| PipelineError::Plan(error.to_string()))?;
            let change = Change { before, after: Sizes { layers: kept, ..before } };
            let mut recipe = recipe.clone();
            recipe.remove = false;
            return Ok(Self { plan: Plan::empty(&recipe, config), depth: Some(kept), change });
        }
        let plan = Plan::new(recipe, filter, config, sequential)?;
        let mut change = Change { before, after: before };
        if recipe.remove {
            if recipe.budget.is_some() {
                return wrong(
                    "remove and [budget] do not go together: a budget gives layers different numbers of channels, and config.json has one for all",
                );
            }
            change = predicted(&plan, config)?;
        }
        Ok(Self { plan, depth: None, change })
    }
}

/// What a plan will leave, by removing blocks at random.
fn predicted(plan: &Plan, config: &Config) -> Result<Change, ShrinkError> {
    // Blocks of a 2:4 would line up in columns if the choice had any order.
    let score = |scope: usize, block: usize| openwork::example::score(0, scope, block);
    let shapes = Layer::linear_shapes(config);
    let mut known: BTreeMap<String, Mask> = BTreeMap::new();
    let mut spares = Vec::with_capacity(plan.layers.len());
    for layer in &plan.layers {
        let mut of = |linear: usize| -> Vec<f32> {
            let task = layer.tasks.iter().find(|task| task.linears.contains(&linear));
            let len = shapes[linear][0] * shapes[linear][1];
            let Some(task) = task else { return vec![1.0; len] };
            let key = format!("{:?} {}", task.linears, task.pattern);
            let mask = known.entry(key).or_insert_with(|| Mask::select(&task.spec, score));
            let place = task.linears.iter().position(|&i| i == linear).unwrap_or(0);
            let bits = &mask.tensors()[place];
            (0..len).map(|i| f32::from(bits.get(i))).collect()
        };
        spares.push(Spare::of(config, &of(3), &of(6)));
    }
    Ok(Cut::of(config, &spares, Uneven::Refuse)?.change)
}

/// Runs all passes of a job into `folder`; `job.plan` is that of the first. Goes
/// on with what was stopped there.
pub fn run_passes(
    job: &Job<'_>,
    passes: &Passes,
    folder: &Path,
    start: Start,
    observer: &dyn Observer,
    executor: &mut dyn Executor,
) -> Result<Record, PipelineError> {
    if passes.is_plain() {
        return run_with(job, folder, start, observer, executor);
    }
    let after = passes.list.last().map_or(0, |pass| pass.change.after.layers);
    let recipe = passes.recipe.clone();
    let print = Fingerprint { plan: passes.lines(), recipe, ..fingerprint(job, after)? };
    let dir = RunDir::open(folder, after, &print, start)?;
    if let Some(record) = dir.finished() {
        return Ok(record);
    }
    let work = folder.join(WORK);
    Series { job, passes, dir, work, observer, executor }.run()
}

/// Whether a folder is a whole model: its index is written last.
fn whole(folder: &Path) -> bool {
    folder.join("model.safetensors.index.json").exists()
}

/// Passes in progress.
struct Series<'a> {
    job: &'a Job<'a>,
    passes: &'a Passes,
    dir: RunDir,
    work: PathBuf,
    observer: &'a dyn Observer,
    executor: &'a mut dyn Executor,
}

impl Series<'_> {
    fn run(&mut self) -> Result<Record, PipelineError> {
        let started = Instant::now();
        let dense = match self.dir.dense()? {
            Some(known) => Some(known),
            None => {
                let found = self.evaluate(self.job.source, None)?;
                found.as_ref().map(|found| self.dir.save_dense(found)).transpose()?;
                found
            }
        };
        let mut current: Option<Checkpoint> = None;
        let mut last: Option<Record> = None;
        let mut records = Vec::new();
        for number in 0..self.passes.list.len() {
            let source = current.as_ref().unwrap_or(self.job.source);
            let (folder, record, pass) = self.pass(number, source)?;
            let small = Checkpoint::open(&folder)?.rounded(self.job.dtype);
            match record {
                Some(record) => last = Some(record),
                None => renumber(last.as_mut(), &pass.dropped),
            }
            if let Some(last) = &mut last {
                resize(last, Model::open(&small)?.config());
            }
            records.push(pass);
            current = Some(small);
        }
        let small = current.as_ref().unwrap_or(self.job.source);
        let found = self.evaluate(small, Some(small))?;
        let mut record = self.record(last, records, small)?;
        record.evaluations = dense.into_iter().chain(found).collect();
        record.totals.seconds = started.elapsed().as_secs_f64().max(record.totals.seconds);
        let json = serde_json::to_string_pretty(&record).unwrap_or_default();
        self.dir.write(RECIPE, &self.passes.recipe.to_toml())?;
        self.dir.write("README.md", &card::text(&record))?;
        self.dir.write(RECORD, &json)?;
        let gone = std::fs::remove_dir_all(&self.work);
        if let Err(error) = gone
            && error.kind() != std::io::ErrorKind::NotFound
        {
            return Err(PipelineError::io(&self.work, error));
        }
        Ok(record)
    }

    /// One pass: the folder of its result, what it measured, and in short.
    fn pass(
        &mut self,
        number: usize,
        source: &Checkpoint,
    ) -> Result<(PathBuf, Option<Record>, PassRecord), PipelineError> {
        let started = Instant::now();
        let pass = &self.passes.list[number];
        let (recipe, count) = (&pass.plan.recipe, self.passes.list.len());
        let what = recipe.spec.as_deref().unwrap_or("rules");
        self.observer.on_event(Event::Note(&format!("pass {} of {count}: {what}", number + 1)));
        let place = self.work.join(format!("pass-{}", number + 1));
        let target = match number + 1 == count {
            true => self.dir.folder().to_path_buf(),
            false => place.join("small"),
        };
        let model = Model::open(source)?;
        let before = Sizes::of(model.config());
        let mut short = PassRecord {
            spec: what.to_string(),
            spec_as_written: None,
            method: "depth".to_string(),
            before,
            after: before,
            dropped: Vec::new(),
            mean_error: 0.0,
            seconds: 0.0,
        };
        if let Some(kept) = pass.depth {
            let seen = |layer, share| self.stage(layer, Stage::Probe, share);
            let kept = depth::choose(&model, &self.job.calibration, kept, &seen)?;
            let cut = Cut::layers(model.config(), &kept);
            if !whole(&target) {
                shrink::write(&model, &cut, Some(self.job.dtype), &target)?;
            }
            short.after = cut.change.after;
            short.dropped = (0..before.layers).filter(|layer| !kept.contains(layer)).collect();
            short.seconds = started.elapsed().as_secs_f64();
            return Ok((target, None, short));
        }

        // The shapes are those that were foreseen, or smaller by chance.
        let job = self.job;
        let plan = Plan::new(recipe, &self.passes.filter, model.config(), job.sequential)?;
        let inner = Job {
            source,
            plan,
            calibration: job.calibration.clone(),
            evaluation: None,
            dtype: job.dtype,
            sequential: job.sequential,
            state_memory_limit: job.state_memory_limit,
            include: job.include.clone(),
            exclude: job.exclude.clone(),
        };
        let masked = place.join("masked");
        let record = run_with(&inner, &masked, Start::Resume, self.observer, self.executor)?;
        let (mut folder, mut after) = (masked.clone(), before);
        if recipe.remove || number + 1 == count {
            let pruned = Checkpoint::open(&masked)?;
            let model = Model::open(&pruned)?;
            let cut = match recipe.remove {
                true => {
                    let read = |layer| Spare::read(&model, layer);
                    let spares =
                        (0..before.layers).map(read).collect::<Result<Vec<_>, ShrinkError>>()?;
                    Cut::of(model.config(), &spares, Uneven::Least)?
                }
                false => Cut::layers(model.config(), &(0..before.layers).collect::<Vec<_>>()),
            };
            after = cut.change.after;
            if !whole(&target) {
                shrink::write(&model, &cut, Some(job.dtype), &target)?;
            }
            folder = target;
        }
        let short = PassRecord {
            spec: record.spec.clone(),
            spec_as_written: Some(record.spec_as_written()),
            method: record.method.clone(),
            after,
            mean_error: record.totals.mean_error,
            seconds: started.elapsed().as_secs_f64(),
            ..short
        };
        Ok((folder, Some(record), short))
    }

    /// The perplexity of a model; `after` is the same one if it is the result.
    fn evaluate(
        &self,
        source: &Checkpoint,
        after: Option<&Checkpoint>,
    ) -> Result<Option<EvaluationRecord>, PipelineError> {
        let Some(Evaluation { scored, .. }) = &self.job.evaluation else { return Ok(None) };
        let started = Instant::now();
        let model = Model::open(source)?;
        let last = model.config().layers - 1;
        let mut stopped = false;
        let mut layer = |index: usize| model.layer(index, Storage::F32);
        let nats = nats(&model, &mut layer, &scored.windows, &mut |progress| {
            let share = progress.done as f64 / progress.total.max(1) as f64;
            stopped |= self.stage(last, Stage::Evaluate, share).is_err();
        })?;
        if stopped {
            return Err(PipelineError::Stopped);
        }
        source.release();
        let record = EvaluationRecord {
            after_layer: after.map(|_| last),
            token_perplexity: (nats / scored.tokens as f64).exp(),
            word_perplexity: (nats / scored.words as f64).exp(),
            tokens: scored.tokens,
            seconds: started.elapsed().as_secs_f64(),
        };
        self.observer.on_event(Event::Evaluated(&record));
        Ok(Some(record))
    }

    fn stage(&self, layer: usize, stage: Stage, share: f64) -> Result<(), PipelineError> {
        if self.observer.stopped() {
            return Err(PipelineError::Stopped);
        }
        self.observer.on_event(Event::Progress { layer, stage, share });
        Ok(())
    }

    /// The record of the whole: of the last pass that pruned, with the sizes of
    /// what was written.
    fn record(
        &self,
        last: Option<Record>,
        passes: Vec<PassRecord>,
        small: &Checkpoint,
    ) -> Result<Record, PipelineError> {
        let model = Model::open(small)?;
        let mut record = match last {
            Some(record) => record,
            None => self.blank(model.config()),
        };
        let name = self.job.source.path().file_name().unwrap_or_default().to_string_lossy();
        record.model = name.into_owned();
        let join = |of: &dyn Fn(&PassRecord) -> &str| {
            passes.iter().map(of).collect::<Vec<_>>().join(" | ")
        };
        (record.spec, record.method) = (join(&|pass| &pass.spec), join(&|pass| &pass.method));
        record.totals.seconds = passes.iter().map(|pass| pass.seconds).sum();
        let (mut weights, mut kept) = (0, 0);
        for layer in 0..model.config().layers {
            for linear in 0..LINEARS.len() {
                let tensor = small.tensor(&Layer::weight_name(layer, linear))?;
                weights += tensor.len() as u64;
                kept += tensor.nonzeros();
            }
        }
        record.totals.weights = weights;
        record.totals.density = kept as f64 / weights.max(1) as f64;
        record.notes =
            self.passes.list.iter().flat_map(|pass| pass.plan.notes.iter().cloned()).collect();
        record.passes = passes;
        record.evaluation = self.job.evaluation.as_ref().map(Evaluation::record);
        let size = |model: &Checkpoint| ModelSize {
            parameters: model.tensors().map(|tensor| tensor.len() as u64).sum(),
            bytes: model.tensors().map(|tensor| tensor.stored_bytes() as u64).sum(),
        };
        record.sizes = Some(SizeChange { before: size(self.job.source), after: size(small) });
        Ok(record)
    }
}

impl Series<'_> {
    /// The record of a run that pruned nothing.
    fn blank(&self, config: &Config) -> Record {
        let job = self.job;
        Record {
            openwork: env!("CARGO_PKG_VERSION").to_string(),
            model: String::new(),
            family: config.family.name.to_string(),
            spec: String::new(),
            method: String::new(),
            options: report::Options {
                dtype: job.dtype.name().to_lowercase(),
                sequential: job.sequential,
                threads: rayon::current_num_threads(),
                include: job.include.clone(),
                exclude: job.exclude.clone(),
            },
            seed: job.calibration.seed,
            calibration: job.calibration.record(),
            evaluation: None,
            sizes: None,
            layers: Vec::new(),
            evaluations: Vec::new(),
            totals: report::Totals { peak_rss_bytes: peak_rss_bytes(), ..Default::default() },
            notes: Vec::new(),
            passes: Vec::new(),
            cluster: None,
        }
    }
}

/// Leaves dropped layers out of a record, and numbers the others anew.
fn renumber(record: Option<&mut Record>, dropped: &[usize]) {
    let Some(record) = record else { return };
    record.layers.retain(|layer| !dropped.contains(&layer.index));
    for (number, LayerRecord { index, linears, .. }) in record.layers.iter_mut().enumerate() {
        *index = number;
        for (i, linear) in linears.iter_mut().enumerate() {
            linear.name = Layer::weight_name(number, i);
        }
    }
}

/// Linears that became smaller: what was pruned of them is gone, so that what is
/// written is dense again.
fn resize(record: &mut Record, config: &Config) {
    let shapes = Layer::linear_shapes(config);
    for layer in &mut record.layers {
        for (linear, shape) in layer.linears.iter_mut().zip(shapes) {
            if linear.shape == shape {
                continue;
            }
            let [n, k] = linear.shape;
            let kept = linear.density * (n * k) as f64;
            linear.density = (kept / (shape[0] * shape[1]) as f64).min(1.0);
            linear.shape = shape;
            if let Some(spec) = linear.spec.take() {
                let written = linear.spec_as_written.take().unwrap_or(spec);
                linear.notes.push(format!("was {n} x {k} before `{written}` removed a part of it"));
            }
        }
    }
}
