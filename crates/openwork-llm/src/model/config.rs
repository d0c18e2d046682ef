//! A model's sizes and options, validated from config.json.
//!
//! config.json is read strictly. Every key is *used*, *neutral* (it cannot change
//! the computation), *refused* unless it has the supported value, or *unknown*:
//! then a note says that it was ignored, as transformers ignores it too.

use super::config_layers::{GlobalHeads, attention, check_per_layer_config, delta_nets, experts};
use super::config_reader::ConfigReader;
use super::config_sharing::{per_layer_embedding, share_keys};
use super::encoder::EncoderConfig;
use super::family::{Bias, FAMILIES, Family};
use super::rope::RopeParameters;
use super::rope_config::{HeadContext, QueryScaling};
use crate::format::printable;
use serde_json::Value;
use std::collections::BTreeSet;

/// Why a config.json is not supported.
#[derive(Debug, thiserror::Error)]
pub enum ConfigError {
    /// A required key is missing.
    #[error("config.json has no {key}")]
    Missing {
        /// The key.
        key: String,
    },
    /// A value has the wrong type or is out of range.
    #[error("config.json: {key} is {}, not {want}", printable(found))]
    Kind {
        /// The key.
        key: String,
        /// Its value.
        found: String,
        /// What was expected.
        want: &'static str,
    },
    /// Two keys contradict each other.
    #[error("config.json: {0}")]
    Contradiction(String),
    /// An architecture that is not in [`FAMILIES`].
    #[error("the architecture {} is not supported (supported: {known})", printable(name))]
    Architecture {
        /// As config.json names it.
        name: String,
        /// All supported architectures.
        known: String,
    },
    /// An unsupported option that would change the computation.
    #[error(
        "config.json: {key} = {} is not supported for {family} models ({only})",
        printable(value)
    )]
    Unsupported {
        /// The key.
        key: String,
        /// Its value.
        value: String,
        /// The family's name.
        family: &'static str,
        /// What is supported.
        only: String,
    },
}

/// The activation function of the MLP.
#[derive(Clone, Copy, Debug, PartialEq)]
pub enum Activation {
    /// `x (1 + erf(x / sqrt 2)) / 2`, of encoders.
    Gelu,
    /// `x / (1 + e^-x)`.
    Silu,
    /// GELU, tanh approximation.
    GeluTanh,
    /// `g sigmoid(alpha g) (u + 1)`, with `g` at most `limit` and `u` within plus and minus
    /// `limit`.
    ClampedSwiglu {
        /// Gain of the sigmoid.
        alpha: f32,
        /// The bound.
        limit: f32,
    },
}

/// The attention settings of one layer; those of a gated delta net are not used.
#[derive(Clone, Debug, PartialEq)]
pub struct LayerAttention {
    /// Head size.
    pub head_dim: usize,
    /// Key-value heads.
    pub kv_heads: usize,
    /// Whether the values are the keys before their norm and rotation.
    pub values_are_keys: bool,
    /// Sliding window: each token attends to this many tokens, including itself;
    /// `None` is all.
    pub window: Option<usize>,
    /// The rotation of its heads; `None` is none.
    pub rope: Option<RopeParameters>,
    /// The earlier layer whose keys and values it uses; `None` computes its own.
    pub shared_from: Option<usize>,
}

/// Per-layer embeddings: an extra input of every layer, looked up by token.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct PerLayerEmbedding {
    /// Width of a layer's input.
    pub width: usize,
    /// Number of tokens that have one.
    pub vocab: usize,
}

/// The sizes of a gated delta net.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct DeltaNetSizes {
    /// Heads of queries and keys.
    pub key_heads: usize,
    /// Heads of values, a multiple of those of keys.
    pub value_heads: usize,
    /// Size of a query's or key's head.
    pub key_dim: usize,
    /// Size of a value's head.
    pub value_dim: usize,
    /// Tokens that the convolution sees.
    pub kernel: usize,
}

impl DeltaNetSizes {
    /// Width of queries, keys and values together.
    pub fn channels(&self) -> usize {
        2 * self.key_heads * self.key_dim + self.value_width()
    }

    /// Total width of the value heads.
    pub fn value_width(&self) -> usize {
        self.value_heads * self.value_dim
    }
}

/// The gated delta nets of a model.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct DeltaNets {
    /// The size of each.
    pub sizes: DeltaNetSizes,
    /// Which layers have one, instead of attention.
    pub layers: Vec<bool>,
}

/// The experts of a model's layers.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Experts {
    /// Their number in a layer.
    pub count: usize,
    /// How many a token is routed to.
    pub active: usize,
    /// Their width.
    pub ff: usize,
    /// Width of the shared expert, if there is one.
    pub shared_ff: Option<usize>,
    /// Whether the shared expert is the layer's MLP, in parallel and with separate norms.
    pub beside_mlp: bool,
    /// Whether the weights of a token's experts are normalized to sum to 1.
    pub normalized: bool,
    /// Whether the router has a bias.
    pub router_bias: bool,
    /// Which layers have them.
    pub layers: Vec<bool>,
}

/// Sizes and options of a model. Guarantees:
///
/// 1. every size is at least 1 and at most `MAX_SIZE`, `layers` at most `MAX_LAYERS`;
/// 2. `heads` is a multiple of `kv_heads`;
/// 3. `head_dim` is even;
/// 4. `attention`, and `layers` of `experts` and `delta_nets`, have one entry per layer;
/// 5. a token is routed to at least one expert and at most all;
/// 6. a layer shares keys and values only with an earlier one that computes its own, of
///    the same window, heads and rotation.
#[derive(Clone, Debug)]
pub struct Config {
    /// The model's row of [`FAMILIES`].
    pub family: &'static Family,
    /// Hidden size.
    pub hidden: usize,
    /// MLP size; in a model whose every layer has experts, their size.
    pub ff: usize,
    /// Experts, if it has any.
    pub experts: Option<Experts>,
    /// Gated delta nets, if it has any.
    pub delta_nets: Option<DeltaNets>,
    /// Encoder-specific settings; `None` for a decoder.
    pub encoder: Option<EncoderConfig>,
    /// Per-layer embeddings, if it has any.
    pub per_layer: Option<PerLayerEmbedding>,
    /// Whether the MLP of layers that share keys and values is twice as wide.
    pub double_wide: bool,
    /// Number of decoder layers.
    pub layers: usize,
    /// Query heads.
    pub heads: usize,
    /// Key-value heads, of layers that do not differ.
    pub kv_heads: usize,
    /// Head size, of layers that do not differ.
    pub head_dim: usize,
    /// Size of the vocabulary.
    pub vocab: usize,
    /// Maximum sequence length.
    pub max_positions: usize,
    /// Added to the mean square in norms.
    pub norm_eps: f32,
    /// Activation of the MLP.
    pub activation: Activation,
    /// Whether q, k and v have biases.
    pub qkv_bias: bool,
    /// Whether o has a bias.
    pub out_bias: bool,
    /// Whether the MLP's linear layers have biases.
    pub mlp_bias: bool,
    /// Whether the embeddings are tied.
    pub tied: bool,
    /// Scores are `scale * q . k`.
    pub attention_scale: f32,
    /// Factor of the embedding.
    pub embedding_scale: f32,
    /// Factor of the outputs of attention and MLP, before they are added.
    pub residual_scale: f32,
    /// Factor of the logits.
    pub logit_scale: f32,
    /// Scores are bounded by `cap tanh(score / cap)`.
    pub score_cap: Option<f32>,
    /// Logits are bounded likewise, after their factor.
    pub logit_cap: Option<f32>,
    /// Queries, keys and values are clamped to plus and minus this.
    pub clip_qkv: Option<f32>,
    /// Factors of queries that depend on their position.
    pub query_scaling: Option<QueryScaling>,
    /// One entry per layer.
    pub attention: Vec<LayerAttention>,
    /// Notes for the user about ignored keys.
    pub notes: Vec<String>,
}

/// transformers' defaults, the same in every family that has the key.
const QUERY_SCALAR: f64 = 256.0;
const SWIGLU_ALPHA: f64 = 1.702;
const SWIGLU_LIMIT: f64 = 7.0;
/// Largest supported size (widths, tokens).
pub const MAX_SIZE: usize = 1 << 24;
/// Largest supported number of layers; the largest Llama has 126.
pub(super) const MAX_LAYERS: usize = 4096;
/// Largest supported number of experts in a layer.
pub(crate) const MAX_EXPERTS: usize = 4096;

impl Config {
    /// Validates a config.json as written by transformers 4 or 5.
    pub fn new(json: &Value) -> Result<Self, ConfigError> {
        let family = family(json)?;
        let mut keys = ConfigReader::new(json, family.name)?;
        for key in ["architectures", "model_type"] {
            keys.value(key);
        }
        if let Some(model_type) = json.get("model_type").and_then(Value::as_str)
            && model_type != family.model_type
        {
            return Err(ConfigError::Contradiction(format!(
                "model_type {model_type} does not match architecture {}",
                family.architectures[0]
            )));
        }

        if let Some(rules) = family.encoder {
            return super::encoder::config(keys, family, rules);
        }

        // Sizes.
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
        let kv_heads = match family.kv_heads.filter(|_| keys.absent("num_key_value_heads")) {
            Some(default) => default,
            None => keys.size_or("num_key_value_heads", heads)?,
        };
        let head_dim = match (keys.optional_size("head_dim")?, family.head_dim) {
            (Some(size), _) | (None, Some(size)) => size,
            (None, None) if hidden.is_multiple_of(heads) => hidden / heads,
            (None, None) => {
                return Err(ConfigError::Contradiction(format!(
                    "hidden_size {hidden} is not a multiple of num_attention_heads {heads}, and there is no head_dim"
                )));
            }
        };
        if !heads.is_multiple_of(kv_heads) {
            return Err(ConfigError::Contradiction(format!(
                "num_attention_heads {heads} is not a multiple of num_key_value_heads {kv_heads}"
            )));
        }
        if !head_dim.is_multiple_of(2) {
            return Err(ConfigError::Contradiction(format!("head_dim {head_dim} is odd")));
        }

        // Options.
        let (qkv_bias, out_bias, mlp_bias) = match family.bias {
            Bias::Never => (false, false, false),
            Bias::Qkv => {
                // Some files have the key; these models have the biases regardless.
                keys.flag_or("attention_bias", true)?;
                (true, false, false)
            }
            Bias::QkvUnless { key } => (keys.flag_or(key, true)?, false, false),
            Bias::AllUnless => {
                let attention = keys.flag_or("attention_bias", true)?;
                (attention, attention, true)
            }
            Bias::Configured { mlp } => {
                let attention = keys.flag_or("attention_bias", false)?;
                (attention, attention, mlp && keys.flag_or("mlp_bias", false)?)
            }
        };
        let query_scalar = match family.query_scalar {
            true => keys.number_or("query_pre_attn_scalar", QUERY_SCALAR)?,
            false => head_dim as f64,
        };
        let mut multiplier = |key: &str| match family.multipliers {
            true => keys.number_or(key, 1.0).map(Some),
            false => Ok(None),
        };
        let embedding_scale = multiplier("embedding_multiplier")?;
        let attention_scale = multiplier("attention_multiplier")?;
        let residual_scale = multiplier("residual_multiplier")?;
        let logit_divisor = multiplier("logits_scaling")?;
        let mut cap = |key: &str, of: usize| match family.softcaps {
            // null is no cap, an absent key the default.
            Some(caps) if keys.absent(key) => Ok(Some(caps[of])),
            Some(_) => keys.optional_number(key),
            None if of == 1 && family.final_cap => keys.optional_number(key),
            None => Ok(None),
        };
        let score_cap = cap("attn_logit_softcapping", 0)?;
        let logit_cap = cap("final_logit_softcapping", 1)?;
        let clip_qkv = match family.clip_qkv {
            true => keys.optional_number("clip_qkv")?,
            false => None,
        };
        let max_positions = keys.size_or("max_position_embeddings", family.max_positions)?;
        let global = GlobalHeads::read(&mut keys, family, head_dim, kv_heads, heads)?;
        let global_head_dim = global.head_dim;
        let context = HeadContext { head_dim, kv_heads, global_head_dim, max_positions, family };
        let delta_nets = delta_nets(&mut keys, family, layers)?;
        let (mut attention, query_scaling) = attention(&mut keys, &context, layers, &delta_nets)?;
        for attention in
            attention.iter_mut().filter(|a| family.differing_heads && a.window.is_none())
        {
            attention.head_dim = global.head_dim;
            attention.kv_heads = global.kv_heads;
            attention.values_are_keys = global.values_are_keys;
        }
        check_per_layer_config(&mut keys, family, &attention)?;
        share_keys(&mut keys, family, &mut attention)?;
        let experts = experts(&mut keys, family, layers)?;
        let every = experts.as_ref().filter(|e| e.layers.iter().all(|has| *has));
        let ff = match every {
            // Files contain the key anyway.
            Some(experts) => {
                keys.value("intermediate_size");
                experts.ff
            }
            None => keys.size("intermediate_size")?,
        };
        let config = Config {
            family,
            hidden,
            ff,
            experts,
            delta_nets,
            encoder: None,
            per_layer: per_layer_embedding(&mut keys, family)?,
            double_wide: family.differing_heads && keys.flag_or("use_double_wide_mlp", false)?,
            layers,
            heads,
            kv_heads,
            head_dim,
            vocab: keys.size("vocab_size")?,
            max_positions,
            norm_eps: keys.number_or("rms_norm_eps", family.norm_eps)? as f32,
            activation: activation(&mut keys, family)?,
            qkv_bias,
            out_bias,
            mlp_bias,
            tied: keys.flag_or("tie_word_embeddings", family.tied)?,
            attention_scale: match family.unscaled_scores {
                true => 1.0,
                false => attention_scale.unwrap_or(query_scalar.powf(-0.5)) as f32,
            },
            embedding_scale: match family.scaled_embedding {
                true => (hidden as f32).sqrt(),
                false => embedding_scale.unwrap_or(1.0) as f32,
            },
            residual_scale: residual_scale.unwrap_or(1.0) as f32,
            logit_scale: logit_divisor.map_or(1.0, f64::recip) as f32,
            score_cap: score_cap.map(|cap| cap as f32),
            logit_cap: logit_cap.map(|cap| cap as f32),
            clip_qkv: clip_qkv.map(|clip| clip as f32),
            query_scaling,
            attention,
            notes: Vec::new(),
        };
        Ok(Config { notes: keys.finish()?, ..config })
    }

    /// The feature of this model that the backward pass does not support, if any.
    pub fn untrainable(&self) -> Option<&'static str> {
        self.encoder.as_ref().map(|_| "encoders")
    }

    /// Whether its MLP has no gate.
    pub fn is_ungated(&self) -> bool {
        self.family.names.mlp[0].is_empty()
    }

    /// Query heads per key-value head.
    pub fn group_size(&self) -> usize {
        self.heads / self.kv_heads
    }

    /// The delta net of a layer, if it has one instead of attention.
    pub fn delta_net(&self, layer: usize) -> Option<DeltaNetSizes> {
        let nets = self.delta_nets.as_ref().filter(|nets| nets.layers[layer])?;
        Some(nets.sizes)
    }

    /// Width of the MLP of a layer that every token goes through, if it has one.
    pub fn mlp_width(&self, layer: usize) -> Option<usize> {
        let experts = self.experts.as_ref().filter(|experts| experts.layers[layer]);
        let ff = experts.map_or(Some(self.ff), |experts| experts.shared_ff)?;
        let doubled = self.double_wide && self.attention[layer].shared_from.is_some();
        Some(if doubled { 2 * ff } else { ff })
    }

    /// The widths of all MLPs and experts.
    pub fn mlp_widths(&self) -> BTreeSet<usize> {
        let experts = self.experts.as_ref().map(|experts| experts.ff);
        (0..self.layers).filter_map(|layer| self.mlp_width(layer)).chain(experts).collect()
    }

    /// Whether all layers have the same kind of attention, with keys and values of their
    /// own and heads of the same size.
    pub fn has_equal_heads(&self) -> bool {
        let (first, others) = self.attention.split_first().expect("at least one layer");
        let size = |a: &LayerAttention| (a.head_dim, a.kv_heads, a.values_are_keys, a.shared_from);
        self.delta_nets.is_none() && others.iter().all(|other| size(other) == size(first))
    }

    /// Total width of the query heads, in the widest layer.
    pub fn q_width(&self) -> usize {
        let attention = self.attention.iter().map(|a| self.heads * a.head_dim);
        let nets = self.delta_nets.as_ref().map(|nets| nets.sizes.value_width());
        attention.chain(nets).max().unwrap_or(0)
    }

    /// Total width of the key heads, equal to that of the value heads, in the widest layer.
    pub fn kv_width(&self) -> usize {
        let attention = self.attention.iter().map(|a| a.kv_heads * a.head_dim);
        let nets = self.delta_nets.as_ref().map(|nets| nets.sizes.channels());
        attention.chain(nets).max().unwrap_or(0)
    }
}

/// Whether a config.json ties the embeddings, explicitly or by its family's
/// default.
pub fn ties_embeddings(json: &Value) -> bool {
    let by_family = || family(json).is_ok_and(|family| family.tied);
    json["tie_word_embeddings"].as_bool().unwrap_or_else(by_family)
}

/// The tensor of the embedding of words, by the family that a config.json names.
pub fn embedding_name(json: &Value) -> &'static str {
    family(json).map_or("model.embed_tokens.weight", Family::embedding)
}

/// The family named by `architectures`.
fn family(json: &Value) -> Result<&'static Family, ConfigError> {
    let missing = || ConfigError::Missing { key: "architectures".into() };
    let named = json.get("architectures").ok_or_else(missing)?;
    let name = match named.as_array().map(Vec::as_slice) {
        Some([name]) => name.as_str().ok_or_else(missing)?,
        _ => {
            return Err(ConfigError::Kind {
                key: "architectures".into(),
                found: named.to_string(),
                want: "a list of one name",
            });
        }
    };
    Family::find(name).ok_or_else(|| ConfigError::Architecture {
        name: name.into(),
        known: FAMILIES
            .iter()
            .flat_map(|f| f.architectures)
            .copied()
            .collect::<Vec<_>>()
            .join(", "),
    })
}

/// The MLP's activation function.
fn activation(keys: &mut ConfigReader<'_>, family: &Family) -> Result<Activation, ConfigError> {
    // Older Gemma configs have both keys; transformers ignores the other.
    let other = if family.activation_key == "hidden_act" { None } else { Some("hidden_act") };
    let key = family.activation_key;
    let found = keys.value(key).or_else(|| other.and_then(|key| keys.value(key)));
    // transformers' defaults.
    let default = if other.is_some() { "gelu_pytorch_tanh" } else { "silu" };
    if let Some(other) = other {
        keys.value(other);
    }
    match found.map_or(Some(default), Value::as_str) {
        Some("silu" | "swish") if family.clamped_swiglu => Ok(Activation::ClampedSwiglu {
            alpha: keys.number_or("swiglu_alpha", SWIGLU_ALPHA)? as f32,
            limit: keys.number_or("swiglu_limit", SWIGLU_LIMIT)? as f32,
        }),
        Some("silu" | "swish") => Ok(Activation::Silu),
        Some("gelu_pytorch_tanh") => Ok(Activation::GeluTanh),
        _ => {
            let found = found.unwrap_or(&Value::Null);
            Err(keys.unsupported(key, found, "only silu and gelu_pytorch_tanh"))
        }
    }
}

#[cfg(test)]
mod tests {
    use super::super::config_reader::NEUTRAL;
    use super::super::rope::Scaling;
    use super::*;
    use serde_json::json;

    fn llama() -> Value {
        json!({
            "architectures": ["LlamaForCausalLM"], "model_type": "llama",
            "hidden_size": 64, "intermediate_size": 128, "num_hidden_layers": 3,
            "num_attention_heads": 4, "num_key_value_heads": 2, "vocab_size": 100,
            "max_position_embeddings": 256, "rms_norm_eps": 1e-5, "hidden_act": "silu",
            "rope_theta": 500000.0, "tie_word_embeddings": true, "torch_dtype": "bfloat16",
        })
    }

    fn with(mut config: Value, key: &str, value: Value) -> Value {
        config[key] = value;
        config
    }

    fn refusal(config: &Value) -> String {
        Config::new(config).expect_err("a refusal").to_string()
    }

    #[test]
    fn both_spellings_of_rope_mean_the_same() {
        let scaling = json!({
            "rope_type": "llama3", "factor": 32.0, "low_freq_factor": 1.0,
            "high_freq_factor": 4.0, "original_max_position_embeddings": 8192,
        });
        let old = with(llama(), "rope_scaling", scaling.clone());
        let mut new =
            with(llama(), "rope_parameters", with(scaling, "rope_theta", json!(500000.0)));
        new.as_object_mut().expect("an object").remove("rope_theta");
        assert_eq!(
            Config::new(&old).expect("old").attention,
            Config::new(&new).expect("new").attention
        );

        // The oldest name of the kind, and a scaling of nothing.
        let linear = with(llama(), "rope_scaling", json!({"type": "linear", "factor": 4.0}));
        assert_eq!(
            Config::new(&linear).expect("linear").attention[0]
                .rope
                .as_ref()
                .expect("a rotation")
                .scaling,
            Scaling::Linear { factor: 4.0 }
        );
        assert!(Config::new(&with(llama(), "rope_scaling", Value::Null)).is_ok());
    }

    #[test]
    fn gemma_spellings_mean_the_same() {
        let base = json!({
            "architectures": ["Gemma3ForCausalLM"], "model_type": "gemma3_text",
            "hidden_size": 64, "intermediate_size": 128, "num_hidden_layers": 7,
            "num_attention_heads": 4, "num_key_value_heads": 1, "head_dim": 32, "vocab_size": 100,
            "max_position_embeddings": 256, "rms_norm_eps": 1e-6, "sliding_window": 16,
            "hidden_activation": "gelu_pytorch_tanh", "query_pre_attn_scalar": 256,
            "attn_logit_softcapping": null, "final_logit_softcapping": null,
        });
        let mut old = base.clone();
        for (key, value) in [
            ("rope_theta", json!(1e6)),
            ("rope_local_base_freq", json!(1e4)),
            ("rope_scaling", json!({"rope_type": "linear", "factor": 8.0})),
            ("sliding_window_pattern", json!(6)),
        ] {
            old[key] = value;
        }
        let mut new = base;
        new["layer_types"] = (0..7)
            .map(|i| if i == 5 { "full_attention" } else { "sliding_attention" })
            .collect::<Vec<_>>()
            .into();
        new["rope_parameters"] = json!({
            "full_attention": {"rope_type": "linear", "rope_theta": 1e6, "factor": 8.0},
            "sliding_attention": {"rope_type": "default", "rope_theta": 1e4},
        });
        let (old, new) = (Config::new(&old).expect("old"), Config::new(&new).expect("new"));
        assert_eq!(old.attention, new.attention);
        assert_eq!(old.attention_scale, 1.0 / 16.0);
        assert!(old.tied);
        assert_eq!(new.attention[5].window, None);
        assert_eq!(new.attention[6].window, Some(16));
    }

    #[test]
    fn defaults_are_those_of_transformers() {
        let bare = |class: &str| {
            json!({
                "architectures": [class], "hidden_size": 256, "intermediate_size": 128,
                "num_hidden_layers": 30, "num_attention_heads": 64, "vocab_size": 100,
                "hidden_act": "swish", "hidden_activation": "gelu_pytorch_tanh",
            })
        };
        for (class, kv_heads, positions, theta, window) in [
            ("LlamaForCausalLM", 64, 2048, 1e4, None),
            ("MistralForCausalLM", 8, 131_072, 1e4, Some(4096)),
            ("Qwen2ForCausalLM", 32, 32_768, 1e4, None),
            ("Qwen3ForCausalLM", 32, 32_768, 1e4, None),
            ("Gemma3ForCausalLM", 4, 131_072, 1e6, None),
        ] {
            let config = Config::new(&bare(class)).expect(class);
            assert_eq!((config.kv_heads, config.max_positions), (kv_heads, positions), "{class}");
            assert_eq!(config.norm_eps, 1e-6, "{class}");
            let silu = config.activation == Activation::Silu;
            assert_eq!(silu, config.family.name != "gemma3", "{class}");
            // Layer 5 is Gemma's first global one.
            let layer = &config.attention[5];
            let rope = layer.rope.as_ref().expect("a rotation");
            assert_eq!((rope.theta, layer.window), (theta, window), "{class}");
            // A null is no default: as many as heads, no window.
            let null = with(bare(class), "num_key_value_heads", Value::Null);
            assert_eq!(Config::new(&null).expect(class).kv_heads, 64, "{class}");
        }
        let gemma = Config::new(&bare("Gemma3ForCausalLM")).expect("gemma");
        assert_eq!(gemma.attention_scale, 1.0 / 16.0);
        let first = &gemma.attention[0];
        assert_eq!((first.rope.as_ref().map(|r| r.theta), first.window), (Some(1e4), Some(4096)));
        let open = with(bare("MistralForCausalLM"), "sliding_window", Value::Null);
        assert_eq!(Config::new(&open).expect("mistral").attention[0].window, None);
        let qwen = with(bare("Qwen2ForCausalLM"), "use_sliding_window", json!(true));
        let windows: Vec<_> =
            Config::new(&qwen).expect("qwen").attention.iter().map(|layer| layer.window).collect();
        assert_eq!((windows[27], windows[28]), (None, Some(4096)));
    }

    #[test]
    fn two_rotations_are_one_or_a_contradiction() {
        let linear = json!({"rope_type": "linear", "factor": 4.0});
        let both = |new: Value| {
            with(with(llama(), "rope_scaling", linear.clone()), "rope_parameters", new)
        };
        for same in [linear.clone(), with(linear.clone(), "rope_theta", json!(500000.0))] {
            assert!(Config::new(&both(same)).is_ok());
        }
        for other in [
            json!({"rope_type": "default", "rope_theta": 500000.0}),
            with(linear.clone(), "rope_theta", json!(10000.0)),
            json!({"rope_type": "linear", "factor": 2.0}),
        ] {
            assert_eq!(
                refusal(&both(other)),
                "config.json: rope_parameters and rope_scaling differ; remove one of them"
            );
        }
        let empty = with(both(json!({"rope_type": "default"})), "rope_scaling", json!({}));
        assert!(Config::new(&empty).is_ok());
    }

    #[test]
    fn unsupported_options_are_refused_by_name() {
        for (key, value, words) in [
            (
                "architectures",
                json!(["BloomForCausalLM"]),
                "the architecture BloomForCausalLM is not supported (supported: LlamaForCausalLM, ",
            ),
            (
                "model_type",
                json!("qwen3"),
                "model_type qwen3 does not match architecture LlamaForCausalLM",
            ),
            (
                "hidden_act",
                json!("relu2"),
                "hidden_act = \"relu2\" is not supported for llama models",
            ),
            (
                "rope_scaling",
                json!({"rope_type": "dynamic", "factor": 4.0}),
                "rope_type = \"dynamic\" is not supported",
            ),
            ("num_experts", json!(8), "num_experts = 8 is not supported"),
            (
                "attn_logit_softcapping",
                json!(50.0),
                "attn_logit_softcapping = 50.0 is not supported",
            ),
            ("partial_rotary_factor", json!(0.5), "partial_rotary_factor = 0.5 is not supported"),
            ("quantization_config", json!({"bits": 4}), "quantization_config = "),
            ("hidden_size", json!(-1), "hidden_size is -1, not a size from 1 to 16777216"),
            ("hidden_size", json!(1e30), "not a size from 1 to"),
            (
                "num_hidden_layers",
                json!(1 << 24),
                "num_hidden_layers is 16777216, not a number of layers from 1 to 4096",
            ),
            ("hidden_size", Value::Null, "config.json has no hidden_size"),
            (
                "num_key_value_heads",
                json!(3),
                "num_attention_heads 4 is not a multiple of num_key_value_heads 3",
            ),
            ("head_dim", json!(7), "head_dim 7 is odd"),
            ("rms_norm_eps", json!("small"), "rms_norm_eps is \"small\", not a positive number"),
        ] {
            let message = refusal(&with(llama(), key, value));
            assert!(message.contains(words), "{key}: {message}");
        }
        assert!(refusal(&json!([])).contains("architectures"));
    }

    #[test]
    fn neutral_values_pass_and_unknown_keys_are_noted() {
        let config = with(llama(), "attn_logit_softcapping", Value::Null);
        let config = with(config, "pretraining_tp", json!(1));
        assert_eq!(Config::new(&config).expect("neutral").notes, Vec::<String>::new());
        let notes = Config::new(&with(config, "wings", json!(2))).expect("unknown").notes;
        assert_eq!(notes, ["config.json: wings = 2 is unknown and was ignored"]);
        assert!(NEUTRAL.contains(&"use_cache"));
    }
}
