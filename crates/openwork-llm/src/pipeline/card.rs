//! The README of a pruned model: what it is, with its figures.

use crate::report::Record;
use std::collections::BTreeMap;
use std::fmt::Write;

/// A model card in Markdown. Holds nothing that differs between two runs of
/// one plan, such as times.
pub(super) fn text(record: &Record) -> String {
    let mut text = String::new();
    let mut put = |line: &str| {
        // Writing to a string cannot fail.
        let _ = writeln!(text, "{line}");
    };
    put("---\nlibrary_name: transformers\ntags:\n- openwork\n- pruned\n- sparse\n---\n");
    put(&format!("# {}, pruned\n", record.model));
    put(&format!(
        "Pruned by openwork {} with the spec `{}` and the method `{}`, layer by layer, on {} windows of {} tokens of `{}` (seed {}). {:.2}% of the weights of its linears are left; the others are exactly zero.\n",
        record.openwork,
        record.spec,
        record.method,
        record.calibration.samples,
        record.calibration.seq_len,
        record.calibration.text,
        record.seed,
        100.0 * record.totals.density,
    ));
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
    put("Output error of the linears, `sqrt(tr(D H D') / tr(W H W'))`, mean over the layers:\n");
    put("| linear | error | density |\n|---|---|---|");
    let mut by_name: BTreeMap<&str, (f64, f64, f64)> = BTreeMap::new();
    for linear in record.linears().filter(|linear| linear.spec.is_some()) {
        let name = linear.name.trim_end_matches(".weight").rsplit('.').next().unwrap_or_default();
        let sums = by_name.entry(name).or_default();
        *sums = (sums.0 + linear.error, sums.1 + linear.density, sums.2 + 1.0);
    }
    for (name, (error, density, count)) in by_name {
        put(&format!("| {name} | {:.4} | {:.4} |", error / count, density / count));
    }
    put("\nIt loads like the model it was made from:\n");
    put(
        "```python\nfrom transformers import AutoModelForCausalLM\nmodel = AutoModelForCausalLM.from_pretrained(\"path/to/this/folder\")\n```\n",
    );
    put(
        "`openwork/record.json` has everything that was measured, `openwork/recipe.toml` what was asked for.",
    );
    text
}
