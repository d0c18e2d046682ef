//! Products with packed weights against dense ones, with one vector and with many rows.

use clap::Parser;
use half::bf16;
use openwork::linalg::matvec::Element;
use openwork::linalg::{Threads, gemm};
use openwork::sparse::{self, Encoding, Packed, PackedValues, Quantized, Values, ValuesRef};
use openwork::{Mask, Matrix};
use openwork_bench::timing::interleave;
use openwork_bench::{Failed, bind, finish, random, record};
use rayon::prelude::*;
use serde_json::{Value, json};
use std::path::PathBuf;
use std::sync::Arc;

/// Time products with packed weights against dense ones, in turn
#[derive(Parser)]
struct Args {
    /// Patterns, separated by semicolons
    #[arg(
        long,
        default_value = "2:4;2:4@8;1:4;rows16;block(16,16);6:8;7:8;4:8;8:16;12:16;16:32;24:32;rowwise(50%);unstructured(50%);2:4x2;block (64,1) scope (1,8) keep 4 then 2:4;block (16,16) scope (1,_) keep 50% else 2:4;block (16,16) scope (1,_) keep 50% then 2:4"
    )]
    patterns: String,
    /// Value types, separated by commas
    #[arg(long, value_delimiter = ',', default_value = "bf16")]
    values: Vec<String>,
    /// Rows of the matrix of the matrix-vector product; a multiple of 1024
    #[arg(long, default_value_t = 16384)]
    rows: usize,
    /// Its columns
    #[arg(long, default_value_t = 8192)]
    columns: usize,
    /// Side of the matrix of the matrix-matrix product
    #[arg(long, default_value_t = 4096)]
    side: usize,
    /// Numbers of rows to multiply it with, separated by commas
    #[arg(long, value_delimiter = ',', default_value = "8,64,512")]
    batch: Vec<usize>,
    /// Numbers of threads, separated by commas
    #[arg(long, value_delimiter = ',', default_value = "1,2")]
    threads: Vec<usize>,
    /// Repetitions; the fastest counts
    #[arg(long, default_value_t = 20)]
    repeats: usize,
    /// Write all figures to this file as JSON
    #[arg(long, value_name = "FILE")]
    record: Option<PathBuf>,
}

/// Rows of the piece that a tall matrix repeats.
const PIECE: usize = 1024;
/// Bytes per task of the dense product, as in a model's forward pass.
const TASK_BYTES: usize = 1 << 19;

fn main() -> std::process::ExitCode {
    finish(packed(Args::parse()))
}

fn packed(args: Args) -> Result<(), Failed> {
    let load = std::fs::read_to_string("/proc/loadavg").unwrap_or_default();
    let mut results = Vec::new();
    let head = [
        "threads",
        "pattern",
        "values",
        "format",
        "ratio to dense",
        "limit",
        "speedup",
        "median",
        "GB/s",
        "dense GB/s",
        "stream GB/s",
    ];
    let mut vectors = vec![head.map(String::from).to_vec()];
    let head = [
        "threads",
        "pattern",
        "values",
        "rows",
        "against f32 gemm",
        "median",
        "GFLOP/s, dense count",
        "gemm",
    ];
    let mut products = vec![head.map(String::from).to_vec()];
    let (instructions, activations) = (sparse::kernel()?, sparse::activations()?);
    for pattern in args.patterns.split(';') {
        let piece = prune(pattern, PIECE, args.columns)?;
        let dense: Vec<bf16> = match piece.unpack() {
            Values::Bf16(w) => w.repeat(args.rows / PIECE),
            _ => unreachable!("packed as bf16"),
        };
        let narrow = prune(pattern, PIECE, args.side)?;
        for kind in &args.values {
            let encoding = Encoding::new(kind, Encoding::DEFAULT_GROUP)?;
            // Converting the piece alone saves most of the preparation.
            let tall = repeated(pattern, &piece.with_values(encoding)?, args.rows / PIECE)?;
            for &threads in &args.threads {
                let pool = rayon::ThreadPoolBuilder::new().num_threads(threads).build()?;
                let row = pool.install(|| vector(pattern, &tall, &dense, args.repeats));
                let number = |key: &str| row[key].as_f64().unwrap_or(f64::NAN);
                vectors.push(vec![
                    threads.to_string(),
                    format!("`{pattern}`"),
                    kind.clone(),
                    tall.format().name.to_string(),
                    format!("{:.4}", number("share")),
                    format!("{:.2}", 1.0 / number("share")),
                    format!("{:.2}", number("speedup")),
                    format!("{:.2}", number("median_speedup")),
                    format!("{:.1}", number("rate")),
                    format!("{:.1}", number("dense_rate")),
                    format!("{:.1}", number("stream_rate")),
                ]);
                eprintln!("{}", vectors[vectors.len() - 1].join("  "));
                results.push(json!({"threads": threads, "kind": "vector", "result": row}));
            }
            let square = repeated(pattern, &narrow.with_values(encoding)?, args.side / PIECE)?;
            for &threads in &args.threads {
                let pool = rayon::ThreadPoolBuilder::new().num_threads(threads).build()?;
                for &batch in &args.batch {
                    let row =
                        pool.install(|| product(pattern, &square, batch, args.repeats.min(16)));
                    let number = |key: &str| row[key].as_f64().unwrap_or(f64::NAN);
                    products.push(vec![
                        threads.to_string(),
                        format!("`{pattern}`"),
                        kind.clone(),
                        batch.to_string(),
                        format!("{:.2}", number("speedup")),
                        format!("{:.2}", number("median_speedup")),
                        format!("{:.1}", number("gflops")),
                        format!("{:.1}", number("gemm_gflops")),
                    ]);
                    eprintln!("{}", products[products.len() - 1].join("  "));
                    results.push(json!({"threads": threads, "kind": "product", "result": row}));
                }
            }
        }
    }
    println!(
        "{} x {}, one vector, against dense bf16; {instructions}, {activations}-bit activations\n",
        args.rows, args.columns
    );
    println!(
        "{}\n{} x {}, many rows, against dense f32\n",
        record::markdown(&vectors),
        args.side,
        args.side
    );
    println!("{}", record::markdown(&products));
    let record = json!({
        "benchmark": "packed", "machine": record::machine(), "load": load.trim(),
        "instructions": instructions, "activations": activations,
        "rows": args.rows, "columns": args.columns, "side": args.side, "results": results,
    });
    record::save(args.record.as_deref(), &record)
}

/// A random matrix, pruned by magnitude and packed.
fn prune(pattern: &str, rows: usize, cols: usize) -> Result<Packed, Failed> {
    let spec = bind(pattern, rows, cols)?;
    let w = random(rows, cols, 3);
    let score = |scope, block| {
        spec.elements(scope, block).map(|e| f64::from(w.data()[e.offset]).powi(2)).sum()
    };
    let mask = match spec.has_levels() {
        true => Mask::example(&spec, 3),
        false => Mask::select(&spec, score),
    };
    let mut kept = w.clone();
    mask.apply(0, kept.data_mut());
    let kept: Vec<bf16> = kept.data().iter().map(|&x| bf16::from_f32(x)).collect();
    Ok(Packed::pack(&Arc::new(spec), ValuesRef::Bf16(&kept))?)
}

/// The matrix repeated: all formats store strips of rows one after the other.
fn repeated(pattern: &str, piece: &Packed, times: usize) -> Result<Packed, Failed> {
    let spec = Arc::new(bind(pattern, piece.rows() * times, piece.cols())?);
    let values = match piece.values() {
        PackedValues::Numbers(Values::F32(v)) => Values::F32(v.repeat(times)).into(),
        PackedValues::Numbers(Values::F16(v)) => Values::F16(v.repeat(times)).into(),
        PackedValues::Numbers(Values::Bf16(v)) => Values::Bf16(v.repeat(times)).into(),
        PackedValues::Codes(codes) => {
            let mut all = Quantized::new(codes.bits(), codes.group());
            (0..times).for_each(|_| all.extend(codes));
            PackedValues::from(all)
        }
    };
    let index = piece.index().repeat(times);
    Ok(Packed::from_parts(&spec, 0, piece.format().name, index, values)?)
}

fn vector(pattern: &str, packed: &Packed, dense: &[bf16], repeats: usize) -> Value {
    let (rows, cols) = (packed.rows(), packed.cols());
    let x: Vec<f32> = (0..cols).map(|i| ((i * 7919) % 257) as f32 / 128.0 - 1.0).collect();
    let (mut y, mut z) = (vec![0.0f32; rows], vec![0.0f32; rows]);
    let step = (TASK_BYTES / 2 / cols).max(1);
    let mut sum = 0u64;
    let words: Vec<u64> = dense.chunks(4).map(|four| u64::from(four[0].to_bits())).collect();
    let turns = interleave(
        repeats,
        [
            &mut || packed.matvec(&x, &mut y),
            &mut || {
                z.par_chunks_mut(step).zip(dense.par_chunks(step * cols)).for_each(|(y, w)| {
                    bf16::matvec(w, &x, y);
                });
            },
            &mut || sum = sum.wrapping_add(stream(&words)),
        ],
    );
    std::hint::black_box(sum);
    let [fast, slow, read] = turns.least();
    let worst = y.iter().zip(&z).map(|(y, z)| (y - z).abs()).fold(0.0, f32::max);
    let codes = packed.values().codes().is_some(); // of other values than the dense ones
    assert!(codes || worst < 1e-2, "{pattern}: the products differ by {worst}");
    json!({
        "pattern": pattern, "format": packed.format().name,
        "values": packed.values().encoding().kind().name,
        "share": packed.bytes() as f64 / packed.dense_bytes() as f64,
        "seconds": fast, "dense_seconds": slow, "speedup": slow / fast, "median_speedup": turns.median_speedup(),
        "rate": packed.bytes() as f64 / fast / 1e9,
        "dense_rate": packed.dense_bytes() as f64 / slow / 1e9,
        "stream_rate": packed.dense_bytes() as f64 / read / 1e9,
    })
}

/// Adds integers in four streams per task, to measure the rate of reading memory.
fn stream(words: &[u64]) -> u64 {
    words
        .par_chunks(TASK_BYTES / 8)
        .map(|part| {
            let (streams, rest) = part.split_at(part.len() / 4 * 4);
            let quarter = streams.len() / 4;
            let mut sums = [0u64; 8];
            for at in (0..quarter / 8 * 8).step_by(8) {
                for s in 0..4 {
                    let line = &streams[s * quarter + at..][..8];
                    sums.iter_mut().zip(line).for_each(|(sum, x)| *sum = sum.wrapping_add(*x));
                }
            }
            sums.iter().chain(rest).fold(0u64, |a, &b| a.wrapping_add(b))
        })
        .fold(|| 0u64, u64::wrapping_add)
        .reduce(|| 0, u64::wrapping_add)
}

fn product(pattern: &str, packed: &Packed, batch: usize, repeats: usize) -> Value {
    let (rows, cols) = (packed.rows(), packed.cols());
    let w = Matrix::from_vec(rows, cols, packed.unpack().view().to_f32());
    let x = random(batch, cols, 5);
    let (mut y, mut z) = (Matrix::zeros(batch, rows), Matrix::zeros(batch, rows));
    let turns = interleave(
        repeats,
        [&mut || packed.matmul(0.0, x.view(), y.view_mut()), &mut || {
            gemm(0.0, z.view_mut(), 1.0, x.view(), w.view().t(), Threads::All)
        }],
    );
    let [fast, slow] = turns.least();
    let worst = y.data().iter().zip(z.data()).map(|(y, z)| (y - z).abs()).fold(0.0, f32::max);
    assert!(worst < 1e-2, "{pattern}: the products differ by {worst}");
    let flops = 2.0 * (batch * rows * cols) as f64 / 1e9;
    json!({
        "pattern": pattern, "format": packed.format().name, "batch": batch,
        "values": packed.values().encoding().kind().name,
        "seconds": fast, "gemm_seconds": slow, "speedup": slow / fast, "median_speedup": turns.median_speedup(),
        "gflops": flops / fast, "gemm_gflops": flops / slow,
    })
}
