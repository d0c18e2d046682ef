//! `openwork pack MODEL --out DIR` and `openwork unpack MODEL --out DIR`.

use crate::args::Global;
use crate::failure::Failure;
use crate::print::{self, size};
use crate::progress::Progress;
use openwork_llm::Checkpoint;
use openwork_llm::model::Model;
use openwork_llm::pack::{PackModelError, Patterns, Summary, pack, unpack};
use serde_json::json;
use std::collections::BTreeMap;
use std::path::PathBuf;

/// Store only what stays of a pruned model: smaller on disk and in memory, and faster
///
/// The patterns are those of the run that pruned the model, or --spec for all
/// linears. A tensor that does not conform is named and nothing is written.
#[derive(Debug, clap::Args)]
#[command(after_help = "\
Examples:
  openwork pack pruned --out packed
  openwork pack pruned --out packed --spec 2:4
  openwork generate packed --prompt 'The capital of France is'")]
pub struct Pack {
    /// A pruned model: a Hugging Face folder or a .gguf file
    model: PathBuf,
    /// The folder to write; it must not exist
    #[arg(long, value_name = "DIR")]
    out: PathBuf,
    /// The pattern of all linears, instead of those in DIR/openwork/record.json
    #[arg(long, value_name = "S")]
    spec: Option<String>,
}

/// Write a packed model as a dense one again, bit for bit
#[derive(Debug, clap::Args)]
#[command(after_help = "Examples:\n  openwork unpack packed --out dense")]
pub struct Unpack {
    /// A packed model
    model: PathBuf,
    /// The folder to write; it must not exist
    #[arg(long, value_name = "DIR")]
    out: PathBuf,
}

/// Failures of writing are ours, all others the user's.
fn failure(error: PackModelError) -> Failure {
    match error {
        PackModelError::Write(error) => Failure::running(error),
        error => Failure::input(error),
    }
}

impl Pack {
    /// Packs and prints what it saved.
    pub fn run(self, global: &Global) -> Result<(), Failure> {
        let checkpoint = Checkpoint::open(&self.model).map_err(Failure::input)?;
        let model = Model::open(&checkpoint).map_err(Failure::input)?;
        let patterns = match &self.spec {
            Some(text) => Patterns::all(text),
            None => Patterns::of(&checkpoint),
        };
        let patterns = patterns.map_err(failure)?;
        let bar = Progress::start(global, "pack");
        let layers = model.config().layers.max(1);
        let result = pack(&model, &patterns, &self.out, &mut |done| {
            bar.say(done as f64 / layers as f64, &format!("packed {done} of {layers} layers"));
        });
        bar.end();
        let summary = result.map_err(failure)?;
        if global.json {
            return print::line(json!({"out": self.out, "summary": summary}));
        }
        print::text(&table(&summary))
    }
}

/// What was packed, by spec and format.
fn table(summary: &Summary) -> String {
    let mut kinds: BTreeMap<(&str, &str), (usize, usize, usize)> = BTreeMap::new();
    for tensor in &summary.tensors {
        let kind = kinds.entry((&tensor.spec, tensor.format)).or_default();
        *kind = (kind.0 + 1, kind.1 + tensor.bytes, kind.2 + tensor.dense_bytes);
    }
    let head = ["spec", "format", "tensors", "dense", "packed", "share"];
    let mut rows = vec![head.map(String::from)];
    let ratio = |bytes: usize, dense: usize| format!("{:.4}", bytes as f64 / dense as f64);
    for ((spec, format), (count, bytes, dense)) in kinds {
        rows.push([
            spec.to_string(),
            format.to_string(),
            count.to_string(),
            size(dense as u64),
            size(bytes as u64),
            ratio(bytes, dense),
        ]);
    }
    let (all, before) = (
        summary.bytes as u64 + summary.other_bytes,
        summary.dense_bytes as u64 + summary.other_bytes,
    );
    print::columns(&rows, [false, false, true, true, true, true])
        + &format!(
            "all tensors {} instead of {} ({})\n",
            size(all),
            size(before),
            ratio(all as usize, before as usize)
        )
}

impl Unpack {
    /// Unpacks.
    pub fn run(self, global: &Global) -> Result<(), Failure> {
        let checkpoint = Checkpoint::open(&self.model).map_err(Failure::input)?;
        let model = Model::open(&checkpoint).map_err(Failure::input)?;
        let bar = Progress::start(global, "unpack");
        let layers = model.config().layers.max(1);
        let result = unpack(&model, &self.out, &mut |done| {
            bar.say(done as f64 / layers as f64, &format!("unpacked {done} of {layers} layers"));
        });
        bar.end();
        result.map_err(failure)?;
        match global.json {
            true => print::line(json!({"out": self.out})),
            false => print::line(format!("wrote {}", self.out.display())),
        }
    }
}
