//! Time and memory of binding a pattern to a large matrix: a table on stderr, JSON on
//! stdout.
//!
//! ```sh
//! cargo run --release -p openwork-bench --bin bind > bench/record/DATE-bind.json
//! ```

use openwork::Pattern;
use openwork_bench::memory;
use serde_json::json;
use std::process::ExitCode;
use std::time::Instant;

const PATTERNS: &[&str] = &["2:4", "2:4@8", "rows16", "block(16,16)"];
const SIDE: usize = 9728;
/// Times that each pattern is bound; the median and the slowest are shown.
const RUNS: usize = 101;
/// Limits of a bind.
const MAX_MS: f64 = 10.0;
const MAX_BYTES: usize = 1_000_000;

#[global_allocator]
static ALLOCATOR: memory::Counting = memory::Counting;

struct Row {
    spec: &'static str,
    median_ms: f64,
    slowest_ms: f64,
    peak_bytes: usize,
    held_bytes: usize,
}

/// Parses and binds `spec` repeatedly.
fn measure(spec: &'static str) -> Row {
    let mut times = Vec::with_capacity(RUNS);
    let (mut peak_bytes, mut held_bytes) = (0, 0);
    for _ in 0..RUNS {
        let before = memory::reset_peak();
        let start = Instant::now();
        let bound = spec.parse::<Pattern>().and_then(|pattern| pattern.bind(&[SIDE, SIDE]));
        times.push(start.elapsed().as_secs_f64() * 1e3);
        let bound = bound.expect("the patterns fit the shape");
        assert_eq!(bound.density(), 0.5);
        peak_bytes = peak_bytes.max(memory::peak() - before);
        held_bytes = held_bytes.max(memory::used() - before);
    }
    times.sort_by(f64::total_cmp);
    Row { spec, median_ms: times[RUNS / 2], slowest_ms: times[RUNS - 1], peak_bytes, held_bytes }
}

fn main() -> ExitCode {
    let rows: Vec<Row> = PATTERNS.iter().map(|spec| measure(spec)).collect();
    eprintln!("binding to {SIDE} x {SIDE}, {RUNS} times");
    eprintln!(
        "{:14} {:>10} {:>11} {:>11} {:>11}",
        "spec", "median ms", "slowest ms", "peak bytes", "held bytes"
    );
    let mut results = Vec::new();
    for r in &rows {
        eprintln!(
            "{:14} {:>10.4} {:>11.4} {:>11} {:>11}",
            r.spec, r.median_ms, r.slowest_ms, r.peak_bytes, r.held_bytes
        );
        results.push(json!({
            "spec": r.spec, "median_ms": r.median_ms, "slowest_ms": r.slowest_ms,
            "peak_bytes": r.peak_bytes, "held_bytes": r.held_bytes,
        }));
    }
    println!("{:#}", json!({"shape": [SIDE, SIDE], "runs": RUNS, "rows": results}));
    // By the median: one pause of the machine does not matter.
    match rows.iter().all(|r| r.median_ms < MAX_MS && r.peak_bytes < MAX_BYTES) {
        true => ExitCode::SUCCESS,
        false => {
            eprintln!("error: over the limit of {MAX_MS} ms and {MAX_BYTES} bytes");
            ExitCode::FAILURE
        }
    }
}
