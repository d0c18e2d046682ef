//! Milliseconds per row of `s-obs`, and the memory it works in.

use clap::Parser;
use openwork::prune::{Method, Monitor, Task, prune};
use openwork_bench::{Failed, bind, capture, finish, random, record, run, synthetic};
use serde_json::{Value, json};
use std::alloc::{GlobalAlloc, Layout, System};
use std::path::PathBuf;
use std::sync::atomic::{AtomicUsize, Ordering::Relaxed};

/// The system's allocator, counting.
struct Counting;

static NOW: AtomicUsize = AtomicUsize::new(0);
static PEAK: AtomicUsize = AtomicUsize::new(0);

// SAFETY: every call goes to the system's allocator as it came; only sizes are
// counted beside it.
unsafe impl GlobalAlloc for Counting {
    unsafe fn alloc(&self, layout: Layout) -> *mut u8 {
        count(layout.size());
        // SAFETY: the caller's promises are the system allocator's.
        unsafe { System.alloc(layout) }
    }

    unsafe fn alloc_zeroed(&self, layout: Layout) -> *mut u8 {
        count(layout.size());
        // SAFETY: as above.
        unsafe { System.alloc_zeroed(layout) }
    }

    unsafe fn dealloc(&self, at: *mut u8, layout: Layout) {
        NOW.fetch_sub(layout.size(), Relaxed);
        // SAFETY: as above.
        unsafe { System.dealloc(at, layout) }
    }
}

fn count(size: usize) {
    let now = NOW.fetch_add(size, Relaxed) + size;
    PEAK.fetch_max(now, Relaxed);
}

#[global_allocator]
static ALLOCATOR: Counting = Counting;

/// Starts counting anew once rows are done: factors and inverse are over then.
struct FromFirstRow {
    least: AtomicUsize,
}

impl Monitor for FromFirstRow {
    fn progress(&self, _: f64) {
        let now = NOW.load(Relaxed);
        if self.least.fetch_min(now, Relaxed) == usize::MAX {
            PEAK.store(now, Relaxed);
        }
    }
}

/// Measures milliseconds per row, and the peak allocation at a large K
#[derive(Parser)]
struct Args {
    /// The folder that bench/capture.py wrote; without it layers are synthetic [default: $OPENWORK_CAPTURES]
    #[arg(long)]
    captures: Option<PathBuf>,
    /// Layers to time
    #[arg(long, value_delimiter = ',', default_values_t = ["14.q".to_string(), "14.down".to_string()])]
    layers: Vec<String>,
    /// The method
    #[arg(long, default_value = "s-obs[damping=diag:0.01]")]
    method: String,
    /// Columns of the run whose memory is counted; 0 leaves it out
    #[arg(long, default_value_t = 9728)]
    memory_columns: usize,
    /// Rows of that run
    #[arg(long, default_value_t = 64)]
    memory_rows: usize,
    /// Runs of each; the least time counts
    #[arg(long, default_value_t = 3)]
    repeats: usize,
    /// Threads
    #[arg(long, default_value_t = 1)]
    threads: usize,
    /// Writes all figures as JSON
    #[arg(long)]
    record: Option<PathBuf>,
}

fn main() -> std::process::ExitCode {
    finish(rows(Args::parse()))
}

fn rows(args: Args) -> Result<(), Failed> {
    let folder = capture::folder(args.captures.clone());
    let mut table = vec![["layer", "rows", "K", "ms per row", "error"].map(String::from).to_vec()];
    let mut results = Vec::new();
    for name in &args.layers {
        let (w, h) = match &folder {
            Ok(folder) => {
                let layer = capture::load(folder, name)?;
                (layer.weight, layer.hessian)
            }
            Err(_) => {
                let k = if name.ends_with("down") { 1536 } else { 576 };
                (random(576, k, 7), synthetic(k, 4 * k)?)
            }
        };
        let spec = bind("2:4", w.rows(), w.cols())?;
        let (mut least, mut error) = (f64::INFINITY, 0.0);
        for _ in 0..args.repeats.max(1) {
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
    let real = if folder.is_ok() { "captured" } else { "synthetic" };
    println!("`{}`, 2:4, {real} layers, {} threads\n", args.method, args.threads);
    println!("{}", record::markdown(&table));
    let memory = if args.memory_columns > 0 { memory(&args)? } else { Value::Null };
    let record = json!({
        "benchmark": "rows", "machine": record::machine(), "threads": args.threads,
        "method": args.method, "layers": real, "results": results, "memory": memory,
    });
    record::save(args.record.as_deref(), &record)
}

/// Prunes a few rows of many columns and counts what is allocated.
fn memory(args: &Args) -> Result<Value, Failed> {
    let (m, k) = (args.memory_rows, args.memory_columns);
    eprintln!("H of {k} columns ..");
    let h = synthetic(k, 1024.min(2 * k))?;
    let (w, spec) = (random(m, k, 7), bind("2:4", m, k)?);
    let method: Method = args.method.parse()?;
    let monitor = FromFirstRow { least: AtomicUsize::new(usize::MAX) };
    let before = NOW.load(Relaxed);
    PEAK.store(before, Relaxed);
    let pool = rayon::ThreadPoolBuilder::new().num_threads(args.threads).build()?;
    let mut task = Task::one(&spec, w.data(), Some(&h));
    task.monitor = &monitor;
    let pruned = pool.install(|| prune(&method, &task))?;
    let least = monitor.least.load(Relaxed);
    let working = PEAK.load(Relaxed).saturating_sub(least);
    // rho = 1/2 of the columns go: (K/2)^2 / 2 floats for each thread.
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
