//! One thread against two, and equal bytes with one, two and three. The speedup of
//! independent matrix products, one per thread, is the limit of the machine at that
//! moment.

use clap::Parser;
use openwork::Matrix;
use openwork::linalg::{Threads, gemm};
use openwork::prune::split_list;
use openwork_bench::{Captures, Common, Failed, bind, finish, record, run};
use rayon::prelude::*;
use serde_json::json;
use std::time::Instant;

/// Time methods on one and two threads, and compare the bytes
#[derive(Parser)]
struct Args {
    #[command(flatten)]
    captures: Captures,
    /// The layer; a synthetic one without captures
    #[arg(long, default_value = "14.down")]
    layer: String,
    /// Methods
    #[arg(long, default_value = "s-obs[damping=diag:0.01],admm[damping=diag:0.01]")]
    methods: String,
    #[command(flatten)]
    common: Common,
}

fn main() -> std::process::ExitCode {
    finish(threads(Args::parse()))
}

fn threads(args: Args) -> Result<(), Failed> {
    let (w, h, source) = args.captures.layer(&args.layer)?;
    let name = format!("{source} {}", args.layer);
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
    // The same products, all on one thread or half of them on each.
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
        for _ in 0..args.common.repeats.max(1) {
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
    args.common.save(
        "threads",
        json!({"layer": name, "rows": w.rows(), "columns": w.cols(), "results": results}),
    )
}

/// Whether matrices are equal bit for bit.
fn equal(a: &[Matrix], b: &[Matrix]) -> bool {
    let bits = |w: &Matrix| w.data().iter().map(|x| x.to_bits()).collect::<Vec<_>>();
    a.len() == b.len() && a.iter().zip(b).all(|(a, b)| bits(a) == bits(b))
}
