//! Growth of the time per row of `s-obs` with the number of columns K: a table, the
//! exponent and a plot.

use clap::Parser;
use openwork_bench::{Common, Failed, bind, finish, head, plot, random, record, run, synthetic};
use serde_json::json;
use std::path::PathBuf;

/// Measure the time per row against K
#[derive(Parser)]
struct Args {
    /// Numbers of columns
    #[arg(long, value_delimiter = ',', default_values_t = [256, 384, 576, 768, 1024, 1536, 2048, 3072])]
    columns: Vec<usize>,
    /// The method
    #[arg(long, default_value = "s-obs[damping=diag:0.01]")]
    method: String,
    /// The pattern
    #[arg(long, default_value = "2:4")]
    pattern: String,
    /// Rows of the larger run; the smaller one has a quarter
    #[arg(long, default_value_t = 128)]
    rows: usize,
    /// Number of threads
    #[arg(long, default_value_t = 1)]
    threads: usize,
    #[command(flatten)]
    common: Common,
    /// Write the plot to this file
    #[arg(long)]
    svg: Option<PathBuf>,
}

fn main() -> std::process::ExitCode {
    finish(growth(Args::parse()))
}

fn growth(args: Args) -> Result<(), Failed> {
    let few = (args.rows / 4).max(1);
    let mut points = Vec::new();
    let mut rows = vec![["K", "ms per row", "factoring, s"].map(String::from).to_vec()];
    for &k in &args.columns {
        let h = synthetic(k, 2 * k)?;
        let w = random(args.rows, k, 7);
        let part = head(&w, few);
        let specs = [bind(&args.pattern, few, k)?, bind(&args.pattern, args.rows, k)?];
        // The difference of two sizes does not contain the factorization.
        let mut least = [f64::INFINITY; 2];
        for _ in 0..args.common.repeats.max(1) {
            for (at, w) in [&part, &w].into_iter().enumerate() {
                let seconds = run(&args.method, &specs[at], w, &h, args.threads)?.seconds;
                least[at] = least[at].min(seconds);
            }
        }
        let row = (least[1] - least[0]).max(1e-9) / (args.rows - few) as f64;
        let fixed = least[0] - few as f64 * row;
        rows.push(vec![k.to_string(), format!("{:.3}", 1e3 * row), format!("{fixed:.3}")]);
        points.push((k as f64, 1e3 * row));
        eprintln!("K = {k}: {:.3} ms per row", 1e3 * row);
    }
    let (_, exponent) = plot::power_law(&points);
    println!("`{}`, {}, {} threads\n", args.method, args.pattern, args.threads);
    println!("{}\nms per row grow as K^{exponent:.2}", record::markdown(&rows));
    if let Some(path) = &args.svg {
        let title = format!("{} on {}", args.method, args.pattern);
        std::fs::write(path, plot::svg(&title, "K", "ms per row", &points))?;
    }
    let points: Vec<_> = points.iter().map(|(k, ms)| json!({"columns": k, "ms": ms})).collect();
    args.common.save(
        "growth",
        json!({
            "threads": args.threads, "method": args.method, "pattern": args.pattern, "exponent": exponent,
            "ms_per_row": points,
        }),
    )
}
