//! The model families, as data. To add one, write its row in [`FAMILIES`] and
//! a tiny golden checkpoint in `testdata/make_models.py`.

use serde_json::{Value, json};

/// One family of decoder-only models: how its members differ from Llama. What
/// config.json does not give is what transformers takes then.
#[derive(Debug)]
pub struct Family {
    /// What we call it.
    pub name: &'static str,
    /// Its members, in one line.
    pub summary: &'static str,
    /// What `architectures` in config.json says.
    pub architectures: &'static [&'static str],
    /// What `model_type` in config.json says.
    pub model_type: &'static str,
    /// Where the linears have biases.
    pub bias: Bias,
    /// Whether q and k are normalised per head before they are rotated.
    pub qk_norm: bool,
    /// Norms multiply by `norm_offset + weight`.
    pub norm_offset: f32,
    /// The norms around the two halves of a layer.
    pub norms: Norms,
    /// Which layers see a sliding window only.
    pub window: SlidingWindow,
    /// The base of rotations where config.json gives none.
    pub rope_theta: f64,
    /// The base that sliding layers rotate by where config.json gives none, if
    /// theirs is not that of the others.
    pub local_rope: Option<f64>,
    /// Whether scores are scaled by `query_pre_attn_scalar` rather than the head size.
    pub query_scalar: bool,
    /// Whether the embedding is multiplied by the square root of its width.
    pub scaled_embedding: bool,
    /// The key of the activation in config.json.
    pub activation_key: &'static str,
    /// The head size where config.json gives none; `None` is hidden / heads.
    pub head_dim: Option<usize>,
    /// The key and value heads where config.json gives none; `None` is as many
    /// as there are heads.
    pub kv_heads: Option<usize>,
    /// The longest sequence where config.json gives none.
    pub max_positions: usize,
    /// Whether the head is the embedding where config.json does not say.
    pub tied: bool,
    /// Whether transformers wants `hidden_size` to be a multiple of
    /// `num_attention_heads`, whatever `head_dim` says.
    pub heads_divide_hidden: bool,
}

/// Where the linears have biases.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Bias {
    /// Nowhere.
    Never,
    /// On q, k and v.
    Qkv,
    /// On q, k, v and o if `attention_bias`, on the MLP if `mlp_bias` (where the family has it).
    Configured {
        /// Whether `mlp_bias` is an option of this family.
        mlp: bool,
    },
}

/// Names of a layer's norms; the two after a half are absent in most families.
#[derive(Clone, Copy, Debug)]
pub struct Norms {
    /// On the input of attention.
    pub before_attention: &'static str,
    /// On the output of attention, before it is added back.
    pub after_attention: Option<&'static str>,
    /// On the input of the MLP.
    pub before_mlp: &'static str,
    /// On the output of the MLP, before it is added back.
    pub after_mlp: Option<&'static str>,
}

/// Which layers see a sliding window only.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum SlidingWindow {
    /// None.
    Never,
    /// All, unless `sliding_window` is null.
    AllIfSet,
    /// As `layer_types` says; without it, those from `max_window_layers` on if `use_sliding_window`.
    UpperIfAsked,
    /// As `layer_types` says; without it, all but every `sliding_window_pattern`-th.
    Pattern,
}

/// Two norms a layer, as Llama has them.
const TWO_NORMS: Norms = Norms {
    before_attention: "input_layernorm",
    after_attention: None,
    before_mlp: "post_attention_layernorm",
    after_mlp: None,
};

/// The family that the others are told apart from.
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
    // Llama 1 and 2 were made before the key.
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
        window: SlidingWindow::UpperIfAsked,
        ..LLAMA
    },
    Family {
        name: "qwen3",
        summary: "Qwen3, without experts",
        architectures: &["Qwen3ForCausalLM"],
        model_type: "qwen3",
        bias: Bias::Configured { mlp: false },
        qk_norm: true,
        window: SlidingWindow::UpperIfAsked,
        head_dim: Some(128),
        kv_heads: Some(32),
        max_positions: 32_768,
        heads_divide_hidden: false,
        ..LLAMA
    },
    Family {
        name: "gemma3",
        summary: "Gemma 3, text only (of models that see images, their text model)",
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
    /// The family of an architecture, as config.json names it.
    ///
    /// ```
    /// use openwork_llm::model::Family;
    /// assert_eq!(Family::find("Qwen3ForCausalLM").unwrap().name, "qwen3");
    /// assert!(Family::find("Qwen3MoeForCausalLM").is_none());
    /// ```
    pub fn find(architecture: &str) -> Option<&'static Family> {
        FAMILIES.iter().find(|family| family.architectures.contains(&architecture))
    }

    /// How the family differs from Llama, in a few words each.
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
            SlidingWindow::UpperIfAsked => traits.push("sliding upper layers if asked"),
            SlidingWindow::Pattern => traits.push("sliding and global layers"),
        }
        for (has, text) in [
            (self.qk_norm, "q/k norm"),
            (self.norm_offset != 0.0, "norms by 1 + weight"),
            (self.norms.after_mlp.is_some(), "four norms a layer"),
            (self.local_rope.is_some(), "two rope bases"),
            (self.query_scalar, "own query scale"),
            (self.scaled_embedding, "scaled embedding"),
            (self.tied, "tied unless told"),
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
