//! From what a user gave to what a run needs, for the command and for Python.

use super::estimate::{Estimate, Workers, estimate};
use super::{
    Calibration, Evaluation, Executor, Job, Observer, Passes, PipelineError, Recipe, Sampling,
    Start, TensorFilter, check_folder, run_passes,
};
use crate::checkpoint::{Checkpoint, Dtype, Format};
use crate::evaluate::{self, EvaluateError, ScoredWindows};
use crate::format::{format_bytes, parse_bytes};
use crate::model::Model;
use crate::report::{EvaluationText, Record};
use crate::tokens::{TextUse, load_text};
use crate::{disk, output};
use std::fs::File;
use std::io::Read;
use std::path::{Path, PathBuf};

/// Tokens in a calibration window if nothing is said.
const SEQ_LEN: usize = 1024;
/// Most bytes of a recipe.
const MAX_RECIPE: u64 = 1 << 20;

/// A run as a user asks for it.
#[derive(Clone, Debug)]
pub struct RunOptions {
    /// The pattern of every linear that no rule of a recipe names.
    pub spec: Option<String>,
    /// How to prune.
    pub method: Option<String>,
    /// A recipe's file, amended by what is given beside it.
    pub recipe: Option<PathBuf>,
    /// Leave pruned heads and channels out of the tensors.
    pub remove: bool,
    /// The text that inputs are measured on.
    pub calib: PathBuf,
    /// Calibration windows.
    pub samples: usize,
    /// Tokens in each.
    pub seq_len: Option<usize>,
    /// Further windows of a single token, as texts begin.
    pub single_tokens: Option<usize>,
    /// What draws them.
    pub seed: u64,
    /// Prune only tensors whose names match.
    pub include: Option<String>,
    /// Leave tensors whose names match dense.
    pub exclude: Option<String>,
    /// The text that perplexity is measured on.
    pub eval: Option<PathBuf>,
    /// Measure it after every so many layers too.
    pub eval_every: Option<usize>,
    /// Use only its first tokens.
    pub eval_tokens: Option<usize>,
    /// Tokens in an evaluation window.
    pub eval_seq_len: Option<usize>,
    /// The folder to write.
    pub out: PathBuf,
    /// What may be in it.
    pub start: Start,
    /// Type of the written weights.
    pub dtype: Option<String>,
    /// Capture inputs anew after each site.
    pub sequential: bool,
    /// The most memory of one process, for instance `4G`.
    pub max_memory: Option<String>,
    /// Bytes of hidden states that one process keeps in memory.
    pub state_memory_limit: Option<u64>,
    /// Who does the steps, unless it is this process.
    pub workers: Option<Workers>,
}

/// A run that can begin: everything was read and checked.
#[derive(Debug)]
pub struct PreparedRun<'a> {
    /// What to do in the first pass.
    pub job: Job<'a>,
    /// All passes.
    pub passes: Passes,
    /// What they need, at most.
    pub needs: Estimate,
    /// The model.
    pub model: Model<'a>,
    /// Who does the steps, unless it is this process.
    pub workers: Option<Workers>,
    out: PathBuf,
    start: Start,
}

impl RunOptions {
    /// Opens the model, to be read as it will be written.
    pub fn open(&self, model: &Path) -> Result<Checkpoint, PipelineError> {
        output::check_folder(&self.out, &[model])?;
        check_folder(&self.out, self.start)?;
        if self.start == Start::Force {
            let texts = [Some(&self.calib), self.eval.as_ref(), self.recipe.as_ref()];
            let inputs: Vec<&Path> = texts.into_iter().flatten().map(PathBuf::as_path).collect();
            output::check_folder(&self.out, &inputs)?;
        }
        let source = Checkpoint::open(model)?;
        let dtype = written_dtype(self.dtype.as_deref(), &source)?;
        Ok(source.rounded(dtype))
    }

    /// Binds everything to the model; mistakes end here. `note` hears what the
    /// user should know.
    pub fn prepare<'a>(
        &self,
        source: &'a Checkpoint,
        note: &dyn Fn(&[String]),
    ) -> Result<PreparedRun<'a>, PipelineError> {
        let recipe = self.recipe()?;
        let filter = TensorFilter::new(self.include.as_deref(), self.exclude.as_deref())?;
        let model = Model::open(source)?;
        note(&model.config().notes);
        let passes = Passes::new(&recipe, &filter, model.config(), self.sequential)?;
        let mut job = Job {
            calibration: self.calibration(&model, note)?,
            evaluation: self.evaluation(&model)?,
            source,
            plan: passes.list[0].plan.clone(),
            dtype: written_dtype(self.dtype.as_deref(), source)?,
            sequential: self.sequential,
            state_memory_limit: self.state_memory_limit,
            include: self.include.clone(),
            exclude: self.exclude.clone(),
        };
        let needs = self.needs(&mut job, &passes, &model);
        if let Some(text) = &self.max_memory {
            let most = parse_bytes(text).ok_or_else(|| {
                PipelineError::Plan(format!("--max-memory {text}: write for instance 4G or 800M"))
            })?;
            let left = most.checked_sub(needs.memory_spilled).ok_or_else(|| {
                PipelineError::Plan(format!(
                    "--max-memory {text}: the run needs about {} even with its states in a file; allow that much, or prune with fewer rows per scope or a cheaper method",
                    format_bytes(needs.memory_spilled)
                ))
            })?;
            job.state_memory_limit = Some(left.min(job.state_memory_limit.unwrap_or(left)));
        }
        // What an earlier start has written need not fit again.
        if self.start != Start::Resume
            && let Some(free) = disk::free(&self.out).filter(|&free| free < needs.disk)
        {
            let (path, needed) = (self.out.clone(), needs.disk);
            return Err(output::OutputError::Space { path, needed, free }.into());
        }
        let (workers, out, start) = (self.workers, self.out.clone(), self.start);
        Ok(PreparedRun { job, passes, needs, model, workers, out, start })
    }

    /// The recipe in the file, amended.
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

    fn calibration(
        &self,
        model: &Model<'_>,
        note: &dyn Fn(&[String]),
    ) -> Result<Calibration, PipelineError> {
        let text = load_text(&self.calib, TextUse::Calibrate)?;
        let length = window("--seq-len", self.seq_len, SEQ_LEN, model)?;
        let (name, tokenizer) = (name(&self.calib), model.checkpoint().tokenizer()?);
        note(tokenizer.notes());
        let how = Sampling {
            samples: self.samples,
            length,
            single_tokens: self.single_tokens,
            seed: self.seed,
        };
        let wrong = |error: PipelineError| PipelineError::Plan(format!("--calib {name}: {error}"));
        let drawn = Calibration::draw(&tokenizer, (&name, &text), how).map_err(wrong)?;
        for windows in [&drawn.windows, &drawn.single_tokens] {
            model.check_tokens(windows).map_err(|error| wrong(error.into()))?;
        }
        Ok(drawn)
    }

    fn evaluation(&self, model: &Model<'_>) -> Result<Option<Evaluation>, PipelineError> {
        let Some(path) = &self.eval else { return Ok(None) };
        let text = load_text(path, TextUse::Evaluate)?;
        let (every, tokens, seq_len) = (self.eval_every, self.eval_tokens, self.eval_seq_len);
        Evaluation::new(model, (&name(path), &text), every, tokens, seq_len).map(Some)
    }

    /// What all passes need, at most: time in all, memory of the largest. The
    /// job is left with the plan of the first.
    fn needs(&self, job: &mut Job<'_>, passes: &Passes, model: &Model<'_>) -> Estimate {
        let mut all: Option<Estimate> = None;
        for pass in passes.list.iter().rev() {
            job.plan = pass.plan.clone();
            let one = estimate(job, model);
            all = Some(all.map_or(one, |all| all.and(&one)));
        }
        let mut needs = all.unwrap_or_else(|| estimate(job, model));
        if !passes.is_plain() {
            // The folders of the passes, until the last is whole.
            needs.disk *= 1 + passes.list.len() as u64;
        }
        self.workers.map_or(needs, |workers| needs.among(workers))
    }
}

impl PreparedRun<'_> {
    /// Prunes, if all weights are numbers: they are read once before anything is written.
    pub fn run(
        &self,
        observer: &dyn Observer,
        executor: &mut dyn Executor,
    ) -> Result<Record, PipelineError> {
        self.job.source.check_finite()?;
        run_passes(&self.job, &self.passes, &self.out, self.start, observer, executor)
    }

    /// Whether hidden states will be in files.
    pub fn spills(&self) -> bool {
        self.job
            .state_memory_limit
            .is_some_and(|state_memory_limit| self.needs.spilled > state_memory_limit)
    }
}

/// The text of a recipe, from a file or from a pipe that a shell makes.
fn recipe_text(path: &Path) -> std::io::Result<String> {
    let mut text = String::new();
    let count = File::open(path)?.take(MAX_RECIPE + 1).read_to_string(&mut text)?;
    if count as u64 > MAX_RECIPE {
        let why = format!("it has more than {MAX_RECIPE} bytes; a recipe is a short text");
        return Err(std::io::Error::other(why));
    }
    Ok(text)
}

fn name(path: &Path) -> String {
    path.file_name().unwrap_or_default().to_string_lossy().into_owned()
}

/// The type of the written weights: the one asked for, or the model's own;
/// bf16 for GGUF.
pub fn written_dtype(asked: Option<&str>, source: &Checkpoint) -> Result<Dtype, PipelineError> {
    match asked {
        Some("bf16" | "bfloat16") => Ok(Dtype::BF16),
        Some("f16" | "float16") => Ok(Dtype::F16),
        Some("f32" | "float32") => Ok(Dtype::F32),
        Some(other) => Err(PipelineError::Plan(format!("--dtype {other}: give bf16, f16 or f32"))),
        None if source.format() == Format::Gguf => Ok(Dtype::BF16),
        None => match source.tensor("model.embed_tokens.weight")?.dtype() {
            dtype @ (Dtype::F16 | Dtype::F32) => Ok(dtype),
            _ => Ok(Dtype::BF16),
        },
    }
}

/// The length of windows, which the model must be able to take.
fn window(
    flag: &str,
    asked: Option<usize>,
    usual: usize,
    model: &Model<'_>,
) -> Result<usize, PipelineError> {
    let limit = model.config().max_positions;
    let length = asked.unwrap_or(limit.min(usual));
    if length <= limit {
        return Ok(length);
    }
    Err(PipelineError::Plan(format!("{flag} {length}: the model takes at most {limit} tokens")))
}

impl Evaluation {
    /// Perplexity on the first `tokens` tokens of a text, given with its name,
    /// also after every so many layers.
    pub fn new(
        model: &Model<'_>,
        (name, text): (&str, &str),
        every: Option<usize>,
        tokens: Option<usize>,
        seq_len: Option<usize>,
    ) -> Result<Self, PipelineError> {
        let length = window("--eval-seq-len", seq_len, evaluate::SEQ_LEN, model)?;
        if every == Some(0) {
            return Err(PipelineError::Plan("--eval-every 0: give a number from 1 on".into()));
        }
        let options =
            evaluate::Options { seq_len: Some(length), max_tokens: tokens, ..Default::default() };
        let tokenizer = model.checkpoint().tokenizer()?;
        let wrong = |error: EvaluateError| PipelineError::Plan(format!("--eval {name}: {error}"));
        let scored = ScoredWindows::new(&tokenizer, text, length, &options).map_err(wrong)?;
        model.check_tokens(&scored.windows).map_err(|error| wrong(error.into()))?;
        Ok(Self { text: name.to_string(), scored, every })
    }

    /// The text and its windows, as the record describes them.
    pub fn record(&self) -> EvaluationText {
        let windows = &self.scored.windows;
        let bytes: Vec<u8> = windows.iter().flatten().flat_map(|id| id.to_le_bytes()).collect();
        EvaluationText {
            text: self.text.clone(),
            windows: windows.len(),
            seq_len: windows.first().map_or(0, Vec::len),
            tokens: self.scored.tokens,
            sha256: disk::sha256(&bytes),
        }
    }
}
