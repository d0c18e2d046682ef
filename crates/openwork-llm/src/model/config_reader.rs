//! Reading config.json key by key, recording which keys were read.

use super::config::{ConfigError, MAX_SIZE};
use crate::format::printable;
use serde_json::{Map, Value};
use std::collections::BTreeSet;

/// Keys that do not affect the forward pass.
pub const NEUTRAL: &[&str] = &[
    "_name_or_path",
    "_model_name_or_path",
    "transformers_version",
    "torch_dtype",
    "dtype",
    "use_cache",
    "cache_implementation",
    "initializer_range",
    "bos_token_id",
    "eos_token_id",
    "pad_token_id",
    "unk_token_id",
    "cls_token_id",
    "sep_token_id",
    "attention_dropout",
    "hidden_dropout",
    "resid_pdrop",
    "embd_pdrop",
    "pretraining_tp",
    "_attn_implementation",
    "attn_implementation",
    "_attn_implementation_autoset",
    "return_dict",
    "output_attentions",
    "output_hidden_states",
    "task_specific_params",
    "max_length",
    "license",
    "auto_map",
    "use_flash_attn",
    "is_llama_config",
    "rope_interleaved",
    "transformers.js_config",
    "tokenizer_class",
    "chunk_size_feed_forward",
    "problem_type",
    "id2label",
    "label2id",
    "max_window_layers",
    "no_rope_layer_interval",
    "output_router_logits",
    "router_aux_loss_coef",
    "router_jitter_noise",
    "openwork",
    // Found in the published files of Qwen3.5 and gpt-oss.
    "mamba_ssm_dtype",
    "mtp_num_hidden_layers",
    "mtp_use_dedicated_embeddings",
    "experts_per_token",
    "initial_context_length",
];

/// Keys that change the computation, with the values at which they do not.
const REFUSED: &[(&str, &[Neutral])] = &[
    ("attn_logit_softcapping", &[Neutral::Null]),
    ("final_logit_softcapping", &[Neutral::Null]),
    ("use_bidirectional_attention", &[Neutral::Null, Neutral::False]),
    ("is_encoder_decoder", &[Neutral::Null, Neutral::False]),
    ("add_cross_attention", &[Neutral::Null, Neutral::False]),
    ("partial_rotary_factor", &[Neutral::Null, Neutral::One]),
    ("quantization_config", &[Neutral::Null]),
    ("num_experts", &[Neutral::Null, Neutral::Zero]),
    ("num_local_experts", &[Neutral::Null, Neutral::Zero]),
    ("n_routed_experts", &[Neutral::Null, Neutral::Zero]),
    ("num_experts_per_tok", &[Neutral::Null, Neutral::Zero]),
    ("attention_bias", &[Neutral::Null, Neutral::False]),
    ("mlp_bias", &[Neutral::Null, Neutral::False]),
    ("qkv_bias", &[Neutral::Null]),
    ("clip_qkv", &[Neutral::Null]),
    ("llama_4_scaling_beta", &[Neutral::Null]),
    ("use_qk_norm", &[Neutral::Null, Neutral::False]),
    ("sliding_window", &[Neutral::Null]),
    ("use_sliding_window", &[Neutral::Null, Neutral::False]),
    ("use_mrope", &[Neutral::Null, Neutral::False]),
    ("layer_types", &[Neutral::Null, Neutral::AllFull]),
    ("no_rope_layers", &[Neutral::Null]),
    ("rope_local_base_freq", &[Neutral::Null]),
    ("attention_multiplier", &[Neutral::Null, Neutral::One]),
    ("residual_multiplier", &[Neutral::Null, Neutral::One]),
    ("embedding_multiplier", &[Neutral::Null, Neutral::One]),
    ("logits_scaling", &[Neutral::Null, Neutral::One]),
    ("logit_scale", &[Neutral::Null, Neutral::One]),
    ("lm_head_bias", &[Neutral::Null, Neutral::False]),
    ("full_attn_mod", &[Neutral::Null, Neutral::One]),
    ("interpolate_factor", &[Neutral::Null, Neutral::One]),
    ("text_config", &[Neutral::Null]),
    ("vision_config", &[Neutral::Null]),
];

/// A value of a refused key that has no effect.
#[derive(Clone, Copy, Debug)]
enum Neutral {
    Null,
    False,
    Zero,
    One,
    /// A list of `full_attention`.
    AllFull,
}

impl Neutral {
    fn is(self, value: &Value) -> bool {
        match self {
            Neutral::Null => value.is_null(),
            Neutral::False => value == &Value::Bool(false),
            Neutral::Zero => value.as_f64() == Some(0.0),
            Neutral::One => value.as_f64() == Some(1.0),
            Neutral::AllFull => value
                .as_array()
                .is_some_and(|types| types.iter().all(|t| t.as_str() == Some("full_attention"))),
        }
    }

    fn name(self) -> &'static str {
        match self {
            Neutral::Null => "null",
            Neutral::False => "false",
            Neutral::Zero => "0",
            Neutral::One => "1",
            Neutral::AllFull => "full_attention in every layer",
        }
    }
}

/// A config.json that records which keys were read.
pub struct ConfigReader<'a> {
    pub(super) map: &'a Map<String, Value>,
    pub(super) family: &'static str,
    pub(super) used: BTreeSet<&'a str>,
}

impl<'a> ConfigReader<'a> {
    /// A reader of `json`.
    pub fn new(json: &'a Value, family: &'static str) -> Result<Self, ConfigError> {
        let map = json.as_object().ok_or(ConfigError::Kind {
            key: "the file".into(),
            found: "not an object".into(),
            want: "an object",
        })?;
        Ok(Self { map, family, used: BTreeSet::new() })
    }

    /// The value of a key, if it exists and is not null.
    pub fn value(&mut self, key: &str) -> Option<&'a Value> {
        let (key, value) = self.map.get_key_value(key)?;
        self.used.insert(key);
        Some(value).filter(|value| !value.is_null())
    }

    /// An optional size.
    pub fn optional_size(&mut self, key: &str) -> Result<Option<usize>, ConfigError> {
        self.integer(key, 1, "a size from 1 to 16777216")
    }

    /// An optional count, which may be zero.
    pub fn optional_count(&mut self, key: &str) -> Result<Option<usize>, ConfigError> {
        self.integer(key, 0, "a count from 0 to 16777216")
    }

    fn integer(
        &mut self,
        key: &str,
        least: usize,
        want: &'static str,
    ) -> Result<Option<usize>, ConfigError> {
        let Some(value) = self.value(key) else { return Ok(None) };
        match value.as_u64() {
            Some(n) if (least as u64..=MAX_SIZE as u64).contains(&n) => Ok(Some(n as usize)),
            _ => Err(ConfigError::Kind { key: key.into(), found: value.to_string(), want }),
        }
    }

    /// Whether a key is missing. transformers uses the default of a missing key, but
    /// not of a null.
    pub fn absent(&self, key: &str) -> bool {
        !self.map.contains_key(key)
    }

    /// A required size.
    pub fn size(&mut self, key: &str) -> Result<usize, ConfigError> {
        self.optional_size(key)?.ok_or_else(|| ConfigError::Missing { key: key.into() })
    }

    /// A size, or `default`.
    pub fn size_or(&mut self, key: &str, default: usize) -> Result<usize, ConfigError> {
        Ok(self.optional_size(key)?.unwrap_or(default))
    }

    /// A boolean, or `default`.
    pub fn flag_or(&mut self, key: &str, default: bool) -> Result<bool, ConfigError> {
        let Some(value) = self.value(key) else { return Ok(default) };
        value.as_bool().ok_or_else(|| ConfigError::Kind {
            key: key.into(),
            found: value.to_string(),
            want: "true or false",
        })
    }

    /// A required positive number.
    pub fn number(&mut self, key: &str) -> Result<f64, ConfigError> {
        self.optional_number(key)?.ok_or_else(|| ConfigError::Missing { key: key.into() })
    }

    /// A positive number, or `default`.
    pub fn number_or(&mut self, key: &str, default: f64) -> Result<f64, ConfigError> {
        Ok(self.optional_number(key)?.unwrap_or(default))
    }

    /// A positive number, if there is one.
    pub fn optional_number(&mut self, key: &str) -> Result<Option<f64>, ConfigError> {
        self.value(key).map(|value| positive(key, value)).transpose()
    }

    /// Whether the value is 0; it has then been read.
    pub fn is_zero(&mut self, key: &str) -> bool {
        self.map.get(key).is_some_and(|value| value.as_u64() == Some(0))
            && self.value(key).is_some()
    }

    /// A list of counts, if there is one.
    pub fn counts(&mut self, key: &str) -> Result<Option<Vec<usize>>, ConfigError> {
        let Some(value) = self.value(key) else { return Ok(None) };
        let count = |value: &Value| value.as_u64().and_then(|n| usize::try_from(n).ok());
        let counts = value.as_array().and_then(|list| list.iter().map(count).collect());
        counts.map(Some).ok_or_else(|| ConfigError::Kind {
            key: key.into(),
            found: value.to_string(),
            want: "a list of whole numbers",
        })
    }

    /// Whether each layer uses sliding attention, as given by `layer_types`.
    pub fn sliding_layers(&mut self, layers: usize) -> Result<Option<Vec<bool>>, ConfigError> {
        self.layer_types(layers, ["sliding_attention", "full_attention"])
    }

    /// Whether each layer is the first of two kinds, as given by `layer_types`.
    pub fn layer_types(
        &mut self,
        layers: usize,
        [first, second]: [&str; 2],
    ) -> Result<Option<Vec<bool>>, ConfigError> {
        let Some(value) = self.value("layer_types") else { return Ok(None) };
        let wrong = || ConfigError::Kind {
            key: "layer_types".into(),
            found: value.to_string(),
            want: "a list with one name per layer",
        };
        let types = value.as_array().filter(|types| types.len() == layers).ok_or_else(wrong)?;
        let is_first = |name: &Value| match name.as_str() {
            Some(name) if name == first => Ok(true),
            Some(name) if name == second => Ok(false),
            _ => Err(self.unsupported("layer_types", name, &format!("only {second} and {first}"))),
        };
        types.iter().map(is_first).collect::<Result<_, _>>().map(Some)
    }

    /// An error for an unsupported option.
    pub fn unsupported(&self, key: &str, value: &Value, only: &str) -> ConfigError {
        ConfigError::Unsupported {
            key: key.into(),
            value: value.to_string(),
            family: self.family,
            only: only.into(),
        }
    }

    /// Checks every key that was not read; returns notes on the unknown ones.
    pub fn finish(self) -> Result<Vec<String>, ConfigError> {
        let mut notes = Vec::new();
        for (key, value) in self.map {
            if self.used.contains(key.as_str()) || NEUTRAL.contains(&key.as_str()) {
                continue;
            }
            match REFUSED.iter().find(|(name, _)| name == key) {
                Some((_, neutral)) if neutral.iter().any(|n| n.is(value)) => {}
                Some((_, neutral)) => {
                    let names: Vec<_> = neutral.iter().map(|n| n.name()).collect();
                    return Err(self.unsupported(
                        key,
                        value,
                        &format!("only {}", names.join(", ")),
                    ));
                }
                None => {
                    let (key, value) = (printable(key), printable(&value.to_string()));
                    notes.push(format!("config.json: {key} = {value} is unknown and was ignored"))
                }
            }
        }
        Ok(notes)
    }
}

/// A positive, finite number.
fn positive(key: &str, value: &Value) -> Result<f64, ConfigError> {
    value.as_f64().filter(|x| x.is_finite() && *x > 0.0).ok_or_else(|| ConfigError::Kind {
        key: key.into(),
        found: value.to_string(),
        want: "a positive number",
    })
}
