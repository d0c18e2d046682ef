//! `openwork inspect MODEL`.

use crate::args::Global;
use crate::failure::Failure;
use crate::print;
use crate::progress::Progress;
use openwork::Pattern;
use openwork_llm::Checkpoint;
use openwork_llm::format::{count, format_bytes, grouped, printable};
use openwork_llm::inspect::{Check, Inspection, TensorSummary, check_pattern, inspect};
use openwork_llm::model::{Model, ties_embeddings};
use openwork_llm::pipeline::structure::RecipeSpec;
use openwork_llm::report::Record;
use serde_json::Value;
use std::fmt::Write;
use std::path::PathBuf;

/// List a model's tensors: shape, type, density, pattern
#[derive(Debug, clap::Args)]
#[command(after_help = "\
With --spec, every linear layer that has zeros must conform to SPEC. Without it, every
tensor pruned by `openwork prune` is checked against its own spec in the run's record.
The exit code is 1 if a tensor does not conform.

Examples:
  openwork inspect SmolLM2-135M
  openwork inspect pruned --spec 2:4
  openwork inspect weights.safetensors
  openwork inspect large.gguf --no-density
  openwork inspect model.gguf --json | jq '.tensors[] | select(.density < 0.6) | .name'")]
pub struct Inspect {
    /// Hugging Face folder, .gguf file, single .safetensors file, or `demo`
    model: PathBuf,
    /// Check that pruned tensors conform to SPEC
    #[arg(long, value_name = "SPEC")]
    spec: Option<String>,
    /// List names, shapes and types only, without reading the weights
    #[arg(long, conflicts_with = "spec")]
    no_density: bool,
}

impl Inspect {
    /// Opens, counts, prints; fails if a tensor does not conform.
    pub fn run(mut self, global: &Global) -> Result<(), Failure> {
        self.model = global.model(&self.model)?;
        let model = Checkpoint::open_any(&self.model)?;
        let pattern: Option<Pattern> =
            self.spec.as_deref().map(|spec| parse_spec(spec, &model)).transpose()?;
        if let Some(pattern) = &pattern {
            check_pattern(&model, pattern).map_err(Failure::input)?;
        }
        let record = match self.model.join("openwork/record.json").exists() {
            true => Some(Record::read(&self.model).map_err(Failure::input)?),
            false => None,
        };
        let check = match (&pattern, &record) {
            _ if self.no_density => Check::HeaderOnly,
            (Some(pattern), _) => Check::Pattern(pattern),
            (None, Some(record)) => Check::Record(record),
            (None, None) => Check::Density,
        };
        let progress = Progress::start(global, "reading tensors");
        let found = inspect(&model, check, &mut |share| progress.say(share, "reading tensors"));
        progress.end();
        global.note(model.notes());
        if global.json {
            print::line(serde_json::to_string(&found).map_err(Failure::running)?)?;
        } else {
            print::text(&page(&found))?;
            if pattern.is_some() && found.conforms.is_none() {
                print::line("no linear layer has zeros; nothing was checked")?;
            }
        }
        let wrong = found.tensors.iter().filter(|tensor| tensor.conforms == Some(false)).count();
        let checked = found.tensors.iter().filter(|tensor| tensor.conforms.is_some()).count();
        match wrong {
            0 => Ok(()),
            _ => Err(Failure::Running(format!(
                "{wrong} of {} {} not conform to {}",
                count(checked, "pruned tensor"),
                if wrong == 1 { "does" } else { "do" },
                self.spec.as_deref().unwrap_or("the specs they were pruned to")
            ))),
        }
    }
}

/// Parses a spec; structures such as `mlp` need a model whose config is known.
fn parse_spec(spec: &str, model: &Checkpoint) -> Result<Pattern, Failure> {
    match RecipeSpec::parse(spec).map_err(Failure::input)? {
        RecipeSpec::Pattern(pattern) => Ok(*pattern),
        structure => {
            let model = Model::open(model)?;
            structure.pattern(model.config()).map_err(Failure::input)
        }
    }
}

/// The sizes in the config, on one line.
fn summary(config: &Value) -> String {
    const KEYS: &[(&str, &str)] = &[
        ("num_hidden_layers", "layers"),
        ("hidden_size", "hidden"),
        ("intermediate_size", "MLP"),
        ("num_attention_heads", "heads"),
        ("num_key_value_heads", "key-value heads"),
        ("vocab_size", "vocabulary"),
        ("max_position_embeddings", "positions"),
    ];
    let mut facts: Vec<String> = KEYS
        .iter()
        .filter_map(|(key, name)| Some(format!("{name} {}", grouped(config[*key].as_u64()?))))
        .collect();
    if ties_embeddings(config) {
        facts.push("tied embeddings".to_string());
    }
    match config.is_null() {
        true => "none".to_string(),
        false => facts.join(", "),
    }
}

fn page(found: &Inspection) -> String {
    let mut page = String::new();
    let mut put = |line: String| {
        // Writing to a string cannot fail.
        let _ = writeln!(page, "{line}");
    };
    put(format!("model         {}", found.model.display()));
    let stored_for = found.stored_for.map(|program| format!(", stored for {program}"));
    put(format!("format        {}{}", found.format, stored_for.unwrap_or_default()));
    put(format!("architecture  {}", printable(found.architecture.as_deref().unwrap_or("unknown"))));
    put(format!("config        {}", summary(&found.config)));
    for file in &found.files {
        put(format!("file          {} ({})", file.path.display(), format_bytes(file.bytes as u64)));
    }
    put(String::new());
    let width = found.tensors.iter().map(|t| printable(&t.name).chars().count()).max();
    let width = width.unwrap_or(0).max(6);
    put(format!(
        "{:width$}  {:>16}  {:5} {:>10}  density  pattern",
        "tensor", "shape", "type", "bytes"
    ));
    for tensor in &found.tensors {
        let shape = tensor.shape.iter().map(usize::to_string).collect::<Vec<_>>().join(" x ");
        put(format!(
            "{:width$}  {shape:>16}  {:5} {:>10}  {:>7}  {}{}",
            printable(&tensor.name),
            tensor.dtype,
            format_bytes(tensor.bytes as u64),
            percent(tensor.density),
            pattern(tensor),
            tensor.packed.as_ref().map_or_else(String::new, |packed| format!(
                " packed {} as {}, {:.4} of dense{}",
                packed.spec,
                packed.format,
                packed.share,
                if packed.slow.is_some() { ", no fast kernel" } else { "" }
            ))
        ));
    }
    put(String::new());
    let totals = &found.totals;
    put(format!(
        "{}, {} parameters, {}, density {}",
        count(totals.tensors, "tensor"),
        grouped(totals.parameters),
        format_bytes(totals.bytes),
        percent(totals.density)
    ));
    if found.conforms == Some(true) {
        let checked = found.tensors.iter().filter(|tensor| tensor.conforms.is_some()).count();
        put(match checked {
            1 => "1 pruned tensor was checked and conforms".to_string(),
            _ => format!("all {checked} pruned tensors conform"),
        });
    }
    page
}

/// The pattern of a tensor's zeros, or whether it conforms to its spec.
fn pattern(tensor: &TensorSummary) -> String {
    match (&tensor.spec, &tensor.breach) {
        (Some(spec), None) => format!("{spec}: conforms"),
        (Some(spec), Some(breach)) => format!("{spec}: {breach}"),
        (None, _) => tensor.presets.join(" "),
    }
}

fn percent(density: Option<f64>) -> String {
    density.map_or("-".to_string(), |density| format!("{:.2}%", 100.0 * density))
}
