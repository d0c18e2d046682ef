//! Milliseconds per row of `s-obs`, and the memory it works in.

use clap::Parser;
use openwork::prune::{Method, Monitor, Task, prune};
use openwork_bench::{
    Captures, Common, Failed, bind, finish, memory, random, record, run, synthetic,
};
use serde_json::{Value, json};
use std::sync::atomic::{AtomicUsize, Ordering::Relaxed};

#[global_allocator]
static ALLOCATOR: memory::Counting = memory::Counting;

/// Starts a new peak when the first rows are done: factors and inverse are complete then.
struct FromFirstRow {
    least: AtomicUsize,
}

impl Monitor for FromFirstRow {
    fn progress(&self, _: f64) {
        if self.least.fetch_min(memory::used(), Relaxed) == usize::MAX {
            memory::reset_peak();
        }
    }
}

/// Measure milliseconds per row, and the peak allocation at a large K
#[derive(Parser)]
struct Args {
    #[command(flatten)]
    captures: Captures,
    /// Layers to time; synthetic ones without captures
    #[arg(long, value_delimiter = ',', default_values_t = ["14.q".to_string(), "14.down".to_string()])]
    layers: Vec<String>,
    /// The method
    #[arg(long, default_value = "s-obs[damping=diag:0.01]")]
    method: String,
    /// Columns of the run whose memory is counted; 0 skips it
    #[arg(long, default_value_t = 9728)]
    memory_columns: usize,
    /// Rows of that run
    #[arg(long, default_value_t = 64)]
    memory_rows: usize,
    /// Number of threads
    #[arg(long, default_value_t = 1)]
    threads: usize,
    #[command(flatten)]
    common: Common,
}

fn main() -> std::process::ExitCode {
    finish(rows(Args::parse()))
}

fn rows(args: Args) -> Result<(), Failed> {
    let mut table = vec![["layer", "rows", "K", "ms per row", "error"].map(String::from).to_vec()];
    let (mut results, mut source) = (Vec::new(), "no");
    for name in &args.layers {
        let (w, h, kind) = args.captures.layer(name)?;
        source = kind;
        let spec = bind("2:4", w.rows(), w.cols())?;
        let (mut least, mut error) = (f64::INFINITY, 0.0);
        for _ in 0..args.common.repeats.max(1) {
            let pruned = run(&args.method, &spec, &w, &h, args.threads)?;
            (least, error) = (least.min(pruned.seconds), pruned.error);
        }
        let ms = 1e3 * least / w.rows() as f64;
        table.push(vec![
            name.clone(),
            w.rows().to_string(),
            w.cols().to_string(),
            format!("{ms:.2}"),
            format!("{:.2} %", 100.0 * error),
        ]);
        results.push(json!({
            "layer": name, "rows": w.rows(), "columns": w.cols(), "ms_per_row": ms, "error": error,
        }));
    }
    println!("`{}`, 2:4, {source} layers, {} threads\n", args.method, args.threads);
    println!("{}", record::markdown(&table));
    let memory = if args.memory_columns > 0 { measure_memory(&args)? } else { Value::Null };
    args.common.save(
        "rows",
        json!({
            "threads": args.threads, "method": args.method, "layers": source,
            "results": results, "memory": memory,
        }),
    )
}

/// Prunes a few rows of many columns and counts the allocations.
fn measure_memory(args: &Args) -> Result<Value, Failed> {
    let (m, k) = (args.memory_rows, args.memory_columns);
    eprintln!("H of {k} columns ..");
    let h = synthetic(k, 1024.min(2 * k))?;
    let (w, spec) = (random(m, k, 7), bind("2:4", m, k)?);
    let method: Method = args.method.parse()?;
    let monitor = FromFirstRow { least: AtomicUsize::new(usize::MAX) };
    let before = memory::reset_peak();
    let pool = rayon::ThreadPoolBuilder::new().num_threads(args.threads).build()?;
    let mut task = Task::one(&spec, w.data(), Some(&h));
    task.monitor = &monitor;
    let pruned = pool.install(|| prune(&method, &task))?;
    let least = monitor.least.load(Relaxed);
    let working = memory::peak().saturating_sub(least);
    // rho = 1/2 of the columns are removed: (K/2)^2 / 2 floats per thread.
    let bound = k * k / 8 * 4 * args.threads;
    let mb = |bytes: usize| bytes as f64 / 1e6;
    println!(
        "{m} x {k}: {:.1} s; while rows are pruned {:.0} MB beyond what they share \
         ((rho K)^2/2 floats per thread are {:.0} MB, a K x K copy {:.0} MB); shared {:.0} MB",
        pruned.seconds,
        mb(working),
        mb(bound),
        mb(4 * k * k),
        mb(least.saturating_sub(before)),
    );
    Ok(json!({
        "rows": m, "columns": k, "seconds": pruned.seconds, "error": pruned.error,
        "working_bytes": working, "bound_bytes": bound, "shared_bytes": least.saturating_sub(before),
    }))
}
