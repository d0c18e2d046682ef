//! `openwork generate MODEL PROMPT`.

use crate::args::Global;
use crate::failure::Failure;
use crate::print;
use openwork_llm::Checkpoint;
use openwork_llm::format::count;
use openwork_llm::generate::{GenerateError, Sampling, generate, unsupported_options};
use openwork_llm::model::{Decoder, Model, ModelError, Storage};
use std::io::IsTerminal;
use std::ops::ControlFlow;
use std::path::PathBuf;

/// Generate text from a prompt
#[derive(Debug, clap::Args)]
#[command(after_help = "\
Decodes greedily unless --temperature is given. The text is printed on stdout as it is
generated, the speed on stderr.

Examples:
  openwork generate smollm2.gguf 'The capital of France is'
  openwork generate packed -p 'def main' -n 100 --temperature 0.8 --top-p 0.95 --seed 7
  openwork generate Qwen2.5-0.5B --echo < prompt.txt")]
pub struct Generate {
    /// Hugging Face folder, .gguf file, or `demo`
    model: PathBuf,
    /// Prompt; read from stdin if it is `-` or not given
    #[arg(value_name = "PROMPT")]
    prompt: Option<String>,
    /// Prompt, as an option
    #[arg(short = 'p', long = "prompt", value_name = "TEXT", conflicts_with = "prompt")]
    prompt_option: Option<String>,
    /// Print the prompt before the generated text
    #[arg(long)]
    echo: bool,
    /// Generate at most N tokens
    #[arg(short = 'n', long, value_name = "N", default_value_t = 64)]
    max_new_tokens: usize,
    /// Sample with temperature X; 0 decodes greedily [default: 0]
    #[arg(long, value_name = "X", allow_negative_numbers = true)]
    temperature: Option<f64>,
    /// Sample from the most likely tokens with total probability P
    #[arg(long, value_name = "P", requires = "temperature", allow_negative_numbers = true)]
    top_p: Option<f64>,
    /// Sample from the K most likely tokens
    #[arg(long, value_name = "K", requires = "temperature")]
    top_k: Option<usize>,
    /// Random seed for sampling
    #[arg(long, value_name = "S", requires = "temperature")]
    seed: Option<u64>,
    /// Keep weights in memory as f32 instead of bf16 or f16
    #[arg(long)]
    f32: bool,
}

impl Generate {
    /// Generates and prints.
    pub fn run(self, global: &Global) -> Result<(), Failure> {
        let sampling = self.sampling().map_err(Failure::input)?;
        let prompt = self.prompt()?;
        if prompt.is_empty() {
            return Err(Failure::input(GenerateError::Empty));
        }
        let checkpoint = Checkpoint::open(&self.model)?;
        let model = Model::open(&checkpoint)?;
        global.note(&model.config().notes);
        global.note(&unsupported_options(&checkpoint).map_err(Failure::input)?);
        let tokenizer = checkpoint.tokenizer()?;
        global.note(tokenizer.notes());
        let storage = if self.f32 { Storage::F32 } else { Storage::Half };
        let mut decoder = Decoder::load(&model, storage).map_err(Failure::input)?;

        if self.echo && !global.json {
            print::generated(&prompt)?;
        }
        let mut failure = None;
        let mut show = |text: &str| {
            if !global.json
                && let Err(error) = print::generated(text)
            {
                failure = Some(error);
                return ControlFlow::Break(());
            }
            ControlFlow::Continue(())
        };
        let most = self.max_new_tokens;
        let result = generate(&mut decoder, &tokenizer, &prompt, most, sampling, &mut show)
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
                "{}{speed}, {:.1} MB read per token; prompt: {} in {:.2} s; stopped by {}",
                count(result.tokens.len(), "token"),
                result.bytes_per_token as f64 / 1e6,
                count(result.prompt_tokens, "token"),
                result.prompt_seconds,
                result.stop.name().replace('_', " "),
            ));
        }
        Ok(())
    }

    /// The prompt: argument, option, or all of stdin without its last line end.
    fn prompt(&self) -> Result<String, Failure> {
        let given = self.prompt.as_ref().or(self.prompt_option.as_ref());
        if let Some(prompt) = given.filter(|prompt| *prompt != "-") {
            return Ok(prompt.clone());
        }
        if given.is_none() && std::io::stdin().is_terminal() {
            let message = "no prompt: pass PROMPT, or pipe it to stdin";
            return Err(Failure::Input(message.to_string()));
        }
        let prompt = std::io::read_to_string(std::io::stdin()).map_err(|error| {
            Failure::Input(format!("cannot read the prompt from stdin: {error}"))
        })?;
        let line = prompt.strip_suffix('\n').unwrap_or(&prompt);
        Ok(line.strip_suffix('\r').unwrap_or(line).to_string())
    }

    /// The sampling options; values out of range are refused even if they are
    /// not used.
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
