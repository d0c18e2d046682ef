//! `openwork eval MODEL --text TEXT`.

use crate::args::Global;
use crate::failure::Failure;
use crate::print;
use crate::progress::Progress;
use openwork_llm::Checkpoint;
use openwork_llm::evaluate::{Bos, EvaluateError, Options, evaluate};
use openwork_llm::format::count;
use openwork_llm::model::{Model, ModelError};
use openwork_llm::tokens::{TextUse, load_text};
use std::path::PathBuf;

/// Measure a model's perplexity on a text
#[derive(Debug, clap::Args)]
#[command(after_help = "\
Prints perplexity per token and per word, and bits per byte. The documents are joined and
split into non-overlapping windows of L tokens; each window scores all of its tokens except
the first.

If the tokenizer adds BOS, it is prepended to every window, followed by L - 1 tokens of
text. The scripts of SparseGPT and Wanda have BOS in the first window only: use
`--bos first` to reproduce their figures.

Examples:
  openwork eval Qwen2.5-0.5B --text wikitext2.txt
  openwork eval smollm2.gguf --text c4.jsonl --seq-len 1024 --max-tokens 16384 --json
  openwork eval demo --text demo")]
pub struct Eval {
    /// Hugging Face folder, .gguf file, or `demo`
    model: PathBuf,
    /// Evaluation text: a .txt file, a .jsonl file with a `text` field, or `demo`
    #[arg(long, value_name = "TEXT")]
    text: PathBuf,
    /// Tokens per window, up to the model's max_position_embeddings
    /// [default: 2048, or that limit if it is less]
    #[arg(long, value_name = "L")]
    seq_len: Option<usize>,
    /// Use only the first N tokens of the text
    #[arg(long, value_name = "N")]
    max_tokens: Option<usize>,
    /// Detokenize WikiText before scoring, as lm-eval does; words and bytes are still
    /// counted in the original text
    #[arg(long)]
    detokenize: bool,
    /// Where to add BOS: to `each` window, to the `first` window, or to `none`
    /// [default: each if the tokenizer adds BOS, none otherwise]
    #[arg(long, value_name = "WHERE", value_parser = Bos::ALL.map(Bos::name))]
    bos: Option<String>,
}

impl Eval {
    /// Measures and prints.
    pub fn run(self, global: &Global) -> Result<(), Failure> {
        let text = load_text(&self.text, TextUse::Evaluate).map_err(Failure::input)?;
        let checkpoint = Checkpoint::open(&self.model)?;
        let model = Model::open(&checkpoint)?;
        global.note(&model.config().notes);
        let options = Options {
            seq_len: self.seq_len,
            max_tokens: self.max_tokens,
            detokenize: self.detokenize,
            bos: Bos::ALL.into_iter().find(|bos| Some(bos.name()) == self.bos.as_deref()),
        };
        let bar = Progress::start(global, "evaluating");
        bar.announce_tokenizing(text.len() as u64);
        let result = evaluate(&model, &text, &options, &mut |progress| {
            let so_far = progress.perplexity.map(|p| format!("perplexity {p:.4}"));
            bar.say(
                progress.done as f64 / progress.total.max(1) as f64,
                &so_far.unwrap_or_else(|| "evaluating".to_string()),
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
            global
                .note(&["the scored text contains no words, so it has no word perplexity".into()]);
        }
        if global.json {
            return print::line(result.to_json());
        }
        print::line(format!("token perplexity  {:.4}", result.token_perplexity()))?;
        print::line(format!("word perplexity   {}", figure(result.word_perplexity(), 4)))?;
        print::line(format!("bits per byte     {}", figure(result.bits_per_byte(), 5)))?;
        print::line(format!(
            "{}, {}, {} scored in {} of {}, {}; {:.1} s",
            count(result.tokens, "token"),
            count(result.words, "word"),
            count(result.bytes, "byte"),
            count(result.windows, "window"),
            count(result.seq_len, "token"),
            match result.bos {
                Bos::Each => "BOS in each",
                Bos::First => "BOS in the first",
                Bos::None => "no BOS",
            },
            result.seconds
        ))
    }
}

/// A number, or a dash if it is not finite.
fn figure(value: f64, digits: usize) -> String {
    if value.is_finite() { format!("{value:.digits$}") } else { "-".to_string() }
}
