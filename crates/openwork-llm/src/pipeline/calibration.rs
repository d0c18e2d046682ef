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
    /// The text's name, for the record.
    pub text: String,
    /// Bytes of the text.
    pub text_bytes: usize,
    /// What drew them.
    pub seed: u64,
}

impl Calibration {
    /// Draws `samples` windows of `seq_len` tokens, as SparseGPT and Wanda do.
    pub fn draw(
        tokenizer: &Tokenizer,
        (name, text): (&str, &str),
        samples: usize,
        seq_len: usize,
        seed: u64,
    ) -> Result<Self, PipelineError> {
        if samples == 0 {
            return Err(PipelineError::Plan("--samples 0: give at least one window".to_string()));
        }
        let bos = tokenizer.bos().filter(|_| tokenizer.adds_bos());
        let tokens = tokenizer.encode(text)?;
        let windows = random_windows(&tokens, seq_len, samples, seed, bos)?;
        Ok(Self { windows, text: name.to_string(), text_bytes: text.len(), seed })
    }

    /// Tokens in a window.
    pub fn seq_len(&self) -> usize {
        self.windows.first().map_or(0, Vec::len)
    }

    /// Tokens in all windows.
    pub fn tokens(&self) -> usize {
        self.windows.len() * self.seq_len()
    }

    /// Bytes of all hidden states, and of as many targets.
    pub fn state_bytes(&self, config: &Config) -> u64 {
        2 * (self.tokens() * config.hidden * size_of::<f32>()) as u64
    }

    /// Of all tokens, as little-endian u32.
    pub fn sha256(&self) -> String {
        let bytes: Vec<u8> =
            self.windows.iter().flatten().flat_map(|token| token.to_le_bytes()).collect();
        sha256(&bytes)
    }

    /// As the record has it.
    pub fn record(&self) -> report::Calibration {
        report::Calibration {
            text: self.text.clone(),
            samples: self.windows.len(),
            seq_len: self.seq_len(),
            tokens: self.tokens(),
            sha256: self.sha256(),
        }
    }
}
