//! The model card: README.md of a pruned model.

use crate::format::{count, grouped, windows};
use crate::model::{FAMILIES, split_layer_name};
use crate::report::{Record, SizeChange};
use crate::shrink::{Change, ranges};
use std::collections::BTreeMap;
use std::fmt::Write;

/// A model card in Markdown, without anything that differs between two runs of one
/// plan, such as times.
pub(super) fn text(record: &Record) -> String {
    let mut text = String::new();
    let mut put = |line: &str| {
        // Writing to a string cannot fail.
        let _ = writeln!(text, "{line}");
    };
    put("---\nlibrary_name: transformers\ntags:\n- openwork\n- pruned\n- sparse\n---\n");
    put(&format!("# {}, pruned\n", record.model));
    let calibration = &record.calibration;
    let how = match record.passes.is_empty() {
        true => {
            format!("to the spec `{}` using method `{}`", record.spec_as_written(), record.method)
        }
        false => match record.passes.len() {
            1 => "in one pass".to_string(),
            passes => format!("in {passes} passes"),
        },
    };
    let sparse = record.totals.density < 1.0;
    let density = match sparse {
        true => format!(
            " {:.2}% of the weights of its linear layers are nonzero; the others are exactly zero.",
            100.0 * record.totals.density
        ),
        false => String::new(),
    };
    put(&format!(
        "Pruned with openwork {} {how}, calibrated on {} of `{}` (seed {}).{density}\n",
        record.openwork,
        windows(calibration.samples, calibration.seq_len, calibration.single_tokens),
        calibration.text,
        record.seed,
    ));
    if let Some(SizeChange { before, after }) = record.sizes.filter(|s| s.before != s.after) {
        put(&format!(
            "It has {} parameters, {:.1}% of the original model's {}.\n",
            grouped(after.parameters),
            100.0 * after.parameters as f64 / before.parameters.max(1) as f64,
            grouped(before.parameters)
        ));
    }
    for (i, pass) in record.passes.iter().enumerate() {
        let change = Change { before: pass.before, after: pass.after };
        let dropped = match pass.dropped.is_empty() {
            true => String::new(),
            false => format!(" (layers {} dropped)", ranges(&pass.dropped)),
        };
        put(&format!(
            "{}. `{}` by `{}`: {change}{dropped}",
            i + 1,
            pass.spec_as_written(),
            pass.method
        ));
    }
    if !record.passes.is_empty() {
        put("");
    }
    if !record.recovery.is_empty() {
        let stages: Vec<String> =
            record.recovery.iter().map(|stage| format!("`{}`", stage.stage)).collect();
        put(&format!(
            "The kept weights were then trained towards the dense model, with a fixed mask: {}.\n",
            stages.join(", then ")
        ));
    }
    if let Some(last) = record.last() {
        put("| | token perplexity | word perplexity |\n|---|---|---|");
        if let Some(dense) = record.dense() {
            put(&format!(
                "| dense | {:.3} | {:.3} |",
                dense.token_perplexity, dense.word_perplexity
            ));
        }
        put(&format!("| pruned | {:.3} | {:.3} |\n", last.token_perplexity, last.word_perplexity));
    }
    if let Some(found) = &record.similarity {
        put(&format!(
            "Its sentence vectors have a mean cosine similarity of {:.4} to those of the dense model ({:.4} at the lowest), over {} of {}.\n",
            found.mean,
            found.least,
            count(found.texts, "text"),
            found.text
        ));
    }
    let tasks = record.task_pairs();
    if !tasks.is_empty() {
        put("| task | documents | accuracy | dense |\n|---|---|---|---|");
        for (dense, task) in &tasks {
            let dense = dense.map_or(String::new(), |dense| format!("{:.4}", dense.acc));
            put(&format!("| {} | {} | {:.4} | {dense} |", task.name, task.docs, task.acc));
        }
        put("");
    }
    let encoder = FAMILIES.iter().any(|f| f.name == record.family && f.encoder.is_some());
    let mut by_name: BTreeMap<&str, (f64, f64, f64)> = BTreeMap::new();
    for linear in record.linears().filter(|linear| linear.method.is_some()) {
        let name = linear.name.trim_end_matches(".weight");
        // Several linears of an encoder end with `dense`.
        let name = match split_layer_name(name).filter(|_| encoder) {
            Some((_, name)) => name,
            None => name.rsplit('.').next().unwrap_or_default(),
        };
        let sums = by_name.entry(name).or_default();
        *sums = (sums.0 + linear.error, sums.1 + linear.density, sums.2 + 1.0);
    }
    if !by_name.is_empty() {
        put(
            "Output error of the linear layers, `sqrt(tr(D H D') / tr(W H W'))`, mean over the layers:\n",
        );
        put(if sparse {
            "| linear | error | density |\n|---|---|---|"
        } else {
            "| linear | error |\n|---|---|"
        });
    }
    for (name, (error, density, count)) in by_name {
        let density = if sparse { format!(" {:.4} |", density / count) } else { String::new() };
        put(&format!("| {name} | {:.4} |{density}", error / count));
    }
    put("\nIt loads like the original model:\n");
    let class = if encoder { "AutoModel" } else { "AutoModelForCausalLM" };
    put(&format!(
        "```python\nfrom transformers import {class}\nmodel = {class}.from_pretrained(\"path/to/this/folder\")\n```\n"
    ));
    put("`openwork/record.json` has all measurements, `openwork/recipe.toml` the recipe.");
    text
}
