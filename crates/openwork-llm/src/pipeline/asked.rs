//! From what a user gave to what a run needs, for the command and for Python.

use super::{Calibration, Evaluation, PipelineError};
use crate::checkpoint::{Checkpoint, Dtype, Format};
use crate::evaluate::{self, Scored};
use crate::model::Model;

/// Tokens in a calibration window if nothing is said.
const SEQ_LEN: usize = 1024;

/// The type of the written weights: the one asked for, or the model's own;
/// bf16 for GGUF.
pub fn written_dtype(asked: Option<&str>, source: &Checkpoint) -> Result<Dtype, PipelineError> {
    match asked {
        Some("bf16" | "bfloat16") => Ok(Dtype::BF16),
        Some("f16" | "float16") => Ok(Dtype::F16),
        Some("f32" | "float32") => Ok(Dtype::F32),
        Some(other) => Err(PipelineError::Plan(format!("--dtype {other}: give bf16, f16 or f32"))),
        None if source.format() == Format::Gguf => Ok(Dtype::BF16),
        None => match source.tensor("model.embed_tokens.weight")?.dtype() {
            dtype @ (Dtype::F16 | Dtype::F32) => Ok(dtype),
            _ => Ok(Dtype::BF16),
        },
    }
}

/// The length of windows, which the model must be able to take.
fn window(
    flag: &str,
    asked: Option<usize>,
    usual: usize,
    model: &Model<'_>,
) -> Result<usize, PipelineError> {
    let limit = model.config().max_positions;
    let length = asked.unwrap_or(limit.min(usual));
    if length <= limit {
        return Ok(length);
    }
    Err(PipelineError::Plan(format!("{flag} {length}: the model takes at most {limit} tokens")))
}

impl Calibration {
    /// Windows of a text, given with its name.
    pub fn of(
        model: &Model<'_>,
        (name, text): (&str, &str),
        samples: usize,
        seq_len: Option<usize>,
        seed: u64,
    ) -> Result<Self, PipelineError> {
        let length = window("--seq-len", seq_len, SEQ_LEN, model)?;
        let tokenizer = model.checkpoint().tokenizer()?;
        Self::draw(&tokenizer, (name, text), samples, length, seed)
            .map_err(|error| PipelineError::Plan(format!("--calib {name}: {error}")))
    }
}

impl Evaluation {
    /// Perplexity on the first `tokens` tokens of a text, given with its name,
    /// also after every so many layers.
    pub fn of(
        model: &Model<'_>,
        (name, text): (&str, &str),
        every: Option<usize>,
        tokens: Option<usize>,
        seq_len: Option<usize>,
    ) -> Result<Self, PipelineError> {
        let length = window("--eval-seq-len", seq_len, evaluate::SEQ_LEN, model)?;
        if every == Some(0) {
            return Err(PipelineError::Plan("--eval-every 0: give a number from 1 on".into()));
        }
        let options =
            evaluate::Options { seq_len: Some(length), max_tokens: tokens, detokenise: false };
        let tokenizer = model.checkpoint().tokenizer()?;
        let scored = Scored::new(&tokenizer, text, length, &options)
            .map_err(|error| PipelineError::Plan(format!("--eval {name}: {error}")))?;
        Ok(Self { scored, every })
    }
}
