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
    "parallel_block_tied_norm",
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
    if !rows.is_multiple_of(3) || !tensor.range.len().is_multiple_of(3) {
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
            _ => format!("{value}").as_str() == *only,
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

#[cfg(test)]
mod tests {
    use super::super::Dtype;
    use super::super::tensor::{Convention, RowOrder};
    use super::*;
    use crate::model::{Activation, Config};

    fn tensor(name: &str, shape: &[usize]) -> TensorInfo {
        let (name, shape, order) = (name.to_string(), shape.to_vec(), RowOrder::AsStored);
        let range = 0..4 * shape.iter().product::<usize>();
        let (dtype, convention) = (Dtype::F32, Convention::Same);
        TensorInfo { name, shape, dtype, file: 0, range, order, convention, packed: None }
    }

    /// Published configs, by name.
    fn published() -> Vec<(&'static str, Value)> {
        let bert = |hidden: usize, layers: usize| {
            json!({
                "architectures": ["BertModel"], "attention_probs_dropout_prob": 0.1,
                "gradient_checkpointing": false, "hidden_act": "gelu", "hidden_dropout_prob": 0.1,
                "hidden_size": hidden, "initializer_range": 0.02, "intermediate_size": 4 * hidden,
                "layer_norm_eps": 1e-12, "max_position_embeddings": 512, "model_type": "bert",
                "num_attention_heads": 12, "num_hidden_layers": layers, "pad_token_id": 0,
                "position_embedding_type": "absolute", "transformers_version": "4.8.2",
                "type_vocab_size": 2, "use_cache": true, "vocab_size": 30522,
            })
        };
        let with = |mut config: Value, more: Value| {
            let more = more.as_object().into_iter().flatten();
            more.for_each(|(key, value)| config[key] = value.clone());
            config
        };
        vec![
            (
                "bert-base-uncased",
                with(bert(768, 12), json!({"architectures": ["BertForMaskedLM"]})),
            ),
            (
                "all-MiniLM-L6-v2",
                with(bert(384, 6), json!({"_name_or_path": "nreimers/MiniLM-L6-H384-uncased"})),
            ),
            (
                "e5-base-v2",
                with(bert(768, 12), json!({"torch_dtype": "float32", "classifier_dropout": null})),
            ),
            (
                "bge-base-en-v1.5",
                with(
                    bert(768, 12),
                    json!({"id2label": {"0": "LABEL_0"}, "label2id": {"LABEL_0": 0}}),
                ),
            ),
            (
                "bert-base-multilingual-cased",
                with(
                    bert(768, 12),
                    json!({
                        "directionality": "bidi", "pooler_fc_size": 768, "vocab_size": 119547,
                        "pooler_num_attention_heads": 12, "pooler_num_fc_layers": 3,
                        "pooler_size_per_head": 128, "pooler_type": "first_token_transform",
                    }),
                ),
            ),
            (
                "all-mpnet-base-v2",
                json!({
                    "_name_or_path": "microsoft/mpnet-base", "architectures": ["MPNetForMaskedLM"],
                    "attention_probs_dropout_prob": 0.1, "bos_token_id": 0, "eos_token_id": 2,
                    "hidden_act": "gelu", "hidden_dropout_prob": 0.1, "hidden_size": 768,
                    "initializer_range": 0.02, "intermediate_size": 3072, "layer_norm_eps": 1e-5,
                    "max_position_embeddings": 514, "model_type": "mpnet", "num_attention_heads": 12,
                    "num_hidden_layers": 12, "pad_token_id": 1, "relative_attention_num_buckets": 32,
                    "transformers_version": "4.8.2", "vocab_size": 30527,
                }),
            ),
            (
                "nomic-embed-text-v1.5",
                // Too long for `json!`.
                serde_json::from_str(
                    r#"{
                    "activation_function": "swiglu", "architectures": ["NomicBertModel"],
                    "attn_pdrop": 0.0,
                    "auto_map": {"AutoModel": "nomic-ai/nomic-bert-2048--modeling_hf_nomic_bert.NomicBertModel"},
                    "bos_token_id": null, "causal": false, "dense_seq_output": true,
                    "embd_pdrop": 0.0, "eos_token_id": null, "fused_bias_fc": true,
                    "fused_dropout_add_ln": true, "initializer_range": 0.02,
                    "layer_norm_epsilon": 1e-12, "max_trained_positions": 2048,
                    "mlp_fc1_bias": false, "mlp_fc2_bias": false, "model_type": "nomic_bert",
                    "n_embd": 768, "n_head": 12, "n_inner": 3072, "n_layer": 12,
                    "n_positions": 8192, "pad_vocab_size_multiple": 64, "parallel_block": false,
                    "parallel_block_tied_norm": false, "prenorm": false, "qkv_proj_bias": false,
                    "reorder_and_upcast_attn": false, "resid_pdrop": 0.0, "rotary_emb_base": 1000,
                    "rotary_emb_fraction": 1.0, "rotary_emb_interleaved": false,
                    "rotary_emb_scale_base": null, "rotary_scaling_factor": null,
                    "scale_attn_by_inverse_layer_idx": false, "scale_attn_weights": true,
                    "summary_activation": null, "summary_first_dropout": 0.0,
                    "summary_proj_to_labels": true, "summary_type": "cls_index",
                    "summary_use_proj": true, "torch_dtype": "float32",
                    "transformers_version": "4.37.2", "type_vocab_size": 2, "use_cache": true,
                    "use_flash_attn": true, "use_rms_norm": false, "use_xentropy": true,
                    "vocab_size": 30528
                }"#,
                )
                .expect("JSON"),
            ),
        ]
    }

    #[test]
    fn published_configs_are_read_without_complaint() {
        for (name, mut config) in published() {
            encoder_alone(&mut config, &mut Vec::new()).expect(name);
            let read = Config::new(&config).unwrap_or_else(|error| panic!("{name}: {error}"));
            assert_eq!(read.notes, Vec::<String>::new(), "{name}");
            assert_eq!(read.ff, 4 * read.hidden, "{name}");
            let nomic = read.family.name == "nomic-bert";
            assert_eq!(read.activation == Activation::Gelu, !nomic, "{name}");
            assert_eq!(
                read.attention[0].rope.as_ref().map(|rope| rope.theta),
                nomic.then_some(1000.0)
            );
            assert_eq!(read.max_positions, if nomic { 8192 } else { 512 }, "{name}");
        }
    }

    #[test]
    fn unsupported_options_are_refused_by_name() {
        let refusal = |at: usize, key: &str, value: Value| {
            let mut config = published().swap_remove(at).1;
            config[key] = value;
            match encoder_alone(&mut config, &mut Vec::new()) {
                Ok(_) => Config::new(&config).expect_err("a refusal").to_string(),
                Err(fault) => fault.to_string(),
            }
        };
        for (at, key, value, words) in [
            (
                0,
                "position_embedding_type",
                json!("relative_key"),
                "position_embedding_type = \"relative_key\" is not supported for bert models (only absolute)",
            ),
            (0, "is_decoder", json!(true), "is_decoder = true is not supported"),
            (
                0,
                "hidden_act",
                json!("relu"),
                "hidden_act = \"relu\" is not supported for bert models (only gelu",
            ),
            (0, "quantization_config", json!({"bits": 4}), "quantization_config = "),
            (
                0,
                "num_attention_heads",
                json!(11),
                "hidden_size 768 is not a multiple of num_attention_heads 11",
            ),
            (0, "model_type", json!("roberta"), "model_type roberta does not match"),
            (
                0,
                "architectures",
                json!(["RobertaModel"]),
                "the architecture RobertaModel is not supported",
            ),
            (
                5,
                "relative_attention_num_buckets",
                json!(64),
                "relative_attention_num_buckets = 64 is not supported for mpnet",
            ),
            (
                5,
                "max_position_embeddings",
                json!(2),
                "max_position_embeddings 2 leaves no position",
            ),
            (
                6,
                "prenorm",
                json!(true),
                "prenorm = true is not supported for nomic-bert models (only false)",
            ),
            (
                6,
                "rotary_scaling_factor",
                json!(2.0),
                "rotary_scaling_factor = 2.0 is not supported",
            ),
            (
                6,
                "activation_function",
                json!("gelu"),
                "activation_function = \"gelu\" is not supported",
            ),
        ] {
            let message = refusal(at, key, value);
            assert!(message.contains(words), "{key}: {message}");
        }
    }

    #[test]
    fn names_become_those_of_the_encoder_alone() {
        let names = |config: usize, tensors: &[(&str, &[usize])]| {
            let mut tensors: Vec<TensorInfo> =
                tensors.iter().map(|(name, shape)| tensor(name, shape)).collect();
            let mut config = published().swap_remove(config).1;
            let note = encoder_alone(&mut config, &mut tensors);
            note.map(|note| (tensors.into_iter().map(|t| t.name).collect::<Vec<_>>(), note))
        };
        let (bert, note) = names(
            0,
            &[
                ("bert.embeddings.LayerNorm.gamma", &[8]),
                ("bert.encoder.layer.3.output.LayerNorm.beta", &[8]),
                ("bert.embeddings.position_ids", &[1, 512]),
                ("cls.predictions.bias", &[9]),
            ],
        )
        .expect("names");
        assert_eq!(bert, ["embeddings.LayerNorm.weight", "encoder.layer.3.output.LayerNorm.bias"]);
        assert!(note.expect("a note").contains("written, as BertModel); 1 tensors"));
        let (nomic, note) =
            names(6, &[("emb_ln.bias", &[4]), ("encoder.layers.1.attn.Wqkv.weight", &[12, 4])])
                .expect("names");
        let part = |role: &str| format!("layers.1.self_attn.{role}_proj.weight");
        assert_eq!(nomic[0], "embeddings.LayerNorm.bias");
        assert_eq!(nomic[1..], ["q", "k", "v"].map(part));
        assert_eq!(note, None);
        assert!(names(6, &[("encoder.layers.1.attn.Wqkv.weight", &[10, 4])]).is_err());
    }
}
