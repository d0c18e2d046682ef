//! What a run would do, before it is done.

use super::options::PreparedRun;
use super::plan::Plan;
use super::{Pass, Passes};
use crate::format::{align_columns, format_bytes, format_estimate, windows};
use crate::model::{Config, LINEARS, Layer};
use serde_json::{Value, json};
use std::fmt;

impl PreparedRun<'_> {
    /// What would be done to every tensor, and what it needs.
    pub fn dry_run(&self) -> DryRun<'_> {
        // Each pass sees the sizes that the one before leaves.
        let config = self.model.config();
        let bound = |pass: &Pass| table(&pass.plan, &pass.change.before.config(config));
        let tables = self.passes.list.iter().map(bound).collect();
        DryRun { ready: self, tables }
    }
}

/// What a run would do: text for a person, or JSON.
#[derive(Debug)]
pub struct DryRun<'a> {
    ready: &'a PreparedRun<'a>,
    tables: Vec<Vec<Line>>,
}

impl DryRun<'_> {
    fn passes(&self) -> impl Iterator<Item = (&Pass, &[Line])> {
        self.ready.passes.list.iter().zip(self.tables.iter().map(Vec::as_slice))
    }

    fn notes(&self) -> impl Iterator<Item = &String> {
        self.ready.passes.list.iter().flat_map(|pass| &pass.plan.notes)
    }

    fn memory(&self) -> u64 {
        let needs = &self.ready.needs;
        if self.ready.spills() { needs.memory_spilled } else { needs.memory }
    }

    /// For a program.
    pub fn to_json(&self) -> Value {
        let tensors = |lines: &[Line]| -> Vec<Value> {
            lines
                .iter()
                .map(|line| {
                    json!({"name": line.name, "shape": line.shape, "spec": line.spec,
                           "method": line.method, "density": line.density})
                })
                .collect()
        };
        let passes: Vec<Value> = self
            .passes()
            .map(|(pass, lines)| {
                json!({"spec": pass.plan.recipe.spec, "before": pass.change.before,
                       "after": pass.change.after, "tensors": tensors(lines)})
            })
            .collect();
        let PreparedRun { job, needs, workers, .. } = self.ready;
        json!({
            "tensors": tensors(&self.tables[0]),
            "passes": passes,
            "notes": self.notes().collect::<Vec<_>>(),
            "calibration": {"samples": job.calibration.windows.len(),
                            "tokens": job.calibration.tokens()},
            "sequential": job.sequential,
            "workers": workers.map(|w| json!({"count": w.count, "threads": w.threads})),
            "memory_bytes": self.memory(),
            "spilled_bytes": if self.ready.spills() { needs.spilled } else { 0 },
            "disk_bytes": needs.disk,
            "forward_seconds": needs.forward_seconds,
            "prune_seconds": needs.prune_seconds,
        })
    }
}

impl fmt::Display for DryRun<'_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let PreparedRun { job, passes, needs, workers, .. } = self.ready;
        for (number, (pass, lines)) in self.passes().enumerate() {
            if !passes.is_plain() {
                write_pass(f, number, pass, passes)?;
            }
            if pass.depth.is_none() {
                f.write_str(&tensors(lines))?;
            }
        }
        self.notes().try_for_each(|note| writeln!(f, "note: {note}"))?;
        writeln!(
            f,
            "calibration  {}, inputs captured {}",
            windows(
                job.calibration.windows.len(),
                job.calibration.seq_len(),
                job.calibration.single_tokens.len()
            ),
            if job.sequential { "anew after each site" } else { "once per layer" },
        )?;
        let spilled = match self.ready.spills() {
            true => format!(", {} in a file", format_bytes(needs.spilled)),
            false => String::new(),
        };
        let each = workers.map_or(String::new(), |workers| {
            format!(" in each of {} workers with {} threads", workers.count, workers.threads)
        });
        writeln!(f, "memory       about {}{spilled}{each}", format_bytes(self.memory()))?;
        writeln!(f, "disk         {}", format_bytes(needs.disk))?;
        writeln!(
            f,
            "time         about {} (forward {}, pruning {})",
            format_estimate(needs.forward_seconds + needs.prune_seconds),
            format_estimate(needs.forward_seconds),
            format_estimate(needs.prune_seconds)
        )
    }
}

fn write_pass(
    f: &mut fmt::Formatter<'_>,
    number: usize,
    pass: &Pass,
    passes: &Passes,
) -> fmt::Result {
    let spec = pass.plan.recipe.spec.as_deref().unwrap_or("rules");
    let change = match pass.change.is_nothing() {
        true => "nothing is removed".to_string(),
        false => format!("from {}", pass.change),
    };
    writeln!(f, "pass {} of {}: {spec}; {change}", number + 1, passes.list.len())
}

/// The table of a pass.
fn tensors(lines: &[Line]) -> String {
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
    let pruned = lines.iter().filter(|line| line.spec.is_some()).count();
    let table = align_columns(&rows, [false, true, true, false, false]);
    format!("{table}\n{pruned} of {} linears would be pruned\n", lines.len())
}

/// The linears that a plan prunes, with what is done to each: layer, name,
/// shape, spec, method, density; no spec for those that stay dense.
fn table(plan: &Plan, config: &Config) -> Vec<Line> {
    let shapes = Layer::linear_shapes(config);
    let mut lines = Vec::new();
    for (index, layer) in plan.layers.iter().enumerate() {
        for (linear, &shape) in shapes.iter().enumerate().take(LINEARS.len()) {
            let task = layer.tasks.iter().find(|task| task.linears.contains(&linear));
            lines.push(Line {
                name: Layer::weight_name(index, linear),
                shape,
                spec: task.map(|task| task.pattern.to_string()),
                method: task.map(|task| task.method.clone()),
                density: task.map_or(1.0, |task| task.spec.density()),
            });
        }
    }
    lines
}

/// One linear in a plan.
#[derive(Clone, Debug)]
struct Line {
    /// The tensor.
    name: String,
    /// Rows and columns.
    shape: [usize; 2],
    /// Its spec, unless it stays dense.
    spec: Option<String>,
    /// Its method, unless it stays dense.
    method: Option<String>,
    /// The share of blocks that stay.
    density: f64,
}
