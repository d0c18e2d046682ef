//! config.json of encoders.

use super::bias::BUCKETS;
use super::family::{EncoderRules, Positions};
use crate::model::config::{Activation, Config, ConfigError, LayerAttention, MAX_LAYERS};
use crate::model::config_reader::ConfigReader;
use crate::model::family::Family;
use crate::model::rope_config::HeadContext;
use serde_json::Value;

/// What an encoder has and a decoder has not.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct EncoderConfig {
    /// Rows of the embedding of positions, if there is one.
    pub positions: Option<usize>,
    /// Rows of the embedding of token types, if there is one; all tokens are of the first.
    pub token_types: Option<usize>,
    /// The padding token, if positions are counted from it on: the first token has the
    /// position after it, and padding tokens inside a text have this one.
    pub padding: Option<u32>,
}

/// Keys that change how such a model is trained or saved, not what it computes.
const NEUTRAL: &[&str] = &[
    "hidden_dropout_prob",
    "attention_probs_dropout_prob",
    "classifier_dropout",
    "gradient_checkpointing",
    "tie_word_embeddings",
    "directionality",
    "pooler_fc_size",
    "pooler_num_attention_heads",
    "pooler_num_fc_layers",
    "pooler_size_per_head",
    "pooler_type",
    "model_max_length",
];

/// Validates the config of an encoder; architecture and model type have been read.
pub fn config(
    mut keys: ConfigReader<'_>,
    family: &'static Family,
    rules: EncoderRules,
) -> Result<Config, ConfigError> {
    for key in NEUTRAL {
        keys.value(key);
    }
    for key in ["is_decoder", "add_cross_attention"] {
        if keys.flag_or(key, false)? {
            return Err(keys.unsupported(key, &Value::Bool(true), "only false"));
        }
    }
    let hidden = keys.size("hidden_size")?;
    let layers = keys.size("num_hidden_layers")?;
    if layers > MAX_LAYERS {
        return Err(ConfigError::Kind {
            key: "num_hidden_layers".into(),
            found: layers.to_string(),
            want: "a number of layers from 1 to 4096",
        });
    }
    let heads = keys.size("num_attention_heads")?;
    let rotated = rules.positions == Positions::Rotated;
    let head_dim = match keys.optional_size("head_dim")?.filter(|_| rotated) {
        Some(size) => size,
        None if hidden.is_multiple_of(heads) => hidden / heads,
        None => {
            return Err(ConfigError::Contradiction(format!(
                "hidden_size {hidden} is not a multiple of num_attention_heads {heads}"
            )));
        }
    };
    if !head_dim.is_multiple_of(2) {
        return Err(ConfigError::Contradiction(format!("head_dim {head_dim} is odd")));
    }
    let rows = keys.size_or("max_position_embeddings", family.max_positions)?;
    // transformers fixes MPNet's padding token, whatever pad_token_id says.
    let padding = (rules.positions == Positions::LearnedAndRelative).then_some(1);
    let first = padding.map_or(0, |padding| padding as usize + 1);
    if rows <= first {
        return Err(ConfigError::Contradiction(format!(
            "max_position_embeddings {rows} leaves no position: the first {first} are not used"
        )));
    }
    let rope = match rotated {
        true => {
            let context = HeadContext {
                head_dim,
                kv_heads: heads,
                global_head_dim: head_dim,
                max_positions: rows,
                family,
            };
            Some(keys.ropes(&context)?.global)
        }
        false => {
            position_kind(&mut keys)?;
            None
        }
    };
    if rules.positions == Positions::LearnedAndRelative {
        let found = keys.size_or("relative_attention_num_buckets", BUCKETS)?;
        if found != BUCKETS {
            return Err(keys.unsupported(
                "relative_attention_num_buckets",
                &found.into(),
                "only 32: transformers computes no others",
            ));
        }
    }
    let token_types = match rules.token_types {
        true => Some(keys.size_or("type_vocab_size", 2)?),
        // Some files have the key all the same.
        false => keys.optional_count("type_vocab_size")?.and(None),
    };
    let config = Config {
        family,
        hidden,
        ff: keys.size("intermediate_size")?,
        experts: None,
        delta_nets: None,
        per_layer: None,
        double_wide: false,
        encoder: Some(EncoderConfig {
            positions: (!rotated).then_some(rows),
            token_types,
            padding,
        }),
        layers,
        heads,
        kv_heads: heads,
        head_dim,
        vocab: keys.size("vocab_size")?,
        max_positions: rows - first,
        norm_eps: keys.number_or("layer_norm_eps", family.norm_eps)? as f32,
        activation: activation(&mut keys, rules)?,
        qkv_bias: rules.biases,
        out_bias: rules.biases,
        mlp_bias: rules.biases,
        tied: false,
        attention_scale: (head_dim as f64).powf(-0.5) as f32,
        embedding_scale: 1.0,
        residual_scale: 1.0,
        logit_scale: 1.0,
        score_cap: None,
        logit_cap: None,
        clip_qkv: None,
        query_scaling: None,
        attention: vec![
            LayerAttention {
                head_dim,
                kv_heads: heads,
                values_are_keys: false,
                window: None,
                rope,
                shared_from: None,
            };
            layers
        ],
        notes: Vec::new(),
    };
    Ok(Config { notes: keys.finish()?, ..config })
}

/// Refuses positions that are relative to other tokens, which older versions of
/// transformers had.
fn position_kind(keys: &mut ConfigReader<'_>) -> Result<(), ConfigError> {
    match keys.value("position_embedding_type") {
        Some(kind) if kind != "absolute" => {
            Err(keys.unsupported("position_embedding_type", kind, "only absolute"))
        }
        _ => Ok(()),
    }
}

/// The MLP's activation function.
fn activation(keys: &mut ConfigReader<'_>, rules: EncoderRules) -> Result<Activation, ConfigError> {
    let gated = !rules.biases;
    let Some(found) = keys.value("hidden_act") else {
        return Ok(if gated { Activation::Silu } else { Activation::Gelu });
    };
    match (found.as_str(), gated) {
        (Some("silu" | "swish"), _) => Ok(Activation::Silu),
        (Some("gelu_new" | "gelu_pytorch_tanh"), _) => Ok(Activation::GeluTanh),
        (Some("gelu"), false) => Ok(Activation::Gelu),
        (_, true) => Err(keys.unsupported("hidden_act", found, "only silu and gelu_pytorch_tanh")),
        (_, false) => {
            Err(keys.unsupported("hidden_act", found, "only gelu, gelu_pytorch_tanh and silu"))
        }
    }
}
