//! `openwork demo`: prunes the built-in model with several methods.

use crate::args::Global;
use crate::failure::Failure;
use crate::print;
use crate::progress::Progress;
use openwork_llm::checkpoint::{Checkpoint, Dtype};
use openwork_llm::demo;
use openwork_llm::evaluate::{Options, ScoredWindows};
use openwork_llm::format::{align_columns, format_seconds};
use openwork_llm::model::Model;
use openwork_llm::output::OutputFile;
use openwork_llm::pipeline::{
    Calibration, Evaluation, Job, LocalExecutor, Passes, PreparedRun, Recipe, Sampling, Start,
    TensorFilter,
};
use openwork_llm::report::{Record, is_page, page};
use serde_json::json;
use std::path::PathBuf;

/// Specs that the demo prunes to.
const SPECS: &[&str] = &["2:4", "rows16"];
/// Methods that it compares.
const METHODS: &[&str] = &["magnitude", "wanda", "sparsegpt", "s-obs", "admm+swap"];
/// Number of calibration windows, and tokens per window.
const SAMPLES: usize = 64;
const SEQ_LEN: usize = 256;

/// Prune the built-in model with several methods and compare them
///
/// The binary contains a small language model, trained on a synthetic language
/// of known entropy, which bounds the perplexity of any model from below. The
/// demo prunes it to 2:4 and rows16 with five methods, prints the resulting
/// perplexities, and writes an HTML report. It needs no network and no files.
#[derive(Debug, clap::Args)]
#[command(after_help = "Examples:
  openwork demo
  openwork demo --out demo.html --json")]
pub struct Demo {
    /// Write the report to FILE
    #[arg(short, long, value_name = "FILE", default_value = "report.html")]
    out: PathBuf,
    /// Replace FILE if it exists; a report that openwork wrote is always replaced
    #[arg(long)]
    force: bool,
}

impl Demo {
    /// Prunes, writes the report, prints the table.
    pub fn run(self, global: &Global) -> Result<(), Failure> {
        let out = OutputFile::new(&self.out, &[], self.force || is_page(&self.out))?;
        let source = Checkpoint::open("demo".as_ref()).map_err(Failure::running)?;
        let source = source.rounded(Dtype::BF16);
        let model = Model::open(&source).map_err(Failure::running)?;
        let tokenizer = source.tokenizer().map_err(Failure::running)?;
        let text = ("demo", demo::CALIBRATION);
        let draw = Sampling { samples: SAMPLES, length: SEQ_LEN, single_tokens: None, seed: 0 };
        let calibration = Calibration::draw(&tokenizer, text, draw);
        let calibration = calibration.map_err(Failure::running)?;
        let scored = ScoredWindows::new(&tokenizer, demo::EVALUATION, SEQ_LEN, &Options::default());
        let scored = scored.map_err(Failure::running)?;
        let folder = tempfile::tempdir().map_err(Failure::running)?;

        let mut runs: Vec<(String, Record)> = Vec::new();
        let bar = Progress::start(global, "demo");
        let all = SPECS.len() * METHODS.len();
        for spec in SPECS {
            for method in METHODS {
                let name = format!("{method} {spec}");
                bar.say(runs.len() as f64 / all as f64, &name);
                let recipe = Recipe::new(spec, method);
                let config = model.config();
                let passes = Passes::new(&recipe, &TensorFilter::default(), config, false);
                let job = Job {
                    calibration: calibration.clone(),
                    evaluation: Some(Evaluation {
                        text: "demo".to_string(),
                        scored: scored.clone(),
                        every: Some(2),
                    }),
                    dtype: Dtype::BF16,
                    state_memory_limit: None,
                    recovery: None,
                    tasks: Vec::new(),
                    sentences: None,
                };
                let out = folder.path().join(runs.len().to_string());
                let passes = passes.map_err(Failure::running)?;
                let model = Model::open(&source).map_err(Failure::running)?;
                let run = PreparedRun::new(model, job, passes, &out, Start::Fresh);
                let record = run.run(&(), &mut LocalExecutor::default());
                let record = record.map_err(Failure::running)?;
                runs.push((name, record));
            }
        }
        bar.end();
        global.write(&out, page(&runs).as_bytes())?;
        if global.json {
            return print::line(as_json(&runs));
        }
        let weights: usize = source.tensors().map(|tensor| tensor.len()).sum();
        print::line(format!(
            "A language model with {} layers and {:.1} million parameters, half of the weights in its linear layers pruned.\n",
            model.config().layers,
            weights as f64 / 1e6
        ))?;
        self.print(&runs)
    }

    fn print(&self, runs: &[(String, Record)]) -> Result<(), Failure> {
        let optimum = demo::token_perplexity();
        let dense =
            runs.first().and_then(|(_, record)| record.dense()).map_or(0.0, |d| d.token_perplexity);
        let head = ["spec", "method", "perplexity", "above optimum", "mean error", "time"];
        let mut rows = vec![head.map(String::from)];
        let row = |spec: &str, method: &str, perplexity: f64, error: String, time: String| {
            let over = format!("{:+.1}%", 100.0 * (perplexity / optimum - 1.0));
            [spec.into(), method.into(), format!("{perplexity:.3}"), over, error, time]
        };
        rows.push(row("", "optimum (entropy)", optimum, String::new(), String::new()));
        rows.push(row("", "dense", dense, String::new(), String::new()));
        for (_, record) in runs {
            let perplexity = record.last().map_or(f64::NAN, |last| last.token_perplexity);
            rows.push(row(
                &record.spec,
                &record.method,
                perplexity,
                format!("{:.4}", record.totals.mean_error),
                format_seconds(record.totals.seconds),
            ));
        }
        print::text(&align_columns(&rows, [false, false, true, true, true, true]))?;
        print::line(format!(
            "\nReport: {}\n\nNext:\n  openwork show rows16 --shape 32,64\n  openwork prune demo --spec 2:4 --calib demo --eval demo --samples 64 --out pruned\n  openwork inspect pruned --spec 2:4",
            self.out.display()
        ))
    }
}

fn as_json(runs: &[(String, Record)]) -> serde_json::Value {
    let rows: Vec<_> = runs
        .iter()
        .map(|(_, record)| {
            json!({
                "spec": record.spec,
                "method": record.method,
                "token_perplexity": record.last().map(|last| last.token_perplexity),
                "mean_error": record.totals.mean_error,
                "seconds": record.totals.seconds,
            })
        })
        .collect();
    let dense = runs.first().and_then(|(_, record)| record.dense()).map(|d| d.token_perplexity);
    json!({"true_token_perplexity": demo::token_perplexity(), "dense_token_perplexity": dense, "runs": rows})
}
