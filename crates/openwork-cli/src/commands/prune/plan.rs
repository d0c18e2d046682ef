//! What `--dry-run` prints.

use crate::args::Global;
use crate::failure::Failure;
use crate::print::{self, size};
use openwork_llm::model::Model;
use openwork_llm::pipeline::estimate::{Estimate, Line, table};
use openwork_llm::pipeline::{Job, Pass, Passes};
use serde_json::json;

/// Prints what would be done to every tensor and what it needs.
pub fn show(
    job: &Job<'_>,
    passes: &Passes,
    model: &Model<'_>,
    needs: &Estimate,
    global: &Global,
) -> Result<(), Failure> {
    // Each pass sees the sizes that the one before leaves.
    let tables: Vec<(&Pass, Vec<Line>)> = passes
        .list
        .iter()
        .map(|pass| (pass, table(&pass.plan, &pass.change.before.config(model.config()))))
        .collect();
    let notes: Vec<&String> = passes.list.iter().flat_map(|pass| &pass.plan.notes).collect();
    let memory = if job.spill { needs.memory_spilled } else { needs.memory };
    if global.json {
        let tensors = |lines: &[Line]| -> Vec<_> {
            lines
                .iter()
                .map(|line| {
                    json!({"name": line.name, "shape": line.shape, "spec": line.spec,
                           "method": line.method, "density": line.density})
                })
                .collect()
        };
        let passes: Vec<_> = tables
            .iter()
            .map(|(pass, lines)| {
                json!({"spec": pass.plan.recipe.spec, "before": pass.change.before,
                       "after": pass.change.after, "tensors": tensors(lines)})
            })
            .collect();
        return print::line(json!({
            "tensors": tensors(&tables[0].1),
            "passes": passes,
            "notes": notes,
            "calibration": {"samples": job.calibration.windows.len(),
                            "tokens": job.calibration.tokens()},
            "sequential": job.sequential,
            "memory_bytes": memory,
            "spilled_bytes": if job.spill { needs.spilled } else { 0 },
            "disk_bytes": needs.disk,
            "forward_seconds": needs.forward_seconds,
            "prune_seconds": needs.prune_seconds,
        }));
    }
    for (number, (pass, lines)) in tables.iter().enumerate() {
        if !passes.is_plain() {
            let spec = pass.plan.recipe.spec.as_deref().unwrap_or("rules");
            print::line(format!(
                "pass {} of {}: {spec}; {}",
                number + 1,
                tables.len(),
                match pass.change.is_nothing() {
                    true => "nothing is removed".to_string(),
                    false => format!("from {}", pass.change),
                }
            ))?;
        }
        if pass.depth.is_none() {
            show_tensors(lines)?;
        }
    }
    for note in notes {
        print::line(format!("note: {note}"))?;
    }
    print::line(format!(
        "calibration  {} windows of {} tokens, inputs captured {}",
        job.calibration.windows.len(),
        job.calibration.seq_len(),
        if job.sequential { "anew after each site" } else { "once per layer" },
    ))?;
    let spilled =
        if job.spill { format!(", {} in a file", size(needs.spilled)) } else { String::new() };
    print::line(format!("memory       about {}{spilled}", size(memory)))?;
    print::line(format!("disk         {}", size(needs.disk)))?;
    print::line(format!(
        "time         about {} (forward {}, pruning {})",
        time(needs.forward_seconds + needs.prune_seconds),
        time(needs.forward_seconds),
        time(needs.prune_seconds)
    ))
}

/// The table of a pass.
fn show_tensors(lines: &[Line]) -> Result<(), Failure> {
    let head = ["tensor", "shape", "density", "spec", "method"].map(String::from);
    let rows: Vec<[String; 5]> = std::iter::once(head)
        .chain(lines.iter().map(|line| {
            [
                line.name.clone(),
                format!("{} x {}", line.shape[0], line.shape[1]),
                format!("{:.1}%", 100.0 * line.density),
                line.spec.clone().unwrap_or_else(|| "dense".to_string()),
                line.method.clone().unwrap_or_default(),
            ]
        }))
        .collect();
    print::text(&print::columns(&rows, [false, true, true, false, false]))?;
    print::line("")?;
    let pruned = lines.iter().filter(|line| line.spec.is_some()).count();
    print::line(format!("{pruned} of {} linears would be pruned", lines.len()))
}

/// Seconds as a person says them.
pub fn time(seconds: f64) -> String {
    match seconds {
        s if s < 90.0 => format!("{s:.0} s"),
        s if s < 5400.0 => format!("{:.0} min", s / 60.0),
        s => format!("{:.1} h", s / 3600.0),
    }
}
