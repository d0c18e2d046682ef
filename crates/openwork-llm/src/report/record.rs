//! Defines the record of a run, `DIR/openwork/record.json`: its options and
//! everything that was measured. The report page reads records, never models.

use crate::checkpoint::{CheckpointError, Fault, unfinished_layers};
use crate::disk;
use crate::recover::{CurvePoint, RateTrial};
use crate::shrink::Sizes;
use crate::task::TaskScore;
use openwork::prune::Method;
use openwork::sparse::Encoding;
use serde::{Deserialize, Serialize};
use std::path::{Path, PathBuf};

/// Largest record that is read, in bytes; no run writes one nearly as large.
const MAX_RECORD: u64 = 1 << 28;

/// What a run did and measured.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct Record {
    /// Version of openwork.
    pub openwork: String,
    /// Name of the model's folder or file, without its path.
    pub model: String,
    /// Model family, for instance `Llama`.
    pub family: String,
    /// The specs in use, expanded and joined by ` | `.
    pub spec: String,
    /// The methods in use, joined by ` | `.
    pub method: String,
    /// All other options.
    pub options: Options,
    /// Random seed for sampling calibration windows.
    pub seed: u64,
    /// The calibration windows.
    pub calibration: Calibration,
    /// The text that perplexity was measured on; `None` if it was not measured, or
    /// in a record written before this field existed.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub evaluation: Option<EvaluationText>,
    /// Size of the model before and after, if structures were removed.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub sizes: Option<SizeChange>,
    /// One per decoder layer.
    pub layers: Vec<LayerRecord>,
    /// Perplexities in the order of measurement.
    pub evaluations: Vec<EvaluationRecord>,
    /// How similar the sentence vectors of an encoder are to those of the dense model.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub similarity: Option<SimilarityRecord>,
    /// Accuracies on tasks, of the dense model first.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub tasks: Vec<TaskRecord>,
    /// Totals over all layers.
    pub totals: Totals,
    /// The stages of the recovery, if what is left was trained.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub recovery: Vec<RecoveryRecord>,
    /// Notes about the run as a whole.
    #[serde(default)]
    pub notes: Vec<String>,
    /// The passes of a run that pruned several times or removed structures.
    /// `layers` then comes from the last pass that pruned, with the names and
    /// shapes of the tensors that were written.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub passes: Vec<PassRecord>,
    /// Statistics of a run on a cluster (workers, transfers, times), as the
    /// cluster's executor wrote them.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub cluster: Option<serde_json::Value>,
}

/// One pass of a run.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct PassRecord {
    /// Its spec, expanded.
    pub spec: String,
    /// Its spec as the user wrote it.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub spec_as_written: Option<String>,
    /// Its method.
    pub method: String,
    /// Sizes of the model before it.
    pub before: Sizes,
    /// Sizes of the model after it.
    pub after: Sizes,
    /// Indices of dropped layers, before the pass.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub dropped: Vec<usize>,
    /// Indices of dropped experts by layer, before the pass.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub dropped_experts: Vec<Vec<usize>>,
    /// The share of all scores that the dropped experts had: how little redundant they were.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub score_lost: Option<f64>,
    /// Mean error of the linears that it pruned.
    pub mean_error: f64,
    /// Its wall time.
    pub seconds: f64,
}

/// Options of a run besides spec and method.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
pub struct Options {
    /// Dtype of the written weights: `bf16`, `f16` or `f32`.
    pub dtype: String,
    /// Whether inputs were recaptured after each of a layer's four sites.
    pub sequential: bool,
    /// Number of threads.
    pub threads: usize,
    /// Regular expression that tensor names must match, if given.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub include: Option<String>,
    /// Regular expression that tensor names must not match, if given.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub exclude: Option<String>,
}

/// The calibration windows.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
pub struct Calibration {
    /// File name of the text, without its path.
    pub text: String,
    /// Number of windows.
    pub samples: usize,
    /// Tokens per window.
    pub seq_len: usize,
    /// Tokens in all windows.
    pub tokens: usize,
    /// Further windows of a single token; records of earlier versions call them `starts`.
    #[serde(default, alias = "starts")]
    pub single_tokens: usize,
    /// Hash of all windows' token ids as little-endian u32.
    pub sha256: String,
}

/// The text that perplexity was measured on.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
pub struct EvaluationText {
    /// File name of the text, without its path.
    pub text: String,
    /// Number of windows.
    pub windows: usize,
    /// Tokens per window.
    pub seq_len: usize,
    /// Scored tokens.
    pub tokens: usize,
    /// Hash of all windows' token ids as little-endian u32.
    pub sha256: String,
}

/// Size of a model.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct ModelSize {
    /// Number of parameters.
    pub parameters: u64,
    /// Bytes of its tensors as stored.
    pub bytes: u64,
}

/// Size of a model before and after structures were removed.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct SizeChange {
    /// The source model.
    pub before: ModelSize,
    /// The model that was written.
    pub after: ModelSize,
}

/// Measurements of one decoder layer.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct LayerRecord {
    /// Index, from 0 as in tensor names.
    pub index: usize,
    /// Wall time from loading to writing.
    #[serde(deserialize_with = "number")]
    pub seconds: f64,
    /// Seconds of that in forward passes and in summing X'X.
    #[serde(deserialize_with = "number")]
    pub forward_seconds: f64,
    /// Seconds of that in pruning.
    #[serde(deserialize_with = "number")]
    pub prune_seconds: f64,
    /// `|Y' - Y| / |Y|` of the layer's outputs before (Y) and after (Y') pruning,
    /// both on the inputs from the pruned layers before it.
    #[serde(deserialize_with = "number")]
    pub decoder_error: f64,
    /// Its linear layers in the order of the forward pass.
    pub linears: Vec<LinearRecord>,
    /// How it was recovered, if it was trained after pruning.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub recovery: Option<LayerRecovery>,
}

/// The recovery of one layer.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct LayerRecovery {
    /// Loss of the held-out windows before: mean over tokens of the squared distance to
    /// the dense model's output of the layer, relative to that output.
    #[serde(deserialize_with = "number")]
    pub before: f64,
    /// Loss of the held-out windows after.
    #[serde(deserialize_with = "number")]
    pub after: f64,
    /// The learning rate; `None` if none lowered the loss, and nothing was changed.
    pub lr: Option<f64>,
    /// Tokens that were trained on, repetitions included.
    pub tokens: u64,
    /// Wall time.
    #[serde(deserialize_with = "number")]
    pub seconds: f64,
}

/// A stage of a recovery.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct RecoveryRecord {
    /// The stage with its options, as in `blocks[epochs=2]`.
    pub stage: String,
    /// Loss of the held-out windows before; the mean over layers, if layers were trained.
    #[serde(deserialize_with = "number")]
    pub before: f64,
    /// Loss of the held-out windows after.
    #[serde(deserialize_with = "number")]
    pub after: f64,
    /// Wall time.
    #[serde(deserialize_with = "number")]
    pub seconds: f64,
    /// Tokens that were trained on, repetitions included; the mean over layers, if layers
    /// were trained.
    pub tokens: u64,
    /// The learning rate of a stage that trains the whole model; `None` if none lowered
    /// the loss, and nothing was changed.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub lr: Option<f64>,
    /// The learning rates that were tried for a short time, to choose one.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub trials: Vec<RateTrial>,
    /// Losses of a stage that trains the whole model.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub curve: Vec<CurvePoint>,
}

/// Measurements of one linear layer.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct LinearRecord {
    /// Tensor name: `model.layers.0.self_attn.q_proj.weight`.
    pub name: String,
    /// Rows and columns.
    pub shape: [usize; 2],
    /// Its spec, expanded; `None` if it is dense. Coupled tensors share one.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub spec: Option<String>,
    /// Its spec as the user wrote it, if that differs.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub spec_as_written: Option<String>,
    /// Its method; `None` if it is dense.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub method: Option<String>,
    /// `sqrt(tr(D H D') / tr(W H W'))`; 0 if it is dense.
    #[serde(deserialize_with = "number")]
    pub error: f64,
    /// Fraction of weights that are not zero.
    #[serde(deserialize_with = "number")]
    pub density: f64,
    /// The damping used, for instance `diag:0.1`.
    pub damping: Option<String>,
    /// Time to prune it; coupled tensors share it evenly.
    #[serde(deserialize_with = "number")]
    pub seconds: f64,
    /// Notes about this tensor.
    pub notes: Vec<String>,
}

impl LinearRecord {
    /// The codes that its method rounded its weights to.
    pub fn encoding(&self) -> Option<Encoding> {
        self.method.as_ref()?.parse::<Method>().ok()?.encoding()
    }
}

/// A perplexity measurement.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct EvaluationRecord {
    /// Index of the last pruned layer; `None` for the dense model.
    pub after_layer: Option<usize>,
    /// exp(nats / tokens).
    #[serde(deserialize_with = "number")]
    pub token_perplexity: f64,
    /// exp(nats / words).
    #[serde(deserialize_with = "number")]
    pub word_perplexity: f64,
    /// Scored tokens.
    pub tokens: usize,
    /// Wall time.
    #[serde(deserialize_with = "number")]
    pub seconds: f64,
}

/// Cosine similarities of the sentence vectors of a pruned encoder and of the dense one.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct SimilarityRecord {
    /// File name of the texts, without its path.
    pub text: String,
    /// Number of texts.
    pub texts: usize,
    /// Tokens of all texts.
    pub tokens: usize,
    /// Mean over texts.
    #[serde(deserialize_with = "number")]
    pub mean: f64,
    /// The least of any text.
    #[serde(deserialize_with = "number")]
    pub least: f64,
    /// Hash of all token ids as little-endian u32.
    pub sha256: String,
    /// Wall time, of both models.
    #[serde(deserialize_with = "number")]
    pub seconds: f64,
}

/// The accuracy of a model on a task.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct TaskRecord {
    /// Index of the last pruned layer; `None` for the dense model.
    pub after_layer: Option<usize>,
    /// Name of the file, without its path and extension.
    pub name: String,
    /// Number of documents.
    pub docs: usize,
    /// Share of correct answers.
    #[serde(deserialize_with = "number")]
    pub acc: f64,
    /// Share of correct answers by log-likelihood per byte.
    #[serde(deserialize_with = "number")]
    pub acc_norm: f64,
    /// Standard error of `acc`; `None` for one document.
    pub stderr: Option<f64>,
    /// Perplexity of the choices of documents that have a single one.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub perplexity: Option<f64>,
    /// Hash of the documents.
    pub sha256: String,
    /// Wall time.
    #[serde(deserialize_with = "number")]
    pub seconds: f64,
}

impl TaskRecord {
    /// The record of a score.
    pub fn new(score: &TaskScore, after_layer: Option<usize>) -> Self {
        Self {
            after_layer,
            name: score.name.clone(),
            docs: score.documents.len(),
            acc: score.acc(),
            acc_norm: score.acc_norm(),
            stderr: score.stderr(),
            perplexity: score.perplexity(),
            sha256: score.sha256.clone(),
            seconds: score.seconds,
        }
    }
}

/// Totals of a run.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
pub struct Totals {
    /// Wall time, including that before a resume.
    #[serde(deserialize_with = "number")]
    pub seconds: f64,
    /// Peak resident memory.
    pub peak_rss_bytes: u64,
    /// Mean error of all pruned linears.
    #[serde(deserialize_with = "number")]
    pub mean_error: f64,
    /// Fraction of weights in linears that are not zero.
    #[serde(deserialize_with = "number")]
    pub density: f64,
    /// Number of weights in linears.
    pub weights: u64,
}

/// The mean of some values; 0 if there are none.
pub fn mean(values: &[f64]) -> f64 {
    // A sum of no values is -0.
    if values.is_empty() { 0.0 } else { values.iter().sum::<f64>() / values.len() as f64 }
}

/// Why a record cannot be read.
#[derive(Debug, thiserror::Error)]
pub enum RecordError {
    /// The file is missing or cannot be read.
    #[error("{path}: {error}; give a folder that `openwork prune` wrote, or its record.json")]
    File {
        /// The file.
        path: String,
        /// The error of the system.
        error: std::io::Error,
    },
    /// The run is not finished.
    #[error(transparent)]
    Unfinished(CheckpointError),
    /// The file is not a record.
    #[error("{path}: not a record of a run: {error}")]
    Json {
        /// The file.
        path: String,
        /// The parse error.
        error: serde_json::Error,
    },
}

/// Reads `null`, which is how JSON writes a number that is not finite, as NaN.
fn number<'de, D: serde::Deserializer<'de>>(from: D) -> Result<f64, D::Error> {
    Ok(Option::<f64>::deserialize(from)?.unwrap_or(f64::NAN))
}

impl Record {
    /// The file of a record, given the file or the run's folder.
    pub fn path(run: &Path) -> PathBuf {
        if run.is_dir() { run.join("openwork/record.json") } else { run.to_path_buf() }
    }

    /// Reads a record from a run's folder, or from the file itself.
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

    /// The linears of all layers.
    pub fn linears(&self) -> impl Iterator<Item = &LinearRecord> {
        self.layers.iter().flat_map(|layer| &layer.linears)
    }

    /// The specs as the user wrote them, joined by ` | `.
    pub fn spec_as_written(&self) -> String {
        let written = match self.passes.is_empty() {
            true => distinct(self.linears().filter_map(LinearRecord::spec_as_written)),
            false => self.passes.iter().map(PassRecord::spec_as_written).collect(),
        };
        if written.is_empty() { self.spec.clone() } else { written.join(" | ") }
    }

    /// The perplexity of the dense model, if measured.
    pub fn dense(&self) -> Option<&EvaluationRecord> {
        self.evaluations.iter().find(|evaluation| evaluation.after_layer.is_none())
    }

    /// Every task that the pruned model was scored on, with the dense model's score if
    /// that was measured on the same documents.
    pub fn task_pairs(&self) -> Vec<(Option<&TaskRecord>, &TaskRecord)> {
        let pruned = self.tasks.iter().filter(|task| task.after_layer.is_some());
        let dense = |task: &TaskRecord| {
            let same = |other: &&TaskRecord| {
                other.after_layer.is_none()
                    && other.name == task.name
                    && other.sha256 == task.sha256
            };
            self.tasks.iter().find(same)
        };
        pruned.map(|task| (dense(task), task)).collect()
    }

    /// The final perplexity of the pruned model, if measured.
    pub fn last(&self) -> Option<&EvaluationRecord> {
        self.evaluations.iter().rfind(|evaluation| evaluation.after_layer.is_some())
    }
}

impl LinearRecord {
    /// Its spec as the user wrote it; `None` if it is dense.
    pub fn spec_as_written(&self) -> Option<&str> {
        self.spec_as_written.as_deref().or(self.spec.as_deref())
    }
}

impl PassRecord {
    /// Its spec as the user wrote it.
    pub fn spec_as_written(&self) -> &str {
        self.spec_as_written.as_deref().unwrap_or(&self.spec)
    }
}

/// Texts without repetition, in the order of first occurrence.
pub(crate) fn distinct<'a>(texts: impl Iterator<Item = &'a str>) -> Vec<&'a str> {
    let mut seen = Vec::new();
    for text in texts {
        if !seen.contains(&text) {
            seen.push(text);
        }
    }
    seen
}
