//! Text generation: greedy decoding and sampling.

use crate::checkpoint::{Checkpoint, CheckpointError, Fault};
use crate::model::{Decoder, ModelError};
use crate::tokens::{TextError, Tokenizer};
use openwork::random::{SplitMix64, unit};
use serde_json::{Value, json};
use std::ops::ControlFlow;
use std::time::Instant;

/// How the next token is chosen.
#[derive(Clone, Copy, Debug, PartialEq)]
pub enum Sampling {
    /// The most likely token; the first of equals.
    Greedy,
    /// A random token, by the model's probabilities.
    Sampled {
        /// Divisor of the logits.
        temperature: f64,
        /// Only the k most likely tokens.
        top_k: Option<usize>,
        /// Only the most likely tokens with this total probability.
        top_p: f64,
        /// Random seed.
        seed: u64,
    },
}

/// Why text cannot be generated.
#[derive(Debug, thiserror::Error)]
pub enum GenerateError {
    /// An empty prompt.
    #[error("the prompt is empty; pass at least one word")]
    Empty,
    /// The tokenizer.
    #[error(transparent)]
    Text(#[from] TextError),
    /// The model.
    #[error(transparent)]
    Model(#[from] ModelError),
    /// An option out of range.
    #[error("{0}")]
    Option(String),
}

impl Sampling {
    /// Checks the values.
    pub fn check(self) -> Result<Self, GenerateError> {
        let wrong = |message: String| Err(GenerateError::Option(message));
        match self {
            Sampling::Sampled { temperature, .. }
                if !(temperature > 0.0 && temperature.is_finite()) =>
            {
                wrong(format!("temperature {temperature} is out of range; use a number above 0"))
            }
            Sampling::Sampled { top_p, .. } if !(top_p > 0.0 && top_p <= 1.0) => {
                wrong(format!("top-p {top_p} is out of range; use a number above 0 and at most 1"))
            }
            Sampling::Sampled { top_k: Some(0), .. } => {
                wrong("top-k 0 leaves no token; use at least 1".into())
            }
            _ => Ok(self),
        }
    }
}

/// Notes on options of a model's `generation_config.json` that are not
/// supported.
pub fn unsupported_options(model: &Checkpoint) -> Result<Vec<String>, CheckpointError> {
    const NAME: &str = "generation_config.json";
    /// Options, and the values at which they have no effect.
    const NEUTRAL: &[(&str, f64)] = &[("repetition_penalty", 1.0), ("no_repeat_ngram_size", 0.0)];
    let Some(bytes) = model.companion(NAME)? else { return Ok(Vec::new()) };
    let json: Value = serde_json::from_slice(&bytes)
        .map_err(|error| CheckpointError::new(&model.path().join(NAME), Fault::Json(error)))?;
    let asked = NEUTRAL.iter().filter_map(|(key, neutral)| {
        let value = json[*key].as_f64().filter(|value| value != neutral)?;
        Some(format!(
            "{NAME}: {key} = {value} is not supported and was ignored; transformers applies it"
        ))
    });
    Ok(asked.collect())
}

/// Chooses tokens from logits.
struct Sampler {
    sampling: Sampling,
    random: SplitMix64,
}

impl Sampler {
    fn new(sampling: Sampling) -> Self {
        let seed = if let Sampling::Sampled { seed, .. } = sampling { seed } else { 0 };
        Self { sampling, random: SplitMix64(seed) }
    }

    /// The next token. The logits are finite and at least one.
    fn choose(&mut self, logits: &[f32]) -> u32 {
        let Sampling::Sampled { temperature, top_k, top_p, .. } = self.sampling else {
            let most = (0..logits.len()).reduce(|a, b| if logits[b] > logits[a] { b } else { a });
            return most.unwrap_or(0) as u32;
        };
        // The most likely first; ties by index.
        let mut order: Vec<usize> = (0..logits.len()).collect();
        let by_logit = |&a: &usize, &b: &usize| logits[b].total_cmp(&logits[a]).then(a.cmp(&b));
        let kept = top_k.unwrap_or(logits.len()).min(logits.len());
        if kept < order.len() {
            order.select_nth_unstable_by(kept - 1, by_logit);
            order.truncate(kept);
        }
        order.sort_unstable_by(by_logit);
        let max = f64::from(logits[order[0]]);
        let mut weights: Vec<f64> =
            order.iter().map(|&i| ((f64::from(logits[i]) - max) / temperature).exp()).collect();
        let total: f64 = weights.iter().sum();
        let mut sum = 0.0;
        let nucleus = weights.iter().position(|w| {
            sum += w;
            sum >= top_p * total
        });
        weights.truncate(nucleus.map_or(weights.len(), |last| last + 1));
        // A number in [0, 1) from the upper 53 bits.
        let draw = unit(self.random.next_bits());
        let mut left = draw * weights.iter().sum::<f64>();
        let chosen = weights.iter().position(|w| {
            left -= w;
            left < 0.0
        });
        order[chosen.unwrap_or(weights.len() - 1)] as u32
    }
}

/// Why generation stopped.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum StopReason {
    /// The model generated an end-of-sequence token.
    EndOfText,
    /// The requested number of tokens was generated.
    MaxNewTokens,
    /// The sequence reached the model's maximum length.
    MaxPositions,
    /// The caller stopped it.
    Caller,
}

impl StopReason {
    /// `end_of_text`, `max_new_tokens`, `max_positions` or `caller`.
    pub fn name(self) -> &'static str {
        match self {
            StopReason::EndOfText => "end_of_text",
            StopReason::MaxNewTokens => "max_new_tokens",
            StopReason::MaxPositions => "max_positions",
            StopReason::Caller => "caller",
        }
    }
}

/// A generated text and its statistics.
#[derive(Clone, Debug)]
pub struct Generation {
    /// The text after the prompt.
    pub text: String,
    /// Its tokens.
    pub tokens: Vec<u32>,
    /// Tokens of the prompt, including BOS.
    pub prompt_tokens: usize,
    /// Time to process the prompt.
    pub prompt_seconds: f64,
    /// Time of the passes after it, one per token except the first.
    pub seconds: f64,
    /// Bytes of weights and cache that the last pass read.
    pub bytes_per_token: usize,
    /// Why it stopped.
    pub stop: StopReason,
}

impl Generation {
    /// Passes per second, without the prompt; `None` if there were none.
    pub fn tokens_per_second(&self) -> Option<f64> {
        let passes = self.tokens.len().saturating_sub(1);
        (passes > 0 && self.seconds > 0.0).then(|| passes as f64 / self.seconds)
    }

    /// The object of `openwork generate --json`.
    pub fn to_json(&self) -> Value {
        json!({
            "text": self.text,
            "tokens": self.tokens.len(),
            "tokens_per_second": self.tokens_per_second(),
            "bytes_per_token": self.bytes_per_token,
            "prompt_tokens": self.prompt_tokens,
            "prompt_seconds": self.prompt_seconds,
            "seconds": self.seconds,
            "stop": self.stop.name(),
        })
    }
}

/// Generates at most `most` tokens after `prompt`; `on_text` receives the text as
/// it becomes certain.
pub fn generate(
    decoder: &mut Decoder,
    tokenizer: &Tokenizer,
    prompt: &str,
    most: usize,
    sampling: Sampling,
    on_text: &mut (dyn FnMut(&str) -> ControlFlow<()> + Send),
) -> Result<Generation, GenerateError> {
    let mut tokens = tokenizer.encode(prompt)?;
    if tokens.is_empty() {
        return Err(GenerateError::Empty);
    }
    if let Some(bos) = tokenizer.bos().filter(|_| tokenizer.adds_bos()) {
        tokens.insert(0, bos);
    }
    generate_after(decoder, tokenizer, &tokens, most, sampling, on_text)
}

/// As [`generate`], after a prompt of tokens; nothing is added to them. `on_text` is
/// called for every token, with an empty text if none has become certain.
pub fn generate_after(
    decoder: &mut Decoder,
    tokenizer: &Tokenizer,
    tokens: &[u32],
    most: usize,
    sampling: Sampling,
    on_text: &mut (dyn FnMut(&str) -> ControlFlow<()> + Send),
) -> Result<Generation, GenerateError> {
    let mut sampler = Sampler::new(sampling.check()?);
    if tokens.is_empty() {
        return Err(GenerateError::Empty);
    }
    let prompt_tokens = tokens.len();
    decoder.reset();
    // Inside the pool, which the decoder would otherwise enter for every token.
    rayon::scope(|_| {
        let started = Instant::now();
        let mut logits = decoder.next(tokens)?;
        let prompt_seconds = started.elapsed().as_secs_f64();

        let started = Instant::now();
        let (mut new, mut stream) = (Vec::new(), tokenizer.stream());
        let stop = loop {
            if new.len() >= most {
                break StopReason::MaxNewTokens;
            }
            let token = sampler.choose(&logits);
            if tokenizer.eos().contains(&token) {
                break StopReason::EndOfText;
            }
            new.push(token);
            // A model may have rows without a token in the tokenizer: they have no text.
            if (token as usize) < tokenizer.count() {
                let part = stream.push(token)?;
                if on_text(&part).is_break() {
                    break StopReason::Caller;
                }
            }
            if new.len() >= most {
                break StopReason::MaxNewTokens;
            }
            if decoder.len() >= decoder.config().max_positions {
                break StopReason::MaxPositions;
            }
            logits = decoder.next(&[token])?;
        };
        let seconds = started.elapsed().as_secs_f64();
        let (text, rest) = (stream.decode_all()?, stream.finish()?);
        if !rest.is_empty() {
            let _ = on_text(&rest);
        }
        Ok(Generation {
            text,
            tokens: new,
            prompt_tokens,
            prompt_seconds,
            seconds,
            bytes_per_token: decoder.bytes_per_token(),
            stop,
        })
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    const SAMPLED: Sampling =
        Sampling::Sampled { temperature: 1.0, top_k: None, top_p: 1.0, seed: 1 };

    #[test]
    fn greedy_takes_the_first_of_the_likeliest() {
        assert_eq!(Sampler::new(Sampling::Greedy).choose(&[0.0, 2.0, 1.0, 2.0]), 1);
    }

    #[test]
    fn sampling_follows_the_probabilities() {
        let logits = [1.0f32, 0.0, 2.0, f32::MIN];
        let mut sampler = Sampler::new(SAMPLED);
        let mut counts = [0.0f64; 4];
        let draws = 20_000;
        (0..draws).for_each(|_| counts[sampler.choose(&logits) as usize] += 1.0);
        let total: f64 = logits.iter().map(|&l| f64::from(l).exp()).sum();
        for (count, logit) in counts.iter().zip(logits) {
            let want = f64::from(logit).exp() / total;
            assert!((count / f64::from(draws) - want).abs() < 0.015);
        }
    }

    #[test]
    fn top_k_and_top_p_keep_the_likeliest() {
        let logits = [1.0f32, 0.0, 2.0, 0.5];
        let draw = |top_k, top_p| {
            let sampling = Sampling::Sampled { temperature: 1.0, top_k, top_p, seed: 3 };
            let mut sampler = Sampler::new(sampling);
            (0..500).map(|_| sampler.choose(&logits)).collect::<std::collections::BTreeSet<_>>()
        };
        assert_eq!(draw(Some(1), 1.0), [2].into());
        assert_eq!(draw(Some(2), 1.0), [0, 2].into());
        // e^2 / (e + 1 + e^2 + e^0.5) = 0.58.
        assert_eq!(draw(None, 0.5), [2].into());
        assert_eq!(draw(None, 0.6), [0, 2].into());
        assert_eq!(draw(Some(9), 1.0).len(), 4);
    }

    #[test]
    fn options_out_of_range_are_refused() {
        for (sampling, words) in [
            (
                Sampling::Sampled { temperature: 0.0, top_k: None, top_p: 1.0, seed: 0 },
                "temperature 0 is",
            ),
            (
                Sampling::Sampled { temperature: 1.0, top_k: None, top_p: 1.5, seed: 0 },
                "top-p 1.5 is",
            ),
            (
                Sampling::Sampled { temperature: 1.0, top_k: Some(0), top_p: 1.0, seed: 0 },
                "top-k 0 leaves",
            ),
        ] {
            assert!(sampling.check().expect_err("a refusal").to_string().contains(words));
        }
    }
}
