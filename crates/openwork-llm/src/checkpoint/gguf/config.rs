//! Building a `config.json` from GGUF metadata.

use super::metadata::{Metadata, MetadataValue};
use super::names::Architecture;
use crate::checkpoint::error::Fault;
use crate::checkpoint::tensor::{Tensor, TensorInfo};
use serde_json::{Map, Value, json};
use std::cell::RefCell;
use std::collections::BTreeSet;

/// Unsupported options that change the computation, and the values at which they
/// have no effect.
const NEUTRAL: &[(&str, f64)] = &[
    ("attention.clamp_kqv", 0.0),
    ("attention.max_alibi_bias", 0.0),
    ("attention.scale", 0.0),
    ("attention.temperature_scale", 0.0),
    ("attn_logit_softcapping", 0.0),
    ("embedding_scale", 1.0),
    ("expert_count", 0.0),
    ("final_logit_softcapping", 0.0),
    ("logit_scale", 1.0),
    ("residual_scale", 1.0),
    ("rope.scaling.attn_factor", 1.0),
];

/// Keys that do not affect the computation.
const IGNORED: &[&str] = &[
    "expert_used_count",
    "pooling_type",
    "rope.scaling.finetuned",
    "rope.scaling.original_context_length",
    "tensor_data_layout",
    "vocab_size",
];

/// Default RoPE base.
const BASE: f64 = 10_000.0;
/// Gemma 3's defaults: five sliding layers, then a global one; RoPE base 10,000 in
/// sliding layers and a million in global ones.
const GEMMA_PATTERN: u32 = 6;
const GEMMA_LOCAL_BASE: f64 = 10_000.0;
const GEMMA_GLOBAL_BASE: f64 = 1_000_000.0;
/// Number of layers of Gemma 3 27B, the only size that scales queries by hidden
/// size over heads.
const GEMMA_27B_LAYERS: u32 = 62;

/// Reads the keys of an architecture and records which were read.
pub(super) struct ConfigBuilder<'a> {
    architecture: &'static Architecture,
    metadata: &'a Metadata,
    /// The file, for values that are lists.
    bytes: &'a [u8],
    asked: RefCell<BTreeSet<String>>,
}

impl<'a> ConfigBuilder<'a> {
    pub fn new(
        architecture: &'static Architecture,
        metadata: &'a Metadata,
        bytes: &'a [u8],
    ) -> Self {
        Self { architecture, metadata, bytes, asked: RefCell::default() }
    }

    /// The full name of a key, which is recorded as read.
    fn key(&self, key: &str) -> String {
        let key = format!("{}.{key}", self.architecture.name);
        self.asked.borrow_mut().insert(key.clone());
        key
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

    fn refuse(&self, key: &str, why: String) -> Fault {
        Fault::Metadata { key: self.key(key), why }
    }

    fn number(&self, key: &str) -> Result<Option<u32>, Fault> {
        self.metadata.number(&self.key(key))
    }

    /// A required, nonzero number.
    fn needed(&self, key: &str) -> Result<u32, Fault> {
        match self.number(key)? {
            Some(0) => Err(self.refuse(key, "is 0".to_string())),
            Some(n) => Ok(n),
            None => Err(self.refuse(key, "is missing".to_string())),
        }
    }

    fn float(&self, key: &str) -> Result<Option<f64>, Fault> {
        self.metadata.float(&self.key(key))
    }

    /// The value of the first key that exists.
    fn first_float(&self, keys: &[&str]) -> Result<Option<f64>, Fault> {
        let mut found = None;
        for key in keys {
            found = found.or(self.float(key)?);
        }
        Ok(found)
    }

    pub fn heads(&self) -> Result<(usize, usize), Fault> {
        let heads = self.needed("attention.head_count")?;
        let kv_heads = self.number("attention.head_count_kv")?.unwrap_or(heads);
        if kv_heads == 0 || heads % kv_heads != 0 {
            let why = format!("is {kv_heads}, which does not divide head_count = {heads}");
            return Err(self.refuse("attention.head_count_kv", why));
        }
        Ok((heads as usize, kv_heads as usize))
    }

    /// The config. `tensors` have Hugging Face's names; `factors` is the tensor
    /// `rope_freqs.weight`, if any.
    pub fn config(&self, tensors: &[TensorInfo], factors: Option<Tensor>) -> Result<Value, Fault> {
        self.refuse_unknown_mathematics()?;
        let (heads, kv_heads) = self.heads()?;
        let hidden = self.needed("embedding_length")?;
        let layers = self.needed("block_count")?;
        let head_dim = self.head_dim(hidden, heads)?;
        let context = self.needed("context_length")?;
        let window = self.number("attention.sliding_window")?.filter(|&window| window > 0);
        let has = |name: &str| tensors.iter().any(|tensor| tensor.name == name);
        let embedding = tensors.iter().find(|t| t.name == "model.embed_tokens.weight");
        let Some([vocab, _]) = embedding.map(|tensor| &tensor.shape[..]) else {
            let why = "the file has no matrix \"token_embd.weight\"".to_string();
            return Err(Fault::Shape(why));
        };

        let mut config = Map::new();
        let mut set = |key: &str, value: Value| config.insert(key.to_string(), value);
        let gemma = self.architecture.model_type == "gemma3_text";
        // Ollama's files use other names for Gemma's two bases.
        let theta = match gemma {
            true => self
                .first_float(&["rope.freq_base", "rope.global.freq_base"])?
                .unwrap_or(GEMMA_GLOBAL_BASE),
            false => self.float("rope.freq_base")?.unwrap_or(BASE),
        };
        // Mistral's files say llama; only early Mistral models have a window.
        let mistral = self.architecture.name == "llama" && window.is_some();
        let (class, model_type) = match mistral {
            true => ("MistralForCausalLM", "mistral"),
            false => (self.architecture.class, self.architecture.model_type),
        };
        set("architectures", json!([class]));
        set("model_type", json!(model_type));
        set("hidden_size", json!(hidden));
        set("num_hidden_layers", json!(layers));
        set("num_attention_heads", json!(heads));
        set("num_key_value_heads", json!(kv_heads));
        set("head_dim", json!(head_dim));
        set("intermediate_size", json!(self.needed("feed_forward_length")?));
        let eps = self.float("attention.layer_norm_rms_epsilon")?;
        let eps = eps.ok_or_else(|| {
            self.refuse("attention.layer_norm_rms_epsilon", "is missing".to_string())
        })?;
        set("rms_norm_eps", json!(eps));
        set("rope_theta", json!(theta));
        set("rope_scaling", self.rope_scaling(theta, head_dim, factors)?);
        set("max_position_embeddings", json!(context));
        set("vocab_size", json!(vocab));
        set("tie_word_embeddings", json!(!has("lm_head.weight")));
        if gemma {
            set("hidden_activation", json!("gelu_pytorch_tanh"));
            set("sliding_window", json!(self.needed("attention.sliding_window")?));
            let (key, layers_that_slide) = self.sliding(layers)?;
            set(key, layers_that_slide);
            let local = self.first_float(&["rope.freq_base_swa", "rope.local.freq_base"])?;
            set("rope_local_base_freq", json!(local.unwrap_or(GEMMA_LOCAL_BASE)));
            let scale = if layers == GEMMA_27B_LAYERS { hidden / heads as u32 } else { head_dim };
            set("query_pre_attn_scalar", json!(scale));
        } else {
            set("hidden_act", json!("silu"));
            set("attention_bias", json!(has("model.layers.0.self_attn.q_proj.bias")));
            if has("model.layers.0.mlp.up_proj.bias") {
                set("mlp_bias", json!(true));
            }
            if let Some(window) = window {
                set("sliding_window", json!(window));
            }
        }
        for (key, there) in [("bos_token_id", "bos_token_id"), ("eos_token_id", "eos_token_id")] {
            if let Some(id) = self.metadata.number(&format!("tokenizer.ggml.{key}"))? {
                set(there, json!(id));
            }
        }
        Ok(Value::Object(config))
    }

    fn refuse_unknown_mathematics(&self) -> Result<(), Fault> {
        let not_read = |found: String| format!("is {found}, which is not supported");
        for &(key, neutral) in NEUTRAL {
            if let Some(value) = self.float(key)?.filter(|&value| value != neutral) {
                return Err(self.refuse(key, not_read(value.to_string())));
            }
        }
        for (key, neutral) in [("attention.causal", true), ("use_parallel_residual", false)] {
            if let Some(value) = self.metadata.flag(&self.key(key))?.filter(|&v| v != neutral) {
                return Err(self.refuse(key, not_read(value.to_string())));
            }
        }
        Ok(())
    }

    /// Which of Gemma's layers use sliding attention, as a key of `config.json`:
    /// all but every n-th, or a list with one entry per layer.
    fn sliding(&self, layers: u32) -> Result<(&'static str, Value), Fault> {
        const KEY: &str = "attention.sliding_window_pattern";
        let key = self.key(KEY);
        let Some(MetadataValue::List { .. }) = self.metadata.get(&key) else {
            return match self.metadata.number(&key)?.unwrap_or(GEMMA_PATTERN) {
                0 => Err(self.refuse(KEY, "is 0".to_string())),
                every => Ok(("sliding_window_pattern", json!(every))),
            };
        };
        let slides = self.metadata.flags(&key, self.bytes)?.unwrap_or_default();
        if slides.len() != layers as usize {
            let why = format!("has {} entries for {layers} layers", slides.len());
            return Err(self.refuse(KEY, why));
        }
        let name = |slides: bool| if slides { "sliding_attention" } else { "full_attention" };
        Ok(("layer_types", slides.into_iter().map(name).collect()))
    }

    /// The head size, on which keys, values and RoPE must agree.
    fn head_dim(&self, hidden: u32, heads: usize) -> Result<u32, Fault> {
        let key = self.number("attention.key_length")?;
        let dim = match key {
            Some(dim) => dim,
            None => hidden / heads as u32,
        };
        for other in [
            "attention.value_length",
            "attention.key_length_swa",
            "attention.value_length_swa",
            "rope.dimension_count",
            "rope.dimension_count_swa",
        ] {
            if let Some(found) = self.number(other)?.filter(|&found| found != dim) {
                let why = format!(
                    "is {found}, but the head size is {dim}; different sizes are not supported"
                );
                return Err(self.refuse(other, why));
            }
        }
        if dim == 0 || dim % 2 != 0 {
            return Err(self.refuse(
                "attention.key_length",
                format!("is {dim}; the head size must be even and positive"),
            ));
        }
        Ok(dim)
    }

    fn rope_scaling(
        &self,
        theta: f64,
        head_dim: u32,
        factors: Option<Tensor>,
    ) -> Result<Value, Fault> {
        let kind = self.metadata.text(&self.key("rope.scaling.type"))?;
        // The second name was used in 2023.
        let factor = self.first_float(&["rope.scaling.factor", "rope.scale_linear"])?;
        let factor = factor.filter(|&factor| factor != 0.0 && factor != 1.0);
        let linear = match (kind.as_deref(), factor) {
            (Some("none"), _) | (None | Some("linear"), None) => Value::Null,
            // Without a type, ggml treats a factor as linear.
            (None | Some("linear"), Some(factor)) => {
                json!({"rope_type": "linear", "factor": factor})
            }
            (Some(other), _) => {
                let why = format!("is {other:?}, which is not supported");
                return Err(self.refuse("rope.scaling.type", why));
            }
        };
        let Some(factors) = factors else { return Ok(linear) };
        let refuse = |why: &str| Fault::Tensor {
            tensor: factors.name().to_string(),
            why: format!("{why}, which is not supported"),
        };
        if !linear.is_null() {
            return Err(refuse("contains RoPE factors in addition to those of the metadata"));
        }
        llama3_scaling(theta, head_dim, &factors.to_f32())
            .ok_or_else(|| refuse("contains RoPE factors other than Llama 3's"))
    }
}

/// Llama 3's RoPE scaling, if it gives these factors. GGUF stores the factor of
/// each frequency instead of the rule:
///
/// ```text
/// wavelength_i = 2 pi theta^(2i/d)
/// f_i = 1            if wavelength_i < original / high
///       factor       if wavelength_i > original / low
///       1 / ((1 - s) / factor + s),  s = (original / wavelength_i - low) / (high - low)   else
/// ```
///
/// with low = 1, high = 4, original = 8192 in all of Llama 3.1, 3.2 and 3.3.
pub(super) fn llama3_scaling(theta: f64, head_dim: u32, factors: &[f32]) -> Option<Value> {
    const LOW: f64 = 1.0;
    const HIGH: f64 = 4.0;
    const ORIGINAL: f64 = 8192.0;
    /// The factors were rounded to f32 more than once.
    const TOLERANCE: f64 = 1e-4;
    let factor = f64::from(factors.iter().copied().reduce(f32::max)?);
    let expected = |i: usize| {
        let wavelength =
            2.0 * std::f64::consts::PI * theta.powf(2.0 * i as f64 / f64::from(head_dim));
        if wavelength < ORIGINAL / HIGH {
            1.0
        } else if wavelength > ORIGINAL / LOW {
            factor
        } else {
            let s = (ORIGINAL / wavelength - LOW) / (HIGH - LOW);
            1.0 / ((1.0 - s) / factor + s)
        }
    };
    let same = |(i, &found): (usize, &f32)| {
        (f64::from(found) - expected(i)).abs() <= TOLERANCE * expected(i)
    };
    let all = factors.len() == head_dim as usize / 2 && factors.iter().enumerate().all(same);
    all.then(|| {
        json!({
            "rope_type": "llama3",
            "factor": factor,
            "low_freq_factor": LOW,
            "high_freq_factor": HIGH,
            "original_max_position_embeddings": ORIGINAL as u64,
        })
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn llama_3_2_is_known_by_its_factors() {
        // What transformers makes of Llama 3.2's config: theta 500,000, heads of 64, factor 32.
        let mut factors = vec![1.0; 32];
        factors[15..18].copy_from_slice(&[1.651329, 3.292263, 9.66673]);
        factors[18..].fill(32.0);
        let scaling = llama3_scaling(500_000.0, 64, &factors).unwrap();
        assert_eq!(scaling["rope_type"], "llama3");
        assert_eq!(scaling["factor"], 32.0);
        assert_eq!(scaling["original_max_position_embeddings"], 8192);
        assert!(llama3_scaling(10_000.0, 64, &factors).is_none());
        assert!(llama3_scaling(500_000.0, 128, &factors).is_none());
        factors[16] = 3.3;
        assert!(llama3_scaling(500_000.0, 64, &factors).is_none());
        assert!(llama3_scaling(500_000.0, 64, &[]).is_none());
        assert!(llama3_scaling(500_000.0, 64, &[f32::NAN; 32]).is_none());
    }
}
