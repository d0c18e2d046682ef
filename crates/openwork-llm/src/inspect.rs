//! Inspection of a checkpoint: each tensor's shape, type, density and sparsity
//! pattern, and whether it conforms to a spec.

use crate::checkpoint::{Checkpoint, Tensor};
use crate::model::{Config, LayerInfo, is_linear_name, split_layer_name};
use crate::pack::{Export, exported_for};
use crate::report::Record;
use openwork::mask::Bits;
use openwork::{Mask, Pattern, Spec};
use serde::{Serialize, Serializer};
use serde_json::Value;
use std::path::{Path, PathBuf};

/// The contents of a checkpoint.
#[derive(Clone, Debug, Serialize)]
pub struct Inspection {
    /// The folder or file.
    #[serde(serialize_with = "lossy")]
    pub model: PathBuf,
    /// `safetensors` or `gguf`.
    pub format: &'static str,
    /// The program that the weights are stored for, if the model is an export.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub stored_for: Option<&'static str>,
    /// The first entry of `architectures` in the config.
    pub architecture: Option<String>,
    /// The files that hold the tensors.
    pub files: Vec<FileSummary>,
    /// The config, in Hugging Face's names; null for a single safetensors file.
    pub config: Value,
    /// Every tensor, in natural order of names.
    pub tensors: Vec<TensorSummary>,
    /// Totals over all tensors.
    pub totals: Totals,
    /// Whether every checked tensor conforms; `None` if none was checked.
    pub conforms: Option<bool>,
}

/// One file of a checkpoint.
#[derive(Clone, Debug, Serialize)]
pub struct FileSummary {
    /// Its path.
    #[serde(serialize_with = "lossy")]
    pub path: PathBuf,
    /// Its length.
    pub bytes: usize,
}

/// One tensor of a checkpoint.
#[derive(Clone, Debug, Serialize)]
pub struct TensorSummary {
    /// Hugging Face's name.
    pub name: String,
    /// Its dims.
    pub shape: Vec<usize>,
    /// Storage type.
    pub dtype: &'static str,
    /// Bytes in the file.
    pub bytes: usize,
    /// Number of nonzero values; `None` if they were not counted.
    pub nonzeros: Option<u64>,
    /// Fraction of nonzero values; `None` if not counted or if the tensor is empty.
    pub density: Option<f64>,
    /// How it is packed, if it is.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub packed: Option<PackedSummary>,
    /// For a matrix with zeros: the patterns of [`KNOWN_PATTERNS`] that it conforms to.
    #[serde(skip_serializing_if = "Vec::is_empty")]
    pub presets: Vec<&'static str>,
    /// The spec it was checked against.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub spec: Option<String>,
    /// Whether it conforms.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub conforms: Option<bool>,
    /// The first violation, or why the spec does not apply.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub breach: Option<String>,
}

/// How a tensor is packed.
#[derive(Clone, Debug, Serialize)]
pub struct PackedSummary {
    /// The spec's text.
    pub spec: String,
    /// The format's name.
    pub format: String,
    /// The kind of its values.
    pub values: &'static str,
    /// Its size relative to the dense tensor, with 16 bits for codes.
    pub share: f64,
    /// Why its products are slower than its bytes allow, if they are.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub slow: Option<&'static str>,
}

/// Patterns that matrices with zeros are compared with.
pub const KNOWN_PATTERNS: &[&str] = &[
    "1:2",
    "1:4",
    "2:4",
    "2:8",
    "4:8",
    "2:4x2",
    "2:4@4",
    "2:4@8",
    "rows16",
    "block(16,16)",
    "rowwise(50%)",
    "columns(50%)",
    "channel(50%)",
];

/// How much of the weights is read, and what they are checked against.
#[derive(Clone, Copy, Debug)]
pub enum Check<'a> {
    /// Headers only: no weight is read.
    HeaderOnly,
    /// Densities and known patterns.
    Density,
    /// Also that every linear layer with zeros conforms to one pattern; of a
    /// single safetensors file, every matrix with zeros.
    Pattern(&'a Pattern),
    /// Also that every pruned tensor conforms to its spec in the run's record.
    Record(&'a Record),
}

/// Totals over tensors.
#[derive(Clone, Copy, Debug, Serialize)]
pub struct Totals {
    /// Number of tensors.
    pub tensors: usize,
    /// Number of parameters.
    pub parameters: u64,
    /// Bytes in the files.
    pub bytes: u64,
    /// Number of nonzero values; `None` if they were not counted.
    pub nonzeros: Option<u64>,
    /// Fraction of nonzero values; `None` if not counted or if there are no parameters.
    pub density: Option<f64>,
}

/// A path as text, lossy where it is not UTF-8: JSON has no other strings.
fn lossy<S: Serializer>(path: &Path, to: S) -> Result<S::Ok, S::Error> {
    to.collect_str(&path.display())
}

fn density(nonzeros: u64, len: u64) -> Option<f64> {
    (len > 0).then(|| nonzeros as f64 / len as f64)
}

/// Inspects `model`, one tensor in memory at a time. `on_progress` gets the
/// fraction of the bytes that has been read.
pub fn inspect(
    model: &Checkpoint,
    check: Check<'_>,
    on_progress: &mut dyn FnMut(f64),
) -> Inspection {
    let all: u64 = model.tensors().map(|tensor| tensor.stored_bytes() as u64).sum();
    let counts = !matches!(check, Check::HeaderOnly);
    let nonzeros = counts.then_some(0);
    let mut totals = Totals { tensors: 0, parameters: 0, bytes: 0, nonzeros, density: None };
    let mut tensors = Vec::new();
    for tensor in model.tensors() {
        let (len, nonzeros) = (tensor.len() as u64, counts.then(|| tensor.nonzeros()));
        totals.tensors += 1;
        totals.parameters += len;
        totals.bytes += tensor.stored_bytes() as u64;
        totals.nonzeros = totals.nonzeros.zip(nonzeros).map(|(sum, nonzeros)| sum + nonzeros);
        let mut summary = TensorSummary {
            name: tensor.name().to_string(),
            shape: tensor.shape().to_vec(),
            dtype: match tensor.packing() {
                Some(packing) if packing.has_codes() => packing.values,
                _ => tensor.dtype().name(),
            },
            bytes: tensor.stored_bytes(),
            nonzeros,
            density: nonzeros.and_then(|nonzeros| density(nonzeros, len)),
            packed: tensor.packing().map(|packing| PackedSummary {
                spec: packing.spec.to_string(),
                format: packing.format.to_string(),
                slow: packing.slow,
                values: packing.values,
                share: tensor.stored_bytes() as f64
                    / (tensor.len() * packing.dense_weight_bytes).max(1) as f64,
            }),
            presets: Vec::new(),
            spec: None,
            conforms: None,
            breach: None,
        };
        if tensor.shape().len() == 2 && nonzeros.is_some_and(|nonzeros| nonzeros < len) {
            summary.presets = known_patterns(&tensor);
        }
        if let Some(pattern) = expected_pattern(model, check, &summary) {
            let found = conforms(model, &tensor, &pattern);
            summary.spec = Some(pattern.to_string());
            summary.conforms = Some(found.is_ok());
            summary.breach = found.err();
        }
        tensors.push(summary);
        on_progress(totals.bytes as f64 / all.max(1) as f64);
    }
    totals.density = totals.nonzeros.and_then(|nonzeros| density(nonzeros, totals.parameters));
    Inspection {
        model: model.path().to_path_buf(),
        format: model.format().name(),
        stored_for: exported_for(model).map(Export::name),
        architecture: model.config()["architectures"][0].as_str().map(str::to_string),
        files: model
            .files()
            .map(|(path, bytes)| FileSummary { path: path.into(), bytes })
            .collect(),
        config: model.config().clone(),
        conforms: tensors.iter().filter_map(|tensor| tensor.conforms).reduce(|a, b| a && b),
        tensors,
        totals,
    }
}

/// The known patterns that a matrix conforms to.
fn known_patterns(tensor: &Tensor<'_>) -> Vec<&'static str> {
    let mask = mask(&[tensor]);
    let fits = |text: &&&str| {
        let pattern: Option<Pattern> = text.parse().ok();
        let spec = pattern.and_then(|pattern| pattern.bind(tensor.shape()).ok());
        spec.is_some_and(|spec| mask.allows(&spec).is_ok())
    };
    KNOWN_PATTERNS.iter().filter(fits).copied().collect()
}

fn mask(tensors: &[&Tensor<'_>]) -> Mask {
    Mask::from_bits(tensors.iter().map(|tensor| Bits::nonzero(&tensor.to_f32())).collect())
}

/// The pattern that a tensor should conform to, if any.
fn expected_pattern(
    model: &Checkpoint,
    check: Check<'_>,
    tensor: &TensorSummary,
) -> Option<Pattern> {
    match check {
        Check::HeaderOnly | Check::Density => None,
        Check::Pattern(pattern) => {
            let len = tensor.shape.iter().product::<usize>() as u64;
            let zeros = tensor.nonzeros.is_some_and(|nonzeros| nonzeros < len);
            let applies = applies_to(model, pattern, &tensor.name, &tensor.shape);
            (zeros && applies).then(|| pattern.clone())
        }
        Check::Record(record) => {
            let linear = record.linears().find(|linear| linear.name == tensor.name)?;
            linear.spec.as_ref()?.parse().ok()
        }
    }
}

/// Whether the pattern applies to a tensor: a linear layer of a model, or any
/// matrix of a single file.
fn applies_to(model: &Checkpoint, pattern: &Pattern, name: &str, shape: &[usize]) -> bool {
    let members = pattern.members();
    match (model.config().is_null(), members.is_empty()) {
        (true, true) => shape.len() == 2,
        (true, false) => members.contains(&name),
        (false, true) => shape.len() == 2 && linear_name(name).is_some_and(is_linear_name),
        (false, false) => layer_of(model, name).is_some_and(|(info, linear)| {
            members.iter().any(|member| info.linears[linear].is_called(member))
        }),
    }
}

/// `self_attn.q_proj` of `model.layers.7.self_attn.q_proj.weight`.
fn linear_name(name: &str) -> Option<&str> {
    let (_, name) = split_layer_name(name)?;
    name.strip_suffix(".weight")
}

/// The layer of a linear layer's weights, and which of its linear layers they are.
fn layer_of(model: &Checkpoint, name: &str) -> Option<(LayerInfo, usize)> {
    let (index, _) = split_layer_name(name)?;
    let config = Config::new(model.config()).ok()?;
    let info = (index < config.layers).then(|| LayerInfo::new(&config, index))?;
    let found =
        info.linears.iter().position(|linear| Some(linear.name.as_str()) == linear_name(name));
    found.map(|linear| (info, linear))
}

/// Refuses a pattern that can be bound to none of the tensors it applies to,
/// with the error of the first.
pub fn check_pattern(model: &Checkpoint, pattern: &Pattern) -> Result<(), String> {
    let mut wrong = None;
    let applies = |tensor: &Tensor<'_>| applies_to(model, pattern, tensor.name(), tensor.shape());
    for tensor in model.tensors().filter(applies) {
        match bound(model, &tensor, pattern) {
            Ok(_) => return Ok(()),
            Err(why) => wrong = wrong.or(Some(format!("{}: {why}", tensor.name()))),
        }
    }
    wrong.map_or(Ok(()), Err)
}

/// Whether a tensor conforms to `pattern`, together with the tensors of its
/// layer that the pattern couples it with.
fn conforms(model: &Checkpoint, tensor: &Tensor<'_>, pattern: &Pattern) -> Result<(), String> {
    let (spec, tensors) = bound(model, tensor, pattern)?;
    let tensors: Vec<&Tensor<'_>> = tensors.iter().collect();
    mask(&tensors).allows(&spec).map_err(|breach| breach.to_string())
}

/// The pattern bound to a tensor, together with the tensors of its layer (or
/// file) that the pattern couples it with.
fn bound<'a>(
    model: &'a Checkpoint,
    tensor: &Tensor<'a>,
    pattern: &Pattern,
) -> Result<(Spec, Vec<Tensor<'a>>), String> {
    let members = pattern.members();
    if members.is_empty() {
        let spec = pattern.bind(tensor.shape()).map_err(|error| error.to_string())?;
        return Ok((spec, vec![*tensor]));
    }
    let layer = layer_of(model, tensor.name());
    let find = |member: &&str| {
        let name = match &layer {
            None => member.to_string(),
            Some((info, linear)) => match info.find(member, info.linears[*linear].expert) {
                Some(found) => info.weight_name(found),
                None => return Err(format!("a layer has no tensor {member}")),
            },
        };
        model.tensor(&name).map_err(|error| error.to_string())
    };
    let tensors = members.iter().map(find).collect::<Result<Vec<_>, String>>()?;
    let shapes: Vec<(&str, &[usize])> =
        members.iter().zip(&tensors).map(|(name, tensor)| (*name, tensor.shape())).collect();
    let spec = pattern.bind_all(&shapes).map_err(|error| error.to_string())?;
    Ok((spec, tensors))
}
