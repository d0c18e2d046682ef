//! Evaluates a pruned encoder: compares its sentence vectors with those of the dense model.

use super::events::{Event, Observer, Stage};
use super::options::RunOptions;
use super::{PipelineError, prepare};
use crate::disk::sha256;
use crate::embed::{BATCH, EmbedError, SentencePooling, Similarity, embed, read_sentences};
use crate::model::{Layer, Model, ModelError, Storage};
use crate::report::SimilarityRecord;
use crate::tokens::Tokenizer;
use openwork::Matrix;
use std::path::Path;
use std::time::Instant;

/// Texts whose vectors are compared.
#[derive(Clone, Debug)]
pub struct Sentences {
    /// The file's name, for the record.
    pub text: String,
    /// The tokens of each.
    pub tokens: Vec<Vec<u32>>,
    /// How hidden states become one vector.
    pub pooling: SentencePooling,
}

impl RunOptions {
    /// The texts on which a pruned encoder is compared with the dense one; refuses options
    /// that do not apply to encoders.
    pub(super) fn sentences(
        &self,
        model: &Model<'_>,
        tokenizer: &Tokenizer,
    ) -> Result<Option<Sentences>, PipelineError> {
        let family = model.config().family.name;
        if let Some(task) = self.task.first() {
            let why = format!("{family} models are encoders, which have no tasks; leave it out");
            return Err(PipelineError::option("task", task.display(), why));
        }
        if let Some(every) = self.eval_every {
            let why = format!(
                "the vectors of {family} models are compared when all layers are pruned; leave it out"
            );
            return Err(PipelineError::option("eval_every", every, why));
        }
        let Some(path) = &self.eval else { return self.no_texts() };
        self.read_sentences(path, model, tokenizer).map(Some)
    }

    fn read_sentences(
        &self,
        path: &Path,
        model: &Model<'_>,
        tokenizer: &Tokenizer,
    ) -> Result<Sentences, PipelineError> {
        let text = prepare::file_name(path);
        let wrong = |why: String| PipelineError::option("eval", &text, why);
        let mut pooling = SentencePooling::read(model).map_err(embed_error)?;
        if let Some(length) = self.eval_seq_len {
            let limit = |error: ModelError| {
                PipelineError::option("eval_seq_len", length, error.to_string())
            };
            pooling.limit(length, model).map_err(limit)?;
        }
        let texts = read_sentences(path)?;
        let mut tokens =
            pooling.encode(tokenizer, &texts).map_err(|error| wrong(error.to_string()))?;
        if let Some(most) = self.eval_tokens {
            let mut sum = 0;
            tokens.retain(|text| {
                sum += text.len();
                sum <= most
            });
            if tokens.is_empty() {
                let why = "that is fewer than the first text has; use more tokens";
                return Err(PipelineError::option("eval_tokens", most, why));
            }
        }
        model.check_tokens(&tokens).map_err(|error| wrong(error.to_string()))?;
        Ok(Sentences { text, tokens, pooling })
    }

    /// No texts to compare on: refuses options that need them.
    fn no_texts(&self) -> Result<Option<Sentences>, PipelineError> {
        let counts = [("eval_tokens", self.eval_tokens), ("eval_seq_len", self.eval_seq_len)];
        match counts.into_iter().find_map(|(name, count)| Some((name, count?))) {
            Some((name, count)) => {
                Err(PipelineError::option(name, count, "it needs {eval}, the text to measure on"))
            }
            None => Ok(None),
        }
    }
}

impl Sentences {
    /// Compares the vectors of the dense model with those of `model`, whose layers `layer`
    /// gives. One layer is in memory at a time.
    pub(super) fn compare(
        &self,
        dense: &Model<'_>,
        model: &Model<'_>,
        layer: &dyn Fn(usize) -> Result<Layer, ModelError>,
        observer: &dyn Observer,
    ) -> Result<SimilarityRecord, PipelineError> {
        let started = Instant::now();
        let last = model.config().layers - 1;
        let vectors =
            |model: &Model<'_>, layer: &dyn Fn(usize) -> Result<Layer, ModelError>, from: f64| {
                let mut watch = |share: f64| {
                    let progress = observer.progress(last, Stage::Evaluate, (from + share) / 2.0);
                    progress.map_err(|_| ModelError::Stopped)
                };
                let mut layer = |index| layer(index);
                embed(model, &mut layer, &self.pooling, &self.tokens, BATCH, &mut watch)
            };
        let both = || -> Result<[Matrix; 2], ModelError> {
            let dense_layer = |index| dense.layer(index, Storage::F32);
            Ok([vectors(dense, &dense_layer, 0.0)?, vectors(model, layer, 1.0)?])
        };
        let [before, after] = both().map_err(|error| match error {
            ModelError::Stopped => PipelineError::Stopped,
            error => error.into(),
        })?;
        dense.checkpoint().release();
        let Similarity { mean, least, .. } = Similarity::new(&before, &after);
        let all = self.tokens.iter().flatten();
        let record = SimilarityRecord {
            text: self.text.clone(),
            texts: self.tokens.len(),
            tokens: self.tokens.iter().map(Vec::len).sum(),
            mean,
            least,
            sha256: sha256(&all.flat_map(|id| id.to_le_bytes()).collect::<Vec<u8>>()),
            seconds: started.elapsed().as_secs_f64(),
        };
        observer.on_event(Event::Compared(&record));
        Ok(record)
    }
}

fn embed_error(error: EmbedError) -> PipelineError {
    match error {
        EmbedError::Model(error) => error.into(),
        EmbedError::Checkpoint(error) => error.into(),
        EmbedError::Text(error) => error.into(),
        error @ EmbedError::Files { .. } => PipelineError::Plan(error.to_string()),
    }
}
