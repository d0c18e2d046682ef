//! `openwork generate MODEL PROMPT`.

use crate::args::Global;
use crate::failure::Failure;
use crate::print;
use openwork_llm::Checkpoint;
use openwork_llm::chat::{ChatTemplate, Message};
use openwork_llm::format::count;
use openwork_llm::generate::{
    GenerateError, Generation, Sampling, generate, generate_after, unsupported_options,
};
use openwork_llm::model::{Decoder, Model, ModelError, Storage};
use openwork_llm::tokens::Tokenizer;
use std::io::IsTerminal;
use std::ops::ControlFlow;
use std::path::PathBuf;

/// Generate text from a prompt
#[derive(Debug, clap::Args)]
#[command(after_help = "\
Decodes greedily unless --temperature is given. The text is printed on stdout as it is
generated, the speed on stderr.

With --chat, the prompt is a user message, formatted with the model's own chat template.
Without a prompt on a terminal, every line you type is the next message of the conversation;
press Ctrl-D to end it.

Examples:
  openwork generate smollm2.gguf 'The capital of France is'
  openwork generate packed -p 'def main' -n 100 --temperature 0.8 --top-p 0.95 --seed 7
  openwork generate SmolLM2-135M-Instruct --chat 'What is a wall?' --system 'Be brief.'
  openwork generate Qwen2.5-0.5B --echo < prompt.txt")]
pub struct Generate {
    /// Hugging Face folder, .gguf file, name on the Hugging Face Hub, or `demo`
    model: PathBuf,
    /// Prompt; read from stdin if it is `-` or not given
    #[arg(value_name = "PROMPT")]
    prompt: Option<String>,
    /// Prompt, as an option instead of an argument
    #[arg(short = 'p', long = "prompt", value_name = "TEXT", conflicts_with = "prompt")]
    prompt_option: Option<String>,
    /// Answer the prompt as a chat message, formatted with the model's chat template
    #[arg(long)]
    chat: bool,
    /// System message of the conversation
    #[arg(long, value_name = "TEXT", requires = "chat")]
    system: Option<String>,
    /// Print the prompt before the generated text
    #[arg(long, conflicts_with = "chat")]
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

/// A model, and how it generates.
struct Generator<'a> {
    global: &'a Global,
    model: &'a Model<'a>,
    tokenizer: Tokenizer,
    decoder: Decoder,
    most: usize,
    sampling: Sampling,
}

/// What to continue.
enum Prompt<'a> {
    Text(&'a str),
    /// Tokens, to which nothing is added.
    Tokens(&'a [u32]),
}

impl Generate {
    /// Generates and prints.
    pub fn run(self, global: &Global) -> Result<(), Failure> {
        let sampling = self.sampling().map_err(Failure::input)?;
        let given = self.prompt.is_some() || self.prompt_option.is_some();
        let interactive = self.chat && !given && !global.json && std::io::stdin().is_terminal();
        let prompt = if interactive { String::new() } else { self.prompt()? };
        if prompt.is_empty() && !interactive {
            return Err(Failure::input(GenerateError::Empty));
        }
        let checkpoint = Checkpoint::open(&global.model(&self.model)?)?;
        let model = Model::open(&checkpoint)?;
        global.note(&model.config().notes);
        global.note(&unsupported_options(&checkpoint).map_err(Failure::input)?);
        let tokenizer = checkpoint.tokenizer()?;
        global.note(tokenizer.notes());
        let template = match self.chat {
            true => Some(
                ChatTemplate::from_checkpoint(&checkpoint, &tokenizer).map_err(Failure::input)?,
            ),
            false => None,
        };
        let storage = if self.f32 { Storage::F32 } else { Storage::Half };
        let decoder = Decoder::load(&model, storage).map_err(Failure::input)?;
        let most = self.max_new_tokens;
        let mut generator = Generator { global, model: &model, tokenizer, decoder, most, sampling };
        let Some(template) = template else {
            if self.echo && !global.json {
                print::generated(&prompt)?;
            }
            return generator.generate(Prompt::Text(&prompt)).map(drop);
        };
        let mut messages: Vec<Message> =
            self.system.iter().map(|text| Message::new("system", text)).collect();
        if !interactive {
            messages.push(Message::new("user", &prompt));
            return generator.answer(&template, &messages).map(drop);
        }
        loop {
            print::question("> ");
            let mut line = String::new();
            let read = std::io::stdin().read_line(&mut line);
            if read.map_err(Failure::running)? == 0 {
                return Ok(());
            }
            if line.trim().is_empty() {
                continue;
            }
            messages.push(Message::new("user", line.trim_end_matches(['\r', '\n'])));
            let answer = generator.answer(&template, &messages)?;
            messages.push(Message::new("assistant", &answer.text));
        }
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

impl Generator<'_> {
    /// Generates and prints the next message of a conversation.
    fn answer(
        &mut self,
        template: &ChatTemplate,
        messages: &[Message],
    ) -> Result<Generation, Failure> {
        let text = template.render(messages, true).map_err(Failure::input)?;
        // The template spells out BOS where the model expects it.
        let tokens = self.tokenizer.encode(&text).map_err(Failure::input)?;
        self.generate(Prompt::Tokens(&tokens))
    }

    /// Generates and prints.
    fn generate(&mut self, prompt: Prompt<'_>) -> Result<Generation, Failure> {
        let Self { global, model, tokenizer, decoder, most, sampling } = self;
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
        let result = match prompt {
            Prompt::Text(text) => generate(decoder, tokenizer, text, *most, *sampling, &mut show),
            Prompt::Tokens(tokens) => {
                generate_after(decoder, tokenizer, tokens, *most, *sampling, &mut show)
            }
        };
        let result = result.map_err(|error| match error {
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
        Ok(result)
    }
}
