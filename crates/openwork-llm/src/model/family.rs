//! Model families as data. To add one, add a row to [`FAMILIES`] and a tiny golden
//! checkpoint to `testdata/make_models.py`.

use serde_json::{Value, json};

/// A family of decoder-only models, described by its differences from Llama.
/// Defaults of config.json are those of transformers.
#[derive(Debug)]
pub struct Family {
    /// Name in openwork.
    pub name: &'static str,
    /// Its models, on one line.
    pub summary: &'static str,
    /// Values of `architectures` in config.json.
    pub architectures: &'static [&'static str],
    /// Value of `model_type` in config.json.
    pub model_type: &'static str,
    /// Which linear layers have biases.
    pub bias: Bias,
    /// Whether q and k are normalized per head before RoPE.
    pub qk_norm: bool,
    /// Norms multiply by `norm_offset + weight`.
    pub norm_offset: f32,
    /// The norms around attention and MLP.
    pub norms: Norms,
    /// Which layers use sliding-window attention.
    pub window: SlidingWindow,
    /// Default RoPE base.
    pub rope_theta: f64,
    /// Default RoPE base of sliding layers, if it differs from that of the others.
    pub local_rope: Option<f64>,
    /// Whether scores are scaled by `query_pre_attn_scalar` instead of the head size.
    pub query_scalar: bool,
    /// Whether the embedding is multiplied by the square root of its width.
    pub scaled_embedding: bool,
    /// The key of the activation in config.json.
    pub activation_key: &'static str,
    /// Default head size; `None` is hidden size / heads.
    pub head_dim: Option<usize>,
    /// Default number of key-value heads; `None` is the number of heads.
    pub kv_heads: Option<usize>,
    /// Default maximum sequence length.
    pub max_positions: usize,
    /// Whether the embeddings are tied by default.
    pub tied: bool,
    /// Whether transformers requires `hidden_size` to be a multiple of
    /// `num_attention_heads` regardless of `head_dim`.
    pub heads_divide_hidden: bool,
}

/// Which linear layers have biases.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Bias {
    /// None.
    Never,
    /// q, k and v.
    Qkv,
    /// q, k, v and o if `attention_bias` is set; the MLP if `mlp_bias` is set.
    Configured {
        /// Whether `mlp_bias` is an option of this family.
        mlp: bool,
    },
}

/// Names of a layer's norms; most families have no norms on outputs.
#[derive(Clone, Copy, Debug)]
pub struct Norms {
    /// On the input of attention.
    pub before_attention: &'static str,
    /// On the output of attention, before the residual connection.
    pub after_attention: Option<&'static str>,
    /// On the input of the MLP.
    pub before_mlp: &'static str,
    /// On the output of the MLP, before the residual connection.
    pub after_mlp: Option<&'static str>,
}

/// Which layers use sliding-window attention.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum SlidingWindow {
    /// None.
    Never,
    /// All, unless `sliding_window` is null.
    AllIfSet,
    /// As given by `layer_types`, or layers from `max_window_layers` on if
    /// `use_sliding_window`.
    UpperIfEnabled,
    /// As given by `layer_types`, or all but every `sliding_window_pattern`-th.
    Pattern,
}

/// Llama's two norms per layer.
const TWO_NORMS: Norms = Norms {
    before_attention: "input_layernorm",
    after_attention: None,
    before_mlp: "post_attention_layernorm",
    after_mlp: None,
};

/// Llama, from which the other families are derived.
const LLAMA: Family = Family {
    name: "llama",
    summary: "Llama 1 to 3.2, SmolLM2, TinyLlama",
    architectures: &["LlamaForCausalLM"],
    model_type: "llama",
    bias: Bias::Configured { mlp: true },
    qk_norm: false,
    norm_offset: 0.0,
    norms: TWO_NORMS,
    window: SlidingWindow::Never,
    // Llama 1 and 2 predate the key.
    rope_theta: 10_000.0,
    local_rope: None,
    query_scalar: false,
    scaled_embedding: false,
    activation_key: "hidden_act",
    head_dim: None,
    kv_heads: None,
    max_positions: 2048,
    tied: false,
    heads_divide_hidden: true,
};

/// Every family.
pub const FAMILIES: &[Family] = &[
    LLAMA,
    Family {
        name: "mistral",
        summary: "Mistral 7B",
        architectures: &["MistralForCausalLM"],
        model_type: "mistral",
        bias: Bias::Never,
        window: SlidingWindow::AllIfSet,
        kv_heads: Some(8),
        max_positions: 131_072,
        heads_divide_hidden: false,
        ..LLAMA
    },
    Family {
        name: "qwen2",
        summary: "Qwen2, Qwen2.5",
        architectures: &["Qwen2ForCausalLM"],
        model_type: "qwen2",
        bias: Bias::Qkv,
        kv_heads: Some(32),
        max_positions: 32_768,
        heads_divide_hidden: false,
        window: SlidingWindow::UpperIfEnabled,
        ..LLAMA
    },
    Family {
        name: "qwen3",
        summary: "Qwen3, dense",
        architectures: &["Qwen3ForCausalLM"],
        model_type: "qwen3",
        bias: Bias::Configured { mlp: false },
        qk_norm: true,
        window: SlidingWindow::UpperIfEnabled,
        head_dim: Some(128),
        kv_heads: Some(32),
        max_positions: 32_768,
        heads_divide_hidden: false,
        ..LLAMA
    },
    Family {
        name: "gemma3",
        summary: "Gemma 3 (the text model of multimodal models)",
        architectures: &["Gemma3ForCausalLM"],
        model_type: "gemma3_text",
        bias: Bias::Configured { mlp: false },
        qk_norm: true,
        norm_offset: 1.0,
        norms: Norms {
            before_attention: "input_layernorm",
            after_attention: Some("post_attention_layernorm"),
            before_mlp: "pre_feedforward_layernorm",
            after_mlp: Some("post_feedforward_layernorm"),
        },
        window: SlidingWindow::Pattern,
        rope_theta: 1_000_000.0,
        local_rope: Some(10_000.0),
        query_scalar: true,
        scaled_embedding: true,
        activation_key: "hidden_activation",
        head_dim: Some(256),
        kv_heads: Some(4),
        max_positions: 131_072,
        tied: true,
        heads_divide_hidden: true,
    },
];

impl Family {
    /// The family of an architecture named in config.json.
    ///
    /// ```
    /// use openwork_llm::model::Family;
    /// assert_eq!(Family::find("Qwen3ForCausalLM").unwrap().name, "qwen3");
    /// assert!(Family::find("Qwen3MoeForCausalLM").is_none());
    /// ```
    pub fn find(architecture: &str) -> Option<&'static Family> {
        FAMILIES.iter().find(|family| family.architectures.contains(&architecture))
    }

    /// The family's differences from Llama, a few words each.
    pub fn traits(&self) -> Vec<&'static str> {
        let mut traits = Vec::new();
        match self.bias {
            Bias::Qkv => traits.push("q/k/v biases"),
            Bias::Configured { .. } => traits.push("biases if configured"),
            Bias::Never => {}
        }
        match self.window {
            SlidingWindow::Never => {}
            SlidingWindow::AllIfSet => traits.push("sliding window if set"),
            SlidingWindow::UpperIfEnabled => {
                traits.push("sliding window in upper layers if enabled")
            }
            SlidingWindow::Pattern => traits.push("sliding and global layers"),
        }
        for (has, text) in [
            (self.qk_norm, "q/k norm"),
            (self.norm_offset != 0.0, "norms scale by 1 + weight"),
            (self.norms.after_mlp.is_some(), "four norms per layer"),
            (self.local_rope.is_some(), "two rope bases"),
            (self.query_scalar, "query scale from config"),
            (self.scaled_embedding, "scaled embedding"),
            (self.tied, "tied by default"),
        ] {
            if has {
                traits.push(text);
            }
        }
        traits
    }

    /// The row of `openwork families --json`.
    pub fn to_json(&self) -> Value {
        json!({
            "name": self.name,
            "summary": self.summary,
            "architectures": self.architectures,
            "model_type": self.model_type,
            "traits": self.traits(),
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn names_and_architectures_are_listed_once() {
        for (i, a) in FAMILIES.iter().enumerate() {
            for b in &FAMILIES[i + 1..] {
                assert_ne!(a.name, b.name);
                assert!(!a.architectures.iter().any(|name| b.architectures.contains(name)));
            }
        }
    }
}
