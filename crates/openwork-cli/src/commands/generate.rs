//! `openwork generate MODEL --prompt T`.

use crate::args::Global;
use crate::failure::Failure;
use crate::print;
use openwork_llm::Checkpoint;
use openwork_llm::generate::{GenerateError, Sampling, generate, unsupported_options};
use openwork_llm::model::{Decoder, Model, ModelError, Storage};
use std::ops::ControlFlow;
use std::path::PathBuf;

/// Continues a prompt.
///
/// Greedy unless a temperature is given. The text goes to stdout as it comes,
/// the speed to stderr.
#[derive(Debug, clap::Args)]
#[command(after_help = "Examples:
  openwork generate smollm2.gguf --prompt 'The capital of France is'
  openwork generate Qwen2.5-0.5B --prompt 'def main' --temperature 0.8 --top-p 0.95 --seed 7")]
pub struct Generate {
    /// A Hugging Face folder, a .gguf file, or `demo`
    model: PathBuf,
    /// The text to go on from
    #[arg(long, value_name = "T")]
    prompt: String,
    /// Stop after N tokens
    #[arg(long, value_name = "N", default_value_t = 64)]
    max_new_tokens: usize,
    /// Sample, with logits divided by X; 0 is greedy [default: 0]
    #[arg(long, value_name = "X", allow_negative_numbers = true)]
    temperature: Option<f64>,
    /// Sample from the likeliest tokens that together have probability P
    #[arg(long, value_name = "P", requires = "temperature", allow_negative_numbers = true)]
    top_p: Option<f64>,
    /// Sample from the K likeliest tokens
    #[arg(long, value_name = "K", requires = "temperature")]
    top_k: Option<usize>,
    /// The same seed samples the same text
    #[arg(long, value_name = "S", requires = "temperature")]
    seed: Option<u64>,
    /// Hold weights as f32; otherwise as bf16 or f16
    #[arg(long)]
    f32: bool,
}

impl Generate {
    /// Generates and prints.
    pub fn run(self, global: &Global) -> Result<(), Failure> {
        let sampling = self.sampling().map_err(Failure::input)?;
        if self.prompt.is_empty() {
            return Err(Failure::input(GenerateError::Empty));
        }
        let checkpoint = Checkpoint::open(&self.model).map_err(Failure::input)?;
        let model = Model::open(&checkpoint).map_err(Failure::input)?;
        global.note(&model.config().notes);
        global.note(&unsupported_options(&checkpoint).map_err(Failure::input)?);
        let tokenizer = checkpoint.tokenizer().map_err(Failure::input)?;
        global.note(tokenizer.notes());
        let storage = if self.f32 { Storage::F32 } else { Storage::Half };
        let mut decoder = Decoder::load(&model, storage).map_err(Failure::input)?;

        let mut failure = None;
        let mut show = |text: &str| {
            if !global.json
                && let Err(error) = print::text(text)
            {
                failure = Some(error);
                return ControlFlow::Break(());
            }
            ControlFlow::Continue(())
        };
        let most = self.max_new_tokens;
        let result = generate(&mut decoder, &tokenizer, &self.prompt, most, sampling, &mut show)
            .map_err(|error| match error {
                GenerateError::Model(error) => match model.explain_not_finite(error) {
                    error @ ModelError::NotFinite => Failure::running(error),
                    error => Failure::input(error),
                },
                _ => Failure::input(error),
            })?;
        if let Some(failure) = failure {
            return Err(failure);
        }
        if global.json {
            print::line(result.to_json())?;
        } else {
            print::text("\n")?;
        }
        if !global.quiet {
            let speed = result
                .tokens_per_second()
                .map_or_else(String::new, |speed| format!(", {speed:.2} tokens/s"));
            print::aside(format!(
                "{} tokens{speed}, {:.1} MB read per token; prompt of {} tokens in {:.2} s; ended by {}",
                result.tokens.len(),
                result.bytes_per_token as f64 / 1e6,
                result.prompt_tokens,
                result.prompt_seconds,
                result.stop.name().replace('_', " "),
            ));
        }
        Ok(())
    }

    /// How to choose tokens; numbers out of range are refused even where they
    /// would not be used.
    fn sampling(&self) -> Result<Sampling, GenerateError> {
        let greedy = self.temperature.is_none_or(|temperature| temperature == 0.0);
        let sampled = Sampling::Sampled {
            temperature: self.temperature.filter(|_| !greedy).unwrap_or(1.0),
            top_k: self.top_k,
            top_p: self.top_p.unwrap_or(1.0),
            seed: self.seed.unwrap_or(0),
        };
        let sampled = sampled.check()?;
        Ok(if greedy { Sampling::Greedy } else { sampled })
    }
}
