//! Packed models: Hugging Face folders whose pruned linears store only their
//! kept weights and an index.

mod export;
mod plan;
mod speed;
mod values;

pub use export::{Export, export, exported_for, gguf};
pub use plan::{Group, Patterns};
pub use speed::{Speed, compare, tokens_per_second};

pub use values::ValueChoice;
use values::dense_spec;

use crate::checkpoint::write::{self, Data, Listed, Part, WriteError, encode};
use crate::checkpoint::{Checkpoint, CheckpointError, Dtype, PartBytes, Tensor, packed_parts};
use crate::model::{Model, ModelError};
use crate::staged_folder::{StageError, StagedFolder};
use openwork::sparse::{Encoding, Packed, ValueType, Values};
use rayon::prelude::*;
use serde::Serialize;
use serde_json::{Map, Value};
use std::collections::{BTreeMap, BTreeSet};
use std::path::Path;

/// Why a model cannot be packed or unpacked. Nothing is written then.
#[derive(Debug, thiserror::Error)]
pub enum PackModelError {
    /// The model cannot be read or run.
    #[error(transparent)]
    Model(#[from] ModelError),
    /// A file of it cannot be read.
    #[error(transparent)]
    Checkpoint(#[from] CheckpointError),
    /// A file cannot be written.
    #[error(transparent)]
    Write(#[from] WriteError),
    /// The output folder cannot be created.
    #[error(transparent)]
    Stage(#[from] StageError),
    /// No run has left its patterns, and none is given.
    #[error("{0}; or give the pattern of all linear layers")]
    NoPattern(String),
    /// What to pack is unknown, or there is nothing to pack.
    #[error("{0}")]
    Plan(String),
    /// One tensor cannot be packed.
    #[error("{tensor}: {why}")]
    Tensor {
        /// Its name.
        tensor: String,
        /// What is wrong with it.
        why: String,
    },
}

impl PackModelError {
    /// Whether the user's input is at fault, rather than the run.
    pub fn is_input(&self) -> bool {
        match self {
            Self::Write(error) => matches!(error, WriteError::Range { .. }),
            Self::Stage(error) => !matches!(error, StageError::Io { .. }),
            _ => true,
        }
    }
}

/// One tensor that was packed.
#[derive(Clone, Debug, Serialize)]
pub struct PackedTensor {
    /// Its name.
    pub name: String,
    /// The spec's text.
    pub spec: String,
    /// The format's name.
    pub format: &'static str,
    /// The kind of its values.
    pub values: &'static str,
    /// Bytes of values, scales and index.
    pub bytes: usize,
    /// Bytes of the dense tensor, with 16 bits for codes.
    pub dense_bytes: usize,
}

/// Sizes of a packed model.
#[derive(Clone, Debug, Default, Serialize)]
pub struct Summary {
    /// All packed tensors.
    pub tensors: Vec<PackedTensor>,
    /// Bytes of their values and indices.
    pub bytes: usize,
    /// Bytes of the same tensors dense.
    pub dense_bytes: usize,
    /// Bytes of all other tensors.
    pub other_bytes: u64,
}

/// The type a tensor is written in: its own, or bf16 if it is quantized.
fn storage_dtype(tensor: &Tensor<'_>) -> Dtype {
    match tensor.dtype() {
        dtype @ (Dtype::F32 | Dtype::F16 | Dtype::BF16) => dtype,
        _ => Dtype::BF16,
    }
}

/// A tensor written as it is.
fn dense_part<'a>(tensor: Tensor<'a>) -> Part<'a> {
    Part::new(tensor.name(), storage_dtype(&tensor), tensor.shape(), Data::Tensor(tensor))
}

/// The weights of a tensor in their storage type, bit for bit unless quantized.
fn values(tensor: &Tensor<'_>) -> Result<Values, PackModelError> {
    let dtype = storage_dtype(tensor);
    let value_type = match dtype {
        Dtype::F32 => ValueType::F32,
        Dtype::F16 => ValueType::F16,
        _ => ValueType::Bf16,
    };
    let mut rounded = Vec::new();
    let bytes = match tensor.bytes() {
        Some(bytes) => bytes,
        None => {
            // bf16 has the range of f32: nothing overflows.
            let _ = encode(dtype, &tensor.to_f32(), &mut rounded);
            &rounded
        }
    };
    Values::from_le_bytes(value_type, bytes).ok_or_else(|| PackModelError::Tensor {
        tensor: tensor.name().to_string(),
        why: format!("its {} bytes are not a whole number of {dtype} values", bytes.len()),
    })
}

/// Packs the tensors of one group.
pub fn pack_group(source: &Checkpoint, group: &Group) -> Result<Vec<Packed>, PackModelError> {
    let dense: Vec<Values> =
        group.names.iter().map(|name| values(&source.tensor(name)?)).collect::<Result<_, _>>()?;
    let views: Vec<_> = dense.iter().map(Values::view).collect();
    Packed::pack_all(&group.spec, &views).map_err(|error| PackModelError::Tensor {
        tensor: group.names.join(", "),
        why: error.to_string(),
    })
}

/// Packs all groups of a layer; tensors by name.
fn pack_layer<'a>(
    source: &Checkpoint,
    groups: &'a [Group],
    layer: usize,
) -> Result<BTreeMap<&'a str, Packed>, PackModelError> {
    let groups: Vec<&Group> = groups.iter().filter(|group| group.layer == layer).collect();
    let packed: Vec<_> = groups.par_iter().map(|group| pack_group(source, group)).collect();
    let mut named = BTreeMap::new();
    // The first error in tensor order, not in time: the same message at any thread count.
    for (group, packed) in groups.iter().zip(packed) {
        named.extend(group.names.iter().map(String::as_str).zip(packed?));
    }
    Ok(named)
}

/// Packs a tensor that is not pruned, with its values as codes.
fn pack_dense(tensor: &Tensor<'_>, encoding: Encoding) -> Result<Packed, PackModelError> {
    let why = |error: &dyn std::fmt::Display| PackModelError::Tensor {
        tensor: tensor.name().to_string(),
        why: error.to_string(),
    };
    let spec = dense_spec(tensor.shape()).map_err(|error| why(&error))?;
    let packed = Packed::pack(&spec, values(tensor)?.view()).map_err(|error| why(&error))?;
    packed.with_values(encoding).map_err(|error| why(&error))
}

/// Writes `model` to the folder `out` with the linears of `patterns` packed and values as
/// `choice` says; `progress` is called with the number of finished layers.
pub fn pack(
    model: &Model<'_>,
    patterns: &Patterns,
    choice: ValueChoice,
    out: &Path,
    progress: &mut dyn FnMut(usize),
) -> Result<Summary, PackModelError> {
    let source = model.checkpoint();
    if let Some(tensor) = source.tensors().find(|tensor| tensor.packing().is_some()) {
        let why = format!("{} is packed already; unpack the model first", tensor.name());
        return Err(PackModelError::Plan(why));
    }
    let groups = patterns.groups(model)?;
    let mut summary = Summary::default();
    let shard = |layer: usize, names: &[String], path: &Path| {
        let mut packed: BTreeMap<&str, Packed> = BTreeMap::new();
        for (name, tensor) in pack_layer(source, &groups, layer)? {
            packed.insert(name, choice.convert(name, tensor)?);
        }
        for name in
            names.iter().filter(|name| !packed.contains_key(name.as_str())).collect::<Vec<_>>()
        {
            if let Some(encoding) = choice.encoding(name).filter(|e| e.kind().has_codes()) {
                packed.insert(name, pack_dense(&source.tensor(name)?, encoding)?);
            }
        }
        let stored: BTreeMap<&str, PartBytes> =
            packed.iter().map(|(&name, packed)| (name, PartBytes::new(packed))).collect();
        let (mut parts, mut metadata) = (Vec::new(), Vec::new());
        for name in names {
            let Some(packed) = packed.get(name.as_str()) else {
                let part = choice.dense_part(source.tensor(name)?);
                summary.other_bytes += part.bytes();
                parts.push(part);
                continue;
            };
            let (tensors, entry) = packed_parts(name, packed, &stored[name.as_str()]);
            parts.extend(tensors);
            metadata.push(entry);
            summary.add(name, packed);
        }
        let metadata: Vec<(&str, &str)> =
            metadata.iter().map(|(key, text)| (key.as_str(), text.as_str())).collect();
        Ok(write::listed_shard(path, &parts, &metadata)?)
    };
    write_folder(model, out, progress, |_| {}, shard)?;
    Ok(summary)
}

impl Summary {
    fn add(&mut self, name: &str, packed: &Packed) {
        let tensor = PackedTensor {
            name: name.to_string(),
            spec: packed.spec().text().to_string(),
            format: packed.format().name,
            values: packed.values().encoding().kind().name,
            bytes: packed.stored_bytes(),
            dense_bytes: packed.dense_bytes(),
        };
        self.bytes += tensor.bytes;
        self.dense_bytes += tensor.dense_bytes;
        self.tensors.push(tensor);
    }
}

/// Writes `model` to the folder `out` with all packed tensors dense, bit for bit
/// as they were before packing.
pub fn unpack(
    model: &Model<'_>,
    out: &Path,
    progress: &mut dyn FnMut(usize),
) -> Result<(), PackModelError> {
    let source = model.checkpoint();
    if source.tensors().all(|tensor| tensor.packing().is_none()) {
        let why = format!("{}: no tensor is packed; nothing to do", source.path().display());
        return Err(PackModelError::Plan(why));
    }
    let shard = |_, names: &[String], path: &Path| {
        let mut dense: BTreeMap<&str, Vec<u8>> = BTreeMap::new();
        for name in names {
            let packed = source.tensor(name)?.packed();
            let packed = packed.map_err(|error| PackModelError::Tensor {
                tensor: name.clone(),
                why: error.to_string(),
            })?;
            if let Some(packed) = packed {
                dense.insert(name, packed.unpack().to_le_bytes());
            }
        }
        let mut parts = Vec::new();
        for name in names {
            let mut part = dense_part(source.tensor(name)?);
            if let Some(bytes) = dense.get(name.as_str()) {
                part.data = Data::Bytes(bytes);
            }
            parts.push(part);
        }
        let parts = write::fused(parts, model.config().family);
        Ok(write::listed_shard(path, &parts, &[])?)
    };
    write_folder(model, out, progress, |_| {}, shard)
}

/// The layer number of the shard with everything outside the layers.
const OUTSIDE_LAYERS: usize = usize::MAX;

/// Writes a whole folder: a shard for the tensors outside the layers
/// ([`OUTSIDE_LAYERS`]), one per layer, the config, which `config` may amend, the
/// tokenizer, the record of the run and the index. `shard` gets the layer, the
/// names of its tensors and the file to write.
///
/// Weights that are NaN or infinite are refused first: no command could run what
/// would be written.
fn write_folder(
    model: &Model<'_>,
    out: &Path,
    progress: &mut dyn FnMut(usize),
    config: impl FnOnce(&mut Map<String, Value>),
    mut shard: impl FnMut(usize, &[String], &Path) -> Result<Listed, PackModelError>,
) -> Result<(), PackModelError> {
    let folder = StagedFolder::create(out)?;
    let source = model.checkpoint();
    source.check_finite()?;
    let layers = model.config().layers;
    let in_layers: BTreeSet<String> = (0..layers).flat_map(|i| model.layer_tensors(i)).collect();
    let outside: Vec<String> =
        source.names().filter(|name| !in_layers.contains(*name)).map(str::to_string).collect();
    let file = |number: usize| folder.path().join(write::shard_name(number, layers + 1));
    let mut listed = vec![shard(OUTSIDE_LAYERS, &outside, &file(1))?];
    for layer in 0..layers {
        listed.push(shard(layer, &model.layer_tensors(layer), &file(layer + 2))?);
        progress(layer + 1);
    }
    let dtype = source.tensors().next().map_or(Dtype::BF16, |tensor| storage_dtype(&tensor));
    write::companions(source, folder.path(), dtype, config)?;
    let record = source.path().join("openwork/record.json");
    if let Ok(text) = std::fs::read(&record) {
        let to = folder.path().join("openwork");
        let io = |error| WriteError::io(&to, error);
        std::fs::create_dir_all(&to).map_err(io)?;
        crate::disk::write(&to.join("record.json"), &text).map_err(io)?;
    }
    write::index(folder.path(), &listed)?;
    Ok(folder.publish()?)
}
