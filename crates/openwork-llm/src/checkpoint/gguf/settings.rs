//! The settings of a model as GGUF metadata, for export.
//!
//! llama.cpp fixes some options per architecture, without a key for them. A model with
//! others is refused: the file would be read as another model.

use super::config::SMOLLM3_INTERVAL;
use super::kinds::write_kinds;
use super::metadata_writer::MetadataWriter;
use super::names::Architecture;
use super::rope::{
    BETA_FAST, BETA_SLOW, FREQUENCIES, LONG, SHORT, growth, llama3_scaling, proportional_factors,
    rounds_ramp,
};
use crate::model::{Activation, Config, DeltaNetSizes, LayerAttention, RopeParameters, Scaling};
use serde_json::Value;

/// Tensors of RoPE factors: their names and bytes.
pub(super) type Vectors = Vec<(&'static str, Vec<u8>)>;

/// Families whose head size llama.cpp computes from the hidden size.
const DERIVED_HEAD_SIZE: &[&str] = &["olmo2", "olmo3", "olmoe", "phi3", "qwen2-moe"];
/// Families for which llama.cpp reads no biases of linear layers.
const NO_BIAS: &[&str] = &["gemma4", "olmo2", "olmo3", "olmoe", "qwen3-moe"];

/// The SwiGLU of gpt-oss.
const SWIGLU: Activation = Activation::ClampedSwiglu { alpha: 1.702, limit: 7.0 };

/// Writes the settings of `config`, whose `config.json` is `json`; returns the RoPE factors
/// that are stored as tensors.
pub(super) fn settings(
    entries: &mut MetadataWriter,
    architecture: &Architecture,
    config: &Config,
    json: &Value,
) -> Result<Vectors, String> {
    let family = config.family.name;
    let key = |key: &str| format!("{}.{key}", architecture.name);
    refuse_fixed(architecture, config)?;
    // The sizes of a config fit 32 bits.
    let mut number = |name: &str, value: usize| entries.number(&key(name), value as u32);
    number("block_count", config.layers);
    number("context_length", config.max_positions);
    number("embedding_length", config.hidden);
    number("vocab_size", config.vocab);
    number("attention.head_count", config.heads);
    let kinds = config.family.differing_heads;
    if !kinds {
        number("feed_forward_length", config.ff);
        number("attention.head_count_kv", config.kv_heads);
        number("attention.key_length", config.head_dim);
        number("attention.value_length", config.head_dim);
    }
    if let Some(experts) = &config.experts {
        number("expert_count", experts.count);
        number("expert_used_count", experts.active);
        number("expert_feed_forward_length", experts.ff);
        if let Some(ff) = experts.shared_ff.filter(|_| !experts.beside_mlp) {
            number("expert_shared_feed_forward_length", ff);
        }
    }
    entries.float(&key("attention.layer_norm_rms_epsilon"), config.norm_eps);
    if config.family.multipliers {
        entries.float(&key("attention.scale"), config.attention_scale);
        entries.float(&key("embedding_scale"), config.embedding_scale);
        entries.float(&key("residual_scale"), config.residual_scale);
        // As it is in the file: 1 / (1 / x) may differ.
        let logits = json["logits_scaling"].as_f64().unwrap_or(1.0);
        entries.float(&key("logit_scale"), logits as f32);
    }
    if config.family.final_cap {
        // llama.cpp assumes a bound where the key is missing.
        entries.float(&key("final_logit_softcapping"), config.logit_cap.unwrap_or(0.0));
    }
    window(entries, architecture, config)?;
    delta_net(entries, architecture, config)?;
    let rope = rope(config)?;
    match kinds {
        true => write_kinds(entries, architecture, config)?,
        false => entries.number(&key("rope.dimension_count"), rope.rotated as u32),
    }
    if let Some(sliding) = own_local_rope(config) {
        entries.float(&key("rope.freq_base_swa"), sliding.theta as f32);
    }
    if config.family.rotation.has_sections {
        entries.integers(&key("rope.dimension_sections"), &sections(rope, json));
    }
    entries.float(&key("rope.freq_base"), rope.theta as f32);
    if let Some(scaling) = config.query_scaling {
        let Scaling::Yarn { original, .. } = rope.scaling else {
            return Err("its queries are scaled by position without YaRN".to_string());
        };
        if original != scaling.original {
            return Err(format!("{family} with two original contexts"));
        }
        entries.float(&key("attention.temperature_scale"), scaling.beta as f32);
    }
    rope_scaling(entries, architecture, config, rope)
}

/// Refuses options that llama.cpp fixes for an architecture.
fn refuse_fixed(architecture: &Architecture, config: &Config) -> Result<(), String> {
    let (family, name) = (config.family.name, architecture.name);
    if let Some(experts) = &config.experts {
        if let Some(layer) = experts.layers.iter().position(|has| !has) {
            return Err(format!(
                "layer {layer} has no experts, but in GGUF all layers of {name} do"
            ));
        }
        if experts.normalized != architecture.normalized {
            let only = if architecture.normalized { "sum to 1" } else { "do not sum to 1" };
            return Err(format!("the weights of a token's experts {only} in {name}"));
        }
    }
    if config.clip_qkv.is_some() {
        return Err(format!("{name} has no clip_qkv"));
    }
    if DERIVED_HEAD_SIZE.contains(&family) && config.q_width() != config.hidden {
        return Err(format!(
            "its {} heads of {} do not have the width of its hidden states, {}",
            config.heads, config.head_dim, config.hidden
        ));
    }
    if NO_BIAS.contains(&family) && (config.qkv_bias || config.out_bias) {
        return Err(format!("{name} has no biases"));
    }
    if family == "gpt-oss" {
        if config.activation != SWIGLU {
            return Err(format!("the SwiGLU of {name} has swiglu_alpha 1.702 and swiglu_limit 7"));
        }
        if !config.out_bias {
            return Err(format!("all linear layers of {name} have biases"));
        }
        if config.tied {
            return Err(format!("the head of {name} is not tied to the embedding"));
        }
    }
    if family == "olmoe" && config.kv_heads != config.heads {
        return Err(format!("{name} has as many key-value heads as heads"));
    }
    Ok(())
}

/// Writes the sizes of gated delta nets, and which layers have one.
fn delta_net(
    entries: &mut MetadataWriter,
    architecture: &Architecture,
    config: &Config,
) -> Result<(), String> {
    let Some(nets) = &config.delta_nets else { return Ok(()) };
    let key = |key: &str| format!("{}.{key}", architecture.name);
    let DeltaNetSizes { key_heads, value_heads, key_dim, value_dim, kernel } = nets.sizes;
    if key_dim != value_dim {
        return Err(format!(
            "the keys and values of its delta nets have heads of {key_dim} and {value_dim}, which are of one size in {}",
            architecture.name
        ));
    }
    for (name, value) in [
        ("ssm.conv_kernel", kernel),
        ("ssm.state_size", key_dim),
        ("ssm.group_count", key_heads),
        ("ssm.time_step_rank", value_heads),
        ("ssm.inner_size", nets.sizes.value_width()),
    ] {
        entries.number(&key(name), value as u32);
    }
    // Older readers have no list of layers.
    let every = nets.layers.iter().position(|net| !net).map_or(config.layers, |i| i) + 1;
    let regular = |(i, &net): (usize, &bool)| net != (i + 1).is_multiple_of(every);
    if !nets.layers.iter().enumerate().all(regular) {
        return Err("its layers with attention are not every n-th".to_string());
    }
    entries.number(&key("full_attention_interval"), every as u32);
    Ok(())
}

/// Writes the sliding window.
fn window(
    entries: &mut MetadataWriter,
    architecture: &Architecture,
    config: &Config,
) -> Result<(), String> {
    let key = |key: &str| format!("{}.{key}", architecture.name);
    let window = config.attention.iter().find_map(|layer| layer.window);
    match (config.family.name, window) {
        ("olmo3" | "gemma4", Some(window)) => {
            let slides: Vec<bool> =
                config.attention.iter().map(|layer| layer.window.is_some()).collect();
            entries.number(&key("attention.sliding_window"), window as u32);
            entries.flags(&key("attention.sliding_window_pattern"), &slides);
        }
        ("olmo3" | "gpt-oss" | "gemma4", None) => {
            return Err("none of its layers has a sliding window".to_string());
        }
        ("gpt-oss", Some(window)) => {
            let slides =
                |(i, layer): (usize, &LayerAttention)| (i % 2 == 0) == layer.window.is_some();
            if !config.attention.iter().enumerate().all(slides) {
                return Err(
                    "its sliding layers are not every other one from the first on".to_string()
                );
            }
            entries.number(&key("attention.sliding_window"), window as u32);
        }
        // llama.cpp tells models without a window by the 0.
        ("phi3", window) => {
            entries.number(&key("attention.sliding_window"), window.unwrap_or(0) as u32)
        }
        ("mistral" | "mixtral", Some(window)) => {
            entries.number(&key("attention.sliding_window"), window as u32)
        }
        (_, None) => {}
        (family, Some(_)) if config.attention.iter().all(|layer| layer.window.is_some()) => {
            return Err(format!("GGUF has no sliding window for {family}"));
        }
        (_, Some(_)) => return Err("its layers have different attention settings".to_string()),
    }
    Ok(())
}

/// The planes of each image axis. They coincide for text, but llama.cpp requires the key.
fn sections(rope: &RopeParameters, json: &Value) -> [i32; 4] {
    let given = &json["rope_parameters"]["mrope_section"];
    let mut sections = [0; 4];
    for (section, given) in sections.iter_mut().zip(given.as_array().into_iter().flatten()) {
        *section = given.as_i64().and_then(|planes| i32::try_from(planes).ok()).unwrap_or(0);
    }
    if sections == [0; 4] {
        // Shared out as Qwen3.5's 32 planes are: 11, 11 and 10.
        let planes = (rope.rotated / 2) as i32;
        sections = [planes - 2 * (planes / 3), planes / 3, planes / 3, 0];
    }
    sections
}

/// The rotation of the layers, which is that of the global ones where there are two.
fn rope(config: &Config) -> Result<&RopeParameters, String> {
    let different = || "its layers have different attention settings".to_string();
    let rotates = |i: usize| match config.family.rotation.skips_layers {
        true => !(i + 1).is_multiple_of(SMOLLM3_INTERVAL),
        false => true,
    };
    for (i, layer) in config.attention.iter().enumerate() {
        match (layer.rope.is_some(), rotates(i)) {
            _ if config.delta_net(i).is_some() => {}
            (true, false) => return Err(format!("llama.cpp does not rotate its layer {i}")),
            (false, true) => return Err(format!("its layer {i} does not rotate its heads")),
            _ => {}
        }
    }
    let global = |layer: &&LayerAttention| layer.window.is_none() && layer.rope.is_some();
    let rotated = |layer: &&LayerAttention| layer.rope.is_some();
    let found = config.attention.iter().find(global).or(config.attention.iter().find(rotated));
    let Some(rope) = found.and_then(|layer| layer.rope.as_ref()) else {
        return Err("its layers do not rotate their heads".to_string());
    };
    for layer in config.attention.iter() {
        // Sliding layers of OLMo 3 have the same base without scaling.
        let plain = RopeParameters { scaling: Scaling::None, ..rope.clone() };
        let own = match config.family.local_rope.is_some() && layer.window.is_some() {
            true => own_local_rope(config).unwrap_or(&plain),
            false => rope,
        };
        if layer.rope.as_ref().is_some_and(|found| found != own) {
            return Err(different());
        }
    }
    Ok(rope)
}

/// The rotation of sliding layers, in a family where they have a base and heads of their own;
/// it has no scaling.
fn own_local_rope(config: &Config) -> Option<&RopeParameters> {
    let sliding = config.attention.iter().find(|layer| layer.window.is_some());
    let rope = sliding.filter(|_| config.family.differing_heads)?.rope.as_ref()?;
    (rope.scaling == Scaling::None).then_some(rope)
}

/// Writes the scaling of RoPE; returns what is stored as tensors.
fn rope_scaling(
    entries: &mut MetadataWriter,
    architecture: &Architecture,
    config: &Config,
    rope: &RopeParameters,
) -> Result<Vectors, String> {
    let key = |key: &str| format!("{}.rope.scaling.{key}", architecture.name);
    let half = rope.rotated / 2;
    match &rope.scaling {
        Scaling::None => Ok(Vec::new()),
        Scaling::Linear { factor } => {
            entries.text(&key("type"), "linear");
            entries.float(&key("factor"), *factor as f32);
            Ok(Vec::new())
        }
        scaling @ Scaling::Llama3 { .. } => {
            let factors = scaling.divisors(rope.theta, half);
            match llama3_scaling(rope.theta, rope.rotated as u32, &factors) {
                Some(_) => Ok(vec![(FREQUENCIES, bytes(factors.into_iter()))]),
                None => Err("its rope_scaling differs from that of Llama 3.1 to 3.3".to_string()),
            }
        }
        Scaling::Yarn { factor, fast, slow, original, truncate, attention } => {
            match (*truncate, rounds_ramp(config.family)) {
                (false, true) => {
                    return Err("its rope_scaling does not round the ends of the ramp".to_string());
                }
                (true, false) => {
                    return Err("its rope_scaling rounds the ends of the ramp".to_string());
                }
                _ => {}
            }
            entries.text(&key("type"), "yarn");
            entries.float(&key("factor"), *factor as f32);
            entries.number(&key("original_context_length"), *original as u32);
            if (*fast, *slow) != (BETA_FAST, BETA_SLOW) || config.query_scaling.is_some() {
                entries.float(&key("yarn_beta_fast"), *fast as f32);
                entries.float(&key("yarn_beta_slow"), *slow as f32);
            }
            let default = growth(*factor, 1.0);
            if *attention == 1.0 && config.query_scaling.is_some() {
                entries.float(&key("yarn_log_multiplier"), 1.0);
            } else if *attention != default {
                entries.float(&key("attn_factor"), (attention / default) as f32);
            }
            Ok(Vec::new())
        }
        Scaling::Proportional { planes, factor: 1.0 } => {
            let factors = proportional_factors(*planes, half);
            Ok(vec![(FREQUENCIES, bytes(factors.into_iter()))])
        }
        Scaling::Proportional { .. } => {
            Err("its proportional RoPE has a factor other than 1".to_string())
        }
        Scaling::Long { short, long, original, attention } => {
            entries.number(&key("original_context_length"), *original as u32);
            entries.float(&key("attn_factor"), *attention as f32);
            let vector = |factors: &[f64]| bytes(factors.iter().map(|&factor| factor as f32));
            Ok(vec![(LONG, vector(long)), (SHORT, vector(short))])
        }
    }
}

fn bytes(numbers: impl Iterator<Item = f32>) -> Vec<u8> {
    numbers.flat_map(f32::to_le_bytes).collect()
}
