//! Encoders in files: the names of all versions become those of the encoder alone.
//!
//! ```text
//! bert.encoder.layer.0...              a model with a head: its encoder is read
//! ...LayerNorm.gamma, .beta            weight and bias, in the oldest files
//! encoder.layers.0.attn.Wqkv           Nomic's own names, before transformers had the family
//! cls..., lm_head..., position_ids     heads and buffers: not read
//! ```

use super::error::Fault;
use super::tensor::TensorInfo;
use crate::model::{EncoderRules, Family};
use serde_json::{Map, Value, json};

/// First parts of the names of heads, which sentence vectors do not use.
const HEADS: &[&str] = &["cls.", "lm_head."];

/// Last parts of the names of buffers, which are computed and not read.
const BUFFERS: &[&str] = &["embeddings.position_ids", "embeddings.token_type_ids", "inv_freq"];

/// Nomic's names in files of its own code, and those of transformers.
const NOMIC_NAMES: &[(&str, &str)] = &[
    ("encoder.layers.", "layers."),
    ("emb_ln.", "embeddings.LayerNorm."),
    ("attn.out_proj.", "self_attn.o_proj."),
    ("mlp.fc11.", "mlp.up_proj."),
    ("mlp.fc12.", "mlp.gate_proj."),
    ("mlp.fc2.", "mlp.down_proj."),
    ("norm1.", "post_attention_layernorm."),
    ("norm2.", "post_mlp_layernorm."),
];
/// Queries, keys and values in one tensor.
const NOMIC_QKV: &str = "attn.Wqkv.weight";

/// Nomic's keys of config.json, and those of transformers.
const NOMIC_KEYS: &[(&str, &str)] = &[
    ("n_embd", "hidden_size"),
    ("n_inner", "intermediate_size"),
    ("n_layer", "num_hidden_layers"),
    ("n_head", "num_attention_heads"),
    ("n_positions", "max_position_embeddings"),
    ("layer_norm_epsilon", "layer_norm_eps"),
];
/// Nomic's keys with the values that transformers' class computes; `null` is as good.
const NOMIC_FIXED: &[(&str, &str)] = &[
    ("activation_function", "\"swiglu\""),
    ("causal", "false"),
    ("mlp_fc1_bias", "false"),
    ("mlp_fc2_bias", "false"),
    ("qkv_proj_bias", "false"),
    ("parallel_block", "false"),
    ("prenorm", "false"),
    ("rotary_emb_fraction", "1.0"),
    ("rotary_emb_interleaved", "false"),
    ("rotary_emb_scale_base", "null"),
    ("rotary_scaling_factor", "null"),
    ("scale_attn_by_inverse_layer_idx", "false"),
    ("scale_attn_weights", "true"),
    ("use_rms_norm", "false"),
];
/// Nomic's keys that do not change what is computed.
const NOMIC_NEUTRAL: &[&str] = &[
    "attn_pdrop",
    "auto_map",
    "dense_seq_output",
    "fused_bias_fc",
    "fused_dropout_add_ln",
    "last_layer_subset",
    "max_trained_positions",
    "pad_vocab_size_multiple",
    "reorder_and_upcast_attn",
    "rotary_emb_base",
    "summary_activation",
    "summary_first_dropout",
    "summary_proj_to_labels",
    "summary_type",
    "summary_use_proj",
    "use_flash_attn",
    "use_xentropy",
];

/// Replaces the names of an encoder's tensors and keys by those of the encoder alone;
/// leaves other models unchanged. A note, if a head is left out.
pub(super) fn encoder_alone(
    config: &mut Value,
    tensors: &mut Vec<TensorInfo>,
) -> Result<Option<String>, Fault> {
    let class = config["architectures"][0].as_str().unwrap_or_default().to_string();
    let Some(rules) = Family::find(&class).and_then(|family| family.encoder) else {
        return Ok(None);
    };
    if class.starts_with("NomicBert") {
        nomic_config(config)?;
    }
    for tensor in tensors.iter_mut() {
        rename(tensor, &rules);
    }
    let all = tensors.len();
    tensors.retain(|tensor| !HEADS.iter().any(|head| tensor.name.starts_with(head)));
    let heads = all - tensors.len();
    tensors.retain(|tensor| !BUFFERS.iter().any(|buffer| tensor.name.ends_with(buffer)));
    let mut split = Vec::with_capacity(tensors.len());
    for tensor in tensors.drain(..) {
        match tensor.name.strip_suffix(NOMIC_QKV) {
            Some(layer) if tensor.packed.is_none() => {
                let layer = layer.to_string();
                split.extend(queries_keys_values(&layer, tensor)?);
            }
            _ => split.push(tensor),
        }
    }
    *tensors = split;
    config["architectures"] = json!([rules.class]);
    Ok((heads > 0).then(|| {
        format!(
            "{class}: only the encoder is used (and written, as {}); {heads} tensors of its head are ignored",
            rules.class
        )
    }))
}

fn rename(tensor: &mut TensorInfo, rules: &EncoderRules) {
    let name = tensor.name.strip_prefix(rules.prefix).unwrap_or(&tensor.name);
    let mut name = match (name.strip_suffix(".gamma"), name.strip_suffix(".beta")) {
        (Some(norm), _) => format!("{norm}.weight"),
        (_, Some(norm)) => format!("{norm}.bias"),
        _ => name.to_string(),
    };
    if rules.class == "NomicBertModel" {
        for (old, new) in NOMIC_NAMES {
            name = name.replacen(old, new, 1);
        }
    }
    tensor.name = name;
}

/// The tensors of the three linear layers in one.
fn queries_keys_values(layer: &str, tensor: TensorInfo) -> Result<Vec<TensorInfo>, Fault> {
    let [rows, width] = tensor.shape[..] else { return Ok(vec![tensor]) };
    if rows % 3 != 0 || tensor.range.len() % 3 != 0 {
        let (tensor, found) = (tensor.name, tensor.shape);
        return Err(Fault::OtherShape { tensor, found, asked: vec![3 * width, width] });
    }
    let bytes = tensor.range.len() / 3;
    let part = |(i, role): (usize, &str)| TensorInfo {
        name: format!("{layer}self_attn.{role}_proj.weight"),
        shape: vec![rows / 3, width],
        range: tensor.range.start + i * bytes..tensor.range.start + (i + 1) * bytes,
        ..tensor.clone()
    };
    Ok(["q", "k", "v"].into_iter().enumerate().map(part).collect())
}

/// Replaces the keys of Nomic's own code by those of transformers.
fn nomic_config(config: &mut Value) -> Result<(), Fault> {
    let Some(map) = config.as_object_mut() else { return Ok(()) };
    if !map.contains_key("n_embd") {
        return Ok(());
    }
    for (key, only) in NOMIC_FIXED {
        let same = |value: &Value| match (value.as_f64(), only.parse::<f64>()) {
            (Some(found), Ok(only)) => found == only,
            _ => value.to_string() == *only,
        };
        match map.remove(*key) {
            Some(value) if !same(&value) && !value.is_null() => {
                return Err(Fault::Shape(format!(
                    "config.json: {key} = {value} is not supported for nomic-bert models (only {only})"
                )));
            }
            _ => {}
        }
    }
    if let Some(base) = map.get("rotary_emb_base").cloned() {
        let rope = json!({"rope_type": "default", "rope_theta": base});
        map.entry("rope_parameters").or_insert(rope);
    }
    rename_keys(map);
    map.entry("hidden_act").or_insert(json!("silu"));
    Ok(())
}

fn rename_keys(map: &mut Map<String, Value>) {
    for (old, new) in NOMIC_KEYS {
        if let Some(value) = map.remove(*old) {
            map.entry(*new).or_insert(value);
        }
    }
    for key in NOMIC_NEUTRAL {
        map.remove(*key);
    }
    for dropout in ["embd_pdrop", "resid_pdrop"] {
        map.remove(dropout);
    }
}
