//! Benchmarks the numerical kernels: X'X against a full product, Cholesky factor, inverse
//! and conjugate gradients.
//!
//! `cargo bench -p openwork --bench ground -- [K] [N]` prints one JSON object;
//! `RAYON_NUM_THREADS` sets the threads.

use std::time::Instant;

use openwork::linalg::{CHUNK, Gram, Threads, cholesky, gemm, pcg};
use openwork::{Matrix, MatrixRef};

/// Repetitions; the minimum is reported, because other work may share the machine.
const REPEATS: usize = 5;

fn main() {
    let numbers: Vec<usize> = std::env::args().skip(1).filter_map(|a| a.parse().ok()).collect();
    let k = numbers.first().copied().unwrap_or(1536);
    let n = numbers.get(1).copied().unwrap_or(8192);
    let x = random(n, k);

    // Turn by turn, so that a busy moment of the machine strikes both.
    let mut full = Matrix::zeros(k, k);
    let chunks: Vec<MatrixRef<'_>> = (0..n)
        .step_by(CHUNK)
        .map(|start| x.view().part(start, CHUNK.min(n - start), 0, k))
        .collect();
    let (mut full_gemm, mut gram) = (f64::INFINITY, f64::INFINITY);
    for _ in 0..2 * REPEATS {
        full_gemm = full_gemm.min(seconds(|| {
            gemm(0.0, full.view_mut(), 1.0, x.view().t(), x.view(), Threads::All);
        }));
        gram = gram.min(seconds(|| Gram::zeros(k).add(&chunks)));
    }

    let mut sum = Gram::zeros(k);
    sum.add(&chunks);
    let mut h = sum.to_matrix(3.0 / n as f64);
    (0..k).for_each(|j| h.row_mut(j)[j] += 0.01);
    let mut l = h.clone();
    let factor = least(|| {
        l.data_mut().copy_from_slice(h.data());
        cholesky::factor(&mut l, 0.0).expect("damped, so positive definite");
    });
    let inverse = least(|| drop(cholesky::inverse(h.clone(), 0.0)));

    let m = 576;
    let h32 = Matrix::from_fn(k, k, |i, j| h.row(i)[j] as f32);
    let w = random(m, k);
    let keep = Matrix::from_fn(m, k, |i, j| f32::from(u8::from((i + j) % 4 < 2)));
    let refit = least(|| {
        let mut x = w.clone();
        let stop = pcg::Stop { steps: 10, gain: 0.0 };
        pcg::solve(h32.view(), w.view(), keep.view(), x.view_mut(), stop);
    });

    println!(
        "{{\"threads\": {}, \"columns\": {k}, \"samples\": {n}, \"full_gemm_seconds\": {full_gemm:.4}, \
         \"gram_seconds\": {gram:.4}, \"gram_speedup\": {:.3}, \"full_gemm_gflops\": {:.1}, \
         \"factor_f64_seconds\": {factor:.4}, \
         \"inverse_f64_seconds\": {inverse:.4}, \"pcg10_576_rows_seconds\": {refit:.4}}}",
        rayon::current_num_threads(),
        full_gemm / gram,
        2e-9 * n as f64 * (k * k) as f64 / full_gemm,
    );
}

/// The least seconds of several runs.
fn least(mut run: impl FnMut()) -> f64 {
    (0..REPEATS).map(|_| seconds(&mut run)).fold(f64::INFINITY, f64::min)
}

/// The seconds of one run.
fn seconds(run: impl FnOnce()) -> f64 {
    let start = Instant::now();
    run();
    start.elapsed().as_secs_f64()
}

/// Reproducible entries between -1 and 1.
fn random(rows: usize, cols: usize) -> Matrix {
    let mut state = 1u64;
    Matrix::from_fn(rows, cols, |_, _| {
        // Knuth's MMIX generator.
        state = state.wrapping_mul(6364136223846793005).wrapping_add(1442695040888963407);
        (state >> 40) as f32 / (1u64 << 23) as f32 - 1.0
    })
}
