//! `openwork inspect MODEL`.

use crate::args::Global;
use crate::failure::Failure;
use crate::print;
use openwork::Pattern;
use openwork_llm::Checkpoint;
use openwork_llm::format::{format_bytes, grouped, printable};
use openwork_llm::inspect::{Check, Inspection, TensorSummary, check_pattern, inspect};
use openwork_llm::model::{Model, ties_embeddings};
use openwork_llm::pipeline::structure;
use openwork_llm::report::Record;
use serde_json::Value;
use std::fmt::Write;
use std::path::PathBuf;

/// Show what is in a model: its config, and each tensor's shape, type and density
#[derive(Debug, clap::Args)]
#[command(after_help = "\
Examples:
  openwork inspect SmolLM2-135M
  openwork inspect pruned --spec 2:4
  openwork inspect model.gguf --json | jq '.tensors[] | select(.density < 0.6) | .name'

With --spec every linear that has zeros is checked; without it, in a folder that
`openwork prune` wrote, every pruned tensor is checked against its own spec.")]
pub struct Inspect {
    /// A Hugging Face folder, a .gguf file, or `demo`
    model: PathBuf,
    /// Check that pruned tensors conform to this spec
    #[arg(long, value_name = "SPEC")]
    spec: Option<String>,
}

impl Inspect {
    /// Opens, counts, prints.
    pub fn run(self, global: &Global) -> Result<(), Failure> {
        let model = Checkpoint::open(&self.model).map_err(Failure::input)?;
        let pattern: Option<Pattern> =
            self.spec.as_deref().map(|spec| asked(spec, &model)).transpose()?;
        if let Some(pattern) = &pattern {
            check_pattern(&model, pattern).map_err(Failure::input)?;
        }
        let record = match self.model.join("openwork/record.json").exists() {
            true => Some(Record::read(&self.model).map_err(Failure::input)?),
            false => None,
        };
        let check = match (&pattern, &record) {
            (Some(pattern), _) => Check::Pattern(pattern),
            (None, Some(record)) => Check::Record(record),
            (None, None) => Check::None,
        };
        let found = inspect(&model, check);
        global.note(model.notes());
        if global.json {
            return print::line(serde_json::to_string(&found).map_err(Failure::running)?);
        }
        print::text(&page(&found))?;
        match (&pattern, found.conforms) {
            (Some(_), None) => print::line("no linear has zeros; nothing was checked"),
            _ => Ok(()),
        }
    }
}

/// A spec as a pattern; structures need a model that we can run.
fn asked(spec: &str, model: &Checkpoint) -> Result<Pattern, Failure> {
    match structure::read(spec).map_err(Failure::input)? {
        None => spec.parse().map_err(Failure::input),
        Some(_) => {
            let model = Model::open(model).map_err(Failure::input)?;
            structure::pattern(spec, model.config()).map_err(Failure::input)
        }
    }
}

/// What the config says in one line, for the keys that it has.
fn summary(config: &Value) -> String {
    const KEYS: &[(&str, &str)] = &[
        ("num_hidden_layers", "layers"),
        ("hidden_size", "wide"),
        ("intermediate_size", "in the MLP"),
        ("num_attention_heads", "heads"),
        ("num_key_value_heads", "key-value heads"),
        ("vocab_size", "tokens"),
        ("max_position_embeddings", "positions"),
    ];
    let mut facts: Vec<String> = KEYS
        .iter()
        .filter_map(|(key, name)| Some(format!("{} {name}", grouped(config[*key].as_u64()?))))
        .collect();
    if ties_embeddings(config) {
        facts.push("tied embeddings".to_string());
    }
    facts.join(", ")
}

fn page(found: &Inspection) -> String {
    let mut page = String::new();
    let mut put = |line: String| {
        // Writing to a string cannot fail.
        let _ = writeln!(page, "{line}");
    };
    put(format!("model         {}", found.model.display()));
    put(format!("format        {}", found.format));
    put(format!(
        "architecture  {}",
        printable(found.architecture.as_deref().unwrap_or("not given"))
    ));
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
                " packed {} as {}, {:.4} of dense",
                packed.spec, packed.format, packed.share
            ))
        ));
    }
    put(String::new());
    let totals = &found.totals;
    put(format!(
        "{} tensors, {} numbers, {}, density {}",
        totals.tensors,
        grouped(totals.parameters),
        format_bytes(totals.bytes),
        percent(totals.density)
    ));
    let checked = found.tensors.iter().filter(|tensor| tensor.conforms.is_some()).count();
    match found.conforms {
        Some(true) => put(format!("all {checked} pruned tensors conform")),
        Some(false) => {
            let wrong = found.tensors.iter().filter(|t| t.conforms == Some(false)).count();
            put(format!("{wrong} of {checked} pruned tensors do not conform"));
        }
        None => {}
    }
    page
}

/// What is known of a tensor's zeros, in a few words.
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
