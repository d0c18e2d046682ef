//! Shared code of the benchmark programs: options, captured and synthetic layers,
//! timing, memory and records.

pub mod args;
pub mod capture;
pub mod memory;
pub mod plot;
pub mod record;
pub mod timing;

pub use args::{Captures, Common, finish};

use openwork::hessian::{Hessian, HessianSum};
use openwork::prune::{Method, Pruned, Task, prune};
use openwork::{Matrix, Pattern, Spec};

/// Why a program failed, in a line.
pub type Failed = Box<dyn std::error::Error>;

/// Reproducible entries between -1 and 1.
pub fn random(rows: usize, cols: usize, seed: u64) -> Matrix {
    let mut state = seed.wrapping_mul(2) + 1;
    Matrix::from_fn(rows, cols, |_, _| {
        // Knuth's MMIX generator.
        state = state.wrapping_mul(6364136223846793005).wrapping_add(1442695040888963407);
        (state >> 40) as f32 / (1u64 << 23) as f32 - 1.0
    })
}

/// The Hessian of `samples` synthetic inputs with columns of different scales and
/// correlated neighbors.
pub fn synthetic(columns: usize, samples: usize) -> Result<Hessian, Failed> {
    const ROWS: usize = 512;
    let mut sum = HessianSum::new(columns);
    let mut done = 0;
    while done < samples {
        let rows = ROWS.min(samples - done);
        let mut x = random(rows, columns, done as u64);
        for i in 0..rows {
            let row = x.row_mut(i);
            for j in 1..columns {
                row[j] += 0.8 * row[j - 1];
            }
            row.iter_mut().enumerate().for_each(|(j, x)| *x *= 1.0 + (j % 7) as f32);
        }
        sum.add(x.view())?;
        done += rows;
    }
    Ok(sum.finish()?.without_split())
}

/// A pattern bound to one matrix.
pub fn bind(pattern: &str, rows: usize, cols: usize) -> Result<Spec, Failed> {
    Ok(pattern.parse::<Pattern>()?.bind(&[rows, cols])?)
}

/// Prunes on `threads` threads and checks the mask.
pub fn run(
    method: &str,
    spec: &Spec,
    w: &Matrix,
    h: &Hessian,
    threads: usize,
) -> Result<Pruned, Failed> {
    let method: Method = method.parse()?;
    let pool = rayon::ThreadPoolBuilder::new().num_threads(threads).build()?;
    let pruned = pool.install(|| prune(&method, &Task::one(spec, w.data(), Some(h))))?;
    pruned.mask.conforms(spec)?;
    Ok(pruned)
}

/// The first rows of a matrix.
pub fn head(w: &Matrix, rows: usize) -> Matrix {
    let rows = rows.min(w.rows());
    Matrix::from_vec(rows, w.cols(), w.data()[..rows * w.cols()].to_vec())
}
