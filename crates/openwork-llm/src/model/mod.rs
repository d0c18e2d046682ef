//! Decoder-only language models and encoders on the CPU: families as data, a forward pass
//! with hooks on the inputs of linear layers, and a decoder with a KV cache.
//!
//! Evaluation and pruning keep one layer in memory at a time:
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
pub mod backward;
mod cache;
mod carried;
mod config;
mod config_layers;
mod config_reader;
mod config_sharing;
mod decoder;
mod delta_net;
mod delta_rule;
mod encoder;
mod experts;
mod family;
mod head;
mod hidden;
pub(crate) mod keep_awake;
mod layer;
mod linear;
mod norm;
mod parameter;
mod per_layer;
mod ragged;
mod rope;
mod rope_config;
mod tap;
pub(crate) mod vector;
mod weight;

pub use carried::Carried;
pub(crate) use config::MAX_EXPERTS;
pub use config::{
    Activation, Config, ConfigError, DeltaNetSizes, DeltaNets, Experts, LayerAttention,
    PerLayerEmbedding, embedding_name, ties_embeddings,
};
pub use decoder::Decoder;
pub use encoder::{EncoderConfig, EncoderRules, PositionBias, Positions};
pub use experts::ExpertOutputs;
pub use family::{
    Bias, ExpertFiles, ExpertRules, FAMILIES, Family, FusedLinears, Names, Norms, QkNorm, Rotation,
    SlidingWindow,
};
pub use head::{EmbeddingRows, Head, LogitMap, TokenScore};
pub use hidden::Hidden;
pub(crate) use layer::BATCH_TOKENS;
pub use layer::{Layer, Linear, NormSlot};
pub use linear::{Input, LayerInfo, LinearInfo, Role, Site, is_linear_name, split_layer_name};
pub use norm::Norm;
pub use parameter::{Half, Parameter};
pub use ragged::{RaggedBatch, Span};
pub use rope::{RopeParameters, Scaling};
pub use rope_config::QueryScaling;
pub use tap::{NoTap, Tap};
pub use weight::{Storage, Weight};

use crate::checkpoint::{Checkpoint, CheckpointError, Tensor};
use crate::format::printable;
use encoder::EncoderInput;
use openwork::Matrix;
use per_layer::PerLayerInput;
use rope::Rope;
use std::collections::BTreeSet;
use std::sync::Arc;

/// Why a model cannot be run.
#[derive(Debug, thiserror::Error)]
pub enum ModelError {
    /// An error of the checkpoint.
    #[error(transparent)]
    Checkpoint(#[from] CheckpointError),
    /// An unsupported or invalid config.
    #[error("{}: {error}", path.display())]
    Config {
        /// The model's folder or file.
        path: std::path::PathBuf,
        /// What is wrong.
        error: ConfigError,
    },
    /// Weights in the storage format of another program.
    #[error(
        "{}: the weights are stored for {format}, which openwork exports but does not read; use the pruned model that was exported, or `openwork pack` without --format",
        path.display()
    )]
    Exported {
        /// The model's folder.
        path: std::path::PathBuf,
        /// The value of `pack --format`.
        format: &'static str,
    },
    /// A tensor that the forward pass would ignore.
    #[error("{}: tensor \"{}\" is unexpected for a {family} model with this config", path.display(), printable(name))]
    Foreign {
        /// The model's folder or file.
        path: std::path::PathBuf,
        /// The tensor.
        name: String,
        /// The family's name.
        family: &'static str,
    },
    /// An encoder where a decoder is needed.
    #[error(
        "{}: {family} models are encoders: they give vectors, not the next token; use `openwork embed`, `prune`, `pack`, `inspect`, or `eval` with --reference",
        path.display()
    )]
    Encoder {
        /// The model's folder.
        path: std::path::PathBuf,
        /// The family's name.
        family: &'static str,
    },
    /// A decoder where an encoder is needed.
    #[error(
        "{}: {family} models are decoders, which predict the next token; sentence vectors need an encoder ({encoders})",
        path.display()
    )]
    Decoder {
        /// The model's folder or file.
        path: std::path::PathBuf,
        /// The family's name.
        family: &'static str,
        /// The families of encoders.
        encoders: String,
    },
    /// A token outside the vocabulary.
    #[error("token id {id} is out of range: the model's vocabulary has {vocab} tokens")]
    Token {
        /// The token.
        id: u32,
        /// Rows of the embedding.
        vocab: usize,
    },
    /// A tokenizer that produces a token outside the vocabulary.
    #[error(
        "{}: the tokenizer produced token id {id}, but the model's vocabulary has {vocab} tokens; the tokenizer belongs to another model",
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
    /// Windows of different lengths, or empty ones.
    #[error("all windows must have the same length, at least 1")]
    Windows,
    /// A sequence longer than the model supports.
    #[error("{tokens} tokens exceed the model's limit of {limit} (max_position_embeddings)")]
    TooLong {
        /// Length of the sequence.
        tokens: usize,
        /// The limit.
        limit: usize,
    },
    /// The model's output is not finite.
    #[error(
        "the model computes NaN or infinity; its weights may be damaged or not match its config"
    )]
    NotFinite,
    /// The caller stopped the computation.
    #[error("stopped")]
    Stopped,
}

impl ModelError {
    /// Whether the user's input is at fault, rather than the run.
    pub fn is_input(&self) -> bool {
        match self {
            Self::Checkpoint(error) => error.is_input(),
            Self::Windows | Self::NotFinite | Self::Stopped => false,
            Self::Config { .. }
            | Self::Exported { .. }
            | Self::Foreign { .. }
            | Self::Encoder { .. }
            | Self::Decoder { .. }
            | Self::Token { .. }
            | Self::Tokenizer { .. }
            | Self::TooLong { .. } => true,
        }
    }
}

/// An opened model: its validated config and everything outside the layers, which
/// are loaded on demand.
#[derive(Debug)]
pub struct Model<'a> {
    checkpoint: &'a Checkpoint,
    config: Arc<Config>,
    /// One per layer; layers with the same RoPE share it.
    ropes: Vec<Option<Arc<Rope>>>,
    /// The final norm of a decoder.
    norm: Option<Norm>,
    /// What an encoder adds to the embedding.
    input: Option<EncoderInput>,
    /// The bias of an encoder's attention scores.
    position_bias: Option<Arc<PositionBias>>,
}

impl<'a> Model<'a> {
    /// Validates the config, and checks that every tensor exists, has the right
    /// shape and is used by the forward pass.
    pub fn open(checkpoint: &'a Checkpoint) -> Result<Self, ModelError> {
        let path = || checkpoint.path().to_path_buf();
        if let Some(export) = crate::pack::exported_for(checkpoint) {
            return Err(ModelError::Exported { path: path(), format: export.name() });
        }
        let mut config = Config::new(checkpoint.config())
            .map_err(|error| ModelError::Config { path: path(), error })?;
        config.notes.splice(..0, checkpoint.notes().iter().cloned());
        check_tensors(checkpoint, &config)?;

        let mut ropes: Vec<Option<Arc<Rope>>> = Vec::with_capacity(config.layers);
        for (i, a) in config.attention.iter().enumerate() {
            let alike = config.attention[..i]
                .iter()
                .position(|b| b.rope == a.rope && b.head_dim == a.head_dim);
            let new = || Some(Arc::new(Rope::new(a.head_dim, a.rope.as_ref()?)));
            ropes.push(alike.map_or_else(new, |earlier| ropes[earlier].clone()));
        }
        let norm = match config.encoder {
            None => {
                let weights =
                    checkpoint.tensor_with_shape("model.norm.weight", &[config.hidden])?;
                Some(Norm::new(weights.to_f32(), config.family.norm_offset, config.norm_eps))
            }
            Some(_) => None,
        };
        let input = EncoderInput::load(checkpoint, &config)?;
        let position_bias = EncoderInput::bias(checkpoint, &config)?;
        let config = Arc::new(config);
        let model = Self { checkpoint, config, ropes, norm, input, position_bias };
        model.embedding()?;
        if model.config.encoder.is_none() {
            model.head()?;
        }
        Ok(model)
    }

    /// The checkpoint it is read from.
    pub fn checkpoint(&self) -> &'a Checkpoint {
        self.checkpoint
    }

    /// Sizes and options.
    pub fn config(&self) -> &Config {
        &self.config
    }

    /// Loads layer `index`.
    ///
    /// # Panics
    ///
    /// If there is no such layer.
    pub fn layer(&self, index: usize, storage: Storage) -> Result<Layer, ModelError> {
        self.layer_from(self.checkpoint, index, storage)
    }

    /// Loads layer `index` of this model from another checkpoint, such as a pruned
    /// shard.
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
        let mut layer = Layer::load(files, &self.config, &self.ropes[index], index, storage)?;
        layer.position_bias = self.position_bias.clone();
        // A shard has the tensors of its layer only.
        layer.per_layer = PerLayerInput::load(self.checkpoint, &self.config, index)?;
        Ok(layer)
    }

    /// The initial hidden states of windows of tokens, all of the same length.
    pub fn embed(&self, windows: &[Vec<u32>]) -> Result<Hidden, ModelError> {
        let len = windows.first().map_or(0, Vec::len);
        if len == 0 || windows.iter().any(|window| window.len() != len) {
            return Err(ModelError::Windows);
        }
        check_length(len, &self.config)?;
        let (states, carried) = self.embed_texts(windows)?;
        Ok(Hidden::carrying(states, carried, len))
    }

    /// The initial hidden states of texts of any length, one after the other, and what
    /// their tokens carry beside.
    fn embed_texts<T: AsRef<[u32]>>(&self, texts: &[T]) -> Result<(Matrix, Carried), ModelError> {
        let tokens: Vec<u32> = texts.iter().flat_map(|text| text.as_ref()).copied().collect();
        let mut states = embed(&EmbeddingRows::Mapped(self.embedding()?), &tokens, &self.config)?;
        if let Some(input) = &self.input {
            let mut rest = states.data_mut();
            for text in texts.iter().map(AsRef::as_ref) {
                let (own, after) = rest.split_at_mut(text.len() * self.config.hidden);
                input.finish(text, own);
                rest = after;
            }
        }
        Ok((states, Carried::new(&self.config, &tokens)))
    }

    /// Refuses an encoder, which predicts no tokens.
    pub fn check_decoder(&self) -> Result<(), ModelError> {
        let (path, family) = (self.checkpoint.path().to_path_buf(), self.config.family.name);
        match self.config.encoder {
            Some(_) => Err(ModelError::Encoder { path, family }),
            None => Ok(()),
        }
    }

    /// Refuses a decoder, which gives no vectors of sentences.
    pub fn check_encoder(&self) -> Result<(), ModelError> {
        let (path, family) = (self.checkpoint.path().to_path_buf(), self.config.family.name);
        let encoders = FAMILIES.iter().filter(|family| family.encoder.is_some());
        let encoders = encoders.map(|family| family.name).collect::<Vec<_>>().join(", ");
        match self.config.encoder {
            Some(_) => Ok(()),
            None => Err(ModelError::Decoder { path, family, encoders }),
        }
    }

    /// The final norm and output projection; an encoder has none.
    pub fn head(&self) -> Result<Head<'_>, ModelError> {
        let rows = EmbeddingRows::Mapped(self.head_tensor()?);
        Ok(Head { norm: self.final_norm()?, rows, logits: LogitMap::new(&self.config) })
    }

    /// The norm before the head of a decoder.
    fn final_norm(&self) -> Result<&Norm, ModelError> {
        self.check_decoder()?;
        Ok(self.norm.as_ref().expect("decoders have a final norm"))
    }

    /// Refuses tokens outside the vocabulary, before any work is done on them.
    pub fn check_tokens(&self, windows: &[Vec<u32>]) -> Result<(), ModelError> {
        let (path, vocab) = (self.checkpoint.path().to_path_buf(), self.config.token_limit());
        match windows.iter().flatten().find(|&&id| id as usize >= vocab) {
            Some(&id) => Err(ModelError::Tokenizer { path, id, vocab }),
            None => Ok(()),
        }
    }

    /// Replaces [`ModelError::NotFinite`] by an error that names the tensor with NaN
    /// or infinity, if there is one: all weights are read. Other errors are
    /// returned unchanged.
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
        Ok(self.checkpoint.tensor_with_shape(self.config.family.embedding(), &shape)?)
    }

    /// The head, `[vocabulary, hidden]`: the embedding, if tied.
    fn head_tensor(&self) -> Result<Tensor<'a>, ModelError> {
        self.check_decoder()?;
        if self.config.tied {
            return self.embedding();
        }
        let shape = [self.config.vocab, self.config.hidden];
        Ok(self.checkpoint.tensor_with_shape("lm_head.weight", &shape)?)
    }
}

/// Embeds tokens, scaled if the family does: `[tokens, hidden]`.
fn embed(rows: &EmbeddingRows<'_>, tokens: &[u32], config: &Config) -> Result<Matrix, ModelError> {
    let mut states = Matrix::zeros(tokens.len(), config.hidden);
    for (i, &id) in tokens.iter().enumerate() {
        let row = id as usize;
        let vocab = config.token_limit();
        if row >= vocab {
            return Err(ModelError::Token { id, vocab });
        }
        rows.read(row..row + 1, states.row_mut(i));
    }
    if config.embedding_scale != 1.0 {
        vector::scale(states.data_mut(), config.embedding_scale);
    }
    Ok(states)
}

/// Refuses sequences longer than the model supports.
fn check_length(tokens: usize, config: &Config) -> Result<(), ModelError> {
    match tokens > config.max_positions {
        true => Err(ModelError::TooLong { tokens, limit: config.max_positions }),
        false => Ok(()),
    }
}

/// Refuses tensors that the forward pass would ignore, and layers with missing
/// tensors, which would otherwise be noticed only when the layer is loaded.
fn check_tensors(checkpoint: &Checkpoint, config: &Config) -> Result<(), ModelError> {
    let shared = per_layer::tensors(config).into_iter().map(|(name, shape)| (name.into(), shape));
    let of_layers: Vec<(String, Vec<usize>)> =
        (0..config.layers).flat_map(|i| Layer::tensors(config, i)).chain(shared).collect();
    // Also a tied head, and the RoPE tables of old files.
    let mut known: BTreeSet<&str> = of_layers.iter().map(|(name, _)| name.as_str()).collect();
    match config.encoder {
        None => known.extend(["model.embed_tokens.weight", "model.norm.weight", "lm_head.weight"]),
        Some(_) => known.extend(EncoderInput::tensors(config).iter().map(|(name, ..)| *name)),
    }
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
