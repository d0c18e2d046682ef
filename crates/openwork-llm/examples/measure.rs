//! Measures what the figures in `bench/record` need, one thing for each line of
//! standard input, so that another program can take turns with it:
//!
//! ```text
//! measure MODEL THREADS
//! forward 1024      seconds of one forward with all logits, f32, weights in memory;
//!                   processor seconds too, for a machine that others use
//! decode 64         seconds per token (mean, median and least) of 64 tokens after a prompt of 32,
//!                   16-bit weights; and of reading as many bytes after each, without anything else
//! train 1 1024 bf16 seconds of a forward pass of layer 1 on 1024 tokens, and of a forward pass that
//!                   keeps its activations followed by the backward pass
//! gemm              GFLOP/s of a product of 1536 x 1536 matrices
//! logits OUT IDS..  writes the logits of those tokens as f32 to OUT
//! instructions      those that products use
//! ```
//!
//! Each answer is one line of JSON.

use openwork::Matrix;
use openwork::linalg::{Threads, gemm};
use openwork_llm::Checkpoint;
use openwork_llm::model::backward::{Activations, Interior, LayerGradients};
use openwork_llm::model::{Decoder, Model, NoTap, Storage};
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
                let (tokens, reads) = rayon::scope(|_| decode(decoder, n))?;
                let bytes = decoder.bytes_per_token();
                json!({ "token": tokens.json(), "read": reads.json(), "bytes_per_token": bytes })
            }
            ["train", layer, n, precision] => {
                train(&model, layer.parse()?, n.parse()?, precision == "bf16")?
            }
            ["gemm"] => json!({ "gflops": product() }),
            ["instructions"] => json!(openwork::linalg::instructions()),
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

/// Wall time and processor time of a layer: forward, and forward with backward. Memory is
/// allocated before.
fn train(
    model: &Model<'_>,
    layer: usize,
    n: usize,
    rounds: bool,
) -> Result<serde_json::Value, Box<dyn Error>> {
    let mut layer = model.layer(layer, Storage::F32)?;
    layer.round_products(rounds);
    let embedded = model.embed(&[tokens(n, model.config().vocab)])?;
    let (mut kept, mut interior) = (Activations::default(), Interior::default());
    let mut grads = LayerGradients::new(&layer);
    let mut times = [[f64::INFINITY; 2]; 2];
    // The first round allocates.
    for round in 0..3 {
        let mut hidden = embedded.copy();
        let (h, mut carried) = embedded.copy().into_parts();
        let mut h = h.into_vec();
        let (started, cpu) = (Instant::now(), cpu_seconds());
        layer.forward(&mut hidden, &mut NoTap);
        let forward = [started.elapsed().as_secs_f64(), cpu_seconds() - cpu];
        let (started, cpu) = (Instant::now(), cpu_seconds());
        layer.forward_saving(&mut h, &mut carried, &mut kept);
        layer.backward(&kept, &mut interior, &mut h, &mut [], &mut grads);
        let both = [started.elapsed().as_secs_f64(), cpu_seconds() - cpu];
        if round > 0 {
            for (best, new) in times.iter_mut().zip([forward, both]) {
                best.iter_mut().zip(new).for_each(|(best, new)| *best = best.min(new));
            }
        }
    }
    let [[forward, forward_cpu], [both, both_cpu]] = times;
    Ok(json!({
        "forward": { "seconds": forward, "cpu_seconds": forward_cpu },
        "forward_backward": { "seconds": both, "cpu_seconds": both_cpu },
    }))
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

/// Seconds of one thing done many times.
#[derive(Default)]
struct Times(Vec<f64>);

impl Times {
    fn add(&mut self, started: Instant) {
        self.0.push(started.elapsed().as_secs_f64());
    }

    fn json(mut self) -> serde_json::Value {
        self.0.sort_by(f64::total_cmp);
        let n = self.0.len();
        json!({
            "mean": self.0.iter().sum::<f64>() / n as f64,
            "median": self.0.get(n / 2),
            "least": self.0.first(),
        })
    }
}

/// Times of `n` tokens, and of reading as many bytes after each: the memory of
/// a shared machine is not equally fast from one second to the next.
fn decode(decoder: &mut Decoder, n: usize) -> Result<(Times, Times), String> {
    decoder.reset();
    let prompt = tokens(32, decoder.config().vocab);
    decoder.next(&prompt).map_err(|error| error.to_string())?;
    let cols = 2048;
    let rows = decoder.bytes_per_token() / (2 * cols);
    let (w, x) = (vec![half::bf16::ONE; rows * cols], vec![1.0f32; cols]);
    let mut y = vec![0.0f32; rows];
    let (mut tokens, mut reads) = (Times::default(), Times::default());
    for i in 0..n {
        let started = Instant::now();
        decoder.next(&[prompt[i % 32]]).map_err(|error| error.to_string())?;
        tokens.add(started);
        let started = Instant::now();
        read(&w, &x, &mut y);
        reads.add(started);
    }
    Ok((tokens, reads))
}

/// Reads a matrix by the kernel that decoding uses, in one loop, with a row
/// that is kept in the nearest cache.
fn read(w: &[half::bf16], x: &[f32], y: &mut [f32]) {
    y.par_chunks_mut(64).zip(w.par_chunks(64 * x.len())).for_each(|(y, w)| {
        <half::bf16 as openwork::linalg::matvec::Element>::matvec(w, x, y);
    });
}

/// The best of a few products.
fn product() -> f64 {
    let n = 1536;
    // Numbers with all their digits: those with few are multiplied faster on some machines.
    let a = Matrix::from_fn(n, n, |i, j| ((i + 3 * j) % 7) as f32 / 7.0);
    let mut c = Matrix::zeros(n, n);
    let mut best = f64::INFINITY;
    for _ in 0..5 {
        let started = Instant::now();
        gemm(0.0, c.view_mut(), 1.0, a.view(), a.view().t(), Threads::All);
        best = best.min(started.elapsed().as_secs_f64());
    }
    2.0 * (n as f64).powi(3) / best / 1e9
}
