//! Measures what the figures in `bench/record` need, one thing for each line of
//! standard input, so that another program can take turns with it:
//!
//! ```text
//! measure MODEL THREADS
//! forward 1024      seconds of one forward with all logits, f32, weights in memory;
//!                   processor seconds too, for a machine that others use
//! decode 64         seconds per token (mean and least) of 64 tokens after a prompt of 32, 16-bit weights
//! gemm              GFLOP/s of a product of 1536 x 1536 matrices
//! stream            GB/s of reading 1 GB
//! logits OUT IDS..  writes the logits of those tokens as f32 to OUT
//! ```
//!
//! Each answer is one line of JSON.

use openwork::Matrix;
use openwork::linalg::{Threads, gemm};
use openwork_llm::Checkpoint;
use openwork_llm::model::{Decoder, Model, Storage};
use rayon::prelude::*;
use serde_json::json;
use std::error::Error;
use std::io::{BufRead, Write};
use std::path::Path;
use std::time::Instant;

fn main() -> Result<(), Box<dyn Error>> {
    let mut args = std::env::args().skip(1);
    let (Some(path), Some(threads)) = (args.next(), args.next()) else {
        return Err("usage: measure MODEL THREADS".into());
    };
    rayon::ThreadPoolBuilder::new().num_threads(threads.parse()?).build_global()?;
    let checkpoint = Checkpoint::open(Path::new(&path))?;
    let model = Model::open(&checkpoint)?;
    let (mut full, mut half) = (None, None);
    let mut logits = Matrix::zeros(0, 0);
    for line in std::io::stdin().lock().lines() {
        let line = line?;
        let words: Vec<&str> = line.split_whitespace().collect();
        let answer = match words[..] {
            ["forward", n] => {
                let decoder = held(&mut full, &model, Storage::F32)?;
                let (seconds, cpu) = forward(decoder, n.parse()?, &mut logits)?;
                json!({ "seconds": seconds, "cpu_seconds": cpu })
            }
            ["decode", n] => {
                let decoder = held(&mut half, &model, Storage::Half)?;
                let n = n.parse()?;
                let (mean, least, bytes) = rayon::scope(|_| decode(decoder, n))?;
                json!({ "seconds": mean, "least_seconds": least, "bytes_per_token": bytes })
            }
            ["gemm"] => json!({ "gflops": product() }),
            ["stream"] => json!({ "gb_per_second": stream() }),
            ["logits", out, ref ids @ ..] => {
                let ids = ids.iter().map(|id| id.parse()).collect::<Result<Vec<u32>, _>>()?;
                let decoder = held(&mut full, &model, Storage::F32)?;
                decoder.reset();
                let logits = decoder.all_logits(&ids)?;
                let bytes: Vec<u8> = logits.data().iter().flat_map(|x| x.to_le_bytes()).collect();
                std::fs::write(out, bytes)?;
                json!({ "shape": [logits.rows(), logits.cols()] })
            }
            _ => return Err(format!("unknown: {line}").into()),
        };
        println!("{answer}");
        std::io::stdout().flush()?;
    }
    Ok(())
}

/// The model in memory, read once.
fn held<'a>(
    decoder: &'a mut Option<Decoder>,
    model: &Model<'_>,
    storage: Storage,
) -> Result<&'a mut Decoder, Box<dyn Error>> {
    if decoder.is_none() {
        *decoder = Some(Decoder::load(model, storage)?);
    }
    decoder.as_mut().ok_or_else(|| "just loaded".into())
}

/// Tokens that are not all alike.
fn tokens(n: usize, vocab: usize) -> Vec<u32> {
    (0..n).map(|i| ((i * 7919 + 13) % vocab) as u32).collect()
}

/// Wall time and processor time.
fn forward(
    decoder: &mut Decoder,
    n: usize,
    logits: &mut Matrix,
) -> Result<(f64, f64), Box<dyn Error>> {
    let tokens = tokens(n, decoder.config().vocab);
    decoder.reset();
    if logits.rows() != n {
        *logits = Matrix::zeros(n, decoder.config().vocab);
    }
    let (started, cpu) = (Instant::now(), cpu_seconds());
    decoder.all_logits_into(&tokens, logits.view_mut())?;
    Ok((started.elapsed().as_secs_f64(), cpu_seconds() - cpu))
}

/// Processor time of all threads so far, where the system tells (Linux).
fn cpu_seconds() -> f64 {
    let Ok(tasks) = std::fs::read_dir("/proc/self/task") else { return f64::NAN };
    tasks
        .flatten()
        .filter_map(|task| std::fs::read_to_string(task.path().join("schedstat")).ok())
        .filter_map(|line| line.split_whitespace().next()?.parse::<f64>().ok())
        .sum::<f64>()
        / 1e9
}

/// Seconds per token in the mean and at best, and the bytes the last one read.
fn decode(decoder: &mut Decoder, n: usize) -> Result<(f64, f64, usize), String> {
    decoder.reset();
    let prompt = tokens(32, decoder.config().vocab);
    decoder.next(&prompt).map_err(|error| error.to_string())?;
    let mut times = Vec::new();
    for i in 0..n {
        let started = Instant::now();
        decoder.next(&[prompt[i % 32]]).map_err(|error| error.to_string())?;
        times.push(started.elapsed().as_secs_f64());
    }
    let mean = times.iter().sum::<f64>() / n as f64;
    let least = times.into_iter().fold(f64::INFINITY, f64::min);
    Ok((mean, least, decoder.bytes_per_token()))
}

/// The best of a few products.
fn product() -> f64 {
    let n = 1536;
    let a = Matrix::from_fn(n, n, |i, j| ((i + 3 * j) % 7) as f32);
    let mut c = Matrix::zeros(n, n);
    let mut best = f64::INFINITY;
    for _ in 0..5 {
        let started = Instant::now();
        gemm(0.0, c.view_mut(), 1.0, a.view(), a.view().t(), Threads::All);
        best = best.min(started.elapsed().as_secs_f64());
    }
    2.0 * (n as f64).powi(3) / best / 1e9
}

/// The best of a few readings of 1 GB, by the kernel that decoding uses, with a
/// row that is kept in the nearest cache.
fn stream() -> f64 {
    let (rows, cols) = (1 << 18, 2048);
    let x = vec![1.0f32; cols];
    let w = vec![half::bf16::ONE; rows * cols];
    let mut y = vec![0.0f32; rows];
    let mut best = f64::INFINITY;
    for _ in 0..6 {
        let started = Instant::now();
        y.par_chunks_mut(64).zip(w.par_chunks(64 * cols)).for_each(|(y, w)| {
            <half::bf16 as openwork::linalg::matvec::Element>::matvec(w, &x, y);
        });
        best = best.min(started.elapsed().as_secs_f64());
    }
    (2 * rows * cols) as f64 / best / 1e9
}
