//! Exports: pruned models in the storage formats of other programs.

use super::{PackModelError, Patterns, dense_part, pack_layer, write_folder};
use crate::checkpoint::write::{self, Data, Part, WriteError};
use crate::checkpoint::{Checkpoint, Dtype, Format, export_gguf, write_gguf};
use crate::disk::Written;
use crate::model::Model;
use crate::output::OutputFile;
use openwork::sparse::{Packed, Values};
use serde_json::{Map, Value, json};
use std::cell::RefCell;
use std::collections::BTreeMap;
use std::path::Path;

/// A storage format of another program for folders with 2:4 linears.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Export {
    /// compressed-tensors' `sparse-24-bitmask`, read by transformers.
    CompressedTensors,
    /// Values and metadata in the order of NVIDIA's sparse tensor cores, as torch
    /// and CUTLASS read them.
    Cutlass,
}

/// Suffix of the tensor cores' metadata.
const CUTLASS_META: &str = ".cutlass.meta";

/// A stored tensor: name, type, shape, bytes.
type Stored = (String, Dtype, Vec<usize>, Vec<u8>);

impl Export {
    /// Its name: the value of `pack --format`.
    pub fn name(self) -> &'static str {
        match self {
            Self::CompressedTensors => "compressed-tensors",
            Self::Cutlass => "cutlass",
        }
    }

    /// What is stored instead of the tensor `name`.
    fn stored(self, name: &str, packed: &Packed) -> Result<Vec<Stored>, String> {
        if packed.format().name != "nm" || packed.spec().keep() != 2 {
            let spec = packed.spec().text();
            return Err(format!(
                "`{}` stores 2:4 only, and this tensor is `{spec}`; use --format openwork",
                self.name()
            ));
        }
        let (rows, cols) = (packed.rows(), packed.cols());
        let (values, mask) = packed.row_major();
        let dtype = match &values {
            Values::F32(_) => Dtype::F32,
            Values::F16(_) => Dtype::F16,
            Values::Bf16(_) => Dtype::BF16,
        };
        let (half, values) = (vec![rows, cols / 2], values.to_le_bytes());
        match self {
            Self::CompressedTensors => {
                let module = module(name);
                let shape = [rows as i64, cols as i64].map(i64::to_le_bytes).concat();
                Ok(vec![
                    (format!("{module}.shape"), Dtype::I64, vec![2, 1], shape),
                    (format!("{module}.compressed"), dtype, half, values),
                    (format!("{module}.bitmask"), Dtype::U8, vec![rows, cols.div_ceil(8)], mask),
                ])
            }
            Self::Cutlass => {
                let meta = packed.cutlass_metadata().ok_or_else(|| {
                    format!("`cutlass` stores 16-bit values with rows a multiple of 32 and columns a multiple of 16; this tensor is {rows} x {cols}, {dtype}")
                })?;
                let bytes = meta.iter().flat_map(|word| word.to_le_bytes()).collect();
                Ok(vec![
                    (format!("{name}.cutlass.values"), dtype, half, values),
                    (format!("{name}{CUTLASS_META}"), Dtype::I16, vec![rows, cols / 16], bytes),
                ])
            }
        }
    }
}

/// The module that a weight belongs to.
fn module(weight: &str) -> &str {
    weight.strip_suffix(".weight").unwrap_or(weight)
}

/// What compressed-tensors reads from config.json.
#[derive(Default)]
struct SparsityConfig {
    /// Linear modules that are stored dense.
    dense: Vec<String>,
    zeros: u64,
    weights: u64,
}

impl SparsityConfig {
    /// Counts a tensor that is stored dense.
    fn add_dense(&mut self, part: &Part<'_>) {
        if let Data::Tensor(tensor) = &part.data {
            self.count(tensor.nonzeros(), tensor.shape());
        }
        // Embeddings are no linears; the output head is listed in any case.
        let linear = part.shape.len() == 2 && part.name.ends_with(".weight");
        if linear && !part.name.contains("embed") && module(&part.name) != "lm_head" {
            self.dense.push(module(&part.name).to_string());
        }
    }

    fn count(&mut self, nonzeros: u64, shape: &[usize]) {
        let weights = shape.iter().map(|&n| n as u64).product::<u64>();
        self.zeros += weights - nonzeros;
        self.weights += weights;
    }

    fn json(&self) -> Value {
        let ignore: Vec<&str> =
            std::iter::once("lm_head").chain(self.dense.iter().map(String::as_str)).collect();
        json!({"quant_method": "compressed-tensors", "sparsity_config": {
            "format": "sparse-24-bitmask",
            "global_sparsity": self.zeros as f64 / self.weights.max(1) as f64,
            "ignore": ignore,
            "registry_requires_subclass": false,
            "sparsity_structure": "2:4",
            "targets": ["Linear"],
        }})
    }
}

/// Writes `model` to the folder `out` with the linears of `patterns`, which must
/// all be 2:4, in another program's format.
pub fn export(
    model: &Model<'_>,
    patterns: &Patterns,
    format: Export,
    out: &Path,
    progress: &mut dyn FnMut(usize),
) -> Result<(), PackModelError> {
    let source = model.checkpoint();
    let groups = patterns.groups(model)?;
    let sparsity = RefCell::new(SparsityConfig::default());
    let shard = |layer: usize, names: &[String], path: &Path| {
        let mut sparsity = sparsity.borrow_mut();
        let packed = pack_layer(source, &groups, layer)?;
        let mut stored: BTreeMap<&str, Vec<Stored>> = BTreeMap::new();
        for (&name, packed) in &packed {
            sparsity.count(source.tensor(name)?.nonzeros(), &[packed.rows(), packed.cols()]);
            let tensors = format.stored(name, packed);
            stored.insert(
                name,
                tensors.map_err(|why| PackModelError::Tensor { tensor: name.to_string(), why })?,
            );
        }
        let mut parts: Vec<Part<'_>> = Vec::new();
        for name in names {
            match stored.get(name.as_str()) {
                Some(stored) => parts.extend(stored.iter().map(|(name, dtype, shape, bytes)| {
                    Part::new(name, *dtype, shape, Data::Bytes(bytes))
                })),
                None => {
                    let part = dense_part(source.tensor(name)?);
                    sparsity.add_dense(&part);
                    parts.push(part);
                }
            }
        }
        Ok(write::listed_shard(path, &parts, &[])?)
    };
    let config = |config: &mut Map<String, Value>| {
        if format == Export::CompressedTensors {
            config.insert("quantization_config".to_string(), sparsity.borrow().json());
        }
    };
    write_folder(model, out, progress, config, shard)
}

/// The program that a folder's weights are stored for, if it is an export.
pub fn exported_for(source: &Checkpoint) -> Option<Export> {
    let quantization = source.config().get("quantization_config");
    let sparse = quantization.is_some_and(|q| {
        q["quant_method"] == "compressed-tensors" && !q["sparsity_config"]["format"].is_null()
    });
    let cutlass = || source.names().any(|name| name.ends_with(CUTLASS_META));
    match sparse {
        true => Some(Export::CompressedTensors),
        false => cutlass().then_some(Export::Cutlass),
    }
}

/// Writes `model` to the GGUF file `out` as F16, BF16 or Q8_0. Settings and
/// tokenizer come from the GGUF file `like`, the same model before pruning, or
/// else from the model itself.
pub fn gguf(
    model: &Model<'_>,
    like: Option<&Path>,
    out: &OutputFile,
    dtype: Dtype,
) -> Result<Written, PackModelError> {
    let out = out.target();
    let source = model.checkpoint();
    source.check_finite()?;
    let own = (source.format() == Format::Gguf).then(|| source.path());
    let written = match like.or(own) {
        Some(like) => write_gguf(source, like, out, dtype),
        None => export_gguf(source, model.config(), out, dtype),
    };
    written.map_err(|error| match error {
        // The input is at fault, not the output.
        WriteError::Checkpoint(error) => error.into(),
        error => error.into(),
    })
}
