//! Building a `config.json` from GGUF metadata.

use super::experts::ExpertSizes;
use super::metadata::Metadata;
use super::names::{Architecture, Layout};
use super::rope::Factors;
use crate::checkpoint::error::Fault;
use crate::checkpoint::tensor::TensorInfo;
use crate::model::{Bias, Family};
use serde_json::{Map, Value, json};
use std::cell::RefCell;
use std::collections::BTreeSet;

/// Options that change the computation, and the values at which they have no effect. Those
/// that the architecture does not read are refused with any other value.
const NEUTRAL: &[(&str, &[f64])] = &[
    ("attention.clamp_kqv", &[0.0]),
    ("attention.max_alibi_bias", &[0.0]),
    ("attention.scale", &[0.0]),
    ("attention.temperature_scale", &[0.0]),
    ("attn_logit_softcapping", &[0.0]),
    ("embedding_scale", &[0.0, 1.0]),
    ("expert_count", &[0.0]),
    // Softmax over the experts.
    ("expert_gating_func", &[0.0, 1.0]),
    ("expert_group_count", &[0.0, 1.0]),
    ("expert_shared_count", &[0.0]),
    ("expert_weights_scale", &[0.0, 1.0]),
    ("final_logit_softcapping", &[0.0]),
    ("interleave_moe_layer_step", &[0.0, 1.0]),
    ("leading_dense_block_count", &[0.0]),
    ("logit_scale", &[0.0, 1.0]),
    ("nextn_predict_layers", &[0.0]),
    ("residual_scale", &[0.0, 1.0]),
    ("rope.scaling.attn_factor", &[1.0]),
    ("router_logit_softcapping", &[0.0]),
];

/// Keys that do not affect the computation.
const IGNORED: &[&str] = &[
    "expert_group_used_count",
    "expert_used_count",
    "pooling_type",
    "rope.scaling.finetuned",
    "rope.scaling.original_context_length",
    "tensor_data_layout",
    "vocab_size",
];

/// The number of planes of each image axis; they coincide for text.
const SECTIONS: &str = "rope.dimension_sections";

/// Default RoPE base.
const BASE: f64 = 10_000.0;
/// Gemma 3's defaults: RoPE base 10,000 in sliding layers and a million in global ones.
const GEMMA3_LOCAL_BASE: f64 = 10_000.0;
const GEMMA3_GLOBAL_BASE: f64 = 1_000_000.0;
/// Gemma 4's default bound of logits.
const GEMMA4_CAP: f64 = 30.0;
/// Architectures and the number of layers of their 27B, the only size that scales queries
/// by hidden size over heads.
const GEMMA_27B_LAYERS: &[(&str, u32)] = &[("gemma3", 62), ("gemma2", 46)];
/// Every fourth layer of SmolLM3 is not rotated; llama.cpp has no key for it.
pub(super) const SMOLLM3_INTERVAL: usize = 4;

/// Reads the keys of an architecture and records which were read.
pub(super) struct ConfigBuilder<'a> {
    pub architecture: &'static Architecture,
    pub family: &'static Family,
    pub metadata: &'a Metadata,
    /// The file, for values that are lists.
    pub bytes: &'a [u8],
    asked: RefCell<BTreeSet<String>>,
}

/// The size of heads, and how much of them is rotated.
#[derive(Clone, Copy)]
struct HeadSize {
    dim: u32,
    rotated: u32,
    /// That of global layers, where it differs; all of it is rotated.
    global: u32,
}

impl<'a> ConfigBuilder<'a> {
    /// For a file of a known architecture.
    pub fn new(metadata: &'a Metadata, bytes: &'a [u8]) -> Result<Self, Fault> {
        let architecture = Architecture::find(metadata)?;
        let family = architecture.family();
        Ok(Self { architecture, family, metadata, bytes, asked: RefCell::default() })
    }

    /// The full name of a key, which is recorded as read.
    pub fn key(&self, key: &str) -> String {
        let key = self.full(key);
        self.asked.borrow_mut().insert(key.clone());
        key
    }

    fn full(&self, key: &str) -> String {
        format!("{}.{key}", self.architecture.name)
    }

    /// Notes on the architecture's keys that were not read.
    pub fn notes(&self) -> Vec<String> {
        let prefix = format!("{}.", self.architecture.name);
        let asked = self.asked.borrow();
        let mut notes = Vec::new();
        for (key, value) in self.metadata.iter() {
            let Some(short) = key.strip_prefix(&prefix) else { continue };
            if !asked.contains(key) && !IGNORED.contains(&short) {
                notes.push(format!("metadata {key:?} = {value} is unknown and was ignored"));
            }
        }
        notes
    }

    pub fn refuse(&self, key: &str, why: String) -> Fault {
        Fault::Metadata { key: self.key(key), why }
    }

    pub fn number(&self, key: &str) -> Result<Option<u32>, Fault> {
        self.metadata.number(&self.key(key))
    }

    /// A required, nonzero number.
    pub fn needed(&self, key: &str) -> Result<u32, Fault> {
        match self.number(key)? {
            Some(0) => Err(self.refuse(key, "is 0".to_string())),
            Some(n) => Ok(n),
            None => Err(self.refuse(key, "is missing".to_string())),
        }
    }

    pub fn float(&self, key: &str) -> Result<Option<f64>, Fault> {
        self.metadata.float(&self.key(key))
    }

    pub fn flag(&self, key: &str) -> Result<Option<bool>, Fault> {
        self.metadata.flag(&self.key(key))
    }

    pub fn text(&self, key: &str) -> Result<Option<String>, Fault> {
        self.metadata.text(&self.key(key))
    }

    /// The value of the first key that exists.
    pub fn first_float(&self, keys: &[&str]) -> Result<Option<f64>, Fault> {
        let mut found = None;
        for key in keys {
            found = found.or(self.float(key)?);
        }
        Ok(found)
    }

    fn heads(&self) -> Result<(usize, usize), Fault> {
        let heads = self.needed("attention.head_count")?;
        let by_kind = self.kv_heads_by_kind()?.unwrap_or([heads, heads]);
        if let Some(wrong) = by_kind.into_iter().find(|&kv| kv == 0 || heads % kv != 0) {
            let why = format!("is {wrong}, which does not divide head_count = {heads}");
            return Err(self.refuse("attention.head_count_kv", why));
        }
        Ok((heads as usize, by_kind[0] as usize))
    }

    /// What the names and sizes of tensors depend on.
    pub fn layout(&self) -> Result<Layout, Fault> {
        let (heads, kv_heads) = self.heads()?;
        let head_dim = self.head_size(self.needed("embedding_length")?, heads)?.dim as usize;
        let experts = self.experts()?.map_or(0, |experts| experts.count as usize);
        let (layers, own_keys) = (self.layers()? as usize, self.own_keys()? as usize);
        let delta_net = self.delta_net()?;
        let Self { architecture, family, .. } = *self;
        Ok(Layout {
            architecture,
            family,
            heads,
            kv_heads,
            head_dim,
            experts,
            layers,
            own_keys,
            delta_net,
        })
    }

    /// The config. `tensors` have Hugging Face's names.
    pub fn config(&self, tensors: &[TensorInfo], factors: &Factors<'_>) -> Result<Value, Fault> {
        let family = self.family;
        let (heads, kv_heads) = self.heads()?;
        let hidden = self.needed("embedding_length")?;
        let layers = self.layers()?;
        let size = self.head_size(hidden, heads)?;
        let context = self.needed("context_length")?;
        let has = |name: &str| tensors.iter().any(|tensor| tensor.name == name);
        let embedding = tensors.iter().find(|t| t.name == "model.embed_tokens.weight");
        let Some([vocab, _]) = embedding.map(|tensor| &tensor.shape[..]) else {
            let why = "the file has no matrix \"token_embd.weight\"".to_string();
            return Err(Fault::Shape(why));
        };

        let mut config = Map::new();
        let mut set = |key: &str, value: Value| config.insert(key.to_string(), value);
        set("architectures", json!([family.architectures[0]]));
        set("model_type", json!(family.model_type));
        set("hidden_size", json!(hidden));
        set("num_hidden_layers", json!(layers));
        set("num_attention_heads", json!(heads));
        set("num_key_value_heads", json!(kv_heads));
        set("head_dim", json!(size.dim));
        set("max_position_embeddings", json!(context));
        set("vocab_size", json!(vocab));
        set("tie_word_embeddings", json!(!has("lm_head.weight")));
        let eps = self.float("attention.layer_norm_rms_epsilon")?;
        let eps = eps.ok_or_else(|| {
            self.refuse("attention.layer_norm_rms_epsilon", "is missing".to_string())
        })?;
        set("rms_norm_eps", json!(eps));
        match self.experts()? {
            Some(experts) => self.set_experts(&experts, &mut set),
            None => {
                let width = self.feed_forward()?.filter(|&width| width > 0);
                let Some(width) = width else {
                    return self.needed("feed_forward_length").map(Value::from);
                };
                set("intermediate_size", json!(width));
            }
        }
        let gelu = family.activation_key == "hidden_activation";
        set(family.activation_key, json!(if gelu { "gelu_pytorch_tanh" } else { "silu" }));
        let bias_key = match family.bias {
            Bias::QkvUnless { key } => key,
            _ => "attention_bias",
        };
        set(bias_key, json!(has("model.layers.0.self_attn.q_proj.bias")));
        if has("model.layers.0.mlp.up_proj.bias") {
            set("mlp_bias", json!(true));
        }
        if family.query_scalar {
            let large = GEMMA_27B_LAYERS.contains(&(self.architecture.name, layers));
            let scale = if large { hidden / heads as u32 } else { size.dim };
            set("query_pre_attn_scalar", json!(scale));
        }
        self.set_multipliers(size.dim, &mut set)?;
        self.set_rope(size, context, factors, &mut set)?;
        self.set_window(layers, &mut set)?;
        self.set_delta_net(layers, &mut set)?;
        self.set_kinds(size.global, tensors, &mut set)?;
        for key in ["bos_token_id", "eos_token_id"] {
            if let Some(id) = self.metadata.number(&format!("tokenizer.ggml.{key}"))? {
                set(key, json!(id));
            }
        }
        self.refuse_unknown_mathematics()?;
        Ok(Value::Object(config))
    }

    /// Refuses options that change the computation and were not read.
    fn refuse_unknown_mathematics(&self) -> Result<(), Fault> {
        let not_read = |found: String| format!("is {found}, which is not supported");
        for &(key, neutral) in NEUTRAL {
            if self.asked.borrow().contains(&self.full(key)) {
                continue;
            }
            if let Some(value) = self.float(key)?.filter(|value| !neutral.contains(value)) {
                return Err(self.refuse(key, not_read(value.to_string())));
            }
        }
        let rotates = ("rope.scaling.finetuned", true);
        let flags = [("attention.causal", true), ("use_parallel_residual", false)];
        // Granite's files without rotation say so by this key.
        for (key, neutral) in flags.into_iter().chain(self.family.multipliers.then_some(rotates)) {
            if let Some(value) = self.flag(key)?.filter(|&value| value != neutral) {
                return Err(self.refuse(key, not_read(value.to_string())));
            }
        }
        if let Some(sections) = self.metadata.get(&self.key(SECTIONS))
            && !self.family.rotation.has_sections
        {
            return Err(self.refuse(SECTIONS, not_read(sections.to_string())));
        }
        Ok(())
    }

    /// Factors, bounds and clamps.
    fn set_multipliers(
        &self,
        head_dim: u32,
        set: &mut impl FnMut(&str, Value) -> Option<Value>,
    ) -> Result<(), Fault> {
        let nonzero = |key: &str| -> Result<Option<f64>, Fault> {
            Ok(self.float(key)?.filter(|&value| value != 0.0))
        };
        if self.family.multipliers {
            let scale = nonzero("attention.scale")?;
            let scale = scale.unwrap_or_else(|| f64::from(head_dim).powf(-0.5));
            set("attention_multiplier", json!(scale));
            for (there, key) in [
                ("embedding_multiplier", "embedding_scale"),
                ("residual_multiplier", "residual_scale"),
                ("logits_scaling", "logit_scale"),
            ] {
                set(there, json!(nonzero(key)?.unwrap_or(1.0)));
            }
        }
        if let Some(defaults) = self.family.softcaps {
            let keys = ["attn_logit_softcapping", "final_logit_softcapping"];
            for (key, default) in keys.into_iter().zip(defaults) {
                let cap = self.float(key)?.unwrap_or(default);
                set(key, if cap == 0.0 { Value::Null } else { json!(cap) });
            }
        }
        if self.family.final_cap {
            let cap = self.float("final_logit_softcapping")?.unwrap_or(GEMMA4_CAP);
            set("final_logit_softcapping", if cap == 0.0 { Value::Null } else { json!(cap) });
        }
        if self.family.clip_qkv
            && let Some(clip) = nonzero("attention.clamp_kqv")?
        {
            set("clip_qkv", json!(clip));
        }
        Ok(())
    }

    /// How heads are rotated.
    fn set_rope(
        &self,
        HeadSize { dim, rotated, global }: HeadSize,
        context: u32,
        factors: &Factors<'_>,
        set: &mut impl FnMut(&str, Value) -> Option<Value>,
    ) -> Result<(), Fault> {
        let family = self.family;
        let gemma3 = family.name == "gemma3";
        // Ollama's files use other names for Gemma's two bases.
        let keys: &[&str] = match gemma3 {
            true => &["rope.freq_base", "rope.global.freq_base"],
            false => &["rope.freq_base"],
        };
        let default = if gemma3 { GEMMA3_GLOBAL_BASE } else { BASE };
        let theta = self.first_float(keys)?.unwrap_or(default);
        let mut scaling = match family.differing_heads {
            true => self.proportional(global, context, factors)?,
            false => self.rope_scaling(theta, rotated, context, factors)?,
        };
        if let Some(original) = scaling.get("original_max_position_embeddings")
            && family.rotation.partial.is_some()
        {
            set("original_max_position_embeddings", original.clone());
        }
        if family.rotation.partial.is_some() && !family.rotation.has_sections {
            set("partial_rotary_factor", json!(share(rotated, dim)));
        }
        if family.rotation.skips_layers {
            set("no_rope_layer_interval", json!(SMOLLM3_INTERVAL));
        }
        if family.rotation.scales_queries {
            let beta = self.float("attention.temperature_scale")?;
            let Some(Value::Object(scaling)) = beta.map(|_| &mut scaling) else {
                let why = "is not \"yarn\", which attention.temperature_scale needs".to_string();
                return Err(self.refuse("rope.scaling.type", why));
            };
            scaling.insert("llama_4_scaling_beta".to_string(), json!(beta));
        }
        let local = match family.local_rope {
            Some(_) => {
                let local = self.first_float(&["rope.freq_base_swa", "rope.local.freq_base"])?;
                Some(local.unwrap_or(if gemma3 { GEMMA3_LOCAL_BASE } else { theta }))
            }
            None => None,
        };
        // As transformers 5 writes it: older ones have one base for all layers.
        let with_base = |scaling: Value| {
            let mut global = json!({"rope_type": "default"});
            if let Value::Object(scaling) = scaling {
                global = Value::Object(scaling);
            }
            global["rope_theta"] = json!(theta);
            global
        };
        match local.filter(|_| !gemma3) {
            Some(local) => {
                let global = with_base(scaling);
                let sliding = json!({"rope_type": "default", "rope_theta": local});
                let both = json!({"full_attention": global, "sliding_attention": sliding});
                set("rope_parameters", both);
            }
            None if family.rotation.has_sections => {
                let mut rope = with_base(scaling);
                rope["partial_rotary_factor"] = json!(share(rotated, dim));
                let sections = self.metadata.integers(&self.key(SECTIONS), self.bytes)?;
                if let Some(sections) = sections {
                    // GGUF has a fourth axis.
                    rope["mrope_section"] = json!(sections[..sections.len().min(3)]);
                    rope["mrope_interleaved"] = json!(true);
                }
                set("rope_parameters", rope);
            }
            // Without parameters the family has its own.
            None if family.default_rope.is_some() && scaling.is_null() => {
                set("rope_parameters", with_base(scaling));
            }
            None => {
                set("rope_theta", json!(theta));
                set("rope_scaling", scaling);
                if let Some(local) = local {
                    set("rope_local_base_freq", json!(local));
                }
            }
        }
        Ok(())
    }

    /// The head size, on which keys and values must agree, and RoPE unless the family
    /// rotates parts of heads.
    fn head_size(&self, hidden: u32, heads: usize) -> Result<HeadSize, Fault> {
        let key = self.number("attention.key_length")?;
        let global = key.unwrap_or(hidden / heads as u32);
        // Of sliding layers.
        let own = self.number("attention.key_length_swa")?;
        let dim = own.filter(|_| self.family.differing_heads).unwrap_or(global);
        for (other, dim) in [
            ("attention.value_length", global),
            ("attention.key_length_swa", dim),
            ("attention.value_length_swa", dim),
            ("rope.dimension_count", global),
            ("rope.dimension_count_swa", dim),
        ] {
            if other == "rope.dimension_count" && self.family.rotation.partial.is_some() {
                continue;
            }
            if let Some(found) = self.number(other)?.filter(|&found| found != dim) {
                let why = format!(
                    "is {found}, but the head size is {dim}; different sizes are not supported"
                );
                return Err(self.refuse(other, why));
            }
        }
        for (key, dim) in [("attention.key_length", global), ("attention.key_length_swa", dim)] {
            if dim == 0 || dim % 2 != 0 {
                let why = format!("is {dim}; the head size must be even and positive");
                return Err(self.refuse(key, why));
            }
        }
        if self.family.differing_heads {
            return Ok(HeadSize { dim, rotated: dim, global });
        }
        let rotated = self.number("rope.dimension_count")?.unwrap_or(dim);
        if rotated == 0 || rotated % 2 != 0 || rotated > dim {
            let why = format!("is {rotated}, not an even number of the {dim} entries of a head");
            return Err(self.refuse("rope.dimension_count", why));
        }
        Ok(HeadSize { dim, rotated, global })
    }

    /// Sizes of the experts, if the family has any.
    pub fn experts(&self) -> Result<Option<ExpertSizes>, Fault> {
        match self.family.experts {
            // Files of a family with and without experts have the key only with them.
            Some(rules)
                if rules.switch.is_some() && self.number("expert_count")?.unwrap_or(0) == 0 =>
            {
                Ok(None)
            }
            Some(rules) => ExpertSizes::new(self, &rules).map(Some),
            None => Ok(None),
        }
    }
}

/// `part / whole` such that `whole` times it is not less than `part` when rounded down.
pub(super) fn share(part: u32, whole: u32) -> f64 {
    let share = f64::from(part) / f64::from(whole);
    if ((f64::from(whole) * share) as u32) < part { share.next_up() } else { share }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_share_of_a_head_is_as_many_entries() {
        for whole in 1..=512u32 {
            for part in 1..=whole {
                assert_eq!((f64::from(whole) * share(part, whole)) as u32, part);
            }
        }
    }
}
