//! One thread against two, and the same bytes at one, two and three. Beside the
//! methods stands what two threads gain on plain products, one apart for each: the
//! limit of the machine, at that moment.

use clap::Parser;
use openwork::linalg::{Threads, gemm};
use openwork::prune::split_list;
use openwork::{Matrix, hessian::Hessian};
use openwork_bench::{Failed, bind, capture, finish, random, record, run, synthetic};
use rayon::prelude::*;
use serde_json::json;
use std::path::PathBuf;
use std::time::Instant;

/// Times methods on one and on two threads, and compares the bytes
#[derive(Parser)]
struct Args {
    /// The folder that bench/capture.py wrote; without it the layer is synthetic [default: $OPENWORK_CAPTURES]
    #[arg(long)]
    captures: Option<PathBuf>,
    /// The layer
    #[arg(long, default_value = "14.down")]
    layer: String,
    /// Methods
    #[arg(long, default_value = "s-obs[damping=diag:0.01],admm[damping=diag:0.01]")]
    methods: String,
    /// Runs of each; the least time counts
    #[arg(long, default_value_t = 3)]
    repeats: usize,
    /// Writes all figures as JSON
    #[arg(long)]
    record: Option<PathBuf>,
}

fn main() -> std::process::ExitCode {
    finish(threads(Args::parse()))
}

fn threads(args: Args) -> Result<(), Failed> {
    let (name, w, h): (String, Matrix, Hessian) = match capture::folder(args.captures) {
        Ok(folder) => {
            let layer = capture::load(&folder, &args.layer)?;
            (layer.name, layer.weight, layer.hessian)
        }
        Err(_) => ("synthetic".to_string(), random(576, 1536, 7), synthetic(1536, 4096)?),
    };
    let spec = bind("2:4", w.rows(), w.cols())?;
    let head = [
        "method",
        "1 thread, s",
        "2 threads, s",
        "speedup",
        "of products",
        "same bytes at 1, 2, 3",
    ];
    let mut rows = vec![head.map(String::from).to_vec()];
    let mut results = Vec::new();
    let panel = Matrix::from_fn(192, w.cols(), |i, j| w.row(i % w.rows())[j]);
    let square = Matrix::from_fn(w.cols(), w.cols(), |i, j| h.matrix().row(i)[j] as f32);
    // As many products, one after the other or half of them on each thread.
    let products = |threads: usize| -> Result<f64, Failed> {
        let pool = rayon::ThreadPoolBuilder::new().num_threads(threads).build()?;
        let mut out = [(); 16].map(|()| Matrix::zeros(panel.rows(), panel.cols()));
        let started = Instant::now();
        pool.install(|| {
            out.par_iter_mut().for_each(|out| {
                gemm(0.0, out.view_mut(), 1.0, panel.view(), square.view(), Threads::One);
            });
        });
        Ok(started.elapsed().as_secs_f64())
    };
    for method in split_list(&args.methods)? {
        let mut least = [f64::INFINITY; 2];
        let mut first: Option<Vec<Matrix>> = None;
        let mut same = true;
        let mut limit = [f64::INFINITY; 2];
        for _ in 0..args.repeats.max(1) {
            for (at, least) in least.iter_mut().enumerate() {
                for _ in 0..3 {
                    limit[at] = limit[at].min(products(at + 1)?);
                }
                let pruned = run(method, &spec, &w, &h, at + 1)?;
                *least = least.min(pruned.seconds);
                same &= equal(first.get_or_insert(pruned.weights.clone()), &pruned.weights);
            }
        }
        let three = run(method, &spec, &w, &h, 3)?;
        same &= first.is_some_and(|first| equal(&first, &three.weights));
        let (speedup, limit) = (least[0] / least[1], limit[0] / limit[1]);
        rows.push(vec![
            format!("`{method}`"),
            format!("{:.3}", least[0]),
            format!("{:.3}", least[1]),
            format!("{speedup:.2}"),
            format!("{limit:.2}"),
            if same { "yes" } else { "NO" }.to_string(),
        ]);
        results.push(json!({
            "method": method, "seconds_1": least[0], "seconds_2": least[1],
            "speedup": speedup, "products": limit, "same_bytes": same,
        }));
    }
    println!("{name}, {} x {}, 2:4\n\n{}", w.rows(), w.cols(), record::markdown(&rows));
    let record = json!({
        "benchmark": "threads", "machine": record::machine(), "layer": name,
        "rows": w.rows(), "columns": w.cols(), "results": results,
    });
    record::save(args.record.as_deref(), &record)
}

/// Equal to the bit.
fn equal(a: &[Matrix], b: &[Matrix]) -> bool {
    let bits = |w: &Matrix| w.data().iter().map(|x| x.to_bits()).collect::<Vec<_>>();
    a.len() == b.len() && a.iter().zip(b).all(|(a, b)| bits(a) == bits(b))
}
