//! Decoder-only language models on a CPU: families as data, a forward pass
//! that shows the inputs of every linear, a decoder with a cache.
//!
//! Evaluation and pruning hold one layer at a time:
//!
//! ```no_run
//! use openwork_llm::{Checkpoint, model::{Model, NoTap, Storage}};
//! # fn main() -> Result<(), Box<dyn std::error::Error>> {
//! let checkpoint = Checkpoint::open("SmolLM2-135M".as_ref())?;
//! let model = Model::open(&checkpoint)?;
//! let mut hidden = model.embed(&[vec![1, 2, 3]])?;
//! for index in 0..model.config().layers {
//!     model.layer(index, Storage::F32)?.forward(&mut hidden, &mut NoTap);
//! }
//! let logits = model.head()?.logits(hidden.states().view());
//! # Ok(()) }
//! ```

mod attention;
mod cache;
mod config;
mod config_reader;
mod decoder;
mod family;
mod head;
mod hidden;
mod keep_awake;
mod layer;
mod norm;
mod rope;
mod tap;
mod vector;
mod weight;

pub use config::{Activation, Config, ConfigError, LayerAttention, ties_embeddings};
pub use decoder::Decoder;
pub use family::{Bias, FAMILIES, Family, Norms, SlidingWindow};
pub use head::{EmbeddingRows, Head};
pub use hidden::Hidden;
pub use layer::{LINEARS, Layer, Linear};
pub use norm::Norm;
pub use rope::Scaling;
pub use tap::{NoTap, Site, Tap};
pub use weight::{Storage, Weight};

use crate::checkpoint::{Checkpoint, CheckpointError, Tensor};
use crate::format::printable;
use openwork::Matrix;
use rope::Rope;
use std::collections::BTreeSet;
use std::sync::Arc;

/// Why a model cannot be run on some tokens.
#[derive(Debug, thiserror::Error)]
pub enum ModelError {
    /// A file, or a tensor in it.
    #[error(transparent)]
    Checkpoint(#[from] CheckpointError),
    /// An option that we do not compute.
    #[error("{}: {error}", path.display())]
    Config {
        /// The model's folder or file.
        path: std::path::PathBuf,
        /// What is wrong.
        error: ConfigError,
    },
    /// A tensor that the forward pass would pass over.
    #[error("{}: tensor \"{}\" has no place in a {family} model with this config", path.display(), printable(name))]
    Foreign {
        /// The model's folder or file.
        path: std::path::PathBuf,
        /// The tensor.
        name: String,
        /// The family's name.
        family: &'static str,
    },
    /// A token that the model has no row for.
    #[error("token id {id} is beyond the model's vocabulary of {vocab}")]
    Token {
        /// The token.
        id: u32,
        /// Rows of the embedding.
        vocab: usize,
    },
    /// A tokenizer that makes such a token of a text.
    #[error(
        "{}: token id {id} is beyond the model's vocabulary of {vocab}; its tokenizer is that of another model",
        path.display()
    )]
    Tokenizer {
        /// The model's folder or file.
        path: std::path::PathBuf,
        /// The token.
        id: u32,
        /// Rows of the embedding.
        vocab: usize,
    },
    /// Windows of several lengths, or of none.
    #[error("windows must all have the same length, at least 1")]
    Windows,
    /// More tokens than the model was made for.
    #[error(
        "{tokens} tokens are more than the {limit} that the model was made for (max_position_embeddings)"
    )]
    TooLong {
        /// How many were asked for.
        tokens: usize,
        /// How many there may be.
        limit: usize,
    },
    /// The model's output is not a number.
    #[error(
        "the model computes NaN or infinity (its weights may be damaged, or not what its config says)"
    )]
    NotFinite,
}

/// An opened model: its checked config and everything outside the layers, which
/// are read when asked for.
#[derive(Debug)]
pub struct Model<'a> {
    checkpoint: &'a Checkpoint,
    config: Arc<Config>,
    /// One for each layer; layers that turn alike share theirs.
    ropes: Vec<Arc<Rope>>,
    norm: Norm,
}

impl<'a> Model<'a> {
    /// Checks that the config can be run and that every tensor is there, has
    /// its shape, and has a place in the forward pass.
    pub fn open(checkpoint: &'a Checkpoint) -> Result<Self, ModelError> {
        let path = || checkpoint.path().to_path_buf();
        let mut config = Config::new(checkpoint.config())
            .map_err(|error| ModelError::Config { path: path(), error })?;
        config.notes.splice(..0, checkpoint.notes().iter().cloned());
        check_tensors(checkpoint, &config)?;

        let mut ropes: Vec<Arc<Rope>> = Vec::with_capacity(config.layers);
        for (i, a) in config.attention.iter().enumerate() {
            let alike = config.attention[..i]
                .iter()
                .position(|b| (b.rope_theta, &b.rope_scaling) == (a.rope_theta, &a.rope_scaling));
            ropes.push(match alike {
                Some(j) => Arc::clone(&ropes[j]),
                None => Arc::new(Rope::new(config.head_dim, a.rope_theta, &a.rope_scaling)),
            });
        }
        let weights = checkpoint.tensor_with_shape("model.norm.weight", &[config.hidden])?.to_f32();
        let norm = Norm::new(weights, config.family.norm_offset, config.norm_eps);
        let model = Self { checkpoint, config: Arc::new(config), ropes, norm };
        model.embedding()?;
        model.head()?;
        Ok(model)
    }

    /// The files it is read from.
    pub fn checkpoint(&self) -> &'a Checkpoint {
        self.checkpoint
    }

    /// Sizes and options.
    pub fn config(&self) -> &Config {
        &self.config
    }

    /// Reads layer `index`.
    ///
    /// # Panics
    ///
    /// If there is no such layer.
    pub fn layer(&self, index: usize, storage: Storage) -> Result<Layer, ModelError> {
        self.layer_from(self.checkpoint, index, storage)
    }

    /// Reads layer `index` of this model from other files, for instance those
    /// of its pruned layers.
    ///
    /// # Panics
    ///
    /// If there is no such layer.
    pub fn layer_from(
        &self,
        files: &Checkpoint,
        index: usize,
        storage: Storage,
    ) -> Result<Layer, ModelError> {
        Ok(Layer::load(files, &self.config, &self.ropes[index], index, storage)?)
    }

    /// The first hidden states of windows of tokens, all of one length.
    pub fn embed(&self, windows: &[Vec<u32>]) -> Result<Hidden, ModelError> {
        let len = windows.first().map_or(0, Vec::len);
        if len == 0 || windows.iter().any(|window| window.len() != len) {
            return Err(ModelError::Windows);
        }
        check_length(len, &self.config)?;
        let tokens: Vec<u32> = windows.iter().flatten().copied().collect();
        let states = embed(&EmbeddingRows::Mapped(self.embedding()?), &tokens, &self.config)?;
        Ok(Hidden::new(states, len))
    }

    /// What turns the last hidden states into logits.
    pub fn head(&self) -> Result<Head<'_>, ModelError> {
        Ok(Head { norm: &self.norm, rows: EmbeddingRows::Mapped(self.head_tensor()?) })
    }

    /// Refuses tokens of its tokenizer that it has no row for, before any work
    /// is done on them.
    pub fn check_tokens(&self, windows: &[Vec<u32>]) -> Result<(), ModelError> {
        let (path, vocab) = (self.checkpoint.path().to_path_buf(), self.config.vocab);
        match windows.iter().flatten().find(|&&id| id as usize >= vocab) {
            Some(&id) => Err(ModelError::Tokenizer { path, id, vocab }),
            None => Ok(()),
        }
    }

    /// [`ModelError::NotFinite`] as the fault of the tensor that holds NaN or
    /// infinity, if one does: all weights are read. Any other error as it is.
    pub fn explain_not_finite(&self, error: ModelError) -> ModelError {
        match error {
            ModelError::NotFinite => {
                self.checkpoint.check_finite().map_or_else(ModelError::from, |()| error)
            }
            _ => error,
        }
    }

    /// The names of the tensors of layer `index`.
    pub fn layer_tensors(&self, index: usize) -> Vec<String> {
        Layer::tensors(&self.config, index).into_iter().map(|(name, _)| name).collect()
    }

    /// The embedding, `[vocabulary, hidden]`.
    fn embedding(&self) -> Result<Tensor<'a>, ModelError> {
        let shape = [self.config.vocab, self.config.hidden];
        Ok(self.checkpoint.tensor_with_shape("model.embed_tokens.weight", &shape)?)
    }

    /// The head, `[vocabulary, hidden]`: the embedding, if tied.
    fn head_tensor(&self) -> Result<Tensor<'a>, ModelError> {
        if self.config.tied {
            return self.embedding();
        }
        let shape = [self.config.vocab, self.config.hidden];
        Ok(self.checkpoint.tensor_with_shape("lm_head.weight", &shape)?)
    }
}

/// Rows of the embedding, scaled where the family does: `[tokens, hidden]`.
fn embed(rows: &EmbeddingRows<'_>, tokens: &[u32], config: &Config) -> Result<Matrix, ModelError> {
    let mut states = Matrix::zeros(tokens.len(), config.hidden);
    for (i, &id) in tokens.iter().enumerate() {
        let row = id as usize;
        if row >= config.vocab {
            return Err(ModelError::Token { id, vocab: config.vocab });
        }
        rows.read(row..row + 1, states.row_mut(i));
    }
    if config.embedding_scale != 1.0 {
        vector::scale(states.data_mut(), config.embedding_scale);
    }
    Ok(states)
}

/// Refuses sequences longer than the model was made for.
fn check_length(tokens: usize, config: &Config) -> Result<(), ModelError> {
    match tokens > config.max_positions {
        true => Err(ModelError::TooLong { tokens, limit: config.max_positions }),
        false => Ok(()),
    }
}

/// Refuses tensors that the forward pass would pass over, and layers that lack
/// one: it would be missed only when its layer is read.
fn check_tensors(checkpoint: &Checkpoint, config: &Config) -> Result<(), ModelError> {
    let of_layers: Vec<(String, Vec<usize>)> =
        (0..config.layers).flat_map(|i| Layer::tensors(config, i)).collect();
    // Ours, those of a head that is tied all the same, and tables that old files carry.
    let mut known: BTreeSet<&str> = of_layers.iter().map(|(name, _)| name.as_str()).collect();
    known.extend(["model.embed_tokens.weight", "model.norm.weight", "lm_head.weight"]);
    let foreign = checkpoint
        .names()
        .find(|name| !known.contains(name) && !name.ends_with(".rotary_emb.inv_freq"));
    if let Some(name) = foreign {
        return Err(ModelError::Foreign {
            path: checkpoint.path().to_path_buf(),
            name: name.into(),
            family: config.family.name,
        });
    }
    for (name, shape) in &of_layers {
        checkpoint.tensor_with_shape(name, shape)?;
    }
    Ok(())
}
