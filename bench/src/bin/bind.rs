//! How long it takes to bind a pattern to a large matrix, and how much memory:
//! a table on stderr, JSON on stdout.
//!
//! ```sh
//! cargo run --release -p openwork-bench --bin bind > bench/record/DATE-bind.json
//! ```

use openwork::Pattern;
use std::alloc::{GlobalAlloc, Layout, System};
use std::sync::atomic::{AtomicUsize, Ordering::Relaxed};
use std::time::Instant;

const PATTERNS: &[&str] = &["2:4", "2:4@8", "rows16", "block(16,16)"];
const SIDE: usize = 9728;
/// Each pattern is bound this often; the median and the slowest are shown.
const RUNS: usize = 101;
/// What a bind may take.
const MOST_MS: f64 = 10.0;
const MOST_BYTES: usize = 1_000_000;

/// The system's allocator, counting bytes in use and their peak.
struct Counting;

static USED: AtomicUsize = AtomicUsize::new(0);
static PEAK: AtomicUsize = AtomicUsize::new(0);

// SAFETY: every call goes to the system's allocator unchanged; counting touches
// two atomics only.
unsafe impl GlobalAlloc for Counting {
    unsafe fn alloc(&self, layout: Layout) -> *mut u8 {
        let used = USED.fetch_add(layout.size(), Relaxed) + layout.size();
        PEAK.fetch_max(used, Relaxed);
        // SAFETY: the caller's promises are passed on.
        unsafe { System.alloc(layout) }
    }

    unsafe fn dealloc(&self, pointer: *mut u8, layout: Layout) {
        USED.fetch_sub(layout.size(), Relaxed);
        // SAFETY: the caller's promises are passed on.
        unsafe { System.dealloc(pointer, layout) }
    }
}

#[global_allocator]
static ALLOCATOR: Counting = Counting;

struct Row {
    spec: &'static str,
    median_ms: f64,
    slowest_ms: f64,
    peak_bytes: usize,
    held_bytes: usize,
}

/// Reads and binds `spec`, again and again.
fn measure(spec: &'static str) -> Row {
    let mut times = Vec::with_capacity(RUNS);
    let (mut peak_bytes, mut held_bytes) = (0, 0);
    for _ in 0..RUNS {
        let before = USED.load(Relaxed);
        PEAK.store(before, Relaxed);
        let start = Instant::now();
        let bound = spec.parse::<Pattern>().and_then(|pattern| pattern.bind(&[SIDE, SIDE]));
        times.push(start.elapsed().as_secs_f64() * 1e3);
        let bound = bound.expect("the patterns fit the shape");
        assert_eq!(bound.density(), 0.5);
        peak_bytes = peak_bytes.max(PEAK.load(Relaxed) - before);
        held_bytes = held_bytes.max(USED.load(Relaxed) - before);
    }
    times.sort_by(f64::total_cmp);
    Row { spec, median_ms: times[RUNS / 2], slowest_ms: times[RUNS - 1], peak_bytes, held_bytes }
}

fn main() {
    let rows: Vec<Row> = PATTERNS.iter().map(|spec| measure(spec)).collect();
    eprintln!("binding to {SIDE} x {SIDE}, {RUNS} times");
    eprintln!(
        "{:14} {:>10} {:>11} {:>11} {:>11}",
        "spec", "median ms", "slowest ms", "peak bytes", "held bytes"
    );
    for r in &rows {
        eprintln!(
            "{:14} {:>10.4} {:>11.4} {:>11} {:>11}",
            r.spec, r.median_ms, r.slowest_ms, r.peak_bytes, r.held_bytes
        );
    }
    let rows_json: Vec<String> = rows
        .iter()
        .map(|r| {
            format!(
                "    {{\"spec\": \"{}\", \"median_ms\": {:.4}, \"slowest_ms\": {:.4}, \"peak_bytes\": {}, \"held_bytes\": {}}}",
                r.spec, r.median_ms, r.slowest_ms, r.peak_bytes, r.held_bytes
            )
        })
        .collect();
    println!(
        "{{\n  \"shape\": [{SIDE}, {SIDE}],\n  \"runs\": {RUNS},\n  \"rows\": [\n{}\n  ]\n}}",
        rows_json.join(",\n")
    );
    // The claim is about a bind, not about a machine that pauses it once.
    let kept = rows.iter().all(|r| r.median_ms < MOST_MS && r.peak_bytes < MOST_BYTES);
    if !kept {
        eprintln!("over the limit of {MOST_MS} ms and {MOST_BYTES} bytes");
        std::process::exit(1);
    }
}
