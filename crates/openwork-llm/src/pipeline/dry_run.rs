//! Dry runs: the plan of a run and what it needs, as text and as JSON.

use super::plan::{Plan, TaskPlan};
use super::prepare::PreparedRun;
use super::{Pass, Passes};
use crate::format::{align_columns, count, format_bytes, format_estimate, windows};
use crate::model::{Config, LayerInfo};
use crate::shrink::ranges;
use serde_json::{Value, json};
use std::fmt;

impl PreparedRun<'_> {
    /// The plan, and the resources it needs.
    pub fn dry_run(&self) -> DryRun<'_> {
        // Each pass sees the sizes that the one before leaves.
        let config = self.model.config();
        let planned = |pass: &Pass| planned(&pass.plan, &pass.change.before.config(config));
        let passes = self.passes.list.iter().map(planned).collect();
        DryRun { run: self, passes }
    }
}

/// The plan of a run, as text (`Display`) or as JSON.
#[derive(Debug)]
pub struct DryRun<'a> {
    run: &'a PreparedRun<'a>,
    /// The linears of every pass.
    passes: Vec<Vec<PlannedLinear>>,
}

impl DryRun<'_> {
    fn passes(&self) -> impl Iterator<Item = (&Pass, &[PlannedLinear])> {
        self.run.passes.list.iter().zip(self.passes.iter().map(Vec::as_slice))
    }

    fn memory(&self) -> u64 {
        let needs = &self.run.needs;
        if self.run.spills() { needs.memory_spilled } else { needs.memory }
    }

    /// The plan as JSON.
    pub fn to_json(&self) -> Value {
        let tensors = |linears: &[PlannedLinear]| -> Vec<Value> {
            linears
                .iter()
                .map(|linear| {
                    json!({"name": linear.name,
                           "shape": linear.shape, "spec": linear.pattern,
                           "method": linear.method, "density": linear.density})
                })
                .collect()
        };
        let passes: Vec<Value> = self
            .passes()
            .map(|(pass, linears)| {
                json!({"spec": pass.spec, "before": pass.change.before,
                       "after": pass.change.after, "tensors": tensors(linears)})
            })
            .collect();
        let PreparedRun { job, needs, workers, notes, .. } = self.run;
        json!({
            "tensors": tensors(&self.passes[0]),
            "passes": passes,
            "notes": notes,
            "calibration": {"samples": job.calibration.windows.len(),
                            "tokens": job.calibration.tokens()},
            "sequential": self.run.passes.sequential,
            "workers": workers.map(|w| json!({"count": w.count, "threads": w.threads})),
            "memory_bytes": self.memory(),
            "spilled_bytes": if self.run.spills() { needs.spilled } else { 0 },
            "disk_bytes": needs.disk,
            "recovery": job.recovery.as_ref().map(|plan| plan.recovery.to_string()),
            "recovery_seconds": needs.recovery_seconds,
            "forward_seconds": needs.forward_seconds,
            "prune_seconds": needs.prune_seconds,
        })
    }
}

impl fmt::Display for DryRun<'_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let PreparedRun { job, passes, needs, workers, notes, .. } = self.run;
        for (number, (pass, linears)) in self.passes().enumerate() {
            if !passes.is_plain() {
                write_pass(f, number, pass, passes)?;
            }
            if pass.dropped.is_none() {
                f.write_str(&table(linears))?;
            }
        }
        notes.iter().try_for_each(|note| writeln!(f, "note: {note}"))?;
        writeln!(
            f,
            "calibration  {}, inputs captured {}",
            windows(
                job.calibration.windows.len(),
                job.calibration.seq_len(),
                job.calibration.single_tokens.len()
            ),
            if passes.sequential { "again after each site" } else { "once per layer" },
        )?;
        if let Some(plan) = &job.recovery {
            writeln!(f, "recovery     {}", plan.recovery)?;
        }
        let spilled = match self.run.spills() {
            true => format!(", {} in a file", format_bytes(needs.spilled)),
            false => String::new(),
        };
        let each = workers.map_or(String::new(), |workers| {
            let (each, threads) =
                (count(workers.count, "worker"), count(workers.threads, "thread"));
            format!(" in each of {each} with {threads}")
        });
        writeln!(f, "memory       about {}{spilled}{each}", format_bytes(self.memory()))?;
        writeln!(f, "disk         {}", format_bytes(needs.disk))?;
        writeln!(
            f,
            "time         about {} (forward {}, pruning {}{})",
            format_estimate(needs.forward_seconds + needs.prune_seconds + needs.recovery_seconds),
            format_estimate(needs.forward_seconds),
            format_estimate(needs.prune_seconds),
            match job.recovery.is_some() {
                true => format!(", recovery {}", format_estimate(needs.recovery_seconds)),
                false => String::new(),
            }
        )
    }
}

fn write_pass(
    f: &mut fmt::Formatter<'_>,
    number: usize,
    pass: &Pass,
    passes: &Passes,
) -> fmt::Result {
    let spec = pass.spec();
    let change = match pass.change.is_nothing() {
        true => "nothing is removed".to_string(),
        false => format!("from {}", pass.change),
    };
    writeln!(f, "pass {} of {}: {spec}; {change}", number + 1, passes.list.len())
}

/// The table of a pass: linears that are treated alike in several layers share a row.
fn table(linears: &[PlannedLinear]) -> String {
    let mut groups: Vec<(&PlannedLinear, Vec<usize>)> = Vec::new();
    for linear in linears {
        match groups.iter_mut().find(|(first, _)| first.is_like(linear)) {
            Some((_, layers)) => layers.push(linear.layer),
            None => groups.push((linear, vec![linear.layer])),
        }
    }
    let head = ["tensor", "layers", "shape", "density", "spec", "method"].map(String::from);
    let row = |(linear, layers): &(&PlannedLinear, Vec<usize>)| {
        [
            linear.short_name.clone(),
            ranges(layers),
            format!("{} x {}", linear.shape[0], linear.shape[1]),
            format!("{:.1}%", 100.0 * linear.density),
            linear.written.clone().unwrap_or_else(|| "dense".to_string()),
            linear.method.clone().unwrap_or_default(),
        ]
    };
    let rows: Vec<[String; 6]> = std::iter::once(head).chain(groups.iter().map(row)).collect();
    let pruned = linears.iter().filter(|linear| linear.pattern.is_some()).count();
    let table = align_columns(&rows, [false, true, true, true, false, false]);
    format!("{table}\n{pruned} of {} linear layers would be pruned\n", linears.len())
}

/// All linears of a model, with what a plan does to each.
fn planned(plan: &Plan, config: &Config) -> Vec<PlannedLinear> {
    let linear = |info: &LayerInfo, tasks: &[TaskPlan], linear: usize| {
        let task = tasks.iter().find(|task| task.linears.contains(&linear));
        PlannedLinear {
            layer: info.index,
            name: info.weight_name(linear),
            short_name: info.linears[linear].name.clone(),
            shape: info.linears[linear].shape,
            pattern: task.map(|task| task.pattern.to_string()),
            written: task.map(|task| task.written.clone()),
            method: task.map(|task| task.method.to_string()),
            density: task.map_or(1.0, |task| task.spec.density()),
        }
    };
    let layers = plan.layers.iter().enumerate();
    layers
        .flat_map(|(index, layer)| {
            let info = LayerInfo::new(config, index);
            let count = info.linears.len();
            (0..count).map(move |i| linear(&info, &layer.tasks, i)).collect::<Vec<_>>()
        })
        .collect()
}

/// One linear in a plan.
#[derive(Clone, Debug)]
struct PlannedLinear {
    layer: usize,
    /// The full name of its weights.
    name: String,
    /// Its name within the layer.
    short_name: String,
    /// Rows and columns.
    shape: [usize; 2],
    /// Its pattern, unless it stays dense.
    pattern: Option<String>,
    /// Its spec as given in the recipe, unless it stays dense.
    written: Option<String>,
    /// Its method, unless it stays dense.
    method: Option<String>,
    /// The share of blocks that are kept.
    density: f64,
}

impl PlannedLinear {
    /// Whether the plan does the same to the same linear of another layer.
    fn is_like(&self, other: &Self) -> bool {
        let key =
            |linear: &Self| (linear.short_name.clone(), linear.shape, linear.density.to_bits());
        key(self) == key(other)
            && (&self.pattern, &self.written, &self.method)
                == (&other.pattern, &other.written, &other.method)
    }
}
