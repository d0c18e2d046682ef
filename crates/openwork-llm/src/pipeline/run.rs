//! A run: its passes one after the other, evaluations, and the record.
//!
//! A plain run prunes directly into its output folder. If there are several passes, or
//! one that removes structures, intermediate results are kept in the folder `work`:
//!
//! ```text
//! DIR/openwork/work/pass-1/masked   the pruned model: a folder that can be resumed
//! DIR/openwork/work/pass-1/small    the smaller model; the next pass reads it
//! ```
//!
//! The last pass writes `DIR` itself, and `work` is removed.

use super::calibration::Calibration;
use super::estimate::peak_rss_bytes;
use super::events::{Event, Observer, Stage};
use super::executor::Executor;
use super::layer_loop::{LayerLoop, pruned_layer, write_rest};
use super::measurements::{drop_experts, inherit, renumber, resize, totals};
use super::passes::Passes;
use super::plan::{LayerPlan, Plan, TaskPlan};
use super::prepare::PreparedRun;
use super::recipe::Recipe;
use super::recovery::{
    LayerRecoverer, ModelStage, RecoveryPlan, layer_stage_record, pattern_groups,
};
use super::run_dir::{
    Fingerprint, RECIPE, RECORD, REDO, RunDir, Start, WORK, files, read_sealed, write_sealed,
};
use super::sentences::Sentences;
use super::structure::Dropped;
use super::{PipelineError, card, depth, expert_choice};
use crate::checkpoint::write;
use crate::checkpoint::{Checkpoint, Dtype};
use crate::disk::sha256;
use crate::evaluate::{ScoredWindows, nats};
use crate::model::{Layer, LayerInfo, Model, ModelError, Storage};
use crate::recover::{PatternGroup, StageOptions};
use crate::report::{
    self, EvaluationRecord, EvaluationText, LayerRecord, LayerRecovery, ModelSize, PassRecord,
    Record, RecoveryRecord, SimilarityRecord, SizeChange, TaskRecord, Totals, distinct,
};
use crate::shrink::{self, Removable, ShrinkError, ShrinkPlan, Sizes, Uneven};
use crate::task::{self, Task, TaskError};
use std::ops::ControlFlow;
use std::path::{Path, PathBuf};
use std::time::Instant;

/// The inputs and settings that all passes of a run share.
#[derive(Clone, Debug)]
pub struct Job {
    /// The windows that inputs are measured on.
    pub calibration: Calibration,
    /// The text that perplexity is measured on.
    pub evaluation: Option<Evaluation>,
    /// The texts that the vectors of an encoder are compared on.
    pub sentences: Option<Sentences>,
    /// The tasks that accuracy is measured on.
    pub tasks: Vec<Task>,
    /// Type of the written weights.
    pub dtype: Dtype,
    /// Bytes of hidden states that one process keeps in memory; more of them
    /// spill to files.
    pub state_memory_limit: Option<u64>,
    /// The recovery after pruning, if requested.
    pub recovery: Option<RecoveryPlan>,
}

/// A text that perplexity is measured on.
#[derive(Clone, Debug)]
pub struct Evaluation {
    /// The text's name, for the record.
    pub text: String,
    /// The text as windows.
    pub scored: ScoredWindows,
    /// Number of layers after which to measure, in addition to the end.
    pub every: Option<usize>,
}

impl Evaluation {
    /// The text and its windows, for the record.
    fn record(&self) -> EvaluationText {
        let windows = &self.scored.windows;
        let bytes: Vec<u8> = windows.iter().flatten().flat_map(|id| id.to_le_bytes()).collect();
        EvaluationText {
            text: self.text.clone(),
            windows: windows.len(),
            seq_len: windows.first().map_or(0, Vec::len),
            tokens: self.scored.tokens,
            sha256: sha256(&bytes),
        }
    }
}

impl PreparedRun<'_> {
    /// Runs all passes, or continues an interrupted run. First checks that all weights are
    /// finite, before anything is written.
    pub fn run(
        &self,
        observer: &dyn Observer,
        executor: &mut dyn Executor,
    ) -> Result<Record, PipelineError> {
        self.model.checkpoint().check_finite()?;
        let (passes, layers) = (&self.passes, self.passes.layers());
        let print = self.fingerprint(&self.model, &passes.recipe, passes.lines(), layers)?;
        let dir = RunDir::open(&self.out, layers, &print, self.start)?;
        let (work, started, earlier) = (self.out.join(WORK), Instant::now(), 0.0);
        Run { prepared: self, dir, work, observer, executor, started, earlier }.run()
    }

    /// The reference model for recovery.
    fn dense_model(&self) -> &Model<'_> {
        self.reference.as_ref().unwrap_or(&self.model)
    }

    /// The stages that train the model after all its layers are pruned.
    fn model_stages(&self) -> &[StageOptions] {
        self.job.recovery.as_ref().map_or(&[], |plan| plan.recovery.model_stages())
    }

    /// Whether the layers are pruned straight into the run's folder.
    fn in_place(&self) -> bool {
        self.passes.is_plain() && self.model_stages().is_empty()
    }

    /// Everything that determines the result of pruning `model` with a recipe. `plan` is
    /// the plan as lines, `layers` the number of layers of the result.
    fn fingerprint(
        &self,
        model: &Model<'_>,
        recipe: &Recipe,
        plan: Vec<String>,
        layers: usize,
    ) -> Result<Fingerprint, PipelineError> {
        let Passes { filter, sequential, .. } = &self.passes;
        Ok(Fingerprint {
            openwork: env!("CARGO_PKG_VERSION").to_string(),
            model: model.checkpoint().hashes(),
            calibration: self.job.calibration.record(),
            seed: self.job.calibration.seed,
            dtype: self.job.dtype.name().to_lowercase(),
            sequential: *sequential,
            include: filter.include.as_ref().map(ToString::to_string),
            exclude: filter.exclude.as_ref().map(ToString::to_string),
            recovery: self.job.recovery.as_ref().map(|plan| plan.recovery.to_string()),
            reference: self.reference.as_ref().map_or(Vec::new(), |m| m.checkpoint().hashes()),
            recipe: recipe.clone(),
            plan,
            files: files(model.checkpoint(), layers)?,
        })
    }
}

/// A run in progress.
struct Run<'a> {
    prepared: &'a PreparedRun<'a>,
    dir: RunDir,
    work: PathBuf,
    observer: &'a dyn Observer,
    executor: &'a mut dyn Executor,
    started: Instant,
    /// Seconds spent before the run was resumed.
    earlier: f64,
}

/// What a pass did.
struct PassResult {
    /// The folder of its model; `None` if that is the run's own folder, still without an index.
    folder: Option<PathBuf>,
    /// The layers, and the perplexities measured between them; `None` if it dropped layers
    /// or experts.
    pruned: Option<(Vec<LayerRecord>, Vec<EvaluationRecord>)>,
    record: PassRecord,
}

/// The results collected so far.
#[derive(Default)]
struct Outcome {
    layers: Vec<LayerRecord>,
    evaluations: Vec<EvaluationRecord>,
    similarity: Option<SimilarityRecord>,
    tasks: Vec<TaskRecord>,
    totals: Totals,
    passes: Vec<PassRecord>,
    recovery: Vec<RecoveryRecord>,
    /// Size of the model that was written, if structures were removed.
    size: Option<ModelSize>,
}

impl Run<'_> {
    fn run(&mut self) -> Result<Record, PipelineError> {
        if let Some(record) = self.finished()? {
            return Ok(record);
        }
        let mut outcome = Outcome::default();
        outcome.evaluations.extend(self.dense()?);
        outcome.tasks.extend(self.dense_tasks()?);
        let mut result: Option<Checkpoint> = None;
        for number in 0..self.prepared.passes.list.len() {
            let opened = result.as_ref().map(Model::open).transpose()?;
            let model = opened.as_ref().unwrap_or(&self.prepared.model);
            let PassResult { folder, pruned, record } = self.pass(number, model)?;
            match pruned {
                Some((layers, evaluations)) => {
                    let stage = self.prepared.job.recovery.as_ref();
                    let stage = stage.and_then(|plan| plan.recovery.layer_stage());
                    let trained: Vec<&LayerRecovery> =
                        layers.iter().filter_map(|layer| layer.recovery.as_ref()).collect();
                    let recovered = stage.and_then(|stage| layer_stage_record(stage, &trained));
                    outcome.recovery.extend(recovered);
                    outcome.totals = totals(&layers);
                    outcome.layers = layers;
                    outcome.evaluations.extend(evaluations);
                }
                None => {
                    renumber(&mut outcome.layers, &record.dropped);
                    let config = record.after.config(model.config());
                    drop_experts(&mut outcome.layers, &record.dropped_experts, &config);
                }
            }
            outcome.passes.push(record);
            drop(opened);
            if let Some(folder) = folder {
                let smaller = Checkpoint::open(&folder)?.rounded(self.prepared.job.dtype);
                resize(&mut outcome.layers, Model::open(&smaller)?.config());
                result = Some(smaller);
            }
        }
        for number in 0..self.prepared.model_stages().len() {
            let source =
                result.as_ref().expect("stages of the whole model need a pass in a work folder");
            let model = Model::open(source)?;
            if number == 0 {
                let last = model.config().layers - 1;
                let layer = |index| model.layer(index, Storage::F32);
                outcome.evaluations.extend(self.evaluate(&model, Some(last), &layer)?);
            }
            let (folder, record) = self.recover(number, &model, &outcome.layers)?;
            outcome.recovery.push(record);
            drop(model);
            result = Some(Checkpoint::open(&folder)?.rounded(self.prepared.job.dtype));
        }
        match result {
            None => self.finish_in_place(outcome),
            Some(result) => self.finish(outcome, &Model::open(&result)?),
        }
    }

    /// Runs stage `number` of the whole-model training; returns the folder of its result.
    fn recover(
        &mut self,
        number: usize,
        model: &Model<'_>,
        layers: &[LayerRecord],
    ) -> Result<(PathBuf, RecoveryRecord), PipelineError> {
        let stages = self.prepared.model_stages();
        let work = self.work.join(format!("recover-{}", number + 1));
        let out = match number + 1 == stages.len() {
            true => self.dir.folder().to_path_buf(),
            false => work.join("model"),
        };
        let done = work.join("done.json");
        if complete(&out)
            && let Some(record) = read_sealed(&done, REDO)?
        {
            return Ok((out, record));
        }
        let Some(plan) = &self.prepared.job.recovery else {
            return Err(PipelineError::Executor("there is no recovery".to_string()));
        };
        let groups = pattern_groups(layers, model.config(), stages[number].moves())?;
        let stage = ModelStage {
            reference: self.prepared.dense_model(),
            model,
            options: &stages[number],
            windows: &plan.windows[number],
            job: &self.prepared.job,
            groups,
            folder: &work,
        };
        let record = stage.run(&out, &mut *self.executor, self.observer)?;
        write_sealed(&done, &record)?;
        self.observer.on_event(Event::Recovered(&record));
        Ok((out, record))
    }

    /// The record of a run that is already finished. If a requested perplexity or accuracy
    /// is missing, only that is measured and added.
    fn finished(&self) -> Result<Option<Record>, PipelineError> {
        if self.prepared.in_place() && self.dir.done()?.len() < self.prepared.passes.layers() {
            return Ok(None);
        }
        let Some(mut record) = self.dir.finished() else { return Ok(None) };
        let job = &self.prepared.job;
        let text_missing = job.evaluation.is_some() && record.last().is_none();
        let vectors_missing = job.sentences.is_some() && record.similarity.is_none();
        let known = |task: &Task| {
            let same =
                |other: &TaskRecord| (&other.name, &other.sha256) == (&task.name, &task.sha256);
            record.task_pairs().iter().any(|(_, other)| same(other))
        };
        let task_missing = !job.tasks.iter().all(known);
        if text_missing || vectors_missing || task_missing {
            let source = Checkpoint::open(self.dir.folder())?.rounded(job.dtype);
            let model = Model::open(&source)?;
            let layer = |index| model.layer(index, Storage::F32);
            let last = model.config().layers - 1;
            if text_missing {
                record.evaluations = self.dense()?.into_iter().collect();
                record.evaluations.extend(self.evaluate(&model, Some(last), &layer)?);
            }
            if vectors_missing {
                record.similarity = self.compare(&model, &layer)?;
            }
            if task_missing {
                record.tasks = self.dense_tasks()?;
                record.tasks.extend(self.score(&model, Some(last), &layer)?);
            }
            self.write_record(&record)?;
        } else {
            self.observer.on_event(Event::Note("the run is finished already; nothing was written"));
        }
        Ok(Some(record))
    }

    /// Evaluates and records a model that the only pass left in the run's folder.
    /// The index is written last: with it the folder is complete.
    fn finish_in_place(&mut self, mut outcome: Outcome) -> Result<Record, PipelineError> {
        let model = &self.prepared.model;
        let shards = write_rest(model, &self.prepared.job, &self.dir)?;
        let last = model.config().layers - 1;
        outcome.evaluations.extend(self.evaluate_shards(last)?);
        let layer = |index| pruned_layer(model, &self.dir, index);
        outcome.similarity = self.compare(model, &layer)?;
        outcome.tasks.extend(self.score(model, Some(last), &layer)?);
        let record = self.record(outcome);
        self.write_record(&record)?;
        write::index(self.dir.folder(), &shards)?;
        Ok(record)
    }

    /// Evaluates and records the model that the last pass wrote.
    fn finish(&mut self, mut outcome: Outcome, model: &Model<'_>) -> Result<Record, PipelineError> {
        let last = model.config().layers - 1;
        let layer = |index| model.layer(index, Storage::F32);
        outcome.evaluations.extend(self.evaluate(model, Some(last), &layer)?);
        outcome.similarity = self.compare(model, &layer)?;
        outcome.tasks.extend(self.score(model, Some(last), &layer)?);
        outcome.size = Some(size(model));
        let (mut weights, mut kept) = (0, 0);
        for layer in 0..model.config().layers {
            let info = LayerInfo::new(model.config(), layer);
            for linear in 0..info.linears.len() {
                let tensor = model.checkpoint().tensor(&info.weight_name(linear))?;
                weights += tensor.len() as u64;
                kept += tensor.nonzeros();
            }
        }
        outcome.totals.weights = weights;
        outcome.totals.density = kept as f64 / weights.max(1) as f64;
        let record = self.record(outcome);
        self.write_record(&record)?;
        match std::fs::remove_dir_all(&self.work) {
            Err(error) if error.kind() != std::io::ErrorKind::NotFound => {
                Err(PipelineError::io(&self.work, error))
            }
            _ => Ok(record),
        }
    }

    fn write_record(&self, record: &Record) -> Result<(), PipelineError> {
        let json = serde_json::to_string_pretty(record).unwrap_or_default();
        self.dir.write(RECIPE, &self.prepared.passes.recipe.to_toml())?;
        self.dir.write("README.md", &card::text(record))?;
        self.dir.write(RECORD, &json)
    }

    /// Runs one pass on a model.
    fn pass(&mut self, number: usize, model: &Model<'_>) -> Result<PassResult, PipelineError> {
        let started = Instant::now();
        let passes = &self.prepared.passes;
        let pass = &passes.list[number];
        let last = number + 1 == passes.list.len() && self.prepared.model_stages().is_empty();
        let work = self.work.join(format!("pass-{}", number + 1));
        let target = if last { self.dir.folder().to_path_buf() } else { work.join("small") };
        let before = Sizes::new(model.config());
        let mut record = PassRecord {
            spec: pass.spec().to_string(),
            spec_as_written: None,
            method: "depth".to_string(),
            before,
            after: before,
            dropped: Vec::new(),
            dropped_experts: Vec::new(),
            score_lost: None,
            mean_error: 0.0,
            seconds: 0.0,
        };
        if let Some(dropped) = pass.dropped {
            self.start(number, before.layers, before.layers);
            let seen = |layer, share| self.observer.progress(layer, Stage::Probe, share);
            let calibration = &self.prepared.job.calibration;
            let cut = match dropped {
                Dropped::Layers { kept } => {
                    let kept = depth::choose(model, calibration, kept, &seen)?;
                    record.dropped = missing(before.layers, &kept);
                    ShrinkPlan::keep_layers(model.config(), &kept)
                }
                Dropped::Experts { kept, score } => {
                    let choice = expert_choice::choose(model, calibration, (score, kept), &seen)?;
                    record.method = score.to_string();
                    record.dropped_experts =
                        choice
                            .kept
                            .iter()
                            .map(|kept| {
                                if kept.is_empty() { vec![] } else { missing(before.experts, kept) }
                            })
                            .collect();
                    record.score_lost = Some(choice.lost);
                    ShrinkPlan::keep_experts(model.config(), &choice.kept)
                }
            };
            record.after = self.write_smaller(model, &cut, &target)?;
            record.seconds = started.elapsed().as_secs_f64();
            return Ok(PassResult { folder: Some(target), pruned: None, record });
        }

        let plan = pass.plan_for(model.config())?;
        let masked = match self.prepared.in_place() {
            true => None,
            false => {
                let (recipe, layers) = (&passes.recipe.each_pass()[number], before.layers);
                let print = self.prepared.fingerprint(model, recipe, plan.lines(), layers)?;
                Some(RunDir::open(&work.join("masked"), layers, &print, Start::Resume)?)
            }
        };
        let dir = masked.as_ref().unwrap_or(&self.dir);
        let done = dir.done()?;
        let earlier = done.last().map_or(0.0, |last| last.elapsed);
        self.start(number, done.len(), before.layers);
        let every = self.prepared.job.evaluation.as_ref().and_then(|e| e.every);
        let every = every.filter(|_| self.prepared.in_place());
        let (prepared, observer) = (self.prepared, self.observer);
        let evaluate = |index: usize| match every {
            Some(n) if (index + 1).is_multiple_of(n) && index + 1 < before.layers => {
                evaluate_shards(prepared, dir, observer, index)
            }
            _ => Ok(None),
        };
        let stage = prepared.job.recovery.as_ref().and_then(|plan| plan.recovery.layer_stage());
        let groups = match stage {
            Some(stage) => self.groups(&plan, model, stage.moves())?,
            None => Vec::new(),
        };
        let executor = &mut *self.executor;
        let recoverer = match stage {
            Some(stage) if done.len() < before.layers => Some(LayerRecoverer::new(
                model,
                prepared.dense_model(),
                stage,
                &prepared.job,
                groups,
                dir.folder(),
            )?),
            _ => None,
        };
        let job = &prepared.job;
        let mut layers = LayerLoop { job, model, plan: &plan, dir, observer, executor, recoverer };
        let done = layers.run(done, &evaluate)?;
        self.earlier += earlier;
        let evaluations = done.iter().filter_map(|layer| layer.evaluation.clone()).collect();
        let mut layers: Vec<LayerRecord> = done.into_iter().map(|layer| layer.record).collect();
        if let Some(earlier) = &prepared.earlier {
            inherit(&mut layers, earlier);
        }
        let specs = layers.iter().flat_map(|layer| &layer.linears);
        record.spec = distinct(specs.filter_map(|linear| linear.spec.as_deref())).join(" | ");
        record.spec_as_written = match &prepared.earlier {
            Some(earlier) => Some(earlier.spec_as_written()),
            None => Some(plan.specs()),
        };
        record.method = match &prepared.earlier {
            Some(earlier) => earlier.method.clone(),
            None => plan.methods(),
        };
        record.mean_error = totals(&layers).mean_error;
        let mut folder = None;
        if let Some(dir) = &masked {
            if !complete(dir.folder()) {
                let shards = write_rest(model, &prepared.job, dir)?;
                write::index(dir.folder(), &shards)?;
            }
            folder = Some(dir.folder().to_path_buf());
            if pass.remove || last {
                record.after = self.remove(dir.folder(), pass.remove, &target)?;
                folder = Some(target);
            }
        }
        record.seconds = earlier + started.elapsed().as_secs_f64();
        Ok(PassResult { folder, pruned: Some((layers, evaluations)), record })
    }

    /// The patterns of each layer, of the plan or of the run that pruned the model: all if
    /// blocks move, otherwise those whose weights are rounded to codes.
    fn groups(
        &self,
        plan: &Plan,
        model: &Model<'_>,
        moves: bool,
    ) -> Result<Vec<Vec<PatternGroup>>, PipelineError> {
        if let Some(earlier) = &self.prepared.earlier {
            return pattern_groups(&earlier.layers, model.config(), moves);
        }
        let group = |task: &TaskPlan| PatternGroup {
            linears: task.linears.clone(),
            spec: task.spec.clone(),
            encoding: task.method.encoding(),
        };
        let wanted = |group: &PatternGroup| moves || group.encoding.is_some();
        let groups =
            |layer: &LayerPlan| layer.tasks.iter().map(group).filter(wanted).collect::<Vec<_>>();
        Ok(plan.layers.iter().map(groups).collect())
    }

    fn start(&self, number: usize, first: usize, layers: usize) {
        let passes = &self.prepared.passes.list;
        let (pass, spec) = (number + 1, passes[number].spec());
        self.observer.on_event(Event::Start { pass, passes: passes.len(), spec, first, layers });
    }

    /// Writes a pruned model, without its pruned structures if `remove`; returns its sizes.
    fn remove(&self, masked: &Path, remove: bool, target: &Path) -> Result<Sizes, PipelineError> {
        let pruned = Checkpoint::open(masked)?;
        let model = Model::open(&pruned)?;
        let layers = 0..model.config().layers;
        let cut = match remove {
            true => {
                let read = |layer| Removable::read(&model, layer);
                let spares = layers.map(read).collect::<Result<Vec<_>, ShrinkError>>()?;
                ShrinkPlan::new(model.config(), &spares, Uneven::Least)?
            }
            false => ShrinkPlan::keep_layers(model.config(), &layers.collect::<Vec<_>>()),
        };
        self.write_smaller(&model, &cut, target)
    }

    fn write_smaller(
        &self,
        model: &Model<'_>,
        cut: &ShrinkPlan,
        target: &Path,
    ) -> Result<Sizes, PipelineError> {
        if !complete(target) {
            shrink::write(model, cut, Some(self.prepared.job.dtype), target)?;
        }
        Ok(cut.change.after)
    }

    /// The perplexity of the dense model, measured once.
    fn dense(&self) -> Result<Option<EvaluationRecord>, PipelineError> {
        if let Some(known) = self.dir.dense()? {
            return Ok(Some(known));
        }
        let model = self.prepared.dense_model();
        let layer = |index| model.layer(index, Storage::F32);
        let found = self.evaluate(model, None, &layer)?;
        if let Some(found) = &found {
            self.dir.save_dense(found)?;
        }
        Ok(found)
    }

    /// The accuracies of the dense model, measured once.
    fn dense_tasks(&self) -> Result<Vec<TaskRecord>, PipelineError> {
        let asked = &self.prepared.job.tasks;
        let same = |known: &[TaskRecord]| {
            known.len() == asked.len()
                && known.iter().zip(asked).all(|(known, task)| known.sha256 == task.sha256)
        };
        if let Some(known) = self.dir.dense_tasks()?.filter(|known| same(known)) {
            return Ok(known);
        }
        let model = self.prepared.dense_model();
        let layer = |index| model.layer(index, Storage::F32);
        let found = self.score(model, None, &layer)?;
        if !found.is_empty() {
            self.dir.save_dense_tasks(&found)?;
        }
        Ok(found)
    }

    /// Scores a model with these layers on the tasks. `after` is the last layer that is
    /// pruned.
    fn score(
        &self,
        model: &Model<'_>,
        after: Option<usize>,
        layer: &dyn Fn(usize) -> Result<Layer, ModelError>,
    ) -> Result<Vec<TaskRecord>, PipelineError> {
        let tasks = &self.prepared.job.tasks;
        if tasks.is_empty() {
            return Ok(Vec::new());
        }
        let tokenizer = model.checkpoint().tokenizer()?;
        let mut watch =
            |share| match self.observer.progress(after.unwrap_or(0), Stage::Evaluate, share) {
                Ok(()) => ControlFlow::Continue(()),
                Err(_) => ControlFlow::Break(()),
            };
        let scores = task::score(model, &tokenizer, &mut |index| layer(index), tasks, &mut watch);
        let scores = scores.map_err(|error| match error {
            TaskError::Model(ModelError::Stopped) => PipelineError::Stopped,
            error => error.into(),
        })?;
        model.checkpoint().release();
        let records: Vec<TaskRecord> =
            scores.iter().map(|score| TaskRecord::new(score, after)).collect();
        records.iter().for_each(|record| self.observer.on_event(Event::Scored(record)));
        Ok(records)
    }

    /// Compares the vectors of an encoder with these layers with those of the dense one;
    /// nothing if no texts were given.
    fn compare(
        &self,
        model: &Model<'_>,
        layer: &dyn Fn(usize) -> Result<Layer, ModelError>,
    ) -> Result<Option<SimilarityRecord>, PipelineError> {
        let sentences = self.prepared.job.sentences.as_ref();
        let dense = self.prepared.dense_model();
        sentences.map(|texts| texts.compare(dense, model, layer, self.observer)).transpose()
    }

    fn evaluate(
        &self,
        model: &Model<'_>,
        after: Option<usize>,
        layer: &dyn Fn(usize) -> Result<Layer, ModelError>,
    ) -> Result<Option<EvaluationRecord>, PipelineError> {
        evaluate(self.prepared, model, self.observer, after, layer)
    }

    fn evaluate_shards(&self, last: usize) -> Result<Option<EvaluationRecord>, PipelineError> {
        evaluate_shards(self.prepared, &self.dir, self.observer, last)
    }

    /// The record of the whole run. Its layers are those of the last pass that
    /// pruned, with the names and shapes that were written.
    fn record(&mut self, outcome: Outcome) -> Record {
        let Outcome {
            layers,
            evaluations,
            similarity,
            tasks,
            mut totals,
            passes,
            recovery,
            size: after,
        } = outcome;
        let PreparedRun { model, job, passes: plan, .. } = self.prepared;
        totals.seconds = self.earlier + self.started.elapsed().as_secs_f64();
        totals.peak_rss_bytes = peak_rss_bytes();
        let join =
            |of: fn(&PassRecord) -> &str| passes.iter().map(of).collect::<Vec<_>>().join(" | ");
        let (spec, method) = (join(|pass| &pass.spec), join(|pass| &pass.method));
        let text = |regex: &Option<regex::Regex>| regex.as_ref().map(ToString::to_string);
        Record {
            openwork: env!("CARGO_PKG_VERSION").to_string(),
            model: model.checkpoint().name(),
            family: model.config().family.name.to_string(),
            spec,
            method,
            options: report::Options {
                dtype: job.dtype.name().to_lowercase(),
                sequential: plan.sequential,
                threads: rayon::current_num_threads(),
                include: text(&plan.filter.include),
                exclude: text(&plan.filter.exclude),
            },
            seed: job.calibration.seed,
            calibration: job.calibration.record(),
            layers,
            evaluations,
            similarity,
            tasks,
            totals,
            evaluation: job.evaluation.as_ref().map(Evaluation::record),
            sizes: after.map(|after| SizeChange { before: size(model), after }),
            recovery,
            notes: plan.notes(),
            passes: if plan.is_plain() { Vec::new() } else { passes },
            cluster: self.executor.record(),
        }
    }
}

/// Whether a folder is a complete model: its index is written last.
fn complete(folder: &Path) -> bool {
    folder.join(write::INDEX).exists()
}

/// Perplexity of the model with the layers up to `last` pruned, from their shards.
fn evaluate_shards(
    prepared: &PreparedRun<'_>,
    dir: &RunDir,
    observer: &dyn Observer,
    last: usize,
) -> Result<Option<EvaluationRecord>, PipelineError> {
    let model = &prepared.model;
    let layer = |index: usize| match index <= last {
        true => pruned_layer(model, dir, index),
        false => model.layer(index, Storage::F32),
    };
    evaluate(prepared, model, observer, Some(last), &layer)
}

/// Perplexity of a model with these layers; `None` if no text was given. `after` is the
/// last pruned layer.
fn evaluate(
    prepared: &PreparedRun<'_>,
    model: &Model<'_>,
    observer: &dyn Observer,
    after: Option<usize>,
    layer: &dyn Fn(usize) -> Result<Layer, ModelError>,
) -> Result<Option<EvaluationRecord>, PipelineError> {
    let Some(Evaluation { scored, .. }) = &prepared.job.evaluation else { return Ok(None) };
    let started = Instant::now();
    let mut cancelled = false;
    let nats = nats(model, &mut |index| layer(index), &scored.windows, &mut |progress| {
        let share = progress.done as f64 / progress.total.max(1) as f64;
        cancelled |= observer.progress(after.unwrap_or(0), Stage::Evaluate, share).is_err();
    })?;
    if cancelled {
        return Err(PipelineError::Stopped);
    }
    model.checkpoint().release();
    let record = EvaluationRecord {
        after_layer: after,
        token_perplexity: (nats / scored.tokens as f64).exp(),
        word_perplexity: (nats / scored.words as f64).exp(),
        tokens: scored.tokens,
        seconds: started.elapsed().as_secs_f64(),
    };
    observer.on_event(Event::Evaluated(&record));
    Ok(Some(record))
}

/// Parameters of a model, and the bytes that they take.
fn size(model: &Model<'_>) -> ModelSize {
    ModelSize {
        parameters: model.checkpoint().tensors().map(|tensor| tensor.len() as u64).sum(),
        bytes: model.checkpoint().tensors().map(|tensor| tensor.stored_bytes() as u64).sum(),
    }
}

/// Those of the first `count` numbers that are not listed.
fn missing(count: usize, listed: &[usize]) -> Vec<usize> {
    (0..count).filter(|number| !listed.contains(number)).collect()
}
