//! `openwork eval MODEL --text TEXT`.

use crate::args::Global;
use crate::failure::Failure;
use crate::print;
use crate::progress::Progress;
use openwork_llm::Checkpoint;
use openwork_llm::evaluate::{Bos, EvaluateError, Options, evaluate};
use openwork_llm::model::{Model, ModelError};
use openwork_llm::tokens::{TextUse, load_text};
use std::path::PathBuf;

/// Perplexity of a model on a text: per token, per word, and bits per byte.
///
/// The documents are joined and cut into windows of L tokens that do not
/// overlap; each window scores all of its tokens but the first.
#[derive(Debug, clap::Args)]
#[command(after_help = "Examples:
  openwork eval Qwen2.5-0.5B --text wikitext2.txt
  openwork eval smollm2.gguf --text c4.jsonl --seq-len 1024 --max-tokens 16384 --json

Where the tokenizer begins a text with BOS, every window begins with it and L - 1
tokens of the text follow. SparseGPT's and Wanda's scripts put it into the first
window only (--bos first), which gives another figure.")]
pub struct Eval {
    /// A Hugging Face folder, a .gguf file, or `demo`
    model: PathBuf,
    /// A .txt file, a .jsonl file with a `text` field in every line, or `demo`
    #[arg(long, value_name = "TEXT")]
    text: PathBuf,
    /// Tokens in a window; at most the model's max_position_embeddings
    /// [default: 2048 or that, whichever is less]
    #[arg(long, value_name = "L")]
    seq_len: Option<usize>,
    /// Use only the first N tokens of the text
    #[arg(long, value_name = "N")]
    max_tokens: Option<usize>,
    /// Undo WikiText's tokenisation before the model reads it, as lm-eval does;
    /// words and bytes are still those of the text as given
    #[arg(long)]
    detokenize: bool,
    /// Where the token that begins a text goes: before `each` window, before the
    /// `first`, or `none` [default: each if the tokenizer adds one, else none]
    #[arg(long, value_name = "WHERE", value_parser = Bos::ALL.map(Bos::name))]
    bos: Option<String>,
}

impl Eval {
    /// Measures and prints.
    pub fn run(self, global: &Global) -> Result<(), Failure> {
        let text = load_text(&self.text, TextUse::Evaluate).map_err(Failure::input)?;
        let checkpoint = Checkpoint::open(&self.model).map_err(Failure::input)?;
        let model = Model::open(&checkpoint).map_err(Failure::input)?;
        global.note(&model.config().notes);
        let options = Options {
            seq_len: self.seq_len,
            max_tokens: self.max_tokens,
            detokenise: self.detokenize,
            bos: Bos::ALL.into_iter().find(|bos| Some(bos.name()) == self.bos.as_deref()),
        };
        let bar = Progress::start(global, "eval");
        let result = evaluate(&model, &text, &options, &mut |progress| {
            let so_far = progress.perplexity.map(|p| format!("perplexity {p:.4}"));
            bar.say(
                progress.done as f64 / progress.total.max(1) as f64,
                &so_far.unwrap_or_else(|| "eval".to_string()),
            );
        });
        bar.end();
        let result = result.map_err(|error| match error {
            EvaluateError::Model(ModelError::NotFinite) | EvaluateError::Infinite(_) => {
                Failure::running(error)
            }
            _ => Failure::input(error),
        })?;
        global.note(&result.notes);
        if result.words == 0 {
            global.note(&["no word begins in what is scored: it has no word perplexity".into()]);
        }
        if global.json {
            return print::line(result.to_json());
        }
        print::line(format!("token perplexity  {:.4}", result.token_perplexity()))?;
        print::line(format!("word perplexity   {}", figure(result.word_perplexity(), 4)))?;
        print::line(format!("bits per byte     {}", figure(result.bits_per_byte(), 5)))?;
        print::line(format!(
            "{} tokens, {} words, {} bytes scored in {} windows of {}, {}; {:.1} s",
            result.tokens,
            result.words,
            result.bytes,
            result.windows,
            result.seq_len,
            match result.bos {
                Bos::Each => "each after BOS",
                Bos::First => "the first with BOS",
                Bos::None => "no BOS",
            },
            result.seconds
        ))
    }
}

/// A number, or a dash where no word or no byte is scored.
fn figure(value: f64, digits: usize) -> String {
    if value.is_finite() { format!("{value:.digits$}") } else { "-".to_string() }
}
