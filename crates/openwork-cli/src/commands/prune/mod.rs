//! `openwork prune MODEL --spec S --method M --calib TEXT --out DIR`.

mod plan;
mod show;

use crate::args::Global;
use crate::failure::Failure;
use crate::print;
use crate::texts::{self, Use};
use openwork_llm::checkpoint::Checkpoint;
use openwork_llm::disk;
use openwork_llm::model::Model;
use openwork_llm::pipeline::{
    self, Calibration, Choice, Evaluation, Job, Local, Passes, Recipe, Start, check_folder,
    estimate::{self, Estimate},
    written_dtype,
};
use openwork_llm::report::Record;
use std::path::{Path, PathBuf};

/// Prune a model layer by layer
///
/// Takes windows of a text through each layer, prunes its linears with the
/// statistics of their inputs, and goes on with what the pruned layer gives.
/// DIR becomes a Hugging Face folder that transformers loads as it is.
#[derive(Debug, clap::Args)]
#[command(after_help = "Examples:
  openwork prune smollm2.gguf --spec 2:4 --calib c4.jsonl --out pruned
  openwork prune Qwen2.5-0.5B --spec rows16 --method sparsegpt+refit --calib c4.jsonl \\
      --eval wikitext2.txt --eval-every 8 --out pruned
  openwork prune MODEL --recipe recipe.toml --calib c4.jsonl --out pruned --dry-run
  openwork prune MODEL --spec 2:4 --calib c4.jsonl --out pruned --resume
  openwork prune MODEL --spec 'mlp keep 75%' --remove --calib c4.jsonl --out smaller
  openwork prune MODEL --spec 'heads keep 2' --method s-obs+refit --remove --calib c4.jsonl --out smaller
  openwork prune MODEL --spec 'layers keep 24' --calib c4.jsonl --out shorter

mlp, heads, query-heads and layers are structures of the model (docs/structures.md).

A recipe gives other specs, methods or densities to some tensors:
  spec = \"2:4\"
  method = \"admm\"
  [[rule]]
  match = \"layers.(0|1).*down_proj\"
  dense = true

Passes are recipes one after the other:
  [[pass]]
  spec = \"mlp keep 75%\"
  remove = true
  [[pass]]
  spec = \"2:4\"")]
pub struct Prune {
    /// A Hugging Face folder, a .gguf file, or `demo`
    #[arg(required_unless_present = "model_flag")]
    model: Option<PathBuf>,
    /// The pattern of every linear that no rule of a recipe names
    #[arg(long, value_name = "SPEC")]
    spec: Option<String>,
    /// How to prune (see `openwork methods`) [default: admm]
    #[arg(long, value_name = "METHOD", alias = "prune_method")]
    method: Option<String>,
    /// Specs and methods by tensor, as a TOML file
    #[arg(long, value_name = "FILE")]
    recipe: Option<PathBuf>,
    /// The text that inputs are measured on: .txt, .jsonl, or `demo`
    #[arg(long, value_name = "TEXT")]
    calib: PathBuf,
    /// The folder to write; it must be empty or new
    #[arg(long, value_name = "DIR", aliases = ["save", "save_model"])]
    out: PathBuf,
    /// Calibration windows
    #[arg(long, value_name = "N", default_value_t = 128, alias = "nsamples")]
    samples: usize,
    /// Tokens in a calibration window; at most the model's limit [default: 1024 or that]
    #[arg(long, value_name = "L", alias = "seqlen")]
    seq_len: Option<usize>,
    /// What draws the calibration windows
    #[arg(long, value_name = "N", default_value_t = 0)]
    seed: u64,
    /// Prune only tensors whose names match this regular expression
    #[arg(long, value_name = "RE")]
    include: Option<String>,
    /// Leave tensors whose names match this regular expression dense
    #[arg(long, value_name = "RE")]
    exclude: Option<String>,
    /// Measure perplexity on this text: of the dense model, and of the pruned one at the end
    #[arg(long, value_name = "TEXT")]
    eval: Option<PathBuf>,
    /// Measure perplexity after every N layers too
    #[arg(long, value_name = "N", requires = "eval")]
    eval_every: Option<usize>,
    /// Use only the first N tokens of the evaluation text
    #[arg(long, value_name = "N", requires = "eval")]
    eval_tokens: Option<usize>,
    /// Tokens in an evaluation window [default: as `openwork eval`]
    #[arg(long, value_name = "L", requires = "eval")]
    eval_seq_len: Option<usize>,
    /// Go on with a run that was stopped; begin if there was none
    #[arg(long, conflicts_with = "force")]
    resume: bool,
    /// Overwrite what an earlier run left in DIR
    #[arg(long)]
    force: bool,
    /// Leave pruned heads and channels out of the tensors: a smaller dense model
    #[arg(long)]
    remove: bool,
    /// Say what would be done to every tensor, and what it needs; write nothing
    #[arg(long)]
    dry_run: bool,
    /// Use at most this much memory, for instance 4G; states go to a file if need be
    #[arg(long, value_name = "BYTES")]
    max_memory: Option<String>,
    /// Type of the written weights: bf16, f16 or f32 [default: the model's own; bf16 for GGUF]
    #[arg(long, value_name = "TYPE")]
    dtype: Option<String>,
    /// Capture inputs anew after each of a layer's four sites: on or off
    #[arg(long, value_name = "ON", default_value = "off", num_args = 0..=1, default_missing_value = "on")]
    sequential: String,
    /// Print a line of JSON on stderr for everything that happens
    #[arg(long)]
    events: bool,
    /// Wanda's name for MODEL
    #[arg(long = "model", hide = true, conflicts_with = "model")]
    model_flag: Option<PathBuf>,
    /// Wanda's name for the pattern
    #[arg(long = "sparsity_type", hide = true, conflicts_with = "spec")]
    sparsity_type: Option<String>,
    /// Wanda's name for the share that goes
    #[arg(long = "sparsity_ratio", hide = true)]
    sparsity_ratio: Option<f64>,
}

impl Prune {
    /// Checks everything, then prunes.
    pub fn run(self, global: &Global) -> Result<(), Failure> {
        let start = match (self.resume, self.force) {
            (true, _) => Start::Resume,
            (_, true) => Start::Force,
            _ => Start::Fresh,
        };
        check_folder(&self.out, start).map_err(failure)?;
        let recipe = self.recipe()?;
        let choice = Choice::new(self.include.as_deref(), self.exclude.as_deref());
        let choice = choice.map_err(failure)?;
        let sequential = on(&self.sequential)?;
        let path = self.model.as_ref().or(self.model_flag.as_ref()).cloned().unwrap_or_default();
        let source = Checkpoint::open(&path).map_err(Failure::input)?;
        let dtype = written_dtype(self.dtype.as_deref(), &source).map_err(failure)?;
        let source = source.rounded(dtype);
        let model = Model::open(&source).map_err(Failure::input)?;
        global.note(&model.config().notes);
        let passes = Passes::new(&recipe, &choice, model.config(), sequential);
        let passes = passes.map_err(failure)?;
        let mut job = Job {
            calibration: self.calibration(&model)?,
            evaluation: self.evaluation(&model)?,
            source: &source,
            plan: passes.list[0].plan.clone(),
            dtype,
            sequential,
            spill: false,
            include: self.include.clone(),
            exclude: self.exclude.clone(),
        };
        let needs = self.needs(&mut job, &passes, &model);
        if let Some(text) = &self.max_memory {
            let most = bytes(text)?;
            job.spill = needs.memory > most;
            if job.spill && needs.memory_spilled > most {
                return Err(Failure::Input(format!(
                    "--max-memory {text}: the run needs about {} even with its states in a file; allow that much, or prune with fewer rows per scope or a cheaper method",
                    print::size(needs.memory_spilled)
                )));
            }
        }
        // What an earlier start has written need not fit again.
        if start != Start::Resume
            && let Some(free) = disk::free(&self.out).filter(|&free| free < needs.disk)
        {
            return Err(Failure::Input(format!(
                "--out {}: the result needs {}, the disk has {} free; make room, or choose another disk",
                self.out.display(),
                print::size(needs.disk),
                print::size(free)
            )));
        }
        if self.dry_run {
            return plan::show(&job, &passes, &model, &needs, global);
        }
        passes.list.iter().for_each(|pass| global.note(&pass.plan.notes));
        let watch = show::Screen::new(global, self.events, model.config().layers);
        let record =
            pipeline::run_passes(&job, &passes, &self.out, start, &watch, &mut Local::default());
        watch.end();
        let record = record.map_err(failure)?;
        self.print(&record, global)
    }

    /// What all passes need, at most: time in all, memory of the largest. The
    /// job is left with the plan of the first.
    fn needs(&self, job: &mut Job<'_>, passes: &Passes, model: &Model<'_>) -> Estimate {
        let mut all: Option<Estimate> = None;
        for pass in passes.list.iter().rev() {
            job.plan = pass.plan.clone();
            let one = estimate::estimate(job, model);
            all = Some(all.map_or(one, |all| all.and(&one)));
        }
        let mut needs = all.unwrap_or_else(|| estimate::estimate(job, model));
        if !passes.is_plain() {
            // The folders of the passes, until the last is whole.
            needs.disk *= 1 + passes.list.len() as u64;
        }
        needs
    }

    fn print(&self, record: &Record, global: &Global) -> Result<(), Failure> {
        if global.json {
            return print::line(serde_json::to_string(record).map_err(Failure::running)?);
        }
        print::text(&show::summary(record))?;
        print::line(format!("written to {}", self.out.display()))
    }

    /// The recipe in the file, amended by the flags.
    fn recipe(&self) -> Result<Recipe, Failure> {
        let mut recipe = match &self.recipe {
            None => Recipe::default(),
            Some(path) => {
                let at = |why: String| Failure::Input(format!("{}: {why}", path.display()));
                let text = std::fs::read_to_string(path).map_err(|error| at(error.to_string()))?;
                Recipe::parse(&text).map_err(|error| at(error.to_string()))?
            }
        };
        let spec = match (&self.spec, &self.sparsity_type) {
            (Some(spec), _) => Some(spec.clone()),
            (None, Some(kind)) if kind == "unstructured" => {
                let share = self.sparsity_ratio.unwrap_or(0.5);
                if !(share > 0.0 && share < 1.0) {
                    return Err(Failure::Input(format!(
                        "--sparsity_ratio {share}: give a share between 0 and 1"
                    )));
                }
                Some(format!("rowwise({}%)", 100.0 * (1.0 - share)))
            }
            (None, kind) => kind.clone(),
        };
        recipe.spec = spec.or(recipe.spec);
        recipe.method = self.method.clone().or(recipe.method);
        recipe.remove |= self.remove;
        Ok(recipe)
    }

    fn calibration(&self, model: &Model<'_>) -> Result<Calibration, Failure> {
        let text = texts::read(&self.calib, Use::Calibrate)?;
        let text = (name(&self.calib), text.as_str());
        Calibration::of(model, (&text.0, text.1), self.samples, self.seq_len, self.seed)
            .map_err(failure)
    }

    fn evaluation(&self, model: &Model<'_>) -> Result<Option<Evaluation>, Failure> {
        let Some(path) = &self.eval else { return Ok(None) };
        let text = texts::read(path, Use::Evaluate)?;
        let (every, tokens, seq_len) = (self.eval_every, self.eval_tokens, self.eval_seq_len);
        Evaluation::of(model, (&name(path), &text), every, tokens, seq_len)
            .map(Some)
            .map_err(failure)
    }
}

fn name(path: &Path) -> String {
    path.file_name().unwrap_or_default().to_string_lossy().into_owned()
}

fn on(text: &str) -> Result<bool, Failure> {
    match text {
        "on" | "true" => Ok(true),
        "off" | "false" => Ok(false),
        _ => Err(Failure::Input(format!("--sequential {text}: give on or off"))),
    }
}

/// `4G`, `512M`, `1.5GiB` or a plain number of bytes.
fn bytes(text: &str) -> Result<u64, Failure> {
    let wrong = || Failure::Input(format!("--max-memory {text}: write for instance 4G or 800M"));
    let split = text.find(|c: char| !c.is_ascii_digit() && c != '.').unwrap_or(text.len());
    let (number, unit) = text.split_at(split);
    let number: f64 = number.parse().map_err(|_| wrong())?;
    let scale: f64 = match unit.trim().to_ascii_lowercase().as_str() {
        "" | "b" => 1.0,
        "k" | "kb" => 1e3,
        "m" | "mb" => 1e6,
        "g" | "gb" => 1e9,
        "t" | "tb" => 1e12,
        "kib" => 1024.0,
        "mib" => 1048576.0,
        "gib" => 1073741824.0,
        _ => return Err(wrong()),
    };
    let bytes = number * scale;
    if bytes.is_finite() && bytes >= 1.0 { Ok(bytes as u64) } else { Err(wrong()) }
}

/// What the user gave is at fault, or the run.
fn failure(error: pipeline::PipelineError) -> Failure {
    if error.is_input() { Failure::input(error) } else { Failure::running(error) }
}

#[cfg(test)]
mod tests {
    use super::bytes;

    #[test]
    fn sizes_are_read_in_the_usual_units() {
        assert_eq!(bytes("4G").unwrap(), 4_000_000_000);
        assert_eq!(bytes("1.5 GiB").unwrap(), 1_610_612_736);
        assert_eq!(bytes("12345").unwrap(), 12_345);
        for wrong in ["", "G", "4X", "-1", "0", "nan", "1e400"] {
            assert!(bytes(wrong).is_err(), "{wrong}");
        }
    }
}
