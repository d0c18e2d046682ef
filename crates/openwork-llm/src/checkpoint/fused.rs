//! Tensors that hold several linear layers, one after the other: they are read as if each
//! linear layer had a tensor of its own.
//!
//! ```text
//! self_attn.qkv_proj.weight  [q + 2 kv, hidden]      q_proj, k_proj and v_proj
//! mlp.experts.gate_up_proj   [experts, 2 ff, hidden] gate and up of every expert
//! mlp.experts.down_proj      [experts, hidden, ff]   down of every expert
//! ```
//!
//! The first kind is written as it was read (see [`write::fused`](super::write::fused)),
//! since transformers looks for it; of experts transformers reads separate tensors as well.

use super::error::Fault;
use super::tensor::TensorInfo;
use crate::model::{Config, LayerInfo};
use serde_json::Value;

/// Replaces fused tensors by those of their linear layers. A model whose config is not
/// supported is left as it is.
pub(super) fn split(config: &Value, tensors: &mut Vec<TensorInfo>) -> Result<(), Fault> {
    let Ok(config) = Config::new(config) else { return Ok(()) };
    let mut all = Vec::with_capacity(tensors.len());
    for tensor in tensors.drain(..) {
        match layer_of(&config, &tensor.name) {
            Some((info, name)) => all.extend(parts(&config, &info, &name, tensor)?),
            None => all.push(tensor),
        }
    }
    *tensors = all;
    Ok(())
}

/// The layer of a tensor that may be fused, and its name there.
fn layer_of(config: &Config, name: &str) -> Option<(LayerInfo, String)> {
    let (index, rest) = name.strip_prefix("model.layers.")?.split_once('.')?;
    let index: usize = index.parse().ok()?;
    let linear = rest.strip_suffix(".weight").or_else(|| rest.strip_suffix(".bias"));
    let fused = config.family.fused.iter().any(|fused| Some(fused.name) == linear);
    let experts = config.experts.is_some() && rest.starts_with("mlp.");
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
        && matches!(name, "mlp.experts.gate_up_proj" | "mlp.experts.down_proj")
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

/// The shape of tensors one after the other.
fn rows_together(list: &[(String, Vec<usize>)]) -> Vec<usize> {
    let mut whole = list.first().map_or(Vec::new(), |(_, shape)| shape.clone());
    if let Some(rows) = whole.first_mut() {
        *rows = list.iter().map(|(_, shape)| shape[0]).sum();
    }
    whole
}
