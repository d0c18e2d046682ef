//! `openwork eval MODEL --text TEXT --task FILE`.

use crate::args::{Global, positive};
use crate::failure::Failure;
use crate::print;
use crate::progress::Progress;
use openwork_llm::Checkpoint;
use openwork_llm::embed::{compare, read_sentences};
use openwork_llm::evaluate::{Bos, EvaluateError, Evaluation, Options, evaluate};
use openwork_llm::format::{align_columns, count};
use openwork_llm::model::{Model, ModelError, Storage};
use openwork_llm::output::OutputFile;
use openwork_llm::task::{self, Task, TaskError, TaskScore};
use openwork_llm::tokens::{TextUse, load_text};
use serde_json::json;
use std::num::NonZeroUsize;
use std::ops::ControlFlow;
use std::path::{Path, PathBuf};

/// Measure a model's perplexity on a text, and its accuracy on tasks
#[derive(Debug, clap::Args)]
#[command(group = clap::ArgGroup::new("measured").required(true).multiple(true))]
#[command(after_help = "\
For a text, prints perplexity per token and per word, and bits per byte. The documents are
joined and split into non-overlapping windows of L tokens; each window scores all of its
tokens except the first.

If the tokenizer adds BOS, it is prepended to every window, followed by L - 1 tokens of
text. The scripts of SparseGPT and Wanda add BOS to the first window only; use
`--bos first` to reproduce their figures.

For a task, prints the fraction of documents that the model answers correctly. Each line
of the file is a document,
  {\"context\": \"Question: ..\", \"choices\": [\" yes\", \" no\"], \"gold\": 0}
and the answer is the choice with the highest log-likelihood (for acc_norm, divided by the
length of the choice in bytes). With a single choice, greedy decoding must produce it
(LAMBADA). `context` may be a list with one text per choice. Tokenization follows lm-eval.

Examples:
  openwork eval Qwen2.5-0.5B --text wikitext2.txt
  openwork eval smollm2.gguf --text c4.jsonl --seq-len 1024 --max-tokens 16384 --json
  openwork eval smollm2.gguf --task arc-easy.jsonl --task lambada.jsonl
  openwork eval pruned --task hellaswag.jsonl --limit 200 --details answers.jsonl
  openwork eval demo --text demo

For an encoder, prints the mean and the lowest cosine similarity of its sentence vectors,
one text per line, to those of the dense model:
  openwork eval pruned-mpnet --text sentences.txt --reference all-mpnet-base-v2")]
pub struct Eval {
    /// Hugging Face folder, .gguf file, name on the Hugging Face Hub, or `demo`
    model: PathBuf,
    /// Evaluation text: a .txt file, a .jsonl file with a `text` field, or `demo`
    #[arg(long, value_name = "TEXT", group = "measured")]
    text: Option<PathBuf>,
    /// For an encoder: the dense model with which to compare its sentence vectors
    #[arg(long, value_name = "MODEL", requires = "text")]
    reference: Option<PathBuf>,
    /// Task: a .jsonl file with `context`, `choices` and `gold`; can be given several times
    #[arg(long = "task", value_name = "FILE", group = "measured")]
    tasks: Vec<PathBuf>,
    /// Use only the first N documents of every task
    #[arg(long, value_name = "N", requires = "tasks", value_parser = positive)]
    limit: Option<NonZeroUsize>,
    /// Write the log-likelihood of every choice as JSON lines, one per document
    #[arg(long, value_name = "FILE", requires = "tasks")]
    details: Option<PathBuf>,
    /// Replace the file of --details if it exists
    #[arg(long, requires = "details")]
    force: bool,
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
    pub fn run(mut self, global: &Global) -> Result<(), Failure> {
        self.tasks = self.tasks.iter().map(|path| global.text(path)).collect::<Result<_, _>>()?;
        self.text = self.text.map(|path| global.text(&path)).transpose()?;
        let limit = self.limit.map(NonZeroUsize::get);
        let tasks = self.tasks.iter().map(|path| Task::read(path, limit));
        let tasks: Vec<Task> = tasks.collect::<Result<_, _>>().map_err(Failure::input)?;
        let details = self.details.as_ref().map(|path| {
            let inputs = self.tasks.iter().chain([&self.model]).map(PathBuf::as_path);
            let inputs: Vec<&Path> = inputs.chain(self.text.as_deref()).collect();
            OutputFile::new(path, &inputs, self.force)
        });
        let details = details.transpose()?;
        let checkpoint = Checkpoint::open(&global.model(&self.model)?)?;
        let model = Model::open(&checkpoint)?;
        global.note(&model.config().notes);
        if let Some(reference) = &self.reference {
            return self.similarity(&model, reference, global);
        }
        model.check_decoder()?;
        let text = self.text.as_ref().map(|text| load_text(text, TextUse::Evaluate));
        let text = text.transpose().map_err(Failure::input)?;
        // The tasks first: their lines are checked before anything long starts.
        let scores = score(&model, &tasks, global)?;
        let perplexity = text.map(|text| self.perplexity(&model, &text, global)).transpose()?;
        if let Some(out) = &details {
            let lines: String = scores.iter().map(TaskScore::details).collect();
            global.write(out, lines.as_bytes())?;
        }
        if global.json {
            let mut result = perplexity.map_or_else(|| json!({}), |found| found.to_json());
            if !tasks.is_empty() {
                result["tasks"] = scores.iter().map(TaskScore::to_json).collect();
            }
            return print::line(result);
        }
        if let Some(found) = perplexity {
            print_perplexity(&found)?;
        }
        match scores.is_empty() {
            true => Ok(()),
            false => print::text(&table(&scores)),
        }
    }

    /// Compares the sentence vectors of two encoders.
    fn similarity(
        &self,
        model: &Model<'_>,
        reference: &Path,
        global: &Global,
    ) -> Result<(), Failure> {
        model.check_encoder()?;
        if !self.tasks.is_empty() {
            return Err(Failure::input("tasks need a decoder; omit --task"));
        }
        let dense = Checkpoint::open(&global.model(reference)?)?;
        let dense = Model::open(&dense)?;
        let path = self.text.as_deref().unwrap_or(Path::new(""));
        let sentences = read_sentences(path).map_err(Failure::input)?;
        let bar = Progress::start(global, "comparing");
        let found = compare(model, &dense, &sentences, &mut |share| {
            bar.say(share, "comparing");
            Ok(())
        });
        bar.end();
        let found = found.map_err(super::embed::failure)?;
        if global.json {
            return print::line(json!({
                "texts": sentences.len(), "mean_cosine": found.mean, "least_cosine": found.least,
                "least_text": sentences[found.least_text],
            }));
        }
        print::line(format!(
            "mean cosine   {:.6} over {}",
            found.mean,
            count(sentences.len(), "text")
        ))?;
        print::line(format!("lowest cosine {:.6}: {}", found.least, sentences[found.least_text]))
    }

    fn perplexity(
        &self,
        model: &Model<'_>,
        text: &str,
        global: &Global,
    ) -> Result<Evaluation, Failure> {
        let options = Options {
            seq_len: self.seq_len,
            max_tokens: self.max_tokens,
            detokenize: self.detokenize,
            bos: Bos::ALL.into_iter().find(|bos| Some(bos.name()) == self.bos.as_deref()),
        };
        let bar = Progress::start(global, "evaluating");
        bar.announce_tokenizing(text.len() as u64);
        let result = evaluate(model, text, &options, &mut |progress| {
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
        Ok(result)
    }
}

/// Scores a model on tasks.
fn score(model: &Model<'_>, tasks: &[Task], global: &Global) -> Result<Vec<TaskScore>, Failure> {
    if tasks.is_empty() {
        return Ok(Vec::new());
    }
    let tokenizer = model.checkpoint().tokenizer()?;
    let documents: usize = tasks.iter().map(|task| task.documents.len()).sum();
    let bar = Progress::start(global, &format!("scoring {}", count(documents, "document")));
    let mut layer = |index| model.layer(index, Storage::Packed);
    let scores = task::score(model, &tokenizer, &mut layer, tasks, &mut |share| {
        bar.say(share, &format!("scoring {}", count(documents, "document")));
        ControlFlow::Continue(())
    });
    bar.end();
    scores.map_err(|error| match error {
        TaskError::Model(error) => model.explain_not_finite(error).into(),
        error => Failure::input(error),
    })
}

fn print_perplexity(result: &Evaluation) -> Result<(), Failure> {
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

/// The scores as a table, with standard errors.
fn table(scores: &[TaskScore]) -> String {
    let mut rows =
        vec![["task", "docs", "acc", "acc_norm", "perplexity", "seconds"].map(String::from)];
    let accuracy = |share: f64, error: Option<f64>| match error {
        Some(error) => format!("{share:.4} +- {error:.4}"),
        None => format!("{share:.4}"),
    };
    rows.extend(scores.iter().map(|score| {
        [
            score.name.clone(),
            score.documents.len().to_string(),
            accuracy(score.acc(), score.stderr()),
            accuracy(score.acc_norm(), score.acc_norm_stderr()),
            score.perplexity().map_or_else(String::new, |perplexity| format!("{perplexity:.3}")),
            format!("{:.1}", score.seconds),
        ]
    }));
    align_columns(&rows, [false, true, true, true, true, true])
}

/// A number, or a dash if it is not finite.
fn figure(value: f64, digits: usize) -> String {
    if value.is_finite() { format!("{value:.digits$}") } else { "-".to_string() }
}
