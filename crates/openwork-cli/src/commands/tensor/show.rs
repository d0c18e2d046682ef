//! The results as a table and as JSON.

use super::{Outcome, Weights};
use openwork::Spec;
use openwork::mask::Bits;
use openwork_llm::format::align_columns;
use serde_json::{Value, json};

/// The results as one JSON object.
pub fn json(spec: &Spec, weights: &[&Weights<'_>], outcomes: &[Outcome]) -> Value {
    let tensors: Vec<Value> = weights
        .iter()
        .map(|w| {
            let dtype = w.entry.dtype.name().to_lowercase();
            json!({"name": w.label, "tensor": w.entry.name, "shape": w.entry.shape, "dtype": dtype})
        })
        .collect();
    let results: Vec<Value> = outcomes
        .iter()
        .map(|outcome| {
            let pruned = &outcome.pruned;
            let density = pruned.mask.density();
            let parts: Vec<Value> = weights
                .iter()
                .zip(pruned.mask.tensors())
                .zip(&pruned.errors)
                .map(|((w, bits), error)| {
                    json!({"name": w.label, "error": error, "density": kept_fraction(bits)})
                })
                .collect();
            json!({
                "method": outcome.method,
                "error": pruned.error,
                "seconds": pruned.seconds,
                "density": density,
                "sparsity": 1.0 - density,
                "conforms": outcome.conforms,
                "damping": pruned.damping.map(|damping| damping.to_string()),
                "notes": pruned.notes,
                "tensors": parts,
            })
        })
        .collect();
    json!({"spec": spec.text(), "tensors": tensors, "results": results})
}

/// The fraction of a tensor's weights that is kept.
fn kept_fraction(bits: &Bits) -> f64 {
    bits.count() as f64 / bits.len().max(1) as f64
}

/// One line per tensor, then a table with one row per method.
pub fn table(spec: &Spec, weights: &[&Weights<'_>], outcomes: &[Outcome]) -> String {
    let mut text = format!("{}\n", spec.text());
    for w in weights {
        let dims: Vec<String> = w.entry.shape.iter().map(usize::to_string).collect();
        let dtype = w.entry.dtype.name().to_lowercase();
        text += &format!("  {}  {}  {dtype}\n", w.label, dims.join(" x "));
    }
    let mut rows = vec![["method", "error", "density", "seconds", "damping"].map(String::from)];
    for outcome in outcomes {
        let pruned = &outcome.pruned;
        rows.push([
            outcome.method.clone(),
            format!("{:.3} %", 100.0 * pruned.error),
            format!("{:.2} %", 100.0 * pruned.mask.density()),
            format!("{:.3}", pruned.seconds),
            pruned.damping.map_or("-".to_string(), |damping| damping.to_string()),
        ]);
        if weights.len() > 1 {
            for ((w, bits), error) in weights.iter().zip(pruned.mask.tensors()).zip(&pruned.errors)
            {
                rows.push([
                    format!("  {}", w.label),
                    format!("{:.3} %", 100.0 * error),
                    format!("{:.2} %", 100.0 * kept_fraction(bits)),
                    String::new(),
                    String::new(),
                ]);
            }
        }
        if !outcome.conforms {
            rows.push(["  does not conform to the spec", "", "", "", ""].map(String::from));
        }
    }
    text.push('\n');
    text + &align_columns(&rows, [false, true, true, true, false])
}

/// The notes, each once with the methods it applies to.
pub fn notes(outcomes: &[Outcome]) -> String {
    let mut notes: Vec<(&str, Vec<&str>)> = Vec::new();
    for outcome in outcomes {
        for note in &outcome.pruned.notes {
            match notes.iter_mut().find(|(known, _)| known == note) {
                Some((_, methods)) => methods.push(&outcome.method),
                None => notes.push((note, vec![&outcome.method])),
            }
        }
    }
    notes
        .into_iter()
        .map(|(note, methods)| {
            if methods.len() == outcomes.len() {
                format!("note: {note}\n")
            } else {
                format!("note: {}: {note}\n", methods.join(", "))
            }
        })
        .collect()
}
