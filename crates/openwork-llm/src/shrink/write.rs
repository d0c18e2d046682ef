//! Writing a shrunk model as a Hugging Face folder.

use super::{KeptLayer, ShrinkError, ShrinkPlan};
use crate::checkpoint::write::{self, Data, Part, shard_name};
use crate::checkpoint::{Dtype, Tensor};
use crate::model::{
    Config, LayerInfo, LinearInfo, Model, QkNorm, Role, SlidingWindow, split_layer_name,
};
use serde_json::{Map, Value, json};
use std::path::Path;

/// Writes the shrunk model to a folder, its index last. Weights keep their types
/// unless `dtype` is given; quantized ones become bf16.
pub fn write(
    model: &Model<'_>,
    plan: &ShrinkPlan,
    dtype: Option<Dtype>,
    out: &Path,
) -> Result<(), ShrinkError> {
    let source = model.checkpoint();
    std::fs::create_dir_all(out).map_err(|error| write::WriteError::io(out, error))?;
    let storage_dtype = |tensor: &Tensor<'_>| match (dtype, tensor.dtype()) {
        (Some(dtype), _) => dtype,
        (None, dtype @ (Dtype::F32 | Dtype::F16 | Dtype::BF16)) => dtype,
        _ => Dtype::BF16,
    };
    let count = plan.layers.len() + 1;
    let mut listed = Vec::with_capacity(count);

    let in_layers = |name: &str| name.starts_with("model.layers.");
    let tied = model.config().tied;
    let rest: Vec<Part<'_>> = source
        .tensors()
        .filter(|t| !in_layers(t.name()))
        .filter(|t| !tied || t.name() != "lm_head.weight")
        .map(|t| Part::new(t.name(), storage_dtype(&t), t.shape(), Data::Tensor(t)))
        .collect();
    listed.push(write::listed_shard(&out.join(shard_name(1, count)), &rest, &[])?);

    for (number, layer) in plan.layers.iter().enumerate() {
        let mut tensors = Vec::new();
        let info = LayerInfo::new(model.config(), layer.index);
        for name in model.layer_tensors(layer.index) {
            let tensor = source.tensor(&name)?;
            let (shape, data) = kept(model.config(), &info, layer, &tensor);
            let Some(new) = kept_name(model.config(), layer, number, &name) else { continue };
            tensors.push((new, storage_dtype(&tensor), shape, data, tensor));
        }
        let parts: Vec<Part<'_>> = tensors
            .iter()
            .map(|(name, dtype, shape, data, tensor)| {
                let data = data.as_ref().map_or(Data::Tensor(*tensor), |data| Data::F32(data));
                Part::new(name, *dtype, shape, data)
            })
            .collect();
        let parts = write::fused(parts, model.config().family);
        listed.push(write::listed_shard(&out.join(shard_name(number + 2, count)), &parts, &[])?);
        source.release();
    }
    let main = match dtype {
        Some(dtype) => dtype,
        None => storage_dtype(&source.tensor(model.config().family.embedding())?),
    };
    write::companions(source, out, main, |json| change_config(json, model.config(), plan))?;
    write::index(out, &listed)?;
    Ok(())
}

/// Shape and numbers of the kept part of a tensor; no numbers if all of it is kept.
fn kept(
    config: &Config,
    info: &LayerInfo,
    layer: &KeptLayer,
    tensor: &Tensor<'_>,
) -> (Vec<usize>, Option<Vec<f32>>) {
    let heads = |heads: &[usize], all: usize, axis: usize| -> Vec<usize> {
        // Of q_proj, with the gates of attention if it has them.
        let d = tensor.shape().get(axis).map_or(0, |size| size / all);
        heads.iter().flat_map(|head| head * d..(head + 1) * d).collect()
    };
    // The end of its name tells what its rows and columns are.
    let mut parts = tensor.name().rsplit('.');
    let (kind, linear) = (parts.next().unwrap_or_default(), parts.next().unwrap_or_default());
    let (names, kv_heads) = (&config.family.names, config.kv_heads);
    let router =
        !layer.experts.is_empty() && tensor.name().ends_with(&format!("{}.{kind}", names.router));
    // Rows of gate and up, columns of down.
    let own = split_layer_name(tensor.name()).and_then(|(_, name)| name.rsplit_once('.'));
    let own = own.and_then(|(name, _)| info.linears.iter().find(|linear| linear.name == name));
    let channels = |linear: &LinearInfo| layer.channels.get(&linear.expert).cloned();
    let (rows, columns) = match (linear, kind) {
        _ if own.is_some_and(|own| [Role::Gate, Role::Up].contains(&own.role)) => {
            (own.and_then(channels), None)
        }
        (_, "weight") if own.is_some_and(|own| own.role == Role::Down) => {
            (None, own.and_then(channels))
        }
        _ if router => (Some(layer.experts.clone()), None),
        ("router", "per_expert_scale") => (Some(layer.experts.clone()), None),
        ("q_proj", _) => (Some(heads(&layer.heads, config.heads, 0)), None),
        ("k_proj" | "v_proj", _) => (Some(heads(&layer.kv_heads, kv_heads, 0)), None),
        ("q_norm", _) if config.family.qk_norm == QkNorm::AllHeads => {
            (Some(heads(&layer.heads, config.heads, 0)), None)
        }
        ("k_norm", _) if config.family.qk_norm == QkNorm::AllHeads => {
            (Some(heads(&layer.kv_heads, kv_heads, 0)), None)
        }
        ("self_attn", "sinks") => (Some(layer.heads.clone()), None),
        ("o_proj", "weight") => (None, Some(heads(&layer.heads, config.heads, 1))),
        _ => (None, None),
    };
    let mut shape = tensor.shape().to_vec();
    let (axis, places) = match (rows, columns) {
        (Some(rows), _) => (0, rows),
        (None, Some(columns)) => (1, columns),
        (None, None) => return (shape, None),
    };
    if places.len() == shape[axis] {
        return (shape, None);
    }
    let numbers = tensor.to_f32();
    let width: usize = shape[1..].iter().product();
    let numbers = match axis {
        0 => places.iter().flat_map(|&row| &numbers[row * width..][..width]).copied().collect(),
        _ => numbers
            .chunks_exact(width)
            .flat_map(|row| places.iter().map(|&column| row[column]))
            .collect(),
    };
    shape[axis] = places.len();
    (shape, Some(numbers))
}

/// The name of a tensor in layer `number` of the shrunk model, if it is kept.
fn kept_name(config: &Config, layer: &KeptLayer, number: usize, name: &str) -> Option<String> {
    let old = format!("model.layers.{}.", layer.index);
    let rest = name.strip_prefix(&old)?;
    let prefix = format!("{}.", config.family.names.experts);
    let new = format!("model.layers.{number}.");
    let Some((expert, part)) = rest.strip_prefix(&prefix).and_then(|rest| rest.split_once('.'))
    else {
        return Some(format!("{new}{rest}"));
    };
    let expert: usize = expert.parse().ok()?;
    let place = layer.experts.iter().position(|&kept| kept == expert)?;
    Some(format!("{new}{prefix}{place}.{part}"))
}

/// The key of the width of a shared expert.
const SHARED: &str = "shared_expert_intermediate_size";

/// Changes the config to that of the shrunk model.
fn change_config(json: &mut Map<String, Value>, config: &Config, plan: &ShrinkPlan) {
    let (before, after) = (plan.change.before, plan.change.after);
    match (&config.experts, config.family.experts) {
        (Some(experts), Some(rules)) => {
            let shared = if experts.beside_mlp { "intermediate_size" } else { SHARED };
            if before.shared_channels != after.shared_channels {
                json.insert(shared.into(), json!(after.shared_channels));
            }
            if before.expert_channels != after.expert_channels {
                json.insert(rules.ff_key.into(), json!(after.expert_channels));
            }
            if experts.layers.contains(&false) {
                json.insert("intermediate_size".into(), json!(after.channels));
            }
        }
        _ => {
            json.insert("intermediate_size".into(), json!(after.channels));
        }
    }
    if before.experts != after.experts {
        let keys = ["num_experts", "num_local_experts"];
        let found: Vec<&str> = keys.into_iter().filter(|key| json.contains_key(*key)).collect();
        for key in if found.is_empty() { &keys[..1] } else { &found[..] } {
            json.insert(key.to_string(), json!(after.experts));
        }
    }
    if (before.heads, before.kv_heads) != (after.heads, after.kv_heads) {
        json.insert("num_attention_heads".into(), json!(after.heads));
        json.insert("num_key_value_heads".into(), json!(after.kv_heads));
        // Its default, hidden_size / num_attention_heads, has changed.
        json.insert("head_dim".into(), json!(config.head_dim));
    }
    if before.layers == after.layers {
        return;
    }
    json.insert("num_hidden_layers".into(), json!(after.layers));
    let kept: Vec<usize> = plan.layers.iter().map(|layer| layer.index).collect();
    if config.family.rotation.skips_layers {
        let rotates = |&index: &usize| u8::from(config.attention[index].rope.is_some());
        json.insert("no_rope_layers".into(), json!(kept.iter().map(rotates).collect::<Vec<_>>()));
    }
    if let Some(Value::Object(by_layer)) = json.get("per_layer_config") {
        let renumbered = kept.iter().enumerate().filter_map(|(number, index)| {
            Some((number.to_string(), by_layer.get(&index.to_string())?.clone()))
        });
        let renumbered: Map<String, Value> = renumbered.collect();
        json.insert("per_layer_config".into(), Value::Object(renumbered));
    }
    if let Some(experts) = config.experts.as_ref().filter(|e| !e.layers.iter().all(|has| *has)) {
        // Otherwise a layer's index decides whether it has experts.
        let dense: Vec<usize> =
            (0..kept.len()).filter(|&number| !experts.layers[kept[number]]).collect();
        json.insert("mlp_only_layers".into(), json!(dense));
        json.insert("decoder_sparse_step".into(), json!(1));
    }
    let by_index = !matches!(
        config.family.window,
        SlidingWindow::Never | SlidingWindow::AllIfSet { .. } | SlidingWindow::AllIfEnabled
    );
    if let Some(nets) = &config.delta_nets {
        let kind = |&index: &usize| match nets.layers[index] {
            true => "linear_attention",
            false => "full_attention",
        };
        json.insert("layer_types".into(), json!(kept.iter().map(kind).collect::<Vec<_>>()));
    }
    if by_index {
        // Without `layer_types`, a layer's index decides whether it slides.
        let kind = |&index: &usize| match config.attention[index].window {
            Some(_) => "sliding_attention",
            None => "full_attention",
        };
        let kinds: Vec<&str> = kept.iter().map(kind).collect();
        json.insert("layer_types".into(), json!(kinds));
    }
    if let Some(from) = json.get("max_window_layers").and_then(Value::as_u64)
        && from <= before.layers as u64
    {
        let below = kept.iter().filter(|&&index| (index as u64) < from).count();
        json.insert("max_window_layers".into(), json!(below));
    }
}
