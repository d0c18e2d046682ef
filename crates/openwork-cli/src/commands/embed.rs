//! `openwork embed MODEL --text FILE`.

use crate::args::{Global, positive};
use crate::failure::Failure;
use crate::print;
use crate::progress::Progress;
use openwork::Matrix;
use openwork_llm::Checkpoint;
use openwork_llm::checkpoint::Dtype;
use openwork_llm::checkpoint::write::{Data, Part, shard};
use openwork_llm::embed::{self, EmbedError, SentencePooling, read_sentences};
use openwork_llm::format::count;
use openwork_llm::model::{Layer, Model, Storage};
use openwork_llm::output::OutputFile;
use serde_json::json;
use std::num::NonZeroUsize;
use std::path::PathBuf;
use std::time::Instant;

/// Compute sentence embeddings with an encoder
#[derive(Debug, clap::Args)]
#[command(after_help = "\
MODEL is an encoder: BERT (MiniLM, E5, BGE), MPNet or Nomic-BERT (`openwork families`), dense,
pruned or packed. Every line of a .txt file that is not blank, or the `text` of every line of
a .jsonl file, gives one vector.

Pooling (cls, mean or max), normalization and the maximum length are read from the
sentence-transformers files in the model's folder: 1_Pooling/config.json, modules.json and
sentence_bert_config.json. Without them, a vector is the mean of all hidden states.

Prints one JSON list per text; with --json, one object with all vectors and measurements;
with --out, writes the tensor `vectors`, [texts, hidden], and prints no vectors.

Examples:
  openwork embed all-mpnet-base-v2 --text sentences.txt
  openwork embed pruned-mpnet --text sentences.jsonl --out vectors.safetensors --json")]
pub struct Embed {
    /// Hugging Face folder of an encoder
    model: PathBuf,
    /// Texts: a .txt file with one per line, or a .jsonl file with a `text` field
    #[arg(long, value_name = "FILE")]
    text: PathBuf,
    /// Write the vectors to this safetensors file
    #[arg(short, long, value_name = "FILE")]
    out: Option<PathBuf>,
    /// Replace the file of --out if it exists
    #[arg(long, requires = "out")]
    force: bool,
    /// Texts per batch
    #[arg(long, value_name = "N", default_value = "32", value_parser = positive)]
    batch_size: NonZeroUsize,
    /// Truncate texts to N tokens, including special tokens [default: the model's limit]
    #[arg(long, value_name = "N", value_parser = positive)]
    max_tokens: Option<NonZeroUsize>,
}

impl Embed {
    /// Computes and prints.
    pub fn run(self, global: &Global) -> Result<(), Failure> {
        let path = global.model(&self.model)?;
        let text = global.text(&self.text)?;
        let out = self.out.as_ref().map(|out| OutputFile::new(out, &[&path, &text], self.force));
        let out = out.transpose()?;
        let sentences = read_sentences(&text).map_err(Failure::input)?;
        let checkpoint = Checkpoint::open(&path)?;
        let model = Model::open(&checkpoint)?;
        let mut pooling = SentencePooling::read(&model).map_err(failure)?;
        if let Some(most) = self.max_tokens {
            pooling.limit(most.get(), &model).map_err(Failure::input)?;
        }
        global.note(&model.config().notes);
        global.note(&pooling.notes);
        let tokenizer = checkpoint.tokenizer()?;
        let texts = pooling.encode(&tokenizer, &sentences).map_err(Failure::input)?;
        model.check_tokens(&texts)?;
        let layers: Vec<Layer> = (0..model.config().layers)
            .map(|index| model.layer(index, Storage::Packed))
            .collect::<Result<_, _>>()?;
        let bar = Progress::start(global, "embedding");
        let started = Instant::now();
        let mut layer = |index: usize| Ok(&layers[index]);
        let batch = self.batch_size.get();
        let vectors = embed::embed(&model, &mut layer, &pooling, &texts, batch, &mut |share| {
            bar.say(share, "embedding");
            Ok(())
        });
        bar.end();
        let vectors = vectors?;
        let seconds = started.elapsed().as_secs_f64();
        let tokens: usize = texts.iter().map(Vec::len).sum();
        let mut facts = json!({
            "texts": texts.len(), "tokens": tokens, "width": vectors.cols(),
            "pooling": pooling.pooling.name(), "normalized": pooling.normalized,
            "max_tokens": pooling.max_tokens, "seconds": seconds,
            "texts_per_second": texts.len() as f64 / seconds,
        });
        if !global.json && !global.quiet {
            print::aside(format!(
                "{} of {}, {}; {:.2} s, {:.1} texts/s",
                count(texts.len(), "vector"),
                count(vectors.cols(), "number"),
                count(tokens, "token"),
                seconds,
                texts.len() as f64 / seconds,
            ));
        }
        if let Some(out) = &out {
            let shape = [vectors.rows(), vectors.cols()];
            let part = Part::new("vectors", Dtype::F32, &shape, Data::F32(vectors.data()));
            let written = shard(out.target(), &[part], &[]).map_err(Failure::running)?;
            global.wrote(out.path(), written.bytes);
            return if global.json { print::line(facts) } else { Ok(()) };
        }
        if global.json {
            facts["vectors"] = rows(&vectors).map(|row| json!(row)).collect();
            return print::line(facts);
        }
        rows(&vectors).try_for_each(|row| print::line(json!(row)))
    }
}

fn rows(vectors: &Matrix) -> impl Iterator<Item = &[f32]> {
    (0..vectors.rows()).map(|row| vectors.row(row))
}

/// The user's files are wrong, or the run failed.
pub fn failure(error: EmbedError) -> Failure {
    match error {
        EmbedError::Model(error) => error.into(),
        EmbedError::Checkpoint(error) => error.into(),
        error => Failure::input(error),
    }
}
