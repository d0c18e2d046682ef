//! The single-layer table: patterns by methods on captured layers, with error, change
//! against SparseGPT and time.

use clap::Parser;
use openwork::prune::split_list;
use openwork_bench::{Captures, Common, Failed, bind, capture, finish, record, run};
use serde_json::json;

/// The paper's four patterns.
const PATTERNS: &str = "2:4,2:4@8,2:4x2,rows16";

/// Damping is fixed, so that all methods see the same H; SparseGPT has the
/// damping of its publication.
const METHODS: &str = "magnitude,wanda,s-obd,sparsegpt[damping=mean:0.01],\
sparsegpt[damping=diag:0.01]+refit,s-obs[damping=diag:0.01],admm[damping=diag:0.01],\
admm[damping=diag:0.01]+swap";

/// Prune captured layers with every method and print a Markdown table per pattern
#[derive(Parser)]
struct Args {
    #[command(flatten)]
    captures: Captures,
    /// Layers, such as 14.q,14.down [default: all]
    #[arg(long, value_delimiter = ',')]
    layers: Vec<String>,
    /// Patterns
    #[arg(long, value_delimiter = ',', default_value = PATTERNS)]
    patterns: Vec<String>,
    /// Methods
    #[arg(long, default_value = METHODS)]
    methods: String,
    /// Number of threads
    #[arg(long, default_value_t = 1)]
    threads: usize,
    #[command(flatten)]
    common: Common,
}

fn main() -> std::process::ExitCode {
    finish(table(Args::parse()))
}

fn table(args: Args) -> Result<(), Failed> {
    let folder = args.captures.folder()?;
    let methods = split_list(&args.methods)?;
    let layers = if args.layers.is_empty() { capture::names(&folder)? } else { args.layers };
    let mut results = Vec::new();
    println!("{} layers ({}), {} threads\n", layers.len(), layers.join(", "), args.threads);
    for pattern in &args.patterns {
        // [method][layer]
        let mut errors = vec![Vec::new(); methods.len()];
        let mut seconds = vec![Vec::new(); methods.len()];
        for name in &layers {
            let layer = capture::load(&folder, name)?;
            let spec = bind(pattern, layer.weight.rows(), layer.weight.cols())?;
            let mut least = vec![f64::INFINITY; methods.len()];
            let mut error = vec![0.0; methods.len()];
            // In turn, so that other load on the machine affects all alike.
            for _ in 0..args.common.repeats.max(1) {
                for (m, method) in methods.iter().enumerate() {
                    let pruned = run(method, &spec, &layer.weight, &layer.hessian, args.threads)?;
                    least[m] = least[m].min(pruned.seconds);
                    error[m] = pruned.error;
                }
            }
            for (m, method) in methods.iter().enumerate() {
                errors[m].push(error[m]);
                seconds[m].push(least[m]);
                results.push(json!({
                    "pattern": pattern, "layer": layer.name, "method": method,
                    "rows": layer.weight.rows(), "columns": layer.weight.cols(),
                    "error": error[m], "seconds": least[m],
                }));
            }
            eprintln!("{pattern} {name} done");
        }
        let base = methods.iter().position(|m| m.starts_with("sparsegpt") && !m.contains('+'));
        let mean = |m: usize| record::geometric_mean(&errors[m]);
        let head = ["method", "error (geometric mean)", "against sparsegpt", "seconds (sum)"];
        let mut rows = vec![head.map(String::from).to_vec()];
        for (m, method) in methods.iter().enumerate() {
            let gain = base.map_or("-".to_string(), |base| {
                format!("{:+.1} %", 100.0 * (mean(m) / mean(base) - 1.0))
            });
            let total: f64 = seconds[m].iter().sum();
            let error = format!("{:.2} %", 100.0 * mean(m));
            rows.push(vec![format!("`{method}`"), error, gain, format!("{total:.2}")]);
        }
        println!("### `{pattern}`\n\n{}", record::markdown(&rows));
    }
    args.common.save("single_layer", json!({"threads": args.threads, "results": results}))
}
