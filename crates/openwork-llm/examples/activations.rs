//! Perplexity of packed models token by token, which is how generation reads their weights:
//! `activations TEXT TOKENS_PER_WINDOW WINDOWS MODEL..`, to compare values of
//! `OPENWORK_ACTIVATIONS`.

use openwork_llm::Checkpoint;
use openwork_llm::model::{Decoder, Model, Storage};

fn main() -> Result<(), Box<dyn std::error::Error>> {
    let arguments: Vec<String> = std::env::args().skip(1).collect();
    let [text, seq_len, windows, models @ ..] = &arguments[..] else {
        return Err("arguments: TEXT TOKENS_PER_WINDOW WINDOWS MODEL..".into());
    };
    let (seq_len, windows): (usize, usize) = (seq_len.parse()?, windows.parse()?);
    let text = std::fs::read_to_string(text)?;
    let bits = openwork::sparse::activations()?;
    for path in models {
        let checkpoint = Checkpoint::open(path.as_ref())?;
        let model = Model::open(&checkpoint)?;
        let tokens = checkpoint.tokenizer()?.encode(&text)?;
        let mut decoder = Decoder::load(&model, Storage::Half)?;
        let (mut nats, mut count) = (0.0, 0);
        for window in tokens.chunks_exact(seq_len).take(windows) {
            decoder.reset();
            for (token, next) in window.iter().zip(&window[1..]) {
                nats += loss(&decoder.next(&[*token])?, *next as usize);
                count += 1;
            }
        }
        let perplexity = (nats / f64::from(count)).exp();
        println!("{path}  {bits} bits  {count} tokens  perplexity {perplexity:.5}");
    }
    Ok(())
}

/// Minus the logarithm of a token's probability.
fn loss(logits: &[f32], token: usize) -> f64 {
    let most = f64::from(logits.iter().fold(f32::NEG_INFINITY, |most, &logit| most.max(logit)));
    let sum: f64 = logits.iter().map(|&logit| (f64::from(logit) - most).exp()).sum();
    sum.ln() + most - f64::from(logits[token])
}
