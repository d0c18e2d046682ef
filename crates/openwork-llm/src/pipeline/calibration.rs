//! The windows that inputs are measured on.

use super::PipelineError;
use crate::disk::sha256;
use crate::model::Config;
use crate::report;
use crate::tokens::{Tokenizer, random_windows};

/// Windows of tokens, drawn from a text by a seed.
#[derive(Clone, Debug)]
pub struct Calibration {
    /// All of one length.
    pub windows: Vec<Vec<u32>>,
    /// Short windows: what a text begins with, see [`Calibration::draw`].
    pub single_tokens: Vec<Vec<u32>>,
    /// The text's name, for the record.
    pub text: String,
    /// Bytes of the text.
    pub text_bytes: usize,
    /// What drew them.
    pub seed: u64,
}

/// What to draw.
#[derive(Clone, Copy, Debug)]
pub struct Sampling {
    /// Windows.
    pub samples: usize,
    /// Tokens in each.
    pub length: usize,
    /// Windows of a single token; if nothing is said, one for every [`Sampling::SHARE`]
    /// tokens of the others.
    pub single_tokens: Option<usize>,
    /// What draws them.
    pub seed: u64,
}

impl Sampling {
    /// With four times as many Qwen2.5-0.5B's heads came out 2 % better.
    pub const SHARE: usize = 16;
}

impl Calibration {
    /// Draws windows from a text, given with its name, as SparseGPT and Wanda do, and
    /// windows of a single token (after the token that begins a text, if the model
    /// wants one).
    ///
    /// What a model makes of the first token of a text is like nothing that it makes
    /// of later ones, and all of them look at it. Windows alone have one first token
    /// in a thousand, so that weights fitted to them may miss it.
    pub fn draw(
        tokenizer: &Tokenizer,
        (name, text): (&str, &str),
        how: Sampling,
    ) -> Result<Self, PipelineError> {
        let Sampling { samples, length, seed, .. } = how;
        if samples == 0 {
            return Err(PipelineError::Plan("--samples 0: give at least one window".to_string()));
        }
        let bos = tokenizer.bos().filter(|_| tokenizer.adds_bos());
        let tokens = tokenizer.encode(text)?;
        let windows = random_windows(&tokens, length, samples, seed, bos)?;
        let short = 1 + usize::from(bos.is_some());
        let single_tokens = match how.single_tokens {
            Some(asked) if asked > tokens.len() => {
                let there = tokens.len();
                return Err(PipelineError::Plan(format!(
                    "--single-tokens {asked}: the text has only {there} tokens; ask for at most as many"
                )));
            }
            Some(asked) => asked,
            None => (samples * length / Sampling::SHARE).min(tokens.len()),
        };
        let single_tokens = random_windows(&tokens, short, single_tokens, seed, bos)?;
        Ok(Self { windows, single_tokens, text: name.to_string(), text_bytes: text.len(), seed })
    }

    /// Tokens in a window.
    pub fn seq_len(&self) -> usize {
        self.windows.first().map_or(0, Vec::len)
    }

    /// Tokens in all windows, short ones included.
    pub fn tokens(&self) -> usize {
        self.windows.iter().chain(&self.single_tokens).map(Vec::len).sum()
    }

    /// Bytes of all hidden states, and of as many targets.
    pub fn state_bytes(&self, config: &Config) -> u64 {
        2 * (self.tokens() * config.hidden * size_of::<f32>()) as u64
    }

    /// Of all tokens, as little-endian u32.
    pub fn sha256(&self) -> String {
        let tokens = self.windows.iter().chain(&self.single_tokens).flatten();
        let bytes: Vec<u8> = tokens.flat_map(|token| token.to_le_bytes()).collect();
        sha256(&bytes)
    }

    /// As the record has it.
    pub fn record(&self) -> report::Calibration {
        report::Calibration {
            text: self.text.clone(),
            samples: self.windows.len(),
            seq_len: self.seq_len(),
            tokens: self.windows.len() * self.seq_len(),
            single_tokens: self.single_tokens.len(),
            sha256: self.sha256(),
        }
    }
}
