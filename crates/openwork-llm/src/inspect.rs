//! What is in a checkpoint: every tensor with its density.

use crate::checkpoint::{Checkpoint, Tensor};
use crate::model::LINEARS;
use crate::pipeline::linear_called;
use crate::report::Record;
use openwork::mask::Bits;
use openwork::{Mask, Pattern, Spec};
use serde::{Serialize, Serializer};
use serde_json::Value;
use std::path::{Path, PathBuf};

/// What a checkpoint holds.
#[derive(Clone, Debug, Serialize)]
pub struct Inspection {
    /// The folder or file.
    #[serde(serialize_with = "lossy")]
    pub model: PathBuf,
    /// `safetensors` or `gguf`.
    pub format: &'static str,
    /// Hugging Face's class, the first of `architectures` in the config.
    pub architecture: Option<String>,
    /// The files that hold the tensors.
    pub files: Vec<FileSummary>,
    /// The whole config, in Hugging Face's names.
    pub config: Value,
    /// Every tensor, in natural order of the names.
    pub tensors: Vec<TensorSummary>,
    /// Sums over all tensors.
    pub totals: Totals,
    /// Whether every tensor that was checked conforms; none if none was.
    pub conforms: Option<bool>,
}

/// One file of a checkpoint.
#[derive(Clone, Debug, Serialize)]
pub struct FileSummary {
    /// Where it is.
    #[serde(serialize_with = "lossy")]
    pub path: PathBuf,
    /// How long it is.
    pub bytes: usize,
}

/// One tensor of a checkpoint.
#[derive(Clone, Debug, Serialize)]
pub struct TensorSummary {
    /// Hugging Face's name.
    pub name: String,
    /// The extent of each axis.
    pub shape: Vec<usize>,
    /// How the numbers are stored.
    pub dtype: &'static str,
    /// Bytes in the file.
    pub bytes: usize,
    /// How many numbers are not zero.
    pub nonzeros: u64,
    /// The share of numbers that are not zero; none for an empty tensor.
    pub density: Option<f64>,
    /// How it is packed, if it is.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub packed: Option<PackedSummary>,
    /// For a matrix with zeros: the patterns among [`KNOWN`] that they fit.
    #[serde(skip_serializing_if = "Vec::is_empty")]
    pub presets: Vec<&'static str>,
    /// The spec that it was checked against.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub spec: Option<String>,
    /// Whether it conforms.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub conforms: Option<bool>,
    /// The first place where it does not, or why it cannot.
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
    /// Its bytes over those of the dense tensor.
    pub share: f64,
}

/// Patterns that zeros are compared with.
pub const KNOWN: &[&str] = &[
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

/// What tensors are checked against.
#[derive(Clone, Copy, Debug)]
pub enum Check<'a> {
    /// Nothing.
    None,
    /// One pattern, for every linear of a layer that has zeros.
    Pattern(&'a Pattern),
    /// What each was pruned to, as the record of the run says.
    Record(&'a Record),
}

/// Sums over tensors.
#[derive(Clone, Copy, Debug, Serialize)]
pub struct Totals {
    /// How many tensors.
    pub tensors: usize,
    /// How many numbers in all of them.
    pub parameters: u64,
    /// Bytes in the files.
    pub bytes: u64,
    /// How many numbers are not zero.
    pub nonzeros: u64,
    /// The share of numbers that are not zero; none if there are no numbers.
    pub density: Option<f64>,
}

/// A path as text: JSON has no others.
fn lossy<S: Serializer>(path: &Path, to: S) -> Result<S::Ok, S::Error> {
    to.collect_str(&path.display())
}

fn density(nonzeros: u64, len: u64) -> Option<f64> {
    (len > 0).then(|| nonzeros as f64 / len as f64)
}

/// Reads every number of `model` once or a few times, one tensor at a time.
pub fn inspect(model: &Checkpoint, check: Check<'_>) -> Inspection {
    let mut totals = Totals { tensors: 0, parameters: 0, bytes: 0, nonzeros: 0, density: None };
    let mut tensors = Vec::new();
    for tensor in model.tensors() {
        let (len, nonzeros) = (tensor.len() as u64, tensor.nonzeros());
        totals.tensors += 1;
        totals.parameters += len;
        totals.bytes += tensor.stored_bytes() as u64;
        totals.nonzeros += nonzeros;
        let mut part = TensorSummary {
            name: tensor.name().to_string(),
            shape: tensor.shape().to_vec(),
            dtype: tensor.dtype().name(),
            bytes: tensor.stored_bytes(),
            nonzeros,
            density: density(nonzeros, len),
            packed: tensor.packing().map(|(spec, format)| PackedSummary {
                spec: spec.to_string(),
                format: format.to_string(),
                share: tensor.stored_bytes() as f64
                    / (tensor.len() * tensor.dtype().block_bytes()).max(1) as f64,
            }),
            presets: Vec::new(),
            spec: None,
            conforms: None,
            breach: None,
        };
        if tensor.shape().len() == 2 && nonzeros < len {
            part.presets = known(&tensor);
        }
        if let Some(pattern) = asked(check, &part) {
            let found = conforms(model, &tensor, &pattern);
            part.spec = Some(pattern.to_string());
            part.conforms = Some(found.is_ok());
            part.breach = found.err();
        }
        tensors.push(part);
    }
    totals.density = density(totals.nonzeros, totals.parameters);
    Inspection {
        model: model.path().to_path_buf(),
        format: model.format().name(),
        architecture: model.config()["architectures"][0].as_str().map(str::to_string),
        files: model
            .files()
            .map(|(path, bytes)| FileSummary { path: path.into(), bytes })
            .collect(),
        config: model.config().clone(),
        conforms: tensors.iter().filter_map(|part| part.conforms).reduce(|a, b| a && b),
        tensors,
        totals,
    }
}

/// The patterns that the zeros of a matrix fit.
fn known(tensor: &Tensor<'_>) -> Vec<&'static str> {
    let mask = mask(&[tensor]);
    let fits = |text: &&&str| {
        let pattern: Option<Pattern> = text.parse().ok();
        let spec = pattern.and_then(|pattern| pattern.bind(tensor.shape()).ok());
        spec.is_some_and(|spec| mask.allows(&spec).is_ok())
    };
    KNOWN.iter().filter(fits).copied().collect()
}

fn mask(tensors: &[&Tensor<'_>]) -> Mask {
    Mask::from_bits(tensors.iter().map(|tensor| Bits::nonzero(&tensor.to_f32())).collect())
}

/// The pattern that a tensor should conform to.
fn asked(check: Check<'_>, part: &TensorSummary) -> Option<Pattern> {
    match check {
        Check::None => None,
        Check::Pattern(pattern) => {
            let zeros = part.nonzeros < part.shape.iter().product::<usize>() as u64;
            (zeros && is_for(pattern, &part.name)).then(|| pattern.clone())
        }
        Check::Record(record) => {
            let linear = record.linears().find(|linear| linear.name == part.name)?;
            linear.spec.as_ref()?.parse().ok()
        }
    }
}

/// Whether `name` is a linear of a layer that the pattern is for.
fn is_for(pattern: &Pattern, name: &str) -> bool {
    let called = |linear: usize| name.ends_with(&format!("{}.weight", LINEARS[linear].0));
    let members = pattern.members();
    let member = |name: &&str| linear_called(name).is_some_and(called);
    match members.is_empty() {
        true => (0..LINEARS.len()).any(called),
        false => members.iter().any(member),
    }
}

/// Refuses a pattern that goes with no linear of the model, in the words of the
/// first that it does not go with.
pub fn check_pattern(model: &Checkpoint, pattern: &Pattern) -> Result<(), String> {
    let mut wrong = None;
    for tensor in model.tensors().filter(|tensor| is_for(pattern, tensor.name())) {
        match bound(model, &tensor, pattern) {
            Ok(_) => return Ok(()),
            Err(why) => wrong = wrong.or(Some(format!("{}: {why}", tensor.name()))),
        }
    }
    wrong.map_or(Ok(()), Err)
}

/// Whether the zeros of a tensor are where `pattern` puts them, together with
/// the tensors of its layer that the pattern couples it with.
fn conforms(model: &Checkpoint, tensor: &Tensor<'_>, pattern: &Pattern) -> Result<(), String> {
    let (spec, tensors) = bound(model, tensor, pattern)?;
    let tensors: Vec<&Tensor<'_>> = tensors.iter().collect();
    mask(&tensors).allows(&spec).map_err(|breach| breach.to_string())
}

/// The pattern bound to a tensor, together with those of its layer that the
/// pattern couples it with.
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
    let layer = LINEARS
        .iter()
        .find_map(|(name, _)| tensor.name().strip_suffix(&format!("{name}.weight")))
        .ok_or("it is no linear of a layer")?;
    let of = |member: &&str| {
        let linear = linear_called(member).ok_or(format!("a layer has no tensor {member}"))?;
        let name = format!("{layer}{}.weight", LINEARS[linear].0);
        model.tensor(&name).map_err(|error| error.to_string())
    };
    let tensors = members.iter().map(of).collect::<Result<Vec<_>, String>>()?;
    let shapes: Vec<(&str, &[usize])> =
        members.iter().zip(&tensors).map(|(name, tensor)| (*name, tensor.shape())).collect();
    let spec = pattern.bind_all(&shapes).map_err(|error| error.to_string())?;
    Ok((spec, tensors))
}
