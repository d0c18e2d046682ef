//! Token-by-token decoding with the whole model in memory.

use super::cache::Cache;
use super::carried::Carried;
use super::config::Config;
use super::head::{EmbeddingRows, Head, LogitMap};
use super::hidden::{Hidden, Scratch};
use super::keep_awake::keep_awake;
use super::layer::{Layer, load};
use super::norm::Norm;
use super::vector;
use super::weight::{Storage, Weight, apply};
use super::{Model, ModelError, check_length, embed};
use openwork::{Matrix, MatrixMut, MatrixRef};
use std::sync::Arc;

/// A model in memory and the KV cache of one sequence.
#[derive(Debug)]
pub struct Decoder {
    config: Arc<Config>,
    layers: Vec<Layer>,
    caches: Vec<Cache>,
    embedding: Weight,
    /// `None` if the embedding is the head.
    head: Option<Weight>,
    norm: Norm,
    /// Number of tokens so far.
    len: usize,
    /// Reused from token to token.
    scratch: Scratch,
}

impl Decoder {
    /// Loads the whole model.
    pub fn load(model: &Model<'_>, storage: Storage) -> Result<Self, ModelError> {
        let norm = model.final_norm()?.clone();
        let config = Arc::clone(&model.config);
        let layers: Vec<Layer> =
            (0..config.layers).map(|i| model.layer(i, storage)).collect::<Result<_, _>>()?;
        Ok(Self {
            caches: vec![Cache::default(); layers.len()],
            layers,
            embedding: load(model.checkpoint, &model.embedding()?, storage)?,
            head: match config.tied {
                true => None,
                false => Some(load(model.checkpoint, &model.head_tensor()?, storage)?),
            },
            norm,
            config,
            len: 0,
            scratch: Scratch::default(),
        })
    }

    /// Sizes and options.
    pub fn config(&self) -> &Config {
        &self.config
    }

    /// The layers, mutable.
    pub fn layers_mut(&mut self) -> &mut [Layer] {
        &mut self.layers
    }

    /// Number of tokens so far.
    #[allow(clippy::len_without_is_empty)] // a position, not a collection
    pub fn len(&self) -> usize {
        self.len
    }

    /// Starts a new sequence.
    pub fn reset(&mut self) {
        self.caches.iter_mut().for_each(Cache::clear);
        self.len = 0;
    }

    /// Bytes that decoding the next token reads: all weights and the cache.
    pub fn bytes_per_token(&self) -> usize {
        let layers: usize = self.layers.iter().map(Layer::bytes_per_token).sum();
        let cache: usize = self.caches.iter().map(Cache::bytes).sum();
        layers + self.head_weight().bytes() + cache
    }

    /// The output head, which may be the embedding.
    pub fn head_weight(&self) -> &Weight {
        self.head.as_ref().unwrap_or(&self.embedding)
    }

    /// The output head, mutable.
    pub fn head_weight_mut(&mut self) -> &mut Weight {
        self.head.as_mut().unwrap_or(&mut self.embedding)
    }

    /// Appends tokens; returns their final hidden states.
    fn hidden(&mut self, tokens: &[u32]) -> Result<Matrix, ModelError> {
        if tokens.is_empty() {
            return Err(ModelError::Windows);
        }
        check_length(self.len + tokens.len(), &self.config)?;
        let states = embed(&EmbeddingRows::Held(&self.embedding), tokens, &self.config)?;
        let carried = Carried::cached(&self.config, tokens);
        let mut hidden = Hidden::carrying(states, carried, tokens.len());
        hidden.start = self.len;
        hidden.scratch = std::mem::take(&mut self.scratch);
        for layer in &self.layers {
            layer.forward_cached(&mut hidden, &mut self.caches);
        }
        self.len += tokens.len();
        self.scratch = std::mem::take(&mut hidden.scratch);
        Ok(hidden.into_states())
    }

    /// Appends tokens to the sequence; returns the logits after the last one.
    pub fn next(&mut self, tokens: &[u32]) -> Result<Vec<f32>, ModelError> {
        keep_awake(|| self.step(tokens))
    }

    fn step(&mut self, tokens: &[u32]) -> Result<Vec<f32>, ModelError> {
        let states = self.hidden(tokens)?;
        let mut normed = vec![0.0; states.cols()];
        self.norm.apply(states.row(states.rows() - 1), &mut normed);
        let head = self.head_weight();
        let mut logits = vec![0.0; head.rows()];
        let (d, v) = (normed.len(), logits.len());
        apply(MatrixRef::new(&normed, 1, d), &mut [(head, MatrixMut::new(&mut logits, 1, v))]);
        let map = LogitMap::new(&self.config);
        if map.scale != 1.0 {
            vector::scale(&mut logits, map.scale);
        }
        map.bound(&mut logits);
        match logits.iter().all(|logit| logit.is_finite()) {
            true => Ok(logits),
            false => Err(ModelError::NotFinite),
        }
    }

    /// Appends tokens to the sequence; returns the logits after each,
    /// `[tokens, vocabulary]`.
    pub fn all_logits(&mut self, tokens: &[u32]) -> Result<Matrix, ModelError> {
        let mut logits = Matrix::zeros(tokens.len(), self.config.vocab);
        self.all_logits_into(tokens, logits.view_mut())?;
        Ok(logits)
    }

    /// As [`all_logits`](Self::all_logits), into existing memory.
    ///
    /// # Panics
    ///
    /// If `logits` is not `[tokens, vocabulary]`.
    pub fn all_logits_into(
        &mut self,
        tokens: &[u32],
        logits: MatrixMut<'_>,
    ) -> Result<(), ModelError> {
        keep_awake(|| {
            let states = self.hidden(tokens)?;
            let rows = EmbeddingRows::Held(self.head_weight());
            let head = Head { norm: &self.norm, rows, logits: LogitMap::new(&self.config) };
            head.logits_into(states.view(), logits);
            Ok(())
        })
    }
}
