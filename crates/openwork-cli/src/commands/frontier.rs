//! `openwork frontier MODEL --text T [RUN|PACKED|GGUF ..] --out page.html`.

use crate::args::{Global, positive};
use crate::failure::Failure;
use crate::print;
use crate::progress::Progress;
use openwork::sparse::Encoding;
use openwork_llm::evaluate;
use openwork_llm::format::{align_columns, format_bytes, number, parse_bytes};
use openwork_llm::frontier::{Frontier, FrontierError, FrontierOptions, measure};
use openwork_llm::output::OutputFile;
use openwork_llm::report::frontier_page;
use std::num::NonZeroUsize;
use std::path::{Path, PathBuf};

/// Compare models by perplexity, size and speed, and judge whether pruning pays off
///
/// Measures the unpruned model at 16, 8 and 4 bits, the given versions, and pruned variants;
/// marks the Pareto-optimal points; recommends one of them in one sentence.
#[derive(Debug, clap::Args)]
#[command(after_help = "\
RUN is an output folder of `openwork prune`, PACKED an output folder of `openwork pack`, and
GGUF a file of the same model. A GGUF file counts with its own size, but without tokens/s,
because openwork converts it to 16 bits before computing. Runs are measured at every type of --values,
or at the type that `+quant` rounded to.

With --calib, 4-bit weights are quantized by `+quant`. Structures (mlp, heads, layers) are
removed. Finished results are kept in the work folder: run the same command again to
continue.

Examples:
  openwork frontier smollm2.gguf --text wikitext2.txt --out page.html
  openwork frontier smollm2.gguf --text wikitext2.txt --spec 2:4 --spec 2:4@8 \\
      --calib c4.jsonl --out page.html
  openwork frontier MODEL pruned packed model-q4_k_m.gguf --text wikitext2.txt --size 100M")]
pub struct FrontierArgs {
    /// The unpruned model: a Hugging Face folder, a .gguf file, a name on the
    /// Hugging Face Hub, or `demo`
    model: PathBuf,
    /// Other versions of the model, described below
    #[arg(value_name = "RUN|PACKED|GGUF")]
    inputs: Vec<PathBuf>,
    /// Evaluation text: a .txt file, a .jsonl file with a `text` field, or `demo`
    #[arg(long, value_name = "TEXT")]
    text: PathBuf,
    /// Tokens per evaluation window [default: 2048, or the model's limit]
    #[arg(long, value_name = "L")]
    seq_len: Option<usize>,
    /// Use only the first N tokens of the evaluation text
    #[arg(long, value_name = "N")]
    max_tokens: Option<usize>,
    /// Measure accuracy on this task (see `openwork eval`); may be repeated
    #[arg(long = "task", value_name = "FILE")]
    tasks: Vec<PathBuf>,
    /// Use only the first N documents of every task
    #[arg(long, value_name = "N", requires = "tasks", value_parser = positive)]
    task_limit: Option<NonZeroUsize>,
    /// Prune the model to this pattern; may be repeated
    #[arg(long, value_name = "S")]
    spec: Vec<String>,
    /// Pruning method (see `openwork methods`); may be repeated
    #[arg(long, value_name = "M")]
    method: Vec<String>,
    /// Value types, separated by commas
    #[arg(long, value_name = "T", value_delimiter = ',', default_value = "bf16,int8,int4")]
    values: Vec<String>,
    /// Value type of the embedding and the output head if linear layers are int8 or int4
    /// [default: int8]
    #[arg(long, value_name = "T")]
    head: Option<String>,
    /// Number of values that share a scale: 32, 64 or 128
    #[arg(long, value_name = "N", default_value_t = Encoding::DEFAULT_GROUP)]
    group: usize,
    /// Calibration text, to prune and to round to 4 bits
    #[arg(long, value_name = "TEXT")]
    calib: Option<PathBuf>,
    /// Number of calibration windows
    #[arg(long, value_name = "N", default_value = "128", value_parser = positive)]
    samples: NonZeroUsize,
    /// Tokens per calibration window [default: 1024, or the model's limit]
    #[arg(long, value_name = "N")]
    calib_seq_len: Option<usize>,
    /// Tokens to generate per repetition
    #[arg(long, value_name = "N", default_value = "32", value_parser = positive)]
    tokens: NonZeroUsize,
    /// Number of repetitions per model; the fastest counts
    #[arg(long, value_name = "N", default_value = "5", value_parser = positive)]
    turns: NonZeroUsize,
    /// Recommend the best model of at most this size, such as 100M
    #[arg(long, value_name = "BYTES", value_parser = size)]
    size: Option<u64>,
    /// Recommend the best model with at least this many tokens per second
    #[arg(long, value_name = "N", value_parser = speed)]
    speed: Option<f64>,
    /// Write the page to FILE
    #[arg(short, long, value_name = "FILE")]
    out: Option<PathBuf>,
    /// Folder for finished results [default: FILE without its extension, plus `.frontier`]
    #[arg(long, value_name = "DIR")]
    work: Option<PathBuf>,
    /// Replace FILE if it exists
    #[arg(long)]
    force: bool,
}

fn size(text: &str) -> Result<u64, String> {
    parse_bytes(text).ok_or_else(|| "give a size such as 4G or 800M".to_string())
}

fn speed(text: &str) -> Result<f64, String> {
    let number: f64 = text.parse().map_err(|_| "give a number".to_string())?;
    (number > 0.0 && number.is_finite())
        .then_some(number)
        .ok_or_else(|| "give a number above 0".to_string())
}

impl FrontierArgs {
    /// Measures all points, then writes the page.
    pub fn run(mut self, global: &Global) -> Result<(), Failure> {
        self.text = global.text(&self.text)?;
        self.calib = self.calib.map(|path| global.text(&path)).transpose()?;
        self.tasks = self.tasks.iter().map(|path| global.text(path)).collect::<Result<_, _>>()?;
        self.model = global.model(&self.model)?;
        let mut inputs: Vec<&Path> = self.inputs.iter().map(PathBuf::as_path).collect();
        inputs.extend(self.tasks.iter().map(PathBuf::as_path));
        inputs.extend([self.model.as_path(), self.text.as_path()]);
        let out = self.out.as_ref().map(|out| OutputFile::new(out, &inputs, self.force));
        let out = out.transpose()?;
        let work = self.work.clone().unwrap_or_else(|| match &self.out {
            Some(out) => out.with_extension("frontier"),
            None => PathBuf::from("openwork.frontier"),
        });
        let options = FrontierOptions {
            text: self.text,
            evaluation: evaluate::Options {
                seq_len: self.seq_len,
                max_tokens: self.max_tokens,
                ..evaluate::Options::default()
            },
            tasks: self.tasks,
            task_limit: self.task_limit.map(NonZeroUsize::get),
            inputs: self.inputs,
            specs: self.spec,
            values: self.values,
            methods: self.method,
            head: self.head,
            group: self.group,
            calib: self.calib,
            samples: self.samples.get(),
            seq_len: self.calib_seq_len,
            work,
            tokens: self.tokens,
            turns: self.turns,
            size: self.size,
            speed: self.speed,
        };
        let bar = Progress::start(global, "measuring");
        let frontier = measure(&self.model, &options, &|event| {
            let (done, all) = (event.point as f64 + event.share, event.points.max(1) as f64);
            let stage =
                format!("{} of {}: {} {}", event.point + 1, event.points, event.stage, event.name);
            bar.say(done / all, &stage);
        });
        bar.end();
        let frontier = frontier.map_err(|error| match error {
            FrontierError::Input(why) => Failure::Input(why),
            FrontierError::Running(why) => Failure::Running(why),
        })?;
        if let Some(out) = &out {
            global.write(out, frontier_page(&frontier).as_bytes())?;
        }
        if global.json {
            return print::line(serde_json::to_string(&frontier).map_err(Failure::running)?);
        }
        print::text(&table(&frontier))?;
        print::line(&frontier.verdict)
    }
}

fn table(frontier: &Frontier) -> String {
    let tasks = frontier.points.first().map_or(&[][..], |point| &point.tasks);
    let head = ["model", "size", "perplexity", "tokens/s"].map(String::from).into_iter();
    let head = head.chain(tasks.iter().map(|task| task.name.clone()));
    let mut rows = vec![head.chain(["best for".to_string()]).collect::<Vec<_>>()];
    for point in &frontier.points {
        let best = match (point.best, point.best_for_speed) {
            (true, true) => "size, speed",
            (true, false) => "size",
            (false, true) => "speed",
            (false, false) => "",
        };
        let mut row = vec![
            point.name.clone(),
            format_bytes(point.bytes),
            number(point.token_perplexity),
            point.tokens_per_second.map_or("-".to_string(), number),
        ];
        row.extend(point.tasks.iter().map(|task| format!("{:.4}", task.acc)));
        row.push(best.to_string());
        rows.push(row);
    }
    let columns = rows[0].len();
    let right: Vec<bool> = (0..columns).map(|i| (1..columns - 1).contains(&i)).collect();
    align_columns(&rows, &right)
}
