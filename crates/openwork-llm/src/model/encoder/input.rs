//! The input of an encoder: embeddings of words, positions and token types, summed and
//! normalized.

use super::bias::{BUCKETS, PositionBias};
use super::config::EncoderConfig;
use crate::checkpoint::{Checkpoint, CheckpointError};
use crate::model::Config;
use crate::model::family::Family;
use crate::model::norm::Norm;
use crate::model::vector;
use openwork::Matrix;
use std::sync::Arc;

/// The embedding of words.
const WORDS: &str = "embeddings.word_embeddings.weight";
const POSITIONS: &str = "embeddings.position_embeddings.weight";
const TYPES: &str = "embeddings.token_type_embeddings.weight";
const NORM: [&str; 2] = ["embeddings.LayerNorm.weight", "embeddings.LayerNorm.bias"];
const BIAS: &str = "encoder.relative_attention_bias.weight";
/// The pooling layer of transformers, which sentence vectors do not use; copied.
const POOLER: [&str; 2] = ["pooler.dense.weight", "pooler.dense.bias"];

/// What an encoder adds to the embedding of words.
#[derive(Debug)]
pub struct EncoderInput {
    /// `[positions, hidden]`, with the first token type added; one row, if there is no
    /// embedding of positions.
    rows: Option<Matrix>,
    padding: Option<u32>,
    norm: Norm,
}

impl EncoderInput {
    /// The tensors outside the layers with their shapes; those that may be missing last.
    pub fn tensors(c: &Config) -> Vec<(&'static str, Vec<usize>, bool)> {
        let Some(EncoderConfig { positions, token_types, padding }) = c.encoder else {
            return Vec::new();
        };
        let mut all = vec![(WORDS, vec![c.vocab, c.hidden], true)];
        all.extend(positions.map(|rows| (POSITIONS, vec![rows, c.hidden], true)));
        all.extend(token_types.map(|rows| (TYPES, vec![rows, c.hidden], true)));
        all.extend(NORM.map(|name| (name, vec![c.hidden], true)));
        all.extend(padding.map(|_| (BIAS, vec![BUCKETS, c.heads], true)));
        all.push((POOLER[0], vec![c.hidden, c.hidden], false));
        all.push((POOLER[1], vec![c.hidden], false));
        all
    }

    /// Loads it; nothing for a decoder.
    pub fn load(checkpoint: &Checkpoint, c: &Config) -> Result<Option<Self>, CheckpointError> {
        let Some(encoder) = &c.encoder else { return Ok(None) };
        for (name, shape, needed) in Self::tensors(c) {
            if needed || checkpoint.has(name) {
                checkpoint.tensor_with_shape(name, &shape)?;
            }
        }
        let read = |name: &str| Ok::<_, CheckpointError>(checkpoint.tensor(name)?.to_f32());
        let mut rows = match encoder.positions {
            Some(count) => Some(Matrix::from_vec(count, c.hidden, read(POSITIONS)?)),
            None => None,
        };
        if encoder.token_types.is_some() {
            let mut first = vec![0.0; c.hidden];
            checkpoint.tensor(TYPES)?.rows_f32(0..1, &mut first);
            let rows = rows.get_or_insert_with(|| Matrix::zeros(1, c.hidden));
            (0..rows.rows()).for_each(|row| vector::add(rows.row_mut(row), &first));
        }
        let norm = Norm::layer(read(NORM[0])?, read(NORM[1])?, c.norm_eps);
        Ok(Some(Self { rows, padding: encoder.padding, norm }))
    }

    /// The bias of attention scores, if the family has one.
    pub fn bias(
        checkpoint: &Checkpoint,
        c: &Config,
    ) -> Result<Option<Arc<PositionBias>>, CheckpointError> {
        if c.encoder.as_ref().is_none_or(|encoder| encoder.padding.is_none()) {
            return Ok(None);
        }
        let weights = checkpoint.tensor_with_shape(BIAS, &[BUCKETS, c.heads])?.to_f32();
        Ok(Some(Arc::new(PositionBias::new(&weights, c.heads, c.max_positions))))
    }

    /// From the words of one text, whose embeddings are `states`, to its initial states.
    pub fn finish(&self, tokens: &[u32], states: &mut [f32]) {
        let d = self.norm.width();
        let mut next = self.padding.map_or(0, |padding| padding as usize + 1);
        for (&token, state) in tokens.iter().zip(states.chunks_exact_mut(d)) {
            let mut position = next;
            match self.padding {
                Some(padding) if padding == token => position = padding as usize,
                _ => next += 1,
            }
            if let Some(rows) = &self.rows {
                vector::add(state, rows.row(position.min(rows.rows() - 1)));
            }
        }
        self.norm.rows_in_place(states);
    }
}

impl Family {
    /// The tensor of the embedding of words.
    pub fn embedding(&self) -> &'static str {
        if self.encoder.is_some() { WORDS } else { "model.embed_tokens.weight" }
    }
}
