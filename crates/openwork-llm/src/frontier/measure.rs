//! Makes the points of a frontier and measures them, one after the other.
//!
//! ```text
//! WORK/points.json    the points measured so far, by what determines them
//! WORK/runs/KEY       output folders of `prune`; an interrupted one is resumed
//! WORK/packed         the packed model that is being measured; removed afterwards
//! ```

use super::options::{FrontierOptions, PruneRun, StoredAs, Variant};
use super::{Frontier, Kind, Point, TaskAccuracy, mark, verdict};
use crate::checkpoint::{Checkpoint, CheckpointError, Format};
use crate::disk;
use crate::evaluate::{EvaluateError, evaluate};
use crate::model::{Config, Model, ModelError, Storage};
use crate::output;
use crate::pack::{PackModelError, Patterns, ValueChoice, pack, tokens_per_second};
use crate::pipeline::{
    Event, LocalExecutor, Observer, OptionValue, PipelineError, RunOptions, Spelling,
};
use crate::report::{LinearRecord, Record};
use crate::task::{self, Task, TaskError};
use crate::tokens::{TextUse, load_text};
use openwork::Pattern;
use serde_json::json;
use std::collections::BTreeMap;
use std::fs;
use std::ops::ControlFlow;
use std::path::{Path, PathBuf};

/// Why a frontier cannot be measured.
#[derive(Debug, thiserror::Error)]
pub enum FrontierError {
    /// The user's input is wrong.
    #[error("{0}")]
    Input(String),
    /// It failed while running.
    #[error("{0}")]
    Running(String),
}

impl From<CheckpointError> for FrontierError {
    fn from(error: CheckpointError) -> Self {
        Self::Input(error.to_string())
    }
}

impl From<ModelError> for FrontierError {
    fn from(error: ModelError) -> Self {
        match error.is_input() {
            true => Self::Input(error.to_string()),
            false => Self::Running(error.to_string()),
        }
    }
}

impl From<PackModelError> for FrontierError {
    fn from(error: PackModelError) -> Self {
        match error.is_input() {
            true => Self::Input(error.to_string()),
            false => Self::Running(error.to_string()),
        }
    }
}

impl From<EvaluateError> for FrontierError {
    fn from(error: EvaluateError) -> Self {
        match error {
            EvaluateError::Model(ModelError::NotFinite) | EvaluateError::Infinite(_) => {
                Self::Running(error.to_string())
            }
            error => Self::Input(error.to_string()),
        }
    }
}

impl From<TaskError> for FrontierError {
    fn from(error: TaskError) -> Self {
        match error.is_input() {
            true => Self::Input(error.to_string()),
            false => Self::Running(error.to_string()),
        }
    }
}

impl From<PipelineError> for FrontierError {
    fn from(error: PipelineError) -> Self {
        let words = error.spelled(Spelling::Flags);
        if error.is_input() { Self::Input(words) } else { Self::Running(words) }
    }
}

/// Progress of a frontier.
#[derive(Clone, Debug)]
pub struct FrontierEvent<'a> {
    /// The point that is being made, from 0.
    pub point: usize,
    /// All points.
    pub points: usize,
    /// Its name.
    pub name: &'a str,
    /// What is done: `pruning`, `packing`, `evaluating`, `scoring`, `generating`.
    pub stage: &'a str,
    /// How much of that is done, from 0 to 1.
    pub share: f64,
}

/// What a point is made from.
enum Source<'a> {
    Variant(Variant),
    /// A folder that `prune` wrote, to be stored with these value types.
    Run(&'a Path, Kind, StoredAs),
    /// A packed model or any other folder, as it is.
    Stored(&'a Path, Kind),
    Gguf(&'a Path),
}

/// A point to make.
struct Job<'a> {
    name: String,
    source: Source<'a>,
    /// The point, if it was measured before.
    key: String,
}

/// Measures all points of a model. What was measured in `options.work` before is taken from
/// there.
pub fn measure(
    path: &Path,
    options: &FrontierOptions,
    observer: &(dyn Fn(FrontierEvent<'_>) + Sync),
) -> Result<Frontier, FrontierError> {
    let text = load_text(&options.text, TextUse::Evaluate)
        .map_err(|error| FrontierError::Input(error.to_string()))?;
    let checkpoint = Checkpoint::open(path)?;
    let model = Model::open(&checkpoint)?;
    model.check_decoder()?;
    let tasks = read_tasks(&model, options)?;
    let mut inputs: Vec<&Path> = options.inputs.iter().map(PathBuf::as_path).collect();
    inputs.push(path);
    output::check_folder(&options.work, &inputs)
        .map_err(|error| FrontierError::Input(error.to_string()))?;
    let jobs = jobs(path, &model, options, &text, &tasks)?;
    let store = Store::open(&options.work)?;
    let total = jobs.len();
    let bench = Bench { path, options, text: &text, tasks: &tasks, store: &store, observer, total };
    let mut known = store.read()?;
    let mut points = Vec::with_capacity(jobs.len());
    for (i, job) in jobs.iter().enumerate() {
        let measured = match known.get(&job.key) {
            Some(measured) => measured.clone(),
            None => {
                let measured = bench.point(i, job)?;
                known.insert(job.key.clone(), measured.clone());
                store.write(&known)?;
                measured
            }
        };
        points.push(measured);
    }
    let (tokens, seq_len) = points.first().map_or((0, 0), |m| (m.tokens, m.seq_len));
    let mut points: Vec<Point> = points.into_iter().map(|measured| measured.point).collect();
    mark(&mut points);
    Ok(Frontier {
        model: model.checkpoint().name(),
        text: file_name(&options.text),
        tokens,
        seq_len,
        threads: rayon::current_num_threads(),
        verdict: verdict(&points, options.size, options.speed),
        points,
    })
}

/// The tasks, if the model can read every document.
fn read_tasks(model: &Model<'_>, options: &FrontierOptions) -> Result<Vec<Task>, FrontierError> {
    if options.tasks.is_empty() {
        return Ok(Vec::new());
    }
    let tokenizer = model.checkpoint().tokenizer()?;
    let read = |path: &PathBuf| {
        let task = Task::read(path, options.task_limit)?;
        task.encode(model, &tokenizer)?;
        Ok(task)
    };
    options.tasks.iter().map(read).collect()
}

fn file_name(path: &Path) -> String {
    let name = path.file_name().map(|name| name.to_string_lossy().into_owned());
    name.unwrap_or_else(|| path.display().to_string())
}

/// All points to make, checked as far as possible before the first is made.
fn jobs<'a>(
    path: &Path,
    model: &Model<'_>,
    options: &'a FrontierOptions,
    text: &str,
    tasks: &[Task],
) -> Result<Vec<Job<'a>>, FrontierError> {
    let evaluation = &options.evaluation;
    let shared = json!({
        "version": env!("CARGO_PKG_VERSION"),
        "text": disk::sha256(text.as_bytes()),
        "seq_len": evaluation.seq_len,
        "max_tokens": evaluation.max_tokens,
        "threads": rayon::current_num_threads(),
        "tokens": options.tokens,
        "turns": options.turns,
        "tasks": tasks.iter().map(|task| (&task.name, &task.sha256)).collect::<Vec<_>>(),
    });
    let key = |files: &[(String, String)], what: &dyn std::fmt::Debug| {
        disk::sha256(format!("{shared} {files:?} {what:?}").as_bytes())
    };
    let files = model.checkpoint().hashes();
    let calib = match &options.calib {
        Some(calib) => load_text(calib, TextUse::Calibrate)
            .map_err(|error| FrontierError::Input(error.to_string()))?,
        None => String::new(),
    };
    let calib = (disk::sha256(calib.as_bytes()), options.samples, options.seq_len);
    let mut jobs = Vec::new();
    for variant in options.variants()? {
        let calib = variant.run.as_ref().map(|_| &calib);
        let key = key(&files, &(&variant, calib));
        jobs.push(Job { name: variant.name.clone(), key, source: Source::Variant(variant) });
    }
    for input in &options.inputs {
        if output::same(input, path) {
            let why = format!("{} is the model itself, which is compared anyway", input.display());
            return Err(FrontierError::Input(why));
        }
        let checkpoint = Checkpoint::open(input)?;
        let other = Model::open(&checkpoint)?;
        let (name, files) = (file_name(input), checkpoint.hashes());
        check_same_model(input, &checkpoint, other.config(), model.config())?;
        let packed = checkpoint.tensors().any(|tensor| tensor.packing().is_some());
        let record = input.join("openwork/record.json").is_file();
        let kind = match record {
            true => kind_of_run(input, other.config(), model.config())?,
            false => Kind::Dense,
        };
        if checkpoint.format() == Format::Gguf {
            jobs.push(Job { key: key(&files, &"gguf"), name, source: Source::Gguf(input) });
        } else if packed || !record {
            let source = Source::Stored(input, kind);
            jobs.push(Job { key: key(&files, &"stored"), name, source });
        } else {
            let rounded = ValueChoice::default().with_record(&checkpoint).rounded;
            let own = rounded.values().next().copied();
            for mut stored in options.stored()? {
                if let Some(own) = own {
                    if own.kind() != stored.linears.kind() {
                        continue;
                    }
                    stored.linears = own;
                }
                let name = format!("{name} {}", stored.linears);
                let key = key(&files, &("run", &stored));
                jobs.push(Job { key, name, source: Source::Run(input, kind, stored) });
            }
        }
    }
    Ok(jobs)
}

/// Whether a run pruned the model: `keep 100%` with `+quant` only rounds it.
fn kind_of_run(path: &Path, run: &Config, model: &Config) -> Result<Kind, FrontierError> {
    let record = Record::read(&Record::path(path))
        .map_err(|error| FrontierError::Input(error.to_string()))?;
    let sizes = |c: &Config| (c.layers, c.ff, c.heads, c.kv_heads);
    // Weights that are rounded to zero are kept; couplings, which do not bind to one tensor,
    // are for pruning.
    let keeps_all = |linear: &LinearRecord| {
        linear.spec.as_ref().is_none_or(|text| {
            let spec = text.parse::<Pattern>().and_then(|pattern| pattern.bind(&linear.shape));
            spec.is_ok_and(|spec| spec.density() == 1.0)
        })
    };
    let pruned = sizes(run) != sizes(model) || !record.linears().all(keeps_all);
    Ok(if pruned { Kind::Pruned } else { Kind::Dense })
}

/// Refuses a file of another model: by all sizes for GGUF, and by those that pruning does
/// not change for others.
fn check_same_model(
    path: &Path,
    checkpoint: &Checkpoint,
    other: &Config,
    model: &Config,
) -> Result<(), FrontierError> {
    let sizes = |c: &Config| {
        let fixed = [("hidden size", c.hidden), ("vocabulary", c.vocab), ("head size", c.head_dim)];
        let removable = [
            ("number of layers", c.layers),
            ("MLP size", c.ff),
            ("number of heads", c.heads),
            ("number of key heads", c.kv_heads),
        ];
        let all = checkpoint.format() == Format::Gguf;
        fixed.into_iter().chain(removable.into_iter().filter(move |_| all)).collect::<Vec<_>>()
    };
    for ((what, found), (_, expected)) in sizes(other).into_iter().zip(sizes(model)) {
        if found != expected {
            return Err(FrontierError::Input(format!(
                "{} is another model: its {what} is {found}, and that of the compared model is {expected}",
                path.display()
            )));
        }
    }
    if other.family.name != model.family.name {
        return Err(FrontierError::Input(format!(
            "{} is another model: its family is {}, and that of the compared model is {}",
            path.display(),
            other.family.name,
            model.family.name
        )));
    }
    Ok(())
}

/// A point and what its evaluation scored.
#[derive(Clone, Debug, serde::Serialize, serde::Deserialize)]
struct Measured {
    point: Point,
    tokens: usize,
    seq_len: usize,
}

/// The folder with what is finished.
struct Store {
    folder: PathBuf,
}

/// Most bytes of the file of points.
const MAX_POINTS: u64 = 16 << 20;

impl Store {
    fn open(folder: &Path) -> Result<Self, FrontierError> {
        let store = Self { folder: folder.to_path_buf() };
        fs::create_dir_all(store.folder.join("runs")).map_err(|error| store.failed(error))?;
        Ok(store)
    }

    fn failed(&self, error: impl std::fmt::Display) -> FrontierError {
        FrontierError::Running(format!("{}: {error}", self.folder.display()))
    }

    fn points(&self) -> PathBuf {
        self.folder.join("points.json")
    }

    fn read(&self) -> Result<BTreeMap<String, Measured>, FrontierError> {
        let path = self.points();
        if !path.exists() {
            return Ok(BTreeMap::new());
        }
        let bytes = disk::read(&path, MAX_POINTS).map_err(|error| self.failed(error))?;
        serde_json::from_slice(&bytes).map_err(|error| {
            FrontierError::Input(format!(
                "{}: not a list of points ({error}); remove it to measure again",
                path.display()
            ))
        })
    }

    fn write(&self, points: &BTreeMap<String, Measured>) -> Result<(), FrontierError> {
        let bytes = serde_json::to_vec_pretty(points).map_err(|error| self.failed(error))?;
        disk::write(&self.points(), &bytes).map(drop).map_err(|error| self.failed(error))
    }

    /// An empty place for a packed model.
    fn packed(&self) -> Result<PathBuf, FrontierError> {
        let path = self.folder.join("packed");
        if path.exists() {
            fs::remove_dir_all(&path).map_err(|error| self.failed(error))?;
        }
        Ok(path)
    }
}

/// What all points share.
struct Bench<'a> {
    path: &'a Path,
    options: &'a FrontierOptions,
    text: &'a str,
    tasks: &'a [Task],
    store: &'a Store,
    observer: &'a (dyn Fn(FrontierEvent<'_>) + Sync),
    total: usize,
}

/// Reports the progress of one point.
#[derive(Clone, Copy)]
struct Progress<'a> {
    observer: &'a (dyn Fn(FrontierEvent<'_>) + Sync),
    point: usize,
    points: usize,
    name: &'a str,
}

impl Progress<'_> {
    fn say(&self, stage: &str, share: f64) {
        let Self { point, points, name, .. } = *self;
        (self.observer)(FrontierEvent { point, points, name, stage, share });
    }
}

/// A run's progress: a share per layer.
struct Pruning<'a> {
    progress: Progress<'a>,
    layers: usize,
}

impl Observer for Pruning<'_> {
    fn on_event(&self, event: Event<'_>) {
        if let Event::Progress { layer, share, .. } = event {
            let done = (layer as f64 + share) / self.layers.max(1) as f64;
            self.progress.say("pruning", done.min(1.0));
        }
    }
}

impl Bench<'_> {
    fn point(&self, index: usize, job: &Job<'_>) -> Result<Measured, FrontierError> {
        let progress =
            Progress { observer: self.observer, point: index, points: self.total, name: &job.name };
        match &job.source {
            Source::Gguf(path) => {
                let note =
                    "tokens/s is not measured: openwork converts the weights before computing";
                self.stored(path, (&job.name, Kind::Gguf, note), false, progress)
            }
            Source::Stored(path, kind) => self.stored(path, (&job.name, *kind, ""), true, progress),
            Source::Run(path, kind, stored) => {
                self.packed(path, true, stored, (&job.name, *kind, ""), progress)
            }
            Source::Variant(variant) => {
                let kind = if variant.pruned { Kind::Pruned } else { Kind::Dense };
                let run = variant.run.as_ref().map(|run| self.pruned(run, progress)).transpose()?;
                let note = match &variant.run {
                    Some(run) if variant.note.is_empty() => run.method.clone(),
                    Some(run) => format!("{}, {}", run.method, variant.note),
                    None => variant.note.clone(),
                };
                let path = run.as_deref().unwrap_or(self.path);
                let about = (job.name.as_str(), kind, note.as_str());
                self.packed(path, run.is_some(), &variant.stored, about, progress)
            }
        }
    }

    /// The folder of a run, pruned if it is not finished.
    fn pruned(&self, run: &PruneRun, progress: Progress<'_>) -> Result<PathBuf, FrontierError> {
        let (samples, seq_len) = (self.options.samples, self.options.seq_len);
        let calib = self.options.calib.clone().unwrap_or_default();
        let what = format!("{run:?} {calib:?} {samples} {seq_len:?}");
        let out = self.store.folder.join("runs").join(&disk::sha256(what.as_bytes())[..16]);
        let text = |text: &str| OptionValue::Text(text.into());
        let mut values = vec![
            ("spec", text(&run.spec)),
            ("method", text(&run.method)),
            ("calib", OptionValue::Text(calib.into())),
            ("samples", OptionValue::Count(samples as u64)),
            ("out", OptionValue::Text(out.clone().into())),
            ("resume", OptionValue::Flag(true)),
            ("remove", OptionValue::Flag(run.remove)),
        ];
        values.extend(seq_len.map(|n| ("seq_len", OptionValue::Count(n as u64))));
        let options = RunOptions::from_values(values)?;
        let source = options.open(self.path)?;
        let prepared = options.prepare(&source, None)?;
        let layers = prepared.model.config().layers;
        prepared.run(&Pruning { progress, layers }, &mut LocalExecutor::default())?;
        Ok(out)
    }

    /// Packs a model, whose patterns are those of a run or none, and measures it.
    fn packed(
        &self,
        path: &Path,
        run: bool,
        stored: &StoredAs,
        about: (&str, Kind, &str),
        progress: Progress<'_>,
    ) -> Result<Measured, FrontierError> {
        let out = self.store.packed()?;
        {
            let checkpoint = Checkpoint::open(path)?;
            let model = Model::open(&checkpoint)?;
            let choice = ValueChoice {
                linears: Some(stored.linears),
                head: stored.head,
                ..ValueChoice::default()
            };
            let patterns = match run {
                true => Patterns::from_pruned(&checkpoint)?,
                false => Patterns::Dense,
            };
            let layers = model.config().layers.max(1);
            pack(&model, &patterns, choice, &out, &mut |done| {
                progress.say("packing", done as f64 / layers as f64);
            })?;
        }
        let measured = self.stored(&out, about, true, progress);
        self.store.packed()?;
        measured
    }

    /// Measures a model as it is stored.
    fn stored(
        &self,
        path: &Path,
        (name, kind, note): (&str, Kind, &str),
        fast: bool,
        progress: Progress<'_>,
    ) -> Result<Measured, FrontierError> {
        let checkpoint = Checkpoint::open(path)?;
        let model = Model::open(&checkpoint)?;
        let found = evaluate(&model, self.text, &self.options.evaluation, &mut |done| {
            progress.say("evaluating", done.done as f64 / done.total.max(1) as f64);
        })?;
        let tasks = self.accuracy(&model, progress)?;
        let (tokens, turns) = (self.options.tokens, self.options.turns);
        let measure = || {
            progress.say("generating", 0.0);
            tokens_per_second(&model, tokens, turns)
        };
        let tokens_per_second = fast.then(measure).transpose()?;
        let bytes = checkpoint.files().map(|(_, bytes)| bytes as u64).sum();
        let point = Point {
            name: name.to_string(),
            kind,
            bytes,
            token_perplexity: found.token_perplexity(),
            tokens_per_second,
            best: false,
            best_for_speed: false,
            tasks,
            note: note.to_string(),
        };
        Ok(Measured { point, tokens: found.tokens, seq_len: found.seq_len })
    }

    /// The accuracy of a model on every task.
    fn accuracy(
        &self,
        model: &Model<'_>,
        progress: Progress<'_>,
    ) -> Result<Vec<TaskAccuracy>, FrontierError> {
        if self.tasks.is_empty() {
            return Ok(Vec::new());
        }
        let tokenizer = model.checkpoint().tokenizer()?;
        let mut layer = |index| model.layer(index, Storage::Packed);
        let scores = task::score(model, &tokenizer, &mut layer, self.tasks, &mut |share| {
            progress.say("scoring", share);
            ControlFlow::Continue(())
        })?;
        Ok(scores.iter().map(TaskAccuracy::from).collect())
    }
}
