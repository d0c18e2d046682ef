//! Everything measured in a run, as JSON: `DIR/openwork/record.json`.
//!
//! Pages and tables read a record, never the model.

use crate::checkpoint::{CheckpointError, Fault, unfinished_layers};
use crate::disk;
use crate::shrink::Sizes;
use serde::{Deserialize, Serialize};
use std::path::{Path, PathBuf};

/// Most bytes of a record: far more than any run writes.
const MAX_RECORD: u64 = 1 << 28;

/// What happened when a model was pruned.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct Record {
    /// The version of openwork.
    pub openwork: String,
    /// The model's folder or file name, without its folders.
    pub model: String,
    /// The family, for instance `Llama`.
    pub family: String,
    /// The spec of the run; where rules give several, those that occur, joined by ` | `.
    pub spec: String,
    /// The method of the run, joined likewise.
    pub method: String,
    /// Everything else that was asked for.
    pub options: Options,
    /// The seed that drew the calibration windows.
    pub seed: u64,
    /// What the inputs were measured on.
    pub calibration: Calibration,
    /// One for each decoder layer.
    pub layers: Vec<LayerRecord>,
    /// Perplexities, in the order they were measured.
    pub evaluations: Vec<EvaluationRecord>,
    /// Sums.
    pub totals: Totals,
    /// What the user should know about the run as a whole.
    #[serde(default)]
    pub notes: Vec<String>,
    /// Where a model was pruned several times, or made smaller: each step.
    /// `layers` is then what the last one that pruned measured, with the names
    /// and shapes of the tensors that were written.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub passes: Vec<PassRecord>,
    /// Where several machines worked: who did what, what was moved, where the
    /// time went. As the cluster's side wrote it.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub cluster: Option<serde_json::Value>,
}

/// One of several steps.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct PassRecord {
    /// Its spec, written out.
    pub spec: String,
    /// Its method.
    pub method: String,
    /// Sizes of the model before it.
    pub before: Sizes,
    /// Sizes of the model after it.
    pub after: Sizes,
    /// Layers that were dropped, by their numbers before it.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub dropped: Vec<usize>,
    /// Mean of the errors of all linears that it pruned.
    pub mean_error: f64,
    /// Time it took.
    pub seconds: f64,
}

/// What was asked for beside spec and method.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
pub struct Options {
    /// Type of the written weights: `bf16`, `f16` or `f32`.
    pub dtype: String,
    /// Whether inputs were captured anew after each of the four sites.
    pub sequential: bool,
    /// Threads that were used.
    pub threads: usize,
    /// Expressions that chose tensors, if given.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub include: Option<String>,
    /// Expressions that left tensors out, if given.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub exclude: Option<String>,
}

/// The calibration windows.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
pub struct Calibration {
    /// The text's file name, without its folders.
    pub text: String,
    /// Windows.
    pub samples: usize,
    /// Tokens in a window.
    pub seq_len: usize,
    /// Tokens in these windows.
    pub tokens: usize,
    /// Further windows of a single token; records of earlier versions call them `starts`.
    #[serde(default, alias = "starts")]
    pub single_tokens: usize,
    /// Of all windows' tokens, as little-endian u32.
    pub sha256: String,
}

/// One decoder layer.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct LayerRecord {
    /// From 0.
    pub index: usize,
    /// Time from loading to writing.
    #[serde(deserialize_with = "number")]
    pub seconds: f64,
    /// Of that, forward passes and sums of X'X.
    #[serde(deserialize_with = "number")]
    pub forward_seconds: f64,
    /// Of that, pruning.
    #[serde(deserialize_with = "number")]
    pub prune_seconds: f64,
    /// `|Y' - Y| / |Y|` over the layer's outputs before (Y) and after pruning,
    /// both on the inputs that the pruned layers before it give.
    #[serde(deserialize_with = "number")]
    pub decoder_error: f64,
    /// Its linears, in the order of the forward pass.
    pub linears: Vec<LinearRecord>,
}

/// One linear.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct LinearRecord {
    /// The tensor: `model.layers.0.self_attn.q_proj.weight`.
    pub name: String,
    /// Rows and columns.
    pub shape: [usize; 2],
    /// Its spec; none if it was left dense. Tensors pruned together share one.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub spec: Option<String>,
    /// Its method; none if it was left dense.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub method: Option<String>,
    /// `sqrt(tr(D H D') / tr(W H W'))`; 0 if it was left dense.
    #[serde(deserialize_with = "number")]
    pub error: f64,
    /// Share of weights that are not zero.
    #[serde(deserialize_with = "number")]
    pub density: f64,
    /// The damping in force, for instance `diag:0.1`.
    pub damping: Option<String>,
    /// Time to prune; tensors pruned together share it evenly.
    #[serde(deserialize_with = "number")]
    pub seconds: f64,
    /// What the user should know.
    pub notes: Vec<String>,
}

/// A perplexity.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct EvaluationRecord {
    /// The last layer that was pruned; none for the dense model.
    pub after_layer: Option<usize>,
    /// exp(nats / tokens).
    #[serde(deserialize_with = "number")]
    pub token_perplexity: f64,
    /// exp(nats / words).
    #[serde(deserialize_with = "number")]
    pub word_perplexity: f64,
    /// Scored tokens.
    pub tokens: usize,
    /// Time it took.
    #[serde(deserialize_with = "number")]
    pub seconds: f64,
}

/// Sums over a run.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
pub struct Totals {
    /// Wall time, over all starts of a run that was resumed.
    #[serde(deserialize_with = "number")]
    pub seconds: f64,
    /// The most memory that was resident.
    pub peak_rss_bytes: u64,
    /// Mean of the errors of all pruned linears.
    #[serde(deserialize_with = "number")]
    pub mean_error: f64,
    /// Share of weights that are not zero, over all linears.
    #[serde(deserialize_with = "number")]
    pub density: f64,
    /// Weights in all linears.
    pub weights: u64,
}

/// Why a record cannot be read.
#[derive(Debug, thiserror::Error)]
pub enum RecordError {
    /// There is no file, or it cannot be read.
    #[error("{path}: {error}; give a folder that `openwork prune` wrote, or its record.json")]
    File {
        /// The file.
        path: String,
        /// The system's words.
        error: std::io::Error,
    },
    /// The run is not finished.
    #[error(transparent)]
    Unfinished(CheckpointError),
    /// It is no record.
    #[error("{path}: not a record of a run: {error}")]
    Json {
        /// The file.
        path: String,
        /// What is wrong.
        error: serde_json::Error,
    },
}

/// JSON has no word for what is not finite, so that it is written as `null`.
fn number<'de, D: serde::Deserializer<'de>>(from: D) -> Result<f64, D::Error> {
    Ok(Option::<f64>::deserialize(from)?.unwrap_or(f64::NAN))
}

impl Record {
    /// The file of a record, given it or the run's folder.
    pub fn path(run: &Path) -> PathBuf {
        if run.is_dir() { run.join("openwork/record.json") } else { run.to_path_buf() }
    }

    /// Reads a record: from a run's folder, or from the file itself.
    pub fn read(path: &Path) -> Result<Self, RecordError> {
        let file = Self::path(path);
        let shown = || file.display().to_string();
        if let Some(layers) = unfinished_layers(path) {
            let error = CheckpointError::new(path, Fault::Unfinished { layers });
            return Err(RecordError::Unfinished(error));
        }
        let bytes = disk::read(&file, MAX_RECORD)
            .map_err(|error| RecordError::File { path: shown(), error })?;
        serde_json::from_slice(&bytes).map_err(|error| RecordError::Json { path: shown(), error })
    }

    /// All linears of all layers.
    pub fn linears(&self) -> impl Iterator<Item = &LinearRecord> {
        self.layers.iter().flat_map(|layer| &layer.linears)
    }

    /// The perplexity of the dense model, if it was measured.
    pub fn dense(&self) -> Option<&EvaluationRecord> {
        self.evaluations.iter().find(|evaluation| evaluation.after_layer.is_none())
    }

    /// The last perplexity of the pruned model, if it was measured.
    pub fn last(&self) -> Option<&EvaluationRecord> {
        self.evaluations.iter().rfind(|evaluation| evaluation.after_layer.is_some())
    }
}
