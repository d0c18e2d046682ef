//! `openwork prune MODEL --spec S --method M --calib TEXT --out DIR`.

pub mod options;
pub mod show;

use crate::args::Global;
use crate::failure::Failure;
use crate::progress::Progress;
use crate::{interrupt, print};
use openwork_llm::pipeline::{
    Event, LocalExecutor, Observer, OptionValue, PipelineError, PreparedRun, RunOptions, Spelling,
};
use openwork_llm::report::summary;
use options::Options;
use std::path::{Path, PathBuf};

/// Prune a model layer by layer
///
/// For each layer, runs windows of a calibration text through it, prunes its linear layers
/// with the statistics of their inputs, and continues with the outputs of the pruned layer.
/// The output folder is a Hugging Face model that
/// transformers loads unchanged.
#[derive(Debug, clap::Args)]
#[command(after_help = "Examples:
  openwork prune smollm2.gguf --spec 2:4 --calib c4.jsonl --out pruned
  openwork prune Qwen2.5-0.5B --spec rows16 --method sparsegpt+refit --calib c4.jsonl \\
      --eval wikitext2.txt --eval-every 8 --out pruned
  openwork prune MODEL --recipe recipe.toml --calib c4.jsonl --out pruned --dry-run
  openwork prune MODEL --spec 2:4 --calib c4.jsonl -o pruned --resume
  openwork prune MODEL --spec 'mlp keep 75%' --remove --calib c4.jsonl --out smaller
  openwork prune MODEL --spec 'heads keep 2' --method s-obs+refit --remove \\
      --calib c4.jsonl --out smaller
  openwork prune MODEL --spec 'layers keep 24' --calib c4.jsonl --out shorter
  openwork prune MODEL --spec 2:4 --recover blocks+model --calib c4.jsonl --out pruned

mlp, heads, query-heads, experts and layers are structures of the model (docs/structures.md).

A recipe assigns different specs, methods or densities to some tensors:
  spec = \"2:4\"
  method = \"admm\"
  [[rule]]
  match = \"layers.(0|1).*down_proj\"
  dense = true

A recipe can have several passes, which run one after the other:
  [[pass]]
  spec = \"mlp keep 75%\"
  remove = true
  [[pass]]
  spec = \"2:4\"

Flags of Wanda that are accepted as well:
  --model, --prune_method, --sparsity_type, --sparsity_ratio, --nsamples, --save")]
pub struct Prune {
    /// Hugging Face folder, .gguf file, name on the Hugging Face Hub, or `demo`
    #[arg(required_unless_present = "model_flag")]
    model: Option<PathBuf>,
    #[command(flatten)]
    options: Options,
    /// Wanda's name for MODEL
    #[arg(long = "model", hide = true, conflicts_with = "model")]
    model_flag: Option<PathBuf>,
    /// Wanda's name for the pattern
    #[arg(long = "sparsity_type", hide = true, conflicts_with = "spec")]
    sparsity_type: Option<String>,
    /// Wanda's name for the share of weights that are removed
    #[arg(long = "sparsity_ratio", hide = true, requires = "sparsity_type")]
    sparsity_ratio: Option<f64>,
}

impl Prune {
    /// Checks everything, then prunes.
    pub fn run(mut self, global: &Global) -> Result<(), Failure> {
        if let Some(pattern) = self.wanda_pattern()? {
            self.options.0.push(("spec", OptionValue::Text(pattern.into())));
        }
        let path = self.model.or(self.model_flag).unwrap_or_default();
        let options = options(self.options.0, &path, global)?;
        let path = global.model(&path)?;
        let source = options.open(&path).map_err(failure)?;
        let run = reading(&options, global, || options.prepare(&source, None))?;
        execute(&run, &options, global)
    }

    /// The pattern by Wanda's names.
    fn wanda_pattern(&self) -> Result<Option<String>, Failure> {
        if let (Some(ratio), Some(kind)) = (self.sparsity_ratio, &self.sparsity_type)
            && let Some(share) = removed_share(kind)
            && (ratio - share).abs() > 1e-9
        {
            return Err(Failure::Input(format!(
                "--sparsity_ratio {ratio}: the pattern {kind} removes {share} of the weights; leave --sparsity_ratio out, or give --sparsity_type unstructured"
            )));
        }
        Ok(match self.sparsity_type.as_deref() {
            Some("unstructured") => {
                let share = self.sparsity_ratio.unwrap_or(0.5);
                if !(share > 0.0 && share < 1.0) {
                    return Err(Failure::Input(format!(
                        "--sparsity_ratio {share}: give a share between 0 and 1"
                    )));
                }
                Some(format!("rowwise({}%)", 100.0 * (1.0 - share)))
            }
            kind => kind.map(String::from),
        })
    }
}

/// The options of a run on a model, with texts from the Hub in place of their names.
pub fn options(
    given: options::Given,
    model: &Path,
    global: &Global,
) -> Result<RunOptions, Failure> {
    let mut options = RunOptions::from_values(given).map_err(failure)?;
    // Before anything is downloaded.
    options.check(model).map_err(failure)?;
    options.calib = global.text(&options.calib)?;
    options.eval = options.eval.map(|path| global.text(&path)).transpose()?;
    options.task = options.task.iter().map(|path| global.text(path)).collect::<Result<_, _>>()?;
    Ok(options)
}

/// Prepares a run: reads and tokenizes its texts, with progress.
pub fn reading<T>(
    options: &RunOptions,
    global: &Global,
    prepare: impl FnOnce() -> Result<T, PipelineError>,
) -> Result<T, Failure> {
    let bar = (!options.events).then(|| Progress::start(global, "reading the texts"));
    if let Some(bar) = &bar {
        let texts = std::iter::once(&options.calib).chain(&options.eval);
        let bytes = |path: &PathBuf| std::fs::metadata(path).map_or(0, |found| found.len());
        bar.announce_tokenizing(texts.map(bytes).sum());
    }
    let prepared = prepare().map_err(failure);
    bar.into_iter().for_each(Progress::end);
    prepared
}

/// Runs a prepared run, or prints its plan, and shows what it did.
pub fn execute(
    run: &PreparedRun<'_>,
    options: &RunOptions,
    global: &Global,
) -> Result<(), Failure> {
    if options.dry_run {
        let dry_run = run.dry_run();
        return match global.json {
            true => print::line(dry_run.to_json()),
            false => print::text(&dry_run.to_string()),
        };
    }
    let screen = show::Screen::new(global, options.events, run.model.config().layers);
    run.notes.iter().for_each(|note| screen.on_event(Event::Note(note)));
    interrupt::say_on_interrupt(&format!(
        "\nstopped; finished layers are kept. To resume:\n  {}\n",
        interrupt::resume_command()
    ));
    let record = run.run(&screen, &mut LocalExecutor::default());
    screen.end();
    let record = record.map_err(failure)?;
    if !options.events && screen.worked() {
        global.wrote_folder(&options.out);
    }
    if global.json {
        return print::line(serde_json::to_string(&record).map_err(Failure::running)?);
    }
    print::text(&summary(&record))
}

/// The share of the weights that `N:M` removes.
fn removed_share(kind: &str) -> Option<f64> {
    let (n, m) = kind.split_once(':')?;
    let (n, m) = (n.parse::<f64>().ok()?, m.parse::<f64>().ok()?);
    Some(1.0 - n / m)
}

/// The user's input is wrong, or the run failed.
pub fn failure(error: PipelineError) -> Failure {
    let words = error.spelled(Spelling::Flags);
    if error.is_input() { Failure::Input(words) } else { Failure::Running(words) }
}
