//! Packed models: a folder whose pruned linears hold only what stays of them.

mod export;
mod plan;
mod speed;

pub use export::{Export, export, gguf};
pub use plan::{Group, Patterns};
pub use speed::{Speed, compare};

use crate::checkpoint::write::{self, Data, Listed, Part, WriteError, encode};
use crate::checkpoint::{Checkpoint, CheckpointError, Dtype, Tensor, packed_parts};
use crate::model::{Model, ModelError};
use openwork::sparse::{Packed, ValueType, Values};
use rayon::prelude::*;
use serde::Serialize;
use serde_json::{Map, Value};
use std::collections::{BTreeMap, BTreeSet};
use std::path::{Path, PathBuf};

/// Why a model cannot be packed or unpacked. Nothing is written then.
#[derive(Debug, thiserror::Error)]
pub enum PackModelError {
    /// The model cannot be read or run.
    #[error(transparent)]
    Model(#[from] ModelError),
    /// A file of it cannot be read.
    #[error(transparent)]
    Checkpoint(#[from] CheckpointError),
    /// The folder cannot be written.
    #[error(transparent)]
    Write(#[from] WriteError),
    /// What to pack is not known, or is nothing.
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
    /// There is something where the folder should go.
    #[error("{}: there is something already; give a folder that does not exist", .0.display())]
    Exists(PathBuf),
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
    /// Bytes of values and index.
    pub bytes: usize,
    /// Bytes of the dense tensor.
    pub dense_bytes: usize,
}

/// What became of a model.
#[derive(Clone, Debug, Default, Serialize)]
pub struct Summary {
    /// All packed tensors.
    pub tensors: Vec<PackedTensor>,
    /// Bytes of their values and indices.
    pub bytes: usize,
    /// Bytes that they take dense.
    pub dense_bytes: usize,
    /// Bytes of all other tensors.
    pub other_bytes: u64,
}

/// What a tensor is stored as: its own type, or bf16 where that is no plain one.
fn plain(tensor: &Tensor<'_>) -> Dtype {
    match tensor.dtype() {
        dtype @ (Dtype::F32 | Dtype::F16 | Dtype::BF16) => dtype,
        _ => Dtype::BF16,
    }
}

/// The numbers of a tensor in their own type, bit for bit where they are plain.
fn values(tensor: &Tensor<'_>) -> Result<Values, PackModelError> {
    let dtype = plain(tensor);
    let value_type = match dtype {
        Dtype::F32 => ValueType::F32,
        Dtype::F16 => ValueType::F16,
        _ => ValueType::Bf16,
    };
    let mut rounded = Vec::new();
    let bytes = match tensor.bytes() {
        Some(bytes) => bytes,
        None => {
            // No number of bf16's range becomes infinite.
            let _ = encode(dtype, &tensor.to_f32(), &mut rounded);
            &rounded
        }
    };
    Values::from_le_bytes(value_type, bytes).ok_or_else(|| PackModelError::Tensor {
        tensor: tensor.name().to_string(),
        why: "its bytes are no whole numbers".to_string(),
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

/// Writes `model` to the folder `out` with the linears of `patterns` packed;
/// `watch` hears how many layers are done.
pub fn pack(
    model: &Model<'_>,
    patterns: &Patterns,
    out: &Path,
    watch: &mut dyn FnMut(usize),
) -> Result<Summary, PackModelError> {
    let source = model.checkpoint();
    if let Some(tensor) = source.tensors().find(|tensor| tensor.packing().is_some()) {
        let why = format!("{} is packed already; unpack the model first", tensor.name());
        return Err(PackModelError::Plan(why));
    }
    let groups = patterns.groups(model)?;
    let mut summary = Summary::default();
    let folder = Folder::begin(out)?;
    folder.write(
        model,
        watch,
        |_| {},
        |layer, names, shard| {
            let groups: Vec<&Group> = groups.iter().filter(|group| group.layer == layer).collect();
            let packed: Vec<Result<Vec<Packed>, _>> =
                groups.par_iter().map(|group| pack_group(source, group)).collect();
            // The first error by place, not by time: the same words at any thread count.
            let packed: Vec<Vec<Packed>> = packed.into_iter().collect::<Result<_, _>>()?;
            let named: BTreeMap<&str, &Packed> = groups
                .iter()
                .zip(&packed)
                .flat_map(|(group, packed)| group.names.iter().map(String::as_str).zip(packed))
                .collect();
            let bytes: BTreeMap<&str, (Vec<u8>, Vec<u8>)> = named
                .iter()
                .map(|(&name, packed)| (name, (packed.values().to_le_bytes(), packed.index())))
                .collect();
            let (mut parts, mut metadata) = (Vec::new(), Vec::new());
            for name in names {
                match (named.get(name.as_str()), bytes.get(name.as_str())) {
                    (Some(packed), Some((values, index))) => {
                        let (two, entry) = packed_parts(name, packed, values, index);
                        parts.extend(two);
                        metadata.push(entry);
                        summary.bytes += packed.stored_bytes();
                        summary.dense_bytes += packed.dense_bytes();
                        summary.tensors.push(PackedTensor {
                            name: name.clone(),
                            spec: packed.spec().text().to_string(),
                            format: packed.format().name,
                            bytes: packed.stored_bytes(),
                            dense_bytes: packed.dense_bytes(),
                        });
                    }
                    _ => {
                        let tensor = source.tensor(name)?;
                        let part =
                            Part::new(name, plain(&tensor), tensor.shape(), Data::Tensor(tensor));
                        summary.other_bytes += part.bytes();
                        parts.push(part);
                    }
                }
            }
            let metadata: Vec<(&str, &str)> =
                metadata.iter().map(|(key, text)| (key.as_str(), text.as_str())).collect();
            list(shard, &parts, &metadata)
        },
    )?;
    Ok(summary)
}

/// Writes `model` to the folder `out` with all packed tensors dense, bit for bit
/// as they were before they were packed.
pub fn unpack(
    model: &Model<'_>,
    out: &Path,
    watch: &mut dyn FnMut(usize),
) -> Result<(), PackModelError> {
    let source = model.checkpoint();
    if source.tensors().all(|tensor| tensor.packing().is_none()) {
        return Err(PackModelError::Plan(format!(
            "{}: nothing is packed",
            source.path().display()
        )));
    }
    Folder::begin(out)?.write(
        model,
        watch,
        |_| {},
        |_, names, shard| {
            let mut dense: BTreeMap<&str, Vec<u8>> = BTreeMap::new();
            for name in names {
                let packed = source.tensor(name)?.packed().map_err(|error| {
                    PackModelError::Tensor { tensor: name.clone(), why: error.to_string() }
                })?;
                if let Some(packed) = packed {
                    dense.insert(name, packed.unpack().to_le_bytes());
                }
            }
            let mut parts = Vec::new();
            for name in names {
                let tensor = source.tensor(name)?;
                let data = match dense.get(name.as_str()) {
                    Some(bytes) => Data::Bytes(bytes),
                    None => Data::Tensor(tensor),
                };
                parts.push(Part::new(name, plain(&tensor), tensor.shape(), data));
            }
            list(shard, &parts, &[])
        },
    )
}

/// Writes a shard and lists its tensors.
fn list(
    shard: &Path,
    parts: &[Part<'_>],
    metadata: &[(&str, &str)],
) -> Result<Listed, PackModelError> {
    Ok(write::listed_shard(shard, parts, metadata)?)
}

/// A folder that has another name until it is whole. Dropped before, it is gone.
struct Folder {
    out: PathBuf,
    unfinished: PathBuf,
}

impl Drop for Folder {
    fn drop(&mut self) {
        // Once renamed it is not there.
        let _ = std::fs::remove_dir_all(&self.unfinished);
    }
}

impl Folder {
    fn begin(out: &Path) -> Result<Self, PackModelError> {
        if out.exists() {
            return Err(PackModelError::Exists(out.to_path_buf()));
        }
        let mut name = out.file_name().unwrap_or_default().to_os_string();
        name.push(crate::disk::UNFINISHED);
        let unfinished = out.with_file_name(name);
        if unfinished.exists() {
            return Err(PackModelError::Exists(unfinished));
        }
        std::fs::create_dir_all(&unfinished).map_err(|error| WriteError::io(&unfinished, error))?;
        Ok(Self { out: out.to_path_buf(), unfinished })
    }

    /// Writes a shard for what is outside the layers, one for each layer, and
    /// all else that a folder needs. `shard` gets a layer's number (none has that
    /// of the rest), the names of its tensors and the file; `config` may amend the
    /// config.
    fn write(
        self,
        model: &Model<'_>,
        watch: &mut dyn FnMut(usize),
        config: impl FnOnce(&mut Map<String, Value>),
        mut shard: impl FnMut(usize, &[String], &Path) -> Result<Listed, PackModelError>,
    ) -> Result<(), PackModelError> {
        let source = model.checkpoint();
        let layers = model.config().layers;
        let of_layers: BTreeSet<String> =
            (0..layers).flat_map(|i| model.layer_tensors(i)).collect();
        let rest: Vec<String> =
            source.names().filter(|name| !of_layers.contains(*name)).map(str::to_string).collect();
        let file = |number: usize| self.unfinished.join(write::shard_name(number, layers + 1));
        let mut listed = vec![shard(usize::MAX, &rest, &file(1))?];
        for layer in 0..layers {
            listed.push(shard(layer, &model.layer_tensors(layer), &file(layer + 2))?);
            watch(layer + 1);
        }
        let dtype = source.tensors().next().map_or(Dtype::BF16, |tensor| plain(&tensor));
        write::companions(source, &self.unfinished, dtype, config)?;
        let record = source.path().join("openwork/record.json");
        if let Ok(text) = std::fs::read(&record) {
            let to = self.unfinished.join("openwork");
            let io = |error| WriteError::io(&to, error);
            std::fs::create_dir_all(&to).map_err(io)?;
            crate::disk::write(&to.join("record.json"), &text).map_err(io)?;
        }
        write::index(&self.unfinished, &listed)?;
        std::fs::rename(&self.unfinished, &self.out)
            .map_err(|error| WriteError::io(&self.out, error))?;
        Ok(())
    }
}
