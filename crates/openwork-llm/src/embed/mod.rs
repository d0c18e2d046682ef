//! Vectors of sentences by an encoder: tokens, hidden states, pooling.
//!
//! ```no_run
//! use openwork_llm::{Checkpoint, embed::SentencePooling, embed::embed, model::{Model, Storage}};
//! # fn main() -> Result<(), Box<dyn std::error::Error>> {
//! let checkpoint = Checkpoint::open("all-mpnet-base-v2".as_ref())?;
//! let model = Model::open(&checkpoint)?;
//! let pooling = SentencePooling::read(&model)?;
//! let texts = pooling.encode(&checkpoint.tokenizer()?, &["a wall", "some light"])?;
//! let mut layer = |index| model.layer(index, Storage::Packed);
//! let vectors = embed(&model, &mut layer, &pooling, &texts, 32, &mut |_| Ok(()))?;
//! assert_eq!(vectors.rows(), 2);
//! # Ok(()) }
//! ```
//!
//! Sentences of a batch are not padded: linear layers see the tokens of all of them as the
//! rows of one matrix ([`RaggedBatch`]).

mod pooling;
mod similarity;

pub use pooling::{Pooling, SentencePooling};
pub use similarity::Similarity;

use crate::checkpoint::CheckpointError;
use crate::demo;
use crate::model::{Layer, Model, ModelError, RaggedBatch, Span, Storage};
use crate::tokens::{TextError, read_text};
use openwork::Matrix;
use std::borrow::Borrow;
use std::path::Path;

/// Sentences in a batch.
pub const BATCH: usize = 32;

/// Tokens whose hidden states are in memory at once. A layer is loaded once for all of
/// them, which takes little of the time that they take.
const GROUP_TOKENS: usize = 1 << 14;

/// Why there are no vectors.
#[derive(Debug, thiserror::Error)]
pub enum EmbedError {
    /// The model cannot be run.
    #[error(transparent)]
    Model(#[from] ModelError),
    /// One of its files cannot be read.
    #[error(transparent)]
    Checkpoint(#[from] CheckpointError),
    /// A text cannot be used.
    #[error(transparent)]
    Text(#[from] TextError),
    /// A file of sentence-transformers asks for something that is not supported.
    #[error("{}: {why}", path.display())]
    Files {
        /// The file.
        path: std::path::PathBuf,
        /// What is wrong.
        why: String,
    },
}

/// The texts of a file, one vector each: the lines of a `.txt` that are not blank, or the
/// `text` of each line of a `.jsonl`; `demo` is the built-in text.
pub fn read_sentences(path: &Path) -> Result<Vec<String>, TextError> {
    let lines = |text: &str| {
        let filled = text.lines().filter(|line| !line.trim().is_empty());
        filled.map(str::to_string).collect::<Vec<_>>()
    };
    if path == Path::new("demo") && !path.exists() {
        return Ok(lines(demo::EVALUATION));
    }
    let documents = read_text(path)?;
    Ok(match path.extension().is_some_and(|extension| extension == "txt") {
        true => documents.iter().flat_map(|document| lines(document)).collect(),
        false => documents,
    })
}

/// The vectors of texts, given as tokens: `[texts, hidden]`. `layer` gives a layer; it is
/// called for every layer and group of batches. `watch` receives the share that is done, and
/// may stop the computation.
///
/// The same texts in the same batches give the same bytes at any number of threads.
///
/// # Panics
///
/// If `batch` is zero.
pub fn embed<L: Borrow<Layer>>(
    model: &Model<'_>,
    layer: &mut dyn FnMut(usize) -> Result<L, ModelError>,
    pooling: &SentencePooling,
    texts: &[Vec<u32>],
    batch: usize,
    watch: &mut dyn FnMut(f64) -> Result<(), ModelError>,
) -> Result<Matrix, ModelError> {
    model.check_encoder()?;
    let (layers, width) = (model.config().layers, model.config().hidden);
    let mut vectors = Matrix::zeros(texts.len(), width);
    let steps = (texts.len() * layers).max(1) as f64;
    let mut done = 0;
    let mut first = 0;
    for group in groups(texts, batch) {
        let spans = |texts: &[Vec<u32>]| -> Vec<Span> {
            texts.iter().map(|text| Span { tokens: text.clone(), after: None }).collect()
        };
        let batches = texts[first..first + group].chunks(batch);
        let mut batches: Vec<RaggedBatch> = batches
            .map(|texts| RaggedBatch::new(model, &spans(texts)))
            .collect::<Result<_, _>>()?;
        for index in 0..layers {
            watch(done as f64 / steps)?;
            let layer = layer(index)?;
            batches.iter_mut().for_each(|batch| layer.borrow().forward_ragged(batch));
            done += group;
        }
        let texts = texts[first..first + group].chunks(batch);
        for (batch, texts) in batches.iter().zip(texts) {
            let mut row = 0;
            for text in texts {
                let states = &batch.states().data()[row * width..(row + text.len()) * width];
                pooling.pool(states, vectors.row_mut(first));
                row += text.len();
                first += 1;
            }
        }
    }
    watch(1.0)?;
    match vectors.data().iter().all(|x| x.is_finite()) {
        true => Ok(vectors),
        false => Err(model.explain_not_finite(ModelError::NotFinite)),
    }
}

/// Compares the sentence vectors of a model with those of the dense model that it was
/// pruned from. The tokens of both are those of the dense model.
pub fn compare<T: AsRef<str> + Sync>(
    model: &Model<'_>,
    reference: &Model<'_>,
    texts: &[T],
    watch: &mut dyn FnMut(f64) -> Result<(), ModelError>,
) -> Result<Similarity, EmbedError> {
    let pooling = SentencePooling::read(reference)?;
    let (own, dense) = (model.config(), reference.config());
    if own.hidden != dense.hidden || own.vocab != dense.vocab {
        let why = format!(
            "its vectors have {} entries and its vocabulary {} tokens, those of the model {} and {}; give the dense model that it was pruned from",
            dense.hidden, dense.vocab, own.hidden, own.vocab
        );
        return Err(EmbedError::Files { path: reference.checkpoint().path().to_path_buf(), why });
    }
    let texts = pooling.encode(&reference.checkpoint().tokenizer()?, texts)?;
    reference.check_tokens(&texts)?;
    let mut vectors = |model: &Model<'_>, from: f64| {
        let mut layer = |index| model.layer(index, Storage::Packed);
        embed(model, &mut layer, &pooling, &texts, BATCH, &mut |share| watch((from + share) / 2.0))
    };
    Ok(Similarity::new(&vectors(model, 0.0)?, &vectors(reference, 1.0)?))
}

/// How many texts are computed together: whole batches of at most [`GROUP_TOKENS`] tokens,
/// at least one.
fn groups(texts: &[Vec<u32>], batch: usize) -> Vec<usize> {
    let mut groups: Vec<usize> = Vec::new();
    let mut tokens = usize::MAX;
    for texts in texts.chunks(batch) {
        let more: usize = texts.iter().map(Vec::len).sum();
        if tokens.saturating_add(more) > GROUP_TOKENS {
            groups.push(0);
            tokens = 0;
        }
        tokens += more;
        *groups.last_mut().expect("the first batch begins a group") += texts.len();
    }
    groups
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn groups_are_whole_batches_in_order() {
        let texts: Vec<Vec<u32>> = [9000, 1, 7000, 500, 20000, 3].map(|n| vec![0; n]).into();
        assert_eq!(groups(&texts, 2), [2, 2, 2]);
        assert_eq!(groups(&texts, 1), [3, 1, 1, 1]);
        assert_eq!(groups(&texts, 100), [6]);
        assert_eq!(groups(&[], 2), Vec::<usize>::new());
    }
}
