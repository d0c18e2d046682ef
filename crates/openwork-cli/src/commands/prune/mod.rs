//! `openwork prune MODEL --spec S --method M --calib TEXT --out DIR`.

mod show;

use crate::args::Global;
use crate::failure::Failure;
use crate::{interrupt, print};
use openwork_llm::pipeline::{LocalExecutor, PipelineError, RunOptions, Start};
use openwork_llm::report::summary;
use std::path::PathBuf;

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
  openwork prune MODEL --spec 'heads keep 2' --method s-obs+refit --remove \\
      --calib c4.jsonl --out smaller
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
    /// Further windows of a single token each [default: one per 16 calibration tokens]
    #[arg(long, value_name = "N", alias = "starts")]
    single_tokens: Option<usize>,
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
    #[arg(long = "sparsity_ratio", hide = true, requires = "sparsity_type")]
    sparsity_ratio: Option<f64>,
}

impl Prune {
    /// Checks everything, then prunes.
    pub fn run(self, global: &Global) -> Result<(), Failure> {
        let path = self.model.as_ref().or(self.model_flag.as_ref()).cloned().unwrap_or_default();
        let asked = self.asked()?;
        let source = asked.open(&path).map_err(failure)?;
        let ready = asked.prepare(&source, &|notes| global.note(notes)).map_err(failure)?;
        if self.dry_run {
            let dry_run = ready.dry_run();
            return match global.json {
                true => print::line(dry_run.to_json()),
                false => print::text(&dry_run.to_string()),
            };
        }
        ready.passes.list.iter().for_each(|pass| global.note(&pass.plan.notes));
        let observer = show::Screen::new(global, self.events, ready.model.config().layers);
        interrupt::say_on_interrupt(&format!(
            "\nstopped; finished layers are kept. To resume:\n  {}\n",
            interrupt::resume_command()
        ));
        let record = ready.run(&observer, &mut LocalExecutor::default());
        observer.end();
        let record = record.map_err(failure)?;
        global.wrote_folder(&self.out);
        if global.json {
            return print::line(serde_json::to_string(&record).map_err(Failure::running)?);
        }
        print::text(&summary(&record))
    }

    fn asked(&self) -> Result<RunOptions, Failure> {
        Ok(RunOptions {
            spec: self.pattern()?,
            method: self.method.clone(),
            recipe: self.recipe.clone(),
            remove: self.remove,
            calib: self.calib.clone(),
            samples: self.samples,
            seq_len: self.seq_len,
            single_tokens: self.single_tokens,
            seed: self.seed,
            include: self.include.clone(),
            exclude: self.exclude.clone(),
            eval: self.eval.clone(),
            eval_every: self.eval_every,
            eval_tokens: self.eval_tokens,
            eval_seq_len: self.eval_seq_len,
            out: self.out.clone(),
            start: match (self.resume, self.force) {
                (true, _) => Start::Resume,
                (_, true) => Start::Force,
                _ => Start::Fresh,
            },
            dtype: self.dtype.clone(),
            sequential: on(&self.sequential)?,
            max_memory: self.max_memory.clone(),
            state_memory_limit: None,
            workers: None,
        })
    }

    /// The pattern, also by Wanda's names.
    fn pattern(&self) -> Result<Option<String>, Failure> {
        if let (Some(ratio), Some(kind)) = (self.sparsity_ratio, &self.sparsity_type)
            && let Some(share) = removed_share(kind)
            && (ratio - share).abs() > 1e-9
        {
            return Err(Failure::Input(format!(
                "--sparsity_ratio {ratio}: the pattern {kind} removes {share} of the weights; leave --sparsity_ratio out, or give --sparsity_type unstructured"
            )));
        }
        Ok(match (&self.spec, &self.sparsity_type) {
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
        })
    }
}

/// The share of the weights that `N:M` removes.
fn removed_share(kind: &str) -> Option<f64> {
    let (n, m) = kind.split_once(':')?;
    let (n, m) = (n.parse::<f64>().ok()?, m.parse::<f64>().ok()?);
    Some(1.0 - n / m)
}

fn on(text: &str) -> Result<bool, Failure> {
    match text {
        "on" | "true" => Ok(true),
        "off" | "false" => Ok(false),
        _ => Err(Failure::Input(format!("--sequential {text}: give on or off"))),
    }
}

/// The user's input is wrong, or the run failed.
pub fn failure(error: PipelineError) -> Failure {
    if error.is_input() { Failure::input(error) } else { Failure::running(error) }
}
