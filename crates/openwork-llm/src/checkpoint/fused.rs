//! Fused tensors: splits tensors that hold several linear layers when they are read, so that
//! each linear layer appears as a separate tensor.
//!
//! ```text
//! self_attn.qkv_proj.weight  [q + 2 kv, hidden]      q_proj, k_proj and v_proj
//! mlp.experts.gate_up_proj   [experts, 2 ff, hidden] gate and up of every expert
//! mlp.experts.down_proj      [experts, hidden, ff]   down of every expert
//! ```
//!
//! gpt-oss has `[experts, hidden, 2 ff]` and `[experts, ff, hidden]` instead, with the columns
//! of gate and up interleaved and biases `[experts, 2 ff]` and `[experts, hidden]`; its
//! published files store them as MXFP4, `[experts, 2 ff, hidden / 32, 16]` with scales.
//!
//! Tensors are fused again when written (see [`write::fused`](super::write::fused)) if
//! transformers requires it for the family; experts of other families are written as separate
//! tensors, which transformers also reads. MXFP4 is written as plain numbers.

use super::dtype::Dtype;
use super::error::Fault;
use super::mxfp4;
use super::tensor::{RowOrder, TensorInfo};
use crate::model::{Config, ExpertFiles, LayerInfo};
use serde_json::Value;
use std::collections::BTreeMap;

/// Replaces fused tensors by those of their linear layers. If they are MXFP4, removes the
/// quantization from the config and returns a note. A model whose config is not supported
/// is left unchanged.
pub(super) fn split(
    config: &mut Value,
    tensors: &mut Vec<TensorInfo>,
) -> Result<Option<String>, Fault> {
    let mut note = None;
    if config["quantization_config"]["quant_method"] == "mxfp4"
        && let Some(config) = config.as_object_mut()
    {
        config.remove("quantization_config");
        note = Some("experts are MXFP4; a pruned model is written unquantized".to_string());
    }
    let Ok(config) = Config::new(config) else { return Ok(note) };
    let mut all = Vec::with_capacity(tensors.len());
    let mut scales: BTreeMap<String, TensorInfo> = BTreeMap::new();
    let files = config.family.experts.map(|experts| experts.files);
    if files == Some(ExpertFiles::Columns) {
        let is_scales = |tensor: &TensorInfo| tensor.name.ends_with("_proj_scales");
        for tensor in tensors.extract_if(.., |tensor| is_scales(tensor)) {
            scales.insert(tensor.name.clone(), tensor);
        }
    }
    for tensor in tensors.drain(..) {
        match layer_of(&config, &tensor.name) {
            Some((info, name)) if files == Some(ExpertFiles::Columns) => {
                all.extend(columns(&info, &name, tensor, &mut scales)?)
            }
            Some((info, name)) => all.extend(parts(&config, &info, &name, tensor)?),
            None => all.push(tensor),
        }
    }
    // Scales without blocks are unexpected tensors.
    all.extend(scales.into_values());
    *tensors = all;
    Ok(note)
}

/// The tensors of the linear layers in one of gpt-oss's; itself if it is not fused.
fn columns(
    info: &LayerInfo,
    name: &str,
    tensor: TensorInfo,
    scales: &mut BTreeMap<String, TensorInfo>,
) -> Result<Vec<TensorInfo>, Fault> {
    let Some(rest) = name.strip_prefix("mlp.experts.") else { return Ok(vec![tensor]) };
    let (fused, kind) = match rest {
        "gate_up_proj" | "down_proj" => (rest, Kind::Weights),
        "gate_up_proj_bias" | "down_proj_bias" => (rest.trim_end_matches("_bias"), Kind::Biases),
        "gate_up_proj_blocks" | "down_proj_blocks" => {
            (rest.trim_end_matches("_blocks"), Kind::Mxfp4)
        }
        _ => return Ok(vec![tensor]),
    };
    let picked = if fused == "gate_up_proj" { 0..2 } else { 2..3 };
    let first = info.first_of(Some(0));
    let [rows, cols] = info.linears[first + picked.start].shape;
    let (step, count) = (picked.len(), info.experts);
    let width = step * rows;
    let other_shape = |tensor: &TensorInfo, asked: Vec<usize>| Fault::OtherShape {
        tensor: tensor.name.clone(),
        found: tensor.shape.clone(),
        asked,
    };
    let want = match kind {
        Kind::Weights => vec![count, cols, width],
        Kind::Biases => vec![count, width],
        Kind::Mxfp4 => vec![count, width, cols / mxfp4::BLOCK, mxfp4::BYTES],
    };
    let divides = !matches!(kind, Kind::Mxfp4) || cols.is_multiple_of(mxfp4::BLOCK);
    if tensor.shape != want || !divides {
        return Err(other_shape(&tensor, want));
    }
    let scales = match kind {
        Kind::Mxfp4 => {
            let name = tensor.name.replace("_blocks", "_scales");
            let found = scales
                .remove(&name)
                .ok_or_else(|| Fault::NoTensor { tensor: name.clone(), count: scales.len() })?;
            let asked = want[..3].to_vec();
            if found.shape != asked {
                return Err(other_shape(&found, asked));
            }
            let bytes = [found.dtype, tensor.dtype].iter().all(|dtype| *dtype == Dtype::U8);
            if !bytes || found.file != tensor.file {
                return Err(Fault::Shape(format!(
                    "{name} and its blocks must be bytes (U8) in the same file"
                )));
            }
            Some(found.range.start)
        }
        _ => None,
    };
    let size = tensor.range.len() / count.max(1);
    let mut all = Vec::with_capacity(count * step);
    for expert in 0..count {
        for part in 0..step {
            let linear = &info.linears[info.first_of(Some(expert as u16)) + picked.start + part];
            let (ending, shape) = match kind {
                Kind::Biases => ("bias", vec![rows]),
                _ => ("weight", vec![rows, cols]),
            };
            let start = tensor.range.start + expert * size;
            let order = match scales {
                None => RowOrder::Columns { first: part, step, width },
                Some(scales) => {
                    let scales = scales + expert * width * (cols / mxfp4::BLOCK);
                    RowOrder::Mxfp4 { first: part, step, scales }
                }
            };
            all.push(TensorInfo {
                name: format!("model.layers.{}.{}.{ending}", info.index, linear.name),
                shape,
                dtype: if scales.is_some() { Dtype::MXFP4 } else { tensor.dtype },
                range: start..start + size,
                order,
                ..tensor.clone()
            });
        }
    }
    Ok(all)
}

/// The content of a fused tensor of gpt-oss.
#[derive(Clone, Copy)]
enum Kind {
    Weights,
    Biases,
    Mxfp4,
}

/// The layer of a tensor that may be fused, and its name there.
fn layer_of(config: &Config, name: &str) -> Option<(LayerInfo, String)> {
    let (index, rest) = name.strip_prefix("model.layers.")?.split_once('.')?;
    let index: usize = index.parse().ok()?;
    let linear = rest.strip_suffix(".weight").or_else(|| rest.strip_suffix(".bias"));
    let fused = config.family.fused.iter().any(|fused| Some(fused.name) == linear);
    let prefix = config.family.names.experts.split('.').next().unwrap_or_default();
    let first = rest.split('.').next();
    let experts = config.experts.is_some() && (first == Some("mlp") || first == Some(prefix));
    let known = index < config.layers && (fused || experts);
    known.then(|| (LayerInfo::new(config, index), rest.to_string()))
}

/// The tensors of the linear layers in one tensor; itself if it is not fused.
fn parts(
    config: &Config,
    info: &LayerInfo,
    name: &str,
    tensor: TensorInfo,
) -> Result<Vec<TensorInfo>, Fault> {
    let prefix = format!("model.layers.{}.", info.index);
    let names = &config.family.names;
    // (full name, shape) in the order of the file.
    let mut list: Vec<(String, Vec<usize>)> = Vec::new();
    let whole: Vec<usize>;
    if let Some((linear, kind)) = name.rsplit_once('.')
        && let Some(fused) = config.family.fused.iter().find(|fused| fused.name == linear)
    {
        for part in fused.parts {
            let Some(linear) = info.linears.iter().find(|linear| linear.name == *part) else {
                return Ok(vec![tensor]);
            };
            let shape = match kind {
                "bias" => vec![linear.shape[0]],
                _ => linear.shape.to_vec(),
            };
            list.push((format!("{prefix}{part}.{kind}"), shape));
        }
        whole = rows_together(&list);
    } else if info.experts > 0
        && let Some(name) = name
            .strip_prefix("mlp.experts.")
            .or_else(|| name.strip_prefix(names.experts)?.strip_prefix('.'))
        && matches!(name, "gate_up_proj" | "down_proj")
    {
        let picked = if name.ends_with("gate_up_proj") { 0..2 } else { 2..3 };
        for expert in 0..info.experts {
            let first = info.first_of(Some(expert as u16));
            for linear in &info.linears[first + picked.start..first + picked.end] {
                list.push((format!("{prefix}{}.weight", linear.name), linear.shape.to_vec()));
            }
        }
        let rows = picked.len() * list[0].1[0];
        whole = vec![info.experts, rows, list[0].1[1]];
    } else if info.experts > 0 && name == "mlp.gate.weight" && names.router != "mlp.gate" {
        // transformers 5 gives all routers one name.
        let name = format!("{prefix}{}.weight", names.router);
        return Ok(vec![TensorInfo { name, ..tensor }]);
    } else {
        return Ok(vec![tensor]);
    }
    if tensor.shape != whole {
        let (tensor, found) = (tensor.name, tensor.shape);
        return Err(Fault::OtherShape { tensor, found, asked: whole });
    }
    if tensor.packed.is_some() {
        return Ok(vec![tensor]);
    }
    // Each linear layer is some rows, and so a range of bytes.
    let rows: usize = list.iter().map(|(_, shape)| shape[0]).sum();
    let bytes = tensor.range.len() / rows.max(1);
    let mut at = tensor.range.start;
    let part = |(name, shape): (String, Vec<usize>)| {
        let range = at..at + shape[0] * bytes;
        at = range.end;
        TensorInfo { name, shape, range, ..tensor.clone() }
    };
    Ok(list.into_iter().map(part).collect())
}

/// The shape of concatenated tensors.
fn rows_together(list: &[(String, Vec<usize>)]) -> Vec<usize> {
    let mut whole = list.first().map_or(Vec::new(), |(_, shape)| shape.clone());
    if let Some(rows) = whole.first_mut() {
        *rows = list.iter().map(|(_, shape)| shape[0]).sum();
    }
    whole
}
