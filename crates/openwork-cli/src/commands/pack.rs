//! `openwork pack MODEL --out DIR` and `openwork unpack MODEL --out DIR`.

use crate::args::Global;
use crate::failure::Failure;
use crate::print;
use crate::progress::Progress;
use openwork::sparse::Encoding;
use openwork_llm::checkpoint::write::WriteError;
use openwork_llm::format::{align_columns, format_bytes};
use openwork_llm::model::Model;
use openwork_llm::output::{self, OutputFile};
use openwork_llm::pack::{
    Export, PackModelError, Patterns, Summary, ValueChoice, export, gguf, pack, unpack,
};
use openwork_llm::{Checkpoint, Dtype};
use serde_json::json;
use std::collections::BTreeMap;
use std::path::{Path, PathBuf};

/// Store a pruned model compactly: smaller files, less memory, faster generation
///
/// Only the kept weights and an index are stored. The patterns come from the run
/// that pruned the model, or from --spec for all linear layers. If a tensor does not
/// conform to its pattern, it is named and nothing is written.
#[derive(Debug, clap::Args)]
#[command(after_help = "\
Examples:
  openwork pack pruned --out packed
  openwork pack pruned --out packed --spec 2:4
  openwork pack pruned --out small --values int4 --head int8
  openwork pack pruned --out pruned.gguf --format gguf-q8_0
  openwork generate packed --prompt 'The capital of France is'")]
pub struct Pack {
    /// A pruned model: a Hugging Face folder or a .gguf file
    model: PathBuf,
    /// Folder to write; must be new or empty
    #[arg(short, long, value_name = "DIR")]
    out: PathBuf,
    /// Pattern of all linear layers, instead of those in MODEL/openwork/record.json
    #[arg(long, value_name = "S")]
    spec: Option<String>,
    #[command(flatten)]
    values: ValueArgs,
    /// Output format: openwork, or, for other programs, compressed-tensors, cutlass (both
    /// 2:4 only), gguf-f16, gguf-bf16 or gguf-q8_0 (for which --out is a file)
    #[arg(long, value_name = "F", default_value = "openwork")]
    format: String,
    /// For gguf: copy settings and tokenizer from this GGUF file of the same model.
    /// Without it they are derived from the folder, for most families with a
    /// byte-level BPE tokenizer
    #[arg(long, value_name = "FILE")]
    like: Option<PathBuf>,
    /// For gguf: replace the file if it exists
    #[arg(long)]
    force: bool,
}

/// Options that choose how weights are stored.
#[derive(Debug, clap::Args)]
pub struct ValueArgs {
    /// Value type of all linear layers, pruned or not: f32, f16, bf16, int8 or int4
    /// [default: unchanged, or the type that `+quant` rounded to]. int8 and int4 are integer
    /// codes with a 16-bit scale per group
    #[arg(long, value_name = "T")]
    values: Option<String>,
    /// Value type of the embedding and the output head
    #[arg(long, value_name = "T")]
    head: Option<String>,
    /// Number of values that share a scale: 32, 64 or 128
    #[arg(long, value_name = "N", default_value_t = Encoding::DEFAULT_GROUP)]
    group: usize,
}

impl ValueArgs {
    /// The choice, checked.
    pub fn choice(&self) -> Result<ValueChoice, Failure> {
        let encoding = |flag: &str, name: &Option<String>| {
            let parse = |name: &String| {
                Encoding::new(name, self.group)
                    .map_err(|why| Failure::Input(format!("{flag} {name}: {why}")))
            };
            name.as_ref().map(parse).transpose()
        };
        Ok(ValueChoice {
            linears: encoding("--values", &self.values)?,
            head: encoding("--head", &self.head)?,
            ..ValueChoice::default()
        })
    }
}

/// The value of `--format`.
enum Target {
    Openwork,
    Folder(Export),
    Gguf(Dtype),
}

fn target(format: &str) -> Result<Target, Failure> {
    Ok(match format {
        "openwork" => Target::Openwork,
        "compressed-tensors" => Target::Folder(Export::CompressedTensors),
        "cutlass" => Target::Folder(Export::Cutlass),
        "gguf-f16" => Target::Gguf(Dtype::F16),
        "gguf-bf16" => Target::Gguf(Dtype::BF16),
        "gguf-q8_0" => Target::Gguf(Dtype::Q8_0),
        other => {
            return Err(Failure::Input(format!(
                "--format {other}: unknown format; choose openwork, compressed-tensors, cutlass, gguf-f16, gguf-bf16 or gguf-q8_0"
            )));
        }
    })
}

/// Restore the dense model from a packed one, bit for bit
///
/// Values that are codes are written as f32, which expresses them exactly.
#[derive(Debug, clap::Args)]
#[command(after_help = "Examples:\n  openwork unpack packed --out dense")]
pub struct Unpack {
    /// A packed model
    model: PathBuf,
    /// Folder to write; must be new or empty
    #[arg(short, long, value_name = "DIR")]
    out: PathBuf,
}

/// A failed write has exit code 1; wrong input, such as a weight that the output
/// type cannot hold, has 2.
pub(super) fn failure(error: PackModelError) -> Failure {
    match error {
        PackModelError::Write(error @ WriteError::Range { .. }) => {
            Failure::Input(format!("{error}: --format gguf-bf16"))
        }
        PackModelError::NoPattern(_) => Failure::Input(format!("{error}: --spec")),
        error if error.is_input() => Failure::input(error),
        error => Failure::running(error),
    }
}

impl Pack {
    /// Packs and prints the sizes.
    pub fn run(mut self, global: &Global) -> Result<(), Failure> {
        let target = target(&self.format)?;
        let choice = self.values.choice()?;
        if choice.any() && !matches!(target, Target::Openwork) {
            return Err(Failure::Input(format!(
                "--values and --head apply to --format openwork, not to {}",
                self.format
            )));
        }
        self.model = global.model(&self.model)?;
        let mut inputs = vec![self.model.as_path()];
        inputs.extend(self.like.as_deref());
        let file = match target {
            Target::Gguf(_) => Some(OutputFile::new(&self.out, &inputs, self.force)?),
            _ => output::check_folder(&self.out, &inputs).map(|()| None)?,
        };
        let checkpoint = Checkpoint::open(&self.model)?;
        let model = Model::open(&checkpoint)?;
        if let (Target::Gguf(dtype), Some(file)) = (&target, &file) {
            let written = gguf(&model, self.like.as_deref(), file, *dtype);
            global.wrote(&self.out, written.map_err(failure)?.bytes);
            return wrote(global, &self.out);
        }
        let patterns =
            Patterns::choose(self.spec.as_deref(), &choice, &checkpoint).map_err(failure)?;
        let choice = choice.with_record(&checkpoint);
        global.note(choice.note().as_slice());
        let bar = Progress::start(global, "pack");
        let layers = model.config().layers.max(1);
        let mut say = |done: usize| {
            bar.say(done as f64 / layers as f64, &format!("packed {done} of {layers} layers"));
        };
        if let Target::Folder(format) = target {
            let result = export(&model, &patterns, format, &self.out, &mut say);
            bar.end();
            result.map_err(failure)?;
            global.wrote_folder(&self.out);
            return wrote(global, &self.out);
        }
        let result = pack(&model, &patterns, choice, &self.out, &mut say);
        bar.end();
        let summary = result.map_err(failure)?;
        global.wrote_folder(&self.out);
        if global.json {
            return print::line(json!({"out": self.out, "summary": summary}));
        }
        print::text(&table(&summary))
    }
}

/// Sizes by spec and format.
fn table(summary: &Summary) -> String {
    let mut kinds: BTreeMap<(&str, &str, &str), (usize, usize, usize)> = BTreeMap::new();
    for tensor in &summary.tensors {
        let kind = kinds.entry((&tensor.spec, tensor.format, tensor.values)).or_default();
        *kind = (kind.0 + 1, kind.1 + tensor.bytes, kind.2 + tensor.dense_bytes);
    }
    let head = ["spec", "format", "values", "tensors", "dense", "packed", "ratio"];
    let mut rows = vec![head.map(String::from)];
    let ratio = |bytes: usize, dense: usize| format!("{:.4}", bytes as f64 / dense.max(1) as f64);
    for ((spec, format, values), (count, bytes, dense)) in kinds {
        rows.push([
            spec.to_string(),
            format.to_string(),
            values.to_string(),
            count.to_string(),
            format_bytes(dense as u64),
            format_bytes(bytes as u64),
            ratio(bytes, dense),
        ]);
    }
    let (all, before) = (
        summary.bytes as u64 + summary.other_bytes,
        summary.dense_bytes as u64 + summary.other_bytes,
    );
    align_columns(&rows, [false, false, false, true, true, true, true])
        + &format!(
            "all tensors: {}, dense {} (ratio {})\n",
            format_bytes(all),
            format_bytes(before),
            ratio(all as usize, before as usize)
        )
}

impl Unpack {
    /// Unpacks.
    pub fn run(mut self, global: &Global) -> Result<(), Failure> {
        self.model = global.model(&self.model)?;
        output::check_folder(&self.out, &[&self.model])?;
        let checkpoint = Checkpoint::open(&self.model)?;
        let model = Model::open(&checkpoint)?;
        let bar = Progress::start(global, "unpack");
        let layers = model.config().layers.max(1);
        let result = unpack(&model, &self.out, &mut |done| {
            bar.say(done as f64 / layers as f64, &format!("unpacked {done} of {layers} layers"));
        });
        bar.end();
        result.map_err(failure)?;
        global.wrote_folder(&self.out);
        wrote(global, &self.out)
    }
}

/// The result of a command whose only result is what it wrote.
fn wrote(global: &Global, out: &Path) -> Result<(), Failure> {
    if global.json { print::line(json!({ "out": out })) } else { Ok(()) }
}
