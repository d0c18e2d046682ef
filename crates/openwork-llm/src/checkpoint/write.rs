//! Writing Hugging Face folders: shards, their index, config and tokenizer files.
//!
//! ```
//! use openwork_llm::checkpoint::{Dtype, write::{Data, Part, shard}};
//! # fn main() -> Result<(), Box<dyn std::error::Error>> {
//! # let folder = tempfile::tempdir()?;
//! let weights = [1.0f32, 0.0, -2.5];
//! let part = Part::new("w", Dtype::BF16, &[3], Data::F32(&weights));
//! let written = shard(&folder.path().join("model.safetensors"), &[part], &[])?;
//! assert_eq!(written.sha256.len(), 64);
//! # Ok(())
//! # }
//! ```

use super::dtype::Dtype;
pub(crate) use super::folder::INDEX;
use super::{Checkpoint, CheckpointError, Format, Tensor};
use crate::disk::{self, PendingFile, Written};
use crate::model::{ExpertFiles, Family};
use crate::tokens::Tokenizer;
use half::{bf16, f16};
use serde_json::{Map, Value, json};
use std::borrow::Cow;
use std::io::{self, Write};
use std::path::{Path, PathBuf};

/// Values converted at a time.
const PIECE: usize = 1 << 20;

/// Why a file was not written; no partial file is left.
#[derive(Debug, thiserror::Error)]
pub enum WriteError {
    /// An I/O error.
    #[error("cannot write {}: {error}", path.display())]
    Io {
        /// The file.
        path: PathBuf,
        /// The error.
        error: io::Error,
    },
    /// A value out of the range of its type.
    #[error("tensor {tensor:?} has {value}, which {dtype} cannot hold; write it as bf16 or f32")]
    Range {
        /// The tensor.
        tensor: String,
        /// The value.
        value: f32,
        /// The type.
        dtype: Dtype,
    },
    /// The source cannot be read.
    #[error(transparent)]
    Checkpoint(#[from] CheckpointError),
}

impl WriteError {
    /// An I/O error on `path`.
    pub fn io(path: &Path, error: io::Error) -> Self {
        Self::Io { path: path.to_path_buf(), error }
    }
}

/// A tensor to write.
#[derive(Clone, Debug)]
pub struct Part<'a> {
    /// Its name in the file.
    pub name: String,
    /// The stored type.
    pub dtype: Dtype,
    /// Its shape.
    pub shape: Vec<usize>,
    /// Its values.
    pub data: Data<'a>,
}

/// The values of a tensor to write.
#[derive(Clone, Debug)]
pub enum Data<'a> {
    /// Bytes in the stored type.
    Bytes(&'a [u8]),
    /// Values to round to the stored type.
    F32(&'a [f32]),
    /// A tensor to read a few rows at a time and round to the stored type.
    Tensor(Tensor<'a>),
    /// Several parts, concatenated.
    Joined(Vec<Data<'a>>),
    /// `m` matrices of this shape, transposed and with their columns interleaved: entry
    /// `(k, i m + j)` is entry `(i, k)` of matrix `j`.
    Columns(Vec<Data<'a>>, [usize; 2]),
}

impl<'a> Part<'a> {
    /// A tensor to write.
    pub fn new(name: &str, dtype: Dtype, shape: &[usize], data: Data<'a>) -> Self {
        Self { name: name.to_string(), dtype, shape: shape.to_vec(), data }
    }

    /// Its stored size in bytes.
    pub fn bytes(&self) -> u64 {
        let len = self.shape.iter().map(|&n| n as u64).product();
        self.dtype.bytes_for(len).unwrap_or(0)
    }

    fn write(&self, out: &mut PendingFile, path: &Path) -> Result<(), WriteError> {
        self.write_data(&self.data, out, path)
    }

    fn write_data(
        &self,
        data: &Data<'_>,
        out: &mut PendingFile,
        path: &Path,
    ) -> Result<(), WriteError> {
        let io = |error| WriteError::io(path, error);
        match data {
            Data::Joined(all) => all.iter().try_for_each(|data| self.write_data(data, out, path)),
            Data::Columns(matrices, [rows, cols]) => {
                let matrices: Vec<_> = matrices.iter().map(|data| self.values(data)).collect();
                let mut bytes = Vec::new();
                let mut line = vec![0.0; rows * matrices.len()];
                for k in 0..*cols {
                    for (at, value) in line.iter_mut().enumerate() {
                        let (i, j) = (at / matrices.len(), at % matrices.len());
                        *value = matrices[j][i * cols + k];
                    }
                    self.encode(&line, &mut bytes)?;
                    out.write_all(&bytes).map_err(io)?;
                }
                Ok(())
            }
            Data::Bytes(bytes) => out.write_all(bytes).map_err(io),
            Data::F32(values) => {
                let mut bytes = Vec::new();
                for values in values.chunks(PIECE) {
                    self.encode(values, &mut bytes)?;
                    out.write_all(&bytes).map_err(io)?;
                }
                Ok(())
            }
            Data::Tensor(tensor) => {
                if let Some(bytes) = tensor.bytes().filter(|_| tensor.dtype() == self.dtype) {
                    return out.write_all(bytes).map_err(io);
                }
                let (rows, n) = (tensor.rows(), tensor.row_len());
                let step = (PIECE / n.max(1)).max(1);
                let (mut values, mut bytes) = (Vec::new(), Vec::new());
                for start in (0..rows).step_by(step) {
                    let end = rows.min(start + step);
                    values.resize((end - start) * n, 0.0);
                    tensor.rows_f32(start..end, &mut values);
                    self.encode(&values, &mut bytes)?;
                    out.write_all(&bytes).map_err(io)?;
                }
                Ok(())
            }
        }
    }

    /// The values of some data.
    fn values<'v>(&self, data: &'v Data<'_>) -> Cow<'v, [f32]> {
        match data {
            Data::F32(values) => Cow::Borrowed(values),
            Data::Tensor(tensor) => Cow::Owned(tensor.to_f32()),
            Data::Bytes(bytes) => {
                let mut values = vec![0.0; bytes.len() / self.dtype.block_bytes()];
                self.dtype.decode(bytes, &mut values);
                Cow::Owned(values)
            }
            Data::Joined(all) | Data::Columns(all, _) => {
                Cow::Owned(all.iter().flat_map(|data| self.values(data).into_owned()).collect())
            }
        }
    }

    fn encode(&self, values: &[f32], bytes: &mut Vec<u8>) -> Result<(), WriteError> {
        encode(self.dtype, values, bytes).map_err(|value| WriteError::Range {
            tensor: self.name.clone(),
            value,
            dtype: self.dtype,
        })
    }
}

/// Joins the tensors of linear layers that the family's files store as one fused tensor.
pub fn fused<'a>(parts: Vec<Part<'a>>, family: &Family) -> Vec<Part<'a>> {
    let parts = match family.experts.map(|experts| experts.files) {
        Some(ExpertFiles::Rows) => fused_experts(parts, family, false),
        Some(ExpertFiles::Columns) => fused_experts(parts, family, true),
        Some(ExpertFiles::Separate) | None => parts,
    };
    let mut all: Vec<Part<'a>> = Vec::with_capacity(parts.len());
    let mut parts = parts.into_iter().peekable();
    while let Some(mut part) = parts.next() {
        if let Some((name, followers)) = fused_name(&part.name, family) {
            let mut data = vec![part.data];
            let next = |next: &Part<'_>| followers.contains(&next.name);
            while let Some(other) = parts.next_if(next) {
                part.shape[0] += other.shape[0];
                data.push(other.data);
            }
            part = Part { name, data: Data::Joined(data), ..part };
        }
        all.push(part);
    }
    all
}

/// Joins the tensors of experts: `[experts, out, in]`, or `[experts, in, out]`.
fn fused_experts<'a>(parts: Vec<Part<'a>>, family: &Family, columns: bool) -> Vec<Part<'a>> {
    let [gate, up, down] = family.names.expert_parts;
    let middle = format!(".{}.", family.names.experts);
    let mut all: Vec<Part<'a>> = Vec::with_capacity(parts.len());
    for part in parts {
        // `model.layers.0.mlp.experts` `3` `gate_proj` `weight`
        let place = part.name.split_once(&middle).and_then(|(layer, rest)| {
            let (expert, rest) = rest.split_once('.')?;
            let (linear, kind) = rest.split_once('.')?;
            Some((format!("{layer}{middle}"), expert.parse().ok()?, linear, kind))
        });
        let (prefix, expert, linear, kind): (String, usize, &str, &str) = match place {
            // Packed weights stay as they are.
            Some(place) if ["weight", "bias"].contains(&place.3) => place,
            _ => {
                all.push(part);
                continue;
            }
        };
        let suffix = if kind == "bias" { "_bias" } else { "" };
        let fused = if linear == down { "down_proj" } else { "gate_up_proj" };
        let name = format!("{prefix}{fused}{suffix}");
        let turns = if linear == down { 1 } else { 2 };
        let shape = [part.shape[0], part.shape.get(1).copied().unwrap_or(1)];
        let [rows, cols] = shape;
        debug_assert!([gate, up, down].contains(&linear));
        let known = all.iter_mut().rev().find(|known| known.name == name);
        let joined = match known {
            Some(known) => known,
            None => {
                let (dtype, data) = (part.dtype, Data::Joined(Vec::new()));
                all.push(Part { name, dtype, shape: Vec::new(), data });
                all.last_mut().expect("just pushed")
            }
        };
        joined.shape = match (kind, columns) {
            ("bias", _) => vec![expert + 1, turns * rows],
            (_, true) => vec![expert + 1, cols, turns * rows],
            (_, false) => vec![expert + 1, turns * rows, cols],
        };
        let Data::Joined(experts) = &mut joined.data else { continue };
        match experts.get_mut(expert) {
            _ if !columns => experts.push(part.data),
            Some(Data::Columns(matrices, _)) => matrices.push(part.data),
            _ => experts.push(Data::Columns(vec![part.data], shape)),
        }
    }
    all
}

/// The names of tensors after [`fused`].
pub fn fused_names(names: Vec<String>, family: &Family) -> Vec<String> {
    let part = |name: &String| Part::new(name, Dtype::F32, &[0], Data::F32(&[]));
    fused(names.iter().map(part).collect(), family).into_iter().map(|part| part.name).collect()
}

/// The fused tensor whose first part is `name`, and the names of its other parts.
fn fused_name(name: &str, family: &Family) -> Option<(String, Vec<String>)> {
    family.fused.iter().find_map(|fused| {
        let (first, others) = fused.parts.split_first()?;
        let (before, kind) = name.rsplit_once('.')?;
        let prefix = before.strip_suffix(first)?;
        let named = |linear: &&str| format!("{prefix}{linear}.{kind}");
        Some((named(&fused.name), others.iter().map(named).collect()))
    })
}

/// Encodes values as F64, F32, F16 or BF16; the first finite value that overflows
/// is the error.
///
/// # Panics
/// If the type is not one of these.
pub fn encode(dtype: Dtype, values: &[f32], bytes: &mut Vec<u8>) -> Result<(), f32> {
    bytes.clear();
    let rounded: fn(f32) -> f32 = match dtype {
        Dtype::F64 => {
            bytes.extend(values.iter().flat_map(|&w| f64::from(w).to_le_bytes()));
            |w| w
        }
        Dtype::F32 => {
            bytes.extend(values.iter().flat_map(|w| w.to_le_bytes()));
            |w| w
        }
        Dtype::F16 => {
            bytes.extend(values.iter().flat_map(|&w| f16::from_f32(w).to_le_bytes()));
            |w| f16::from_f32(w).to_f32()
        }
        Dtype::BF16 => {
            bytes.extend(values.iter().flat_map(|&w| bf16::from_f32(w).to_le_bytes()));
            |w| bf16::from_f32(w).to_f32()
        }
        other => panic!("numbers are not rounded to {other}"),
    };
    match values.iter().find(|w| w.is_finite() && !rounded(**w).is_finite()) {
        Some(&value) => Err(value),
        None => Ok(()),
    }
}

/// Writes a safetensors file. Adds `format: pt`, which transformers requires, to
/// `metadata`.
pub fn shard(
    path: &Path,
    parts: &[Part<'_>],
    metadata: &[(&str, &str)],
) -> Result<Written, WriteError> {
    let mut header = Map::new();
    let mut texts = Map::from_iter([("format".to_string(), json!("pt"))]);
    texts.extend(metadata.iter().map(|(key, text)| (key.to_string(), json!(text))));
    header.insert("__metadata__".to_string(), Value::Object(texts));
    let mut at = 0;
    for part in parts {
        let end = at + part.bytes();
        let entry =
            json!({"dtype": part.dtype.name(), "shape": part.shape, "data_offsets": [at, end]});
        header.insert(part.name.clone(), entry);
        at = end;
    }
    let mut header = Value::Object(header).to_string().into_bytes();
    // The data is aligned to 8 bytes.
    header.resize(header.len().next_multiple_of(8), b' ');

    let io = |error| WriteError::io(path, error);
    let mut out = PendingFile::create(path).map_err(io)?;
    out.write_all(&(header.len() as u64).to_le_bytes()).map_err(io)?;
    out.write_all(&header).map_err(io)?;
    for part in parts {
        part.write(&mut out, path)?;
    }
    out.finish().map_err(io)
}

/// The file name of shard `number`, from 1, of `count`.
pub fn shard_name(number: usize, count: usize) -> String {
    format!("model-{number:05}-of-{count:05}.safetensors")
}

/// A shard's entry in the index.
#[derive(Clone, Debug)]
pub struct Listed {
    /// Its file name.
    pub shard: String,
    /// Its tensors.
    pub tensors: Vec<String>,
    /// Their size in bytes.
    pub bytes: u64,
}

/// Writes a shard and returns its entry for the index.
pub fn listed_shard(
    path: &Path,
    parts: &[Part<'_>],
    metadata: &[(&str, &str)],
) -> Result<Listed, WriteError> {
    shard(path, parts, metadata)?;
    Ok(Listed {
        shard: path.file_name().unwrap_or_default().to_string_lossy().into_owned(),
        tensors: parts.iter().map(|part| part.name.clone()).collect(),
        bytes: parts.iter().map(Part::bytes).sum(),
    })
}

/// Writes the index, which maps tensors to shards and completes the folder.
pub fn index(folder: &Path, shards: &[Listed]) -> Result<(), WriteError> {
    let mut map: Vec<(&str, &str)> = shards
        .iter()
        .flat_map(|s| s.tensors.iter().map(|t| (t.as_str(), s.shard.as_str())))
        .collect();
    map.sort_by(|a, b| super::natural_order::compare(a.0, b.0));
    let map: Map<String, Value> = map.into_iter().map(|(t, s)| (t.to_string(), json!(s))).collect();
    let total: u64 = shards.iter().map(|s| s.bytes).sum();
    let list = json!({"metadata": {"total_size": total}, "weight_map": map});
    text(&folder.join(INDEX), &pretty(&list))
}

/// Files that are copied from the source, if present.
const BESIDE: &[&str] = &[
    "generation_config.json",
    "tokenizer.json",
    "tokenizer_config.json",
    "special_tokens_map.json",
    "added_tokens.json",
    "vocab.json",
    "merges.txt",
    "tokenizer.model",
    "chat_template.jinja",
    "chat_template.json",
    "vocab.txt",
    // Of sentence-transformers.
    "modules.json",
    "sentence_bert_config.json",
    "config_sentence_transformers.json",
    "1_Pooling/config.json",
];

/// The names of the files written by [`companions`].
pub fn companion_names(source: &Checkpoint) -> Result<Vec<String>, CheckpointError> {
    let mut names = vec!["config.json".to_string()];
    for name in BESIDE {
        let there = match source.format() {
            Format::HuggingFace => source.companion(name)?.is_some(),
            Format::Gguf => Tokenizer::FILES.contains(name),
        };
        names.extend(there.then(|| name.to_string()));
    }
    Ok(names)
}

/// Writes `config.json` with the dtype of the weights, and the tokenizer files:
/// copied from a folder, or exported from a GGUF file. `change` may edit the
/// config.
pub fn companions(
    source: &Checkpoint,
    folder: &Path,
    dtype: Dtype,
    change: impl FnOnce(&mut Map<String, Value>),
) -> Result<(), WriteError> {
    let mut config = source.config().as_object().cloned().unwrap_or_default();
    let name = match dtype {
        Dtype::BF16 => "bfloat16",
        Dtype::F16 => "float16",
        _ => "float32",
    };
    // Transformers 5 renamed the key; keep the one that the source has.
    let key = if config.contains_key("dtype") { "dtype" } else { "torch_dtype" };
    config.insert(key.to_string(), json!(name));
    change(&mut config);
    text(&folder.join("config.json"), &pretty(&Value::Object(config)))?;
    match source.format() {
        Format::HuggingFace => {
            for name in BESIDE {
                if let Some(bytes) = source.companion(name)? {
                    let to = folder.join(name);
                    if let Some(parent) = to.parent().filter(|parent| *parent != folder) {
                        let io = |error| WriteError::io(parent, error);
                        std::fs::create_dir_all(parent).map_err(io)?;
                    }
                    disk::write(&to, &bytes).map_err(|error| WriteError::io(&to, error))?;
                }
            }
        }
        Format::Gguf => {
            let tokenizer = source.tokenizer()?;
            for (name, value) in tokenizer.files(source.chat_template().as_deref()) {
                text(&folder.join(name), &value)?;
            }
        }
    }
    Ok(())
}

fn pretty(value: &Value) -> String {
    format!("{value:#}\n")
}

fn text(path: &Path, text: &str) -> Result<(), WriteError> {
    disk::write(path, text.as_bytes()).map(|_| ()).map_err(|error| WriteError::io(path, error))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_is_written_is_read_back() {
        let folder = tempfile::tempdir().unwrap();
        let at = |name: &str| folder.path().join(name);
        let (a, b) = (vec![1.5f32, -0.0, 3.0e-40, 7.0], [0x12, 0x34, 0xff]);
        let parts = [
            Part::new("b", Dtype::U8, &[3], Data::Bytes(&b)),
            Part::new("a", Dtype::F32, &[2, 2], Data::F32(&a)),
            Part::new("empty", Dtype::BF16, &[0, 4], Data::F32(&[])),
        ];
        let listed = listed_shard(&at("one.safetensors"), &parts, &[("spec", "2:4")]).unwrap();
        index(folder.path(), &[listed]).unwrap();
        text(&at("config.json"), "{}").unwrap();
        let read = Checkpoint::open(folder.path()).unwrap();
        let found = read.tensor("a").unwrap();
        assert_eq!(found.shape(), [2, 2]);
        assert!(found.to_f32().iter().zip(&a).all(|(x, y)| x.to_bits() == y.to_bits()));
        assert_eq!(read.tensor("b").unwrap().to_f32(), [18.0, 52.0, 255.0]);
        // And by the format's own library.
        let bytes = std::fs::read(at("one.safetensors")).unwrap();
        let other = safetensors::SafeTensors::deserialize(&bytes).unwrap();
        assert_eq!(other.tensor("b").unwrap().data(), b);
    }

    #[test]
    fn a_number_too_large_for_f16_is_named_and_nothing_is_written() {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("x.safetensors");
        let part = Part::new("w", Dtype::F16, &[2], Data::F32(&[1.0, 1e6]));
        let error = shard(&path, &[part], &[]).unwrap_err();
        assert_eq!(
            error.to_string(),
            "tensor \"w\" has 1000000, which F16 cannot hold; write it as bf16 or f32"
        );
        assert_eq!(std::fs::read_dir(folder.path()).unwrap().count(), 0);
    }
}
