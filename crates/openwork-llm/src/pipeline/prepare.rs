//! Turns options into a [`PreparedRun`]: reads and checks all inputs, for the command
//! line and for Python.

use super::estimate::{Estimate, Workers, estimate, recovery};
use super::options::{ByteCount, ENCODER_SEQ_LEN, SEQ_LEN};
use super::passes::Passes;
use super::recovery::{RecoveryPlan, coded_layers, pattern_groups};
use super::run::{Evaluation, Job};
use super::{
    Calibration, PipelineError, Recipe, RunOptions, Sampling, Start, TensorFilter, check_folder,
};
use crate::checkpoint::{Checkpoint, Dtype, Format};
use crate::disk;
use crate::evaluate::{self, EvaluateError, ScoredWindows};
use crate::format::{count, format_bytes};
use crate::inspect::{Check, inspect};
use crate::model::Model;
use crate::model::{Config, embedding_name};
use crate::output::{self, OutputError};
use crate::recover::{Recovery, StageOptions, Unit};
use crate::report::Record;
use crate::task::Task;
use crate::tokens::{TextUse, Tokenizer, load_text};
use std::fs::File;
use std::io::Read;
use std::path::{Path, PathBuf};

/// Maximum size of a recipe, in bytes.
const MAX_RECIPE: u64 = 1 << 20;

/// A run that can start: the model is open, the plan fits it, and the texts are
/// windows of tokens.
#[derive(Debug)]
pub struct PreparedRun<'a> {
    /// The model, rounded to the output type when read ([`Checkpoint::rounded`]).
    pub model: Model<'a>,
    /// The reference model for recovery, if it is not the model that is pruned.
    pub reference: Option<Model<'a>>,
    /// The record of the run that pruned the model, if this run only trains it.
    pub earlier: Option<Record>,
    /// What all passes share.
    pub job: Job,
    /// The passes, each with its plan.
    pub passes: Passes,
    /// Estimate of the resources they need.
    pub needs: Estimate,
    /// The workers that compute the stages, if not this process.
    pub workers: Option<Workers>,
    /// Notes for the user before the run starts.
    pub notes: Vec<String>,
    pub(super) out: PathBuf,
    pub(super) start: Start,
}

impl<'a> PreparedRun<'a> {
    /// A run of passes that fit the model.
    pub fn new(model: Model<'a>, job: Job, passes: Passes, out: &Path, start: Start) -> Self {
        let needs = needs(&job, &passes, &model);
        let (workers, notes, out) = (None, passes.notes(), out.to_path_buf());
        let (reference, earlier) = (None, None);
        Self { model, reference, earlier, job, passes, needs, workers, notes, out, start }
    }

    /// Whether hidden states spill to a file.
    pub fn spills(&self) -> bool {
        self.job.state_memory_limit.is_some_and(|limit| self.needs.spilled > limit)
    }

    /// Has the stages computed by workers.
    fn compute_by(&mut self, workers: Workers) {
        self.workers = Some(workers);
        self.needs = self.needs.among(workers);
        self.needs.recovery_seconds =
            recovery(&self.job, &self.model, self.workers).recovery_seconds;
        let stages = self.job.recovery.iter().flat_map(|plan| &plan.recovery.stages);
        let idle = |stage: &&StageOptions| stage.unit == Unit::Model && stage.batch < workers.count;
        self.notes.extend(stages.filter(idle).map(|stage| {
            let (batch, workers) = (count(stage.batch, "window"), count(workers.count, "worker"));
            format!(
                "{stage}: a step has {batch} for {workers}, so some of them wait; a larger `batch` uses them, and changes the result"
            )
        }));
    }

    /// Limits the memory of the run.
    fn limit_memory(&mut self, most: &ByteCount) -> Result<(), PipelineError> {
        let left = most.bytes.checked_sub(self.needs.memory_spilled).ok_or_else(|| {
            let why = format!(
                "the run needs about {} even with its hidden states in a file; allow that much, or prune with fewer rows per scope or a cheaper method",
                format_bytes(self.needs.memory_spilled)
            );
            PipelineError::option("max_memory", most, why)
        })?;
        let limit = self.job.state_memory_limit.map_or(left, |limit| limit.min(left));
        self.job.state_memory_limit = Some(limit);
        Ok(())
    }

    fn check_disk(&self) -> Result<(), PipelineError> {
        // Files written before the run was interrupted already have their space.
        match disk::free(&self.out) {
            Some(free) if free < self.needs.disk && self.start != Start::Resume => {
                let (path, needed) = (self.out.clone(), self.needs.disk);
                Err(OutputError::Space { path, needed, free }.into())
            }
            _ => Ok(()),
        }
    }
}

impl RunOptions {
    /// What to do with files in the output folder.
    pub fn start(&self) -> Result<Start, PipelineError> {
        match (self.resume, self.force) {
            (true, true) => Err(PipelineError::Plan(
                "{resume} and {force} cannot be combined; give one of them".to_string(),
            )),
            (true, false) => Ok(Start::Resume),
            (false, true) => Ok(Start::Force),
            (false, false) => Ok(Start::Fresh),
        }
    }

    /// Checks what needs neither the model nor the texts, so that mistakes are reported
    /// before they are downloaded.
    pub fn check(&self, model: &Path) -> Result<(), PipelineError> {
        let start = self.start()?;
        output::check_folder(&self.out, &[model])?;
        check_folder(&self.out, start)?;
        Passes::check(&self.recipe()?, &self.filter(), self.sequential)
    }

    fn filter(&self) -> TensorFilter {
        TensorFilter { include: self.include.clone(), exclude: self.exclude.clone() }
    }

    /// Opens the model, rounded to the output type.
    pub fn open(&self, model: &Path) -> Result<Checkpoint, PipelineError> {
        let start = self.start()?;
        output::check_folder(&self.out, &[model])?;
        check_folder(&self.out, start)?;
        if start == Start::Force {
            let texts = [Some(&self.calib), self.eval.as_ref(), self.recipe.as_ref()];
            let texts = texts.into_iter().flatten().chain(&self.task);
            let inputs: Vec<&Path> = texts.map(PathBuf::as_path).collect();
            output::check_folder(&self.out, &inputs)?;
        }
        let source = Checkpoint::open(model)?;
        let dtype = self.dtype(&source)?;
        Ok(source.rounded(dtype))
    }

    /// Reads and checks everything else. `workers` compute the stages of the run,
    /// if not this process.
    pub fn prepare<'a>(
        &self,
        source: &'a Checkpoint,
        workers: Option<Workers>,
    ) -> Result<PreparedRun<'a>, PipelineError> {
        let model = Model::open(source)?;
        let passes = Passes::new(&self.recipe()?, &self.filter(), model.config(), self.sequential)?;
        self.check_recovery(model.config(), &passes)?;
        let mut run = self.prepare_passes(model, passes)?;
        if let Some(workers) = workers {
            run.compute_by(workers);
        }
        self.check_resources(run)
    }

    /// Reads and checks everything for training a pruned model, `source`, towards
    /// `reference`.
    pub fn prepare_recovery<'a>(
        &self,
        source: &'a Checkpoint,
        reference: &'a Checkpoint,
    ) -> Result<PreparedRun<'a>, PipelineError> {
        let (model, dense) = (Model::open(source)?, Model::open(reference)?);
        model.check_decoder()?;
        let earlier = Record::read(source.path()).ok();
        let recovery = self.recover.as_ref();
        check_trainable(recovery, model.config())?;
        let layers = recovery.is_some_and(|r| r.stages.iter().any(|s| s.unit != Unit::Model));
        let states = recovery.is_some_and(|r| r.stages.iter().any(|s| s.states > 0.0));
        check_reference(&model, &dense, layers || states)?;
        if let Some(earlier) = &earlier {
            check_conforms(source, earlier)?;
        }
        if let Some(recovery) = recovery.filter(|r| r.stages.iter().any(StageOptions::moves)) {
            let Some(earlier) = &earlier else {
                let why = "regrow moves blocks within the pattern of the run that pruned the model, but the model has no record of it";
                return Err(PipelineError::option("recover", recovery, why));
            };
            pattern_groups(&earlier.layers, model.config(), true)?;
        } else if let Some(earlier) = &earlier {
            let groups = pattern_groups(&earlier.layers, model.config(), false)?;
            coded_layers(&model, &groups)?;
        }
        let passes = Passes::unpruned(model.config());
        let mut run = self.prepare_passes(model, passes)?;
        (run.reference, run.earlier) = (Some(dense), earlier);
        self.check_resources(run)
    }

    /// Reads the texts of a run with these passes.
    fn prepare_passes<'a>(
        &self,
        model: Model<'a>,
        passes: Passes,
    ) -> Result<PreparedRun<'a>, PipelineError> {
        let source = model.checkpoint();
        let tokenizer = source.tokenizer()?;
        let mut notes = model.config().notes.clone();
        notes.extend_from_slice(tokenizer.notes());
        let encoder = model.config().encoder.is_some();
        let sentences = match encoder {
            true => self.sentences(&model, &tokenizer)?,
            false => None,
        };
        notes.extend(sentences.iter().flat_map(|sentences| sentences.pooling.notes.clone()));
        let (calibration, recovery) = self.calibration(&model, &tokenizer)?;
        let job = Job {
            calibration,
            recovery,
            sentences,
            evaluation: match encoder {
                true => None,
                false => self.evaluation(&model, &tokenizer)?,
            },
            tasks: match encoder {
                true => Vec::new(),
                false => self.tasks(&model, &tokenizer)?,
            },
            dtype: self.dtype(source)?,
            state_memory_limit: self.spill_over.as_ref().map(|limit| limit.bytes),
        };
        let mut run = PreparedRun::new(model, job, passes, &self.out, self.start()?);
        run.notes.splice(0..0, notes);
        run.notes.extend(larger_output(source, &run));
        run.notes.extend(run.job.recovery.iter().flat_map(RecoveryPlan::notes));
        if self.eval_every.is_some() && !run.passes.is_plain() {
            run.notes.push(
                "perplexity is measured before the first pass and after the last, not after every few layers"
                    .to_string(),
            );
        }
        Ok(run)
    }

    fn check_resources<'a>(
        &self,
        mut run: PreparedRun<'a>,
    ) -> Result<PreparedRun<'a>, PipelineError> {
        if let Some(most) = &self.max_memory {
            run.limit_memory(most)?;
        }
        run.check_disk()?;
        Ok(run)
    }

    /// The recipe from the file, with the spec and method options applied.
    fn recipe(&self) -> Result<Recipe, PipelineError> {
        let mut recipe = match &self.recipe {
            None => Recipe::default(),
            Some(path) => {
                let at = |why: &dyn std::fmt::Display| {
                    PipelineError::Plan(format!("{}: {why}", path.display()))
                };
                let text = recipe_text(path).map_err(|error| at(&error))?;
                Recipe::parse(&text).map_err(|error| at(&error))?
            }
        };
        recipe.spec = self.spec.clone().or(recipe.spec);
        recipe.method = self.method.clone().or(recipe.method);
        recipe.remove |= self.remove;
        Ok(recipe)
    }

    /// The type of the written weights: as asked for, or the model's own; bf16 for GGUF.
    fn dtype(&self, source: &Checkpoint) -> Result<Dtype, PipelineError> {
        if let Some(dtype) = self.dtype {
            return Ok(dtype.0);
        }
        if source.format() == Format::Gguf {
            return Ok(Dtype::BF16);
        }
        Ok(match source.tensor(embedding_name(source.config()))?.dtype() {
            dtype @ (Dtype::F16 | Dtype::F32) => dtype,
            _ => Dtype::BF16,
        })
    }

    fn calibration(
        &self,
        model: &Model<'_>,
        tokenizer: &Tokenizer,
    ) -> Result<(Calibration, Option<RecoveryPlan>), PipelineError> {
        let text = load_text(&self.calib, TextUse::Calibrate)?;
        let encoder = model.config().encoder.is_some();
        let usual = if encoder { ENCODER_SEQ_LEN } else { SEQ_LEN };
        let length = window("seq_len", self.seq_len, usual, model)?;
        let name = file_name(&self.calib);
        let (samples, single_tokens, seed) = (self.samples, self.single_tokens, self.seed);
        let how = Sampling { samples, length, single_tokens, seed };
        let wrong = |error: PipelineError| match error {
            error @ PipelineError::Option { .. } => error,
            error => PipelineError::option("calib", &name, error.to_string()),
        };
        let tokens = tokenizer.encode(&text).map_err(|error| wrong(error.into()))?;
        let from = (name.as_str(), text.len());
        let drawn = match encoder {
            true => Calibration::for_encoder(tokenizer, from, &tokens, how),
            false => Calibration::from_tokens(tokenizer, from, &tokens, how),
        };
        let drawn = drawn.map_err(wrong)?;
        let plan = |recovery: &Recovery| {
            let limits = (drawn.windows.len(), model.config().max_positions);
            RecoveryPlan::new(recovery.clone(), tokenizer, &tokens, limits, seed)
        };
        let recovery = self.recover.as_ref().map(plan).transpose()?;
        let trained = recovery.iter().flat_map(|plan| &plan.windows);
        let trained = trained.flat_map(|windows| [&windows.train, &windows.held_out]);
        for windows in [&drawn.windows, &drawn.single_tokens].into_iter().chain(trained) {
            model.check_tokens(windows).map_err(|error| wrong(error.into()))?;
        }
        Ok((drawn, recovery))
    }

    /// Refuses a recovery that this run cannot do.
    fn check_recovery(&self, config: &Config, passes: &Passes) -> Result<(), PipelineError> {
        let Some(recovery) = &self.recover else { return Ok(()) };
        let wrong = |why: &str| Err(PipelineError::option("recover", recovery, why));
        check_trainable(Some(recovery), config)?;
        let tasks = || {
            let layers = passes.list.iter().flat_map(|pass| &pass.plan.layers);
            layers.flat_map(|layer| &layer.tasks)
        };
        if recovery.stages.iter().any(StageOptions::moves) {
            if !passes.is_plain() {
                return wrong(
                    "regrow moves blocks within the pattern of one pass; this run has several, or removes structures",
                );
            }
            if tasks().any(|task| task.spec.has_levels()) {
                return wrong("regrow cannot move blocks of patterns with several levels");
            }
            if tasks().any(|task| task.method.encoding().is_some()) {
                return wrong("regrow cannot move blocks of quantized weights");
            }
        }
        if tasks().any(|task| task.method.encoding().is_some()) && !passes.is_plain() {
            return wrong(
                "quantized weights are trained after a run of one pass that removes nothing; prune and recover without +quant, then round the result by pruning it with magnitude+quant",
            );
        }
        let layers = recovery.stages.iter().find(|stage| stage.unit != Unit::Model);
        let states = |stage: &&StageOptions| stage.states > 0.0;
        let layers = layers.or_else(|| recovery.stages.iter().find(states));
        if layers.is_some() && passes.list.iter().any(|pass| pass.dropped.is_some()) {
            return wrong(
                "it trains each layer towards the same layer of the dense model, and the recipe drops layers or experts; use `model`",
            );
        }
        Ok(())
    }

    /// The tasks, if the model can read every document.
    fn tasks(&self, model: &Model<'_>, tokenizer: &Tokenizer) -> Result<Vec<Task>, PipelineError> {
        match self.task_limit {
            Some(limit) if self.task.is_empty() => {
                let why = "it needs {task}, the task to measure on";
                return Err(PipelineError::option("task_limit", limit, why));
            }
            Some(0) => {
                return Err(PipelineError::option(
                    "task_limit",
                    0,
                    "give a whole number of at least 1",
                ));
            }
            _ => {}
        }
        let read = |path: &PathBuf| -> Result<Task, PipelineError> {
            let task = Task::read(path, self.task_limit)?;
            task.encode(model, tokenizer)?;
            Ok(task)
        };
        self.task.iter().map(read).collect()
    }

    fn evaluation(
        &self,
        model: &Model<'_>,
        tokenizer: &Tokenizer,
    ) -> Result<Option<Evaluation>, PipelineError> {
        let Some(path) = &self.eval else {
            let counts = [
                ("eval_every", self.eval_every),
                ("eval_tokens", self.eval_tokens),
                ("eval_seq_len", self.eval_seq_len),
            ];
            return match counts.into_iter().find_map(|(name, count)| Some((name, count?))) {
                Some((name, count)) => Err(PipelineError::option(
                    name,
                    count,
                    "it needs {eval}, the text to measure on",
                )),
                None => Ok(None),
            };
        };
        let text = load_text(path, TextUse::Evaluate)?;
        let length = window("eval_seq_len", self.eval_seq_len, evaluate::SEQ_LEN, model)?;
        if self.eval_every == Some(0) {
            return Err(PipelineError::option(
                "eval_every",
                0,
                "give a whole number of at least 1",
            ));
        }
        let options = evaluate::Options {
            seq_len: Some(length),
            max_tokens: self.eval_tokens,
            ..Default::default()
        };
        let wrong = |error: EvaluateError| match error {
            EvaluateError::MaxTokens { most, length } => {
                let why = format!(
                    "that is fewer than one window of {length} tokens; use more tokens, or give a smaller {{eval_seq_len}}"
                );
                PipelineError::option("eval_tokens", most, why)
            }
            EvaluateError::SeqLen(length) => {
                let why = "such a window predicts nothing; give at least 2";
                PipelineError::option("eval_seq_len", length, why)
            }
            error => PipelineError::option("eval", file_name(path), error.to_string()),
        };
        let scored = ScoredWindows::new(tokenizer, &text, length, &options).map_err(wrong)?;
        model.check_tokens(&scored.windows).map_err(|error| wrong(error.into()))?;
        Ok(Some(Evaluation { text: file_name(path), scored, every: self.eval_every }))
    }
}

/// Refuses a model that the backward pass does not cover.
fn check_trainable(recovery: Option<&Recovery>, config: &Config) -> Result<(), PipelineError> {
    let Some((recovery, what)) = recovery.zip(config.untrainable()) else { return Ok(()) };
    let why = format!(
        "{} models cannot be trained here: the backward pass does not cover {what}",
        config.family.name
    );
    Err(PipelineError::option("recover", recovery, why))
}

/// Checks that a model can be trained towards a reference; with `layers`, layer by layer.
fn check_reference(
    model: &Model<'_>,
    reference: &Model<'_>,
    layers: bool,
) -> Result<(), PipelineError> {
    let (a, b) = (model.config(), reference.config());
    let sizes = [
        ("vocabulary", a.vocab, b.vocab, true),
        ("hidden size", a.hidden, b.hidden, layers),
        ("number of layers", a.layers, b.layers, layers),
    ];
    let wrong = |why: String| {
        Err(PipelineError::Plan(format!(
            "{}: {why}; give the dense model that {} was pruned from",
            reference.checkpoint().path().display(),
            model.checkpoint().path().display()
        )))
    };
    if a.family.name != b.family.name {
        let (pruned, dense) = (a.family.name, b.family.name);
        return wrong(format!("it is a {dense} model, the pruned one a {pruned} model"));
    }
    if let Some((what, pruned, dense, _)) =
        sizes.into_iter().find(|(_, pruned, dense, checked)| *checked && pruned != dense)
    {
        return wrong(format!("its {what} is {dense}, that of the pruned model {pruned}"));
    }
    const SAMPLE: &str = "The quick brown fox, 12.5 %; naïve fiancée\n\tdef f(x): return x**2";
    let tokens = |model: &Model<'_>| -> Result<Vec<u32>, PipelineError> {
        Ok(model.checkpoint().tokenizer()?.encode(SAMPLE)?)
    };
    match tokens(model)? == tokens(reference)? {
        true => Ok(()),
        false => wrong("its tokenizer differs from that of the pruned model".to_string()),
    }
}

/// Refuses a model whose weights do not have the patterns of its record.
fn check_conforms(source: &Checkpoint, record: &Record) -> Result<(), PipelineError> {
    let found = inspect(source, Check::Record(record), &mut |_| {});
    match found.tensors.iter().find_map(|t| Some((&t.name, t.spec.as_ref()?, t.breach.as_ref()?))) {
        Some((name, spec, breach)) => Err(PipelineError::Plan(format!(
            "{}: {name} does not have the pattern {spec} that its record names: {breach}; prune the model again",
            source.path().display()
        ))),
        None => Ok(()),
    }
}

/// A note if the weights take more bytes in the output than in the model, as
/// those of a quantized GGUF file do.
fn larger_output(source: &Checkpoint, run: &PreparedRun<'_>) -> Option<String> {
    let stored: u64 = source.tensors().map(|tensor| tensor.stored_bytes() as u64).sum();
    let dtype = run.job.dtype;
    let written: u64 = source.tensors().map(|t| (t.len() * dtype.block_bytes()) as u64).sum();
    (source.format() == Format::Gguf && written > stored).then(|| {
        format!(
            "the {} of quantized weights become {} in {}, because they are dequantized for pruning; `openwork pack {}` stores the result compactly",
            format_bytes(stored),
            format_bytes(written),
            dtype.name().to_lowercase(),
            run.out.display()
        )
    })
}

/// The resources of all passes: the total time, and the memory of the largest pass.
fn needs(job: &Job, passes: &Passes, model: &Model<'_>) -> Estimate {
    let each = passes.list.iter().map(|pass| estimate(job, &pass.plan, model));
    let mut needs = each.reduce(|all, one| all.and(&one)).unwrap_or_default();
    if !passes.is_plain() {
        // Intermediate folders are kept until the last pass is complete.
        needs.disk *= 1 + passes.list.len() as u64;
    }
    let training = recovery(job, model, None);
    needs.memory += training.memory;
    needs.memory_spilled += training.memory_spilled;
    needs.recovery_seconds = training.recovery_seconds;
    needs
}

/// The text of a recipe, from a file or from a pipe.
fn recipe_text(path: &Path) -> std::io::Result<String> {
    let mut text = String::new();
    let count = File::open(path)?.take(MAX_RECIPE + 1).read_to_string(&mut text)?;
    if count as u64 > MAX_RECIPE {
        let why = format!("it exceeds the limit of {MAX_RECIPE} bytes for a recipe");
        return Err(std::io::Error::other(why));
    }
    Ok(text)
}

pub(super) fn file_name(path: &Path) -> String {
    path.file_name().unwrap_or_default().to_string_lossy().into_owned()
}

/// The length of windows, which the model must accept.
fn window(
    option: &'static str,
    given: Option<usize>,
    usual: usize,
    model: &Model<'_>,
) -> Result<usize, PipelineError> {
    let limit = model.config().max_positions;
    match given.unwrap_or(limit.min(usual)) {
        length if length <= limit => Ok(length),
        length => {
            let why = format!("the model takes at most {limit} tokens");
            Err(PipelineError::option(option, length, why))
        }
    }
}
