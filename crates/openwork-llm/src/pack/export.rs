//! Pruned models in the formats of others.

use super::{Folder, PackModelError, Patterns, list, pack_group, plain};
use crate::checkpoint::write::{Data, Part, WriteError};
use crate::checkpoint::{Dtype, Format, export_gguf, write_gguf};
use crate::disk::Written;
use crate::model::Model;
use crate::output::OutputFile;
use openwork::sparse::{Packed, Values};
use serde_json::{Map, json};
use std::collections::BTreeMap;
use std::path::Path;

/// Another's format for 2:4 linears in a folder.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Export {
    /// compressed-tensors' `sparse-24-bitmask`, which its library and
    /// transformers read.
    CompressedTensors,
    /// Values and metadata in the order of NVIDIA's sparse tensor cores, as
    /// torch's and CUTLASS's 2:4 products take them.
    Cutlass,
}

/// The parts of one tensor: name, type, shape, bytes.
type Parts = Vec<(String, Dtype, Vec<usize>, Vec<u8>)>;

impl Export {
    fn parts(self, name: &str, packed: &Packed) -> Result<Parts, String> {
        if packed.format().name != "nm" || packed.spec().keep() != 2 {
            let spec = packed.spec().text();
            return Err(format!("this format is for 2:4, and the tensor is `{spec}`"));
        }
        let (rows, cols) = (packed.rows(), packed.cols());
        let (values, mask) = packed.row_major();
        let dtype = match &values {
            Values::F32(_) => Dtype::F32,
            Values::F16(_) => Dtype::F16,
            Values::Bf16(_) => Dtype::BF16,
        };
        let values = (dtype, vec![rows, cols / 2], values.to_le_bytes());
        match self {
            Self::CompressedTensors => {
                let module = name.strip_suffix(".weight").unwrap_or(name);
                let shape = [rows as i64, cols as i64].map(i64::to_le_bytes).concat();
                Ok(vec![
                    (format!("{module}.shape"), Dtype::I64, vec![2, 1], shape),
                    (format!("{module}.compressed"), values.0, values.1, values.2),
                    (format!("{module}.bitmask"), Dtype::U8, vec![rows, cols.div_ceil(8)], mask),
                ])
            }
            Self::Cutlass => {
                let meta = packed.cutlass_metadata().ok_or_else(|| {
                    format!("the tensor cores' order needs 16-bit values, 32 rows and 16 columns or multiples; it is {rows} x {cols} of {dtype}")
                })?;
                let bytes = meta.iter().flat_map(|word| word.to_le_bytes()).collect();
                Ok(vec![
                    (format!("{name}.cutlass.values"), values.0, values.1, values.2),
                    (format!("{name}.cutlass.meta"), Dtype::I16, vec![rows, cols / 16], bytes),
                ])
            }
        }
    }

    /// What the config must say.
    fn config(self, config: &mut Map<String, serde_json::Value>) {
        if self == Self::CompressedTensors {
            let sparsity = json!({
                "format": "sparse-24-bitmask",
                "global_sparsity": 0.5,
                "ignore": ["lm_head"],
                "registry_requires_subclass": false,
                "sparsity_structure": "2:4",
                "targets": ["Linear"],
            });
            let quantization =
                json!({"quant_method": "compressed-tensors", "sparsity_config": sparsity});
            config.insert("quantization_config".to_string(), quantization);
        }
    }
}

/// Writes `model` to the folder `out` with the linears of `patterns` in another's
/// format; all must be 2:4.
pub fn export(
    model: &Model<'_>,
    patterns: &Patterns,
    format: Export,
    out: &Path,
    watch: &mut dyn FnMut(usize),
) -> Result<(), PackModelError> {
    let source = model.checkpoint();
    let groups = patterns.groups(model)?;
    let write = |layer: usize, names: &[String], shard: &Path| {
        let mut made: BTreeMap<&str, Parts> = BTreeMap::new();
        for group in groups.iter().filter(|group| group.layer == layer) {
            for (name, packed) in group.names.iter().zip(pack_group(source, group)?) {
                let parts = format.parts(name, &packed);
                made.insert(
                    name,
                    parts.map_err(|why| PackModelError::Tensor { tensor: name.clone(), why })?,
                );
            }
        }
        let mut parts = Vec::new();
        for name in names {
            match made.get(name.as_str()) {
                Some(made) => parts.extend(made.iter().map(|(name, dtype, shape, bytes)| {
                    Part::new(name, *dtype, shape, Data::Bytes(bytes))
                })),
                None => {
                    let tensor = source.tensor(name)?;
                    parts.push(Part::new(
                        name,
                        plain(&tensor),
                        tensor.shape(),
                        Data::Tensor(tensor),
                    ));
                }
            }
        }
        list(shard, &parts, &[])
    };
    Folder::begin(out)?.write(model, watch, |config| format.config(config), write)
}

/// Writes `model` to the GGUF file `out` as F16, BF16 or Q8_0. Settings and
/// tokenizer are those of the GGUF file `like`, the same model before pruning;
/// without it those of the model's own file or folder.
pub fn gguf(
    model: &Model<'_>,
    like: Option<&Path>,
    out: &OutputFile,
    dtype: Dtype,
) -> Result<Written, PackModelError> {
    let out = out.target();
    let source = model.checkpoint();
    let own = (source.format() == Format::Gguf).then(|| source.path());
    let written = match like.or(own) {
        Some(like) => write_gguf(source, like, out, dtype),
        None => export_gguf(source, model.config(), out, dtype),
    };
    written.map_err(|error| match error {
        // What was given is wrong, not the place where it goes.
        WriteError::Checkpoint(error) => error.into(),
        error => error.into(),
    })
}
