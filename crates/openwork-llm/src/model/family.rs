//! Model families as data. To add one, add a row to [`FAMILIES`] and a tiny golden
//! checkpoint to `testdata/make_models.py`.

use super::encoder::{self, EncoderRules};
use super::rope_config;
use serde_json::{Value, json};

/// A family of models, described by its differences from Llama.
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
    /// How q and k are normalized before RoPE.
    pub qk_norm: QkNorm,
    /// Whether q, k and v are clamped to `clip_qkv`.
    pub clip_qkv: bool,
    /// Whether some layers have a gated delta net instead of attention.
    pub delta_nets: bool,
    /// Whether the output of attention is multiplied by a gate, which q_proj computes too:
    /// each head's rows of the query are followed by those of its gate.
    pub gated_attention: bool,
    /// Whether global layers have heads of a different size, and may use their keys as
    /// values.
    pub differing_heads: bool,
    /// Whether value heads are normalized, without learned factors.
    pub value_norm: bool,
    /// Whether scores are not scaled.
    pub unscaled_scores: bool,
    /// Whether the output of each layer is multiplied by a learned scalar.
    pub layer_scale: bool,
    /// Whether layers can have per-layer embeddings as an extra input, and use the keys and
    /// values of earlier layers.
    pub per_layer_embedding: bool,
    /// Whether every head has an attention sink: an extra softmax score without a value.
    pub sinks: bool,
    /// Norms multiply by `norm_offset + weight`.
    pub norm_offset: f32,
    /// The norms around attention and MLP.
    pub norms: Norms,
    /// Which layers use sliding-window attention.
    pub window: SlidingWindow,
    /// Default epsilon of norms.
    pub norm_eps: f64,
    /// How the heads are rotated.
    pub rotation: Rotation,
    /// Default RoPE base.
    pub rope_theta: f64,
    /// RoPE parameters where config.json has none; `None` is no scaling.
    pub default_rope: Option<fn() -> &'static Value>,
    /// Default RoPE base of sliding layers, if it differs from that of the others.
    pub local_rope: Option<f64>,
    /// Whether scores are scaled by `query_pre_attn_scalar` instead of the head size.
    pub query_scalar: bool,
    /// Whether the embedding is multiplied by the square root of its width.
    pub scaled_embedding: bool,
    /// Whether config.json has multipliers for the embedding, the scores, the outputs of
    /// attention and MLP, and the logits.
    pub multipliers: bool,
    /// Whether scores and logits are bounded by `cap tanh(x / cap)`; the default caps.
    pub softcaps: Option<[f64; 2]>,
    /// Whether logits are bounded likewise if config.json has a cap.
    pub final_cap: bool,
    /// The experts of its layers, if any.
    pub experts: Option<ExpertRules>,
    /// What makes it an encoder; `None` is a decoder.
    pub encoder: Option<EncoderRules>,
    /// Names of tensors that differ between families.
    pub names: Names,
    /// Fused tensors: those that hold several linear layers, one after the other.
    pub fused: &'static [FusedLinears],
    /// The key of the activation in config.json.
    pub activation_key: &'static str,
    /// Whether the MLP's activation is a SwiGLU with bounds.
    pub clamped_swiglu: bool,
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
    /// q, k and v, unless a key is false.
    QkvUnless {
        /// The key.
        key: &'static str,
    },
    /// All; q, k, v and o only unless `attention_bias` is false.
    AllUnless,
    /// q, k, v and o if `attention_bias` is set; the MLP if `mlp_bias` is set.
    Configured {
        /// Whether `mlp_bias` is an option of this family.
        mlp: bool,
    },
}

/// How queries and keys are normalized.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum QkNorm {
    /// Not at all.
    None,
    /// Each head.
    PerHead,
    /// All heads together.
    AllHeads,
}

/// How heads are rotated by position.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Rotation {
    /// Default share of a head that is rotated; `None` is all of it, and the key is refused.
    pub partial: Option<f64>,
    /// Whether neighbors are rotated together, instead of entries half a head apart.
    pub interleaved: bool,
    /// Whether `no_rope_layers` can exempt some layers from rotation.
    pub skips_layers: bool,
    /// Whether the parameters assign planes to image axes, which all coincide for text.
    pub has_sections: bool,
    /// Whether queries grow with the logarithm of their position (`llama_4_scaling_beta`).
    pub scales_queries: bool,
}

/// How config.json describes experts, and how files store them.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct ExpertRules {
    /// Default number.
    pub count: usize,
    /// Default number of experts per token.
    pub active: usize,
    /// The key of their width.
    pub ff_key: &'static str,
    /// Whether the weights of a token's experts always sum to 1; otherwise if
    /// `norm_topk_prob`.
    pub always_normalized: bool,
    /// Whether there is a shared expert for all tokens, with a gate.
    pub shared: bool,
    /// Whether `decoder_sparse_step` and `mlp_only_layers` select layers without experts.
    pub skips_layers: bool,
    /// Whether the router has a bias.
    pub router_bias: bool,
    /// How files store them.
    pub files: ExpertFiles,
    /// The key that enables them, if any.
    pub switch: Option<&'static str>,
    /// The key of the number of experts per token.
    pub active_key: &'static str,
    /// Whether they run in parallel with the layer's MLP, both with separate norms; the
    /// router then reads the hidden state before these norms.
    pub beside_mlp: bool,
}

/// How files store the experts of a layer.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum ExpertFiles {
    /// Each linear layer separately; the `Rows` layout is accepted as well.
    Separate,
    /// `[experts, out, in]`, gate before up.
    Rows,
    /// `[experts, in, out]`, with the columns of gate and up interleaved.
    Columns,
}

/// Experts of most families.
const EXPERTS: ExpertRules = ExpertRules {
    count: 8,
    active: 2,
    ff_key: "moe_intermediate_size",
    always_normalized: false,
    shared: false,
    skips_layers: false,
    router_bias: false,
    files: ExpertFiles::Separate,
    switch: None,
    active_key: "num_experts_per_tok",
    beside_mlp: false,
};

/// Names of tensors that differ between families.
#[derive(Clone, Copy, Debug)]
pub struct Names {
    /// Before the number of a layer, as in `model.layers.`.
    pub layers: &'static str,
    /// q, k, v and o of attention.
    pub attention: [&'static str; 4],
    /// Gate, up and down of an MLP without experts; no gate is an empty name.
    pub mlp: [&'static str; 3],
    /// Before the number of an expert.
    pub experts: &'static str,
    /// Gate, up and down of an expert.
    pub expert_parts: [&'static str; 3],
    /// The router.
    pub router: &'static str,
    /// The shared expert.
    pub shared: &'static str,
    /// The gate of the shared expert.
    pub shared_gate: &'static str,
}

/// A tensor of files that holds several linear layers, one after the other.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct FusedLinears {
    /// Its name within the layer.
    pub name: &'static str,
    /// The linear layers in it.
    pub parts: &'static [&'static str],
}

/// Names of a layer's norms; most families have no norms on outputs.
#[derive(Clone, Copy, Debug)]
pub struct Norms {
    /// On the input of attention.
    pub before_attention: Option<&'static str>,
    /// On the output of attention, before the residual connection.
    pub after_attention: Option<&'static str>,
    /// On the input of the MLP.
    pub before_mlp: Option<&'static str>,
    /// On the output of the MLP, before the residual connection.
    pub after_mlp: Option<&'static str>,
}

/// Which layers use sliding-window attention.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum SlidingWindow {
    /// None.
    Never,
    /// All, unless `sliding_window` is null.
    AllIfSet {
        /// The window where config.json has no such key.
        default: Option<usize>,
    },
    /// As given by `layer_types`, or layers from `max_window_layers` on if
    /// `use_sliding_window`.
    UpperIfEnabled,
    /// All, if `use_sliding_window`.
    AllIfEnabled,
    /// As given by `layer_types`, or every other layer below `max_window_layers` if
    /// `use_sliding_window`.
    LowerIfEnabled,
    /// As given by `layer_types`, or the layers without rotation if `use_sliding_window`.
    UnrotatedIfEnabled,
    /// As given by `layer_types`, or all but every n-th layer, where n is
    /// `sliding_window_pattern` or, by default, this number.
    Pattern(usize),
}

/// Llama's two norms per layer.
const TWO_NORMS: Norms = Norms {
    before_attention: Some("input_layernorm"),
    after_attention: None,
    before_mlp: Some("post_attention_layernorm"),
    after_mlp: None,
};

/// The norms of Gemma, on inputs and outputs.
const FOUR_NORMS: Norms = Norms {
    before_attention: Some("input_layernorm"),
    after_attention: Some("post_attention_layernorm"),
    before_mlp: Some("pre_feedforward_layernorm"),
    after_mlp: Some("post_feedforward_layernorm"),
};

/// The norms of OLMo 2, on outputs only.
const OUTPUT_NORMS: Norms = Norms {
    before_attention: None,
    after_attention: Some("post_attention_layernorm"),
    before_mlp: None,
    after_mlp: Some("post_feedforward_layernorm"),
};

/// Llama's rotation of heads.
pub(super) const WHOLE_HEADS: Rotation = Rotation {
    partial: None,
    interleaved: false,
    skips_layers: false,
    has_sections: false,
    scales_queries: false,
};

/// Names of most families.
pub(super) const NAMES: Names = Names {
    layers: "model.layers.",
    attention: ["self_attn.q_proj", "self_attn.k_proj", "self_attn.v_proj", "self_attn.o_proj"],
    mlp: ["mlp.gate_proj", "mlp.up_proj", "mlp.down_proj"],
    experts: "mlp.experts",
    expert_parts: ["gate_proj", "up_proj", "down_proj"],
    router: "mlp.gate",
    shared: "mlp.shared_expert",
    shared_gate: "mlp.shared_expert_gate",
};

/// Gate and up in one tensor.
const GATE_UP: FusedLinears =
    FusedLinears { name: "mlp.gate_up_proj", parts: &["mlp.gate_proj", "mlp.up_proj"] };

/// Llama, from which the other families are derived.
pub(super) const LLAMA: Family = Family {
    name: "llama",
    summary: "Llama 1 to 3.2, SmolLM2, TinyLlama",
    architectures: &["LlamaForCausalLM"],
    model_type: "llama",
    bias: Bias::Configured { mlp: true },
    qk_norm: QkNorm::None,
    clip_qkv: false,
    delta_nets: false,
    gated_attention: false,
    differing_heads: false,
    value_norm: false,
    unscaled_scores: false,
    layer_scale: false,
    per_layer_embedding: false,
    sinks: false,
    norm_offset: 0.0,
    norms: TWO_NORMS,
    window: SlidingWindow::Never,
    norm_eps: 1e-6,
    rotation: WHOLE_HEADS,
    // Llama 1 and 2 predate the key.
    rope_theta: 10_000.0,
    default_rope: None,
    local_rope: None,
    query_scalar: false,
    scaled_embedding: false,
    multipliers: false,
    softcaps: None,
    final_cap: false,
    experts: None,
    encoder: None,
    names: NAMES,
    fused: &[],
    activation_key: "hidden_act",
    clamped_swiglu: false,
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
        window: SlidingWindow::AllIfSet { default: Some(4096) },
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
        qk_norm: QkNorm::PerHead,
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
        qk_norm: QkNorm::PerHead,
        norm_offset: 1.0,
        norms: FOUR_NORMS,
        window: SlidingWindow::Pattern(6),
        rope_theta: 1_000_000.0,
        local_rope: Some(10_000.0),
        query_scalar: true,
        scaled_embedding: true,
        activation_key: "hidden_activation",
        head_dim: Some(256),
        kv_heads: Some(4),
        max_positions: 131_072,
        tied: true,
        ..LLAMA
    },
    Family {
        name: "gemma2",
        summary: "Gemma 2",
        architectures: &["Gemma2ForCausalLM"],
        model_type: "gemma2",
        bias: Bias::Configured { mlp: false },
        norm_offset: 1.0,
        norms: FOUR_NORMS,
        window: SlidingWindow::Pattern(2),
        query_scalar: true,
        scaled_embedding: true,
        softcaps: Some([50.0, 30.0]),
        activation_key: "hidden_activation",
        head_dim: Some(256),
        kv_heads: Some(4),
        max_positions: 8192,
        tied: true,
        ..LLAMA
    },
    Family {
        name: "qwen3-moe",
        summary: "Qwen3 with experts",
        architectures: &["Qwen3MoeForCausalLM"],
        model_type: "qwen3_moe",
        bias: Bias::Configured { mlp: false },
        qk_norm: QkNorm::PerHead,
        window: SlidingWindow::AllIfEnabled,
        kv_heads: Some(4),
        max_positions: 32_768,
        heads_divide_hidden: false,
        experts: Some(ExpertRules { count: 128, active: 8, skips_layers: true, ..EXPERTS }),
        ..LLAMA
    },
    Family {
        name: "mixtral",
        summary: "Mixtral",
        architectures: &["MixtralForCausalLM"],
        model_type: "mixtral",
        bias: Bias::Never,
        norm_eps: 1e-5,
        window: SlidingWindow::AllIfSet { default: None },
        // transformers 5 sets it where a file omits it.
        rope_theta: 1_000_000.0,
        kv_heads: Some(8),
        max_positions: 131_072,
        heads_divide_hidden: false,
        experts: Some(ExpertRules {
            ff_key: "intermediate_size",
            always_normalized: true,
            ..EXPERTS
        }),
        names: Names {
            experts: "block_sparse_moe.experts",
            expert_parts: ["w1", "w3", "w2"],
            router: "block_sparse_moe.gate",
            ..NAMES
        },
        ..LLAMA
    },
    Family {
        name: "olmoe",
        summary: "OLMoE",
        architectures: &["OlmoeForCausalLM"],
        model_type: "olmoe",
        bias: Bias::Configured { mlp: false },
        norm_eps: 1e-5,
        qk_norm: QkNorm::AllHeads,
        clip_qkv: true,
        max_positions: 4096,
        experts: Some(ExpertRules { count: 64, active: 8, ff_key: "intermediate_size", ..EXPERTS }),
        ..LLAMA
    },
    Family {
        name: "qwen2-moe",
        summary: "Qwen1.5 and Qwen2 with experts",
        architectures: &["Qwen2MoeForCausalLM"],
        model_type: "qwen2_moe",
        bias: Bias::QkvUnless { key: "qkv_bias" },
        window: SlidingWindow::LowerIfEnabled,
        kv_heads: Some(16),
        max_positions: 32_768,
        heads_divide_hidden: false,
        experts: Some(ExpertRules {
            count: 60,
            active: 4,
            shared: true,
            skips_layers: true,
            ..EXPERTS
        }),
        ..LLAMA
    },
    Family {
        name: "olmo2",
        summary: "OLMo 2",
        architectures: &["Olmo2ForCausalLM"],
        model_type: "olmo2",
        bias: Bias::Configured { mlp: false },
        norm_eps: 1e-5,
        qk_norm: QkNorm::AllHeads,
        norms: OUTPUT_NORMS,
        ..LLAMA
    },
    Family {
        name: "olmo3",
        summary: "OLMo 3",
        architectures: &["Olmo3ForCausalLM"],
        model_type: "olmo3",
        bias: Bias::Configured { mlp: false },
        norm_eps: 1e-5,
        qk_norm: QkNorm::AllHeads,
        norms: OUTPUT_NORMS,
        window: SlidingWindow::Pattern(4),
        rope_theta: 500_000.0,
        local_rope: Some(500_000.0),
        ..LLAMA
    },
    Family {
        name: "phi3",
        summary: "Phi-3, Phi-4",
        architectures: &["Phi3ForCausalLM"],
        model_type: "phi3",
        bias: Bias::Never,
        norm_eps: 1e-5,
        window: SlidingWindow::AllIfSet { default: None },
        rotation: Rotation { partial: Some(1.0), ..WHOLE_HEADS },
        max_positions: 4096,
        fused: &[
            FusedLinears {
                name: "self_attn.qkv_proj",
                parts: &["self_attn.q_proj", "self_attn.k_proj", "self_attn.v_proj"],
            },
            GATE_UP,
        ],
        ..LLAMA
    },
    Family {
        name: "smollm3",
        summary: "SmolLM3",
        architectures: &["SmolLM3ForCausalLM"],
        model_type: "smollm3",
        window: SlidingWindow::UnrotatedIfEnabled,
        rotation: Rotation { skips_layers: true, ..WHOLE_HEADS },
        rope_theta: 2_000_000.0,
        kv_heads: Some(4),
        max_positions: 32_768,
        tied: true,
        heads_divide_hidden: false,
        ..LLAMA
    },
    Family {
        name: "granite",
        summary: "Granite 3 and 4, dense",
        architectures: &["GraniteForCausalLM"],
        model_type: "granite",
        multipliers: true,
        heads_divide_hidden: false,
        ..LLAMA
    },
    Family {
        name: "glm4",
        summary: "GLM-4 0414",
        architectures: &["Glm4ForCausalLM"],
        model_type: "glm4",
        bias: Bias::QkvUnless { key: "attention_bias" },
        norm_eps: 1.5625e-7,
        norms: Norms {
            before_attention: Some("input_layernorm"),
            after_attention: Some("post_self_attn_layernorm"),
            before_mlp: Some("post_attention_layernorm"),
            after_mlp: Some("post_mlp_layernorm"),
        },
        rotation: Rotation { partial: Some(0.5), interleaved: true, ..WHOLE_HEADS },
        head_dim: Some(128),
        kv_heads: Some(2),
        max_positions: 131_072,
        heads_divide_hidden: false,
        fused: &[GATE_UP],
        ..LLAMA
    },
    Family {
        name: "ministral3",
        summary: "Ministral 3",
        architectures: &["Ministral3ForCausalLM"],
        model_type: "ministral3",
        bias: Bias::Never,
        norm_eps: 1e-5,
        window: SlidingWindow::AllIfSet { default: None },
        rotation: Rotation { scales_queries: true, ..WHOLE_HEADS },
        rope_theta: 1_000_000.0,
        default_rope: Some(rope_config::ministral3),
        head_dim: Some(128),
        kv_heads: Some(8),
        max_positions: 262_144,
        heads_divide_hidden: false,
        ..LLAMA
    },
    Family {
        name: "gemma4",
        summary: "Gemma 4: E2B, E4B, 31B, 26B-A4B (the text model of multimodal models)",
        architectures: &["Gemma4ForCausalLM"],
        model_type: "gemma4_text",
        bias: Bias::Configured { mlp: false },
        qk_norm: QkNorm::PerHead,
        differing_heads: true,
        value_norm: true,
        unscaled_scores: true,
        layer_scale: true,
        per_layer_embedding: true,
        norms: FOUR_NORMS,
        window: SlidingWindow::Pattern(6),
        rope_theta: 1_000_000.0,
        default_rope: Some(rope_config::gemma4),
        local_rope: Some(10_000.0),
        scaled_embedding: true,
        final_cap: true,
        activation_key: "hidden_activation",
        head_dim: Some(256),
        kv_heads: Some(4),
        max_positions: 131_072,
        tied: true,
        heads_divide_hidden: false,
        experts: Some(ExpertRules {
            count: 0,
            active: 0,
            always_normalized: true,
            files: ExpertFiles::Rows,
            switch: Some("enable_moe_block"),
            active_key: "top_k_experts",
            beside_mlp: true,
            ..EXPERTS
        }),
        names: Names { experts: "experts", router: "router.proj", shared: "mlp", ..NAMES },
        ..LLAMA
    },
    QWEN35,
    Family {
        name: "qwen3.5-moe",
        summary: "Qwen3.5 with experts (the text model of multimodal models)",
        architectures: &["Qwen3_5MoeForCausalLM"],
        model_type: "qwen3_5_moe_text",
        kv_heads: Some(2),
        experts: Some(ExpertRules {
            count: 256,
            active: 8,
            always_normalized: true,
            shared: true,
            ..EXPERTS
        }),
        ..QWEN35
    },
    Family {
        name: "gpt-oss",
        summary: "gpt-oss 20b and 120b",
        architectures: &["GptOssForCausalLM"],
        model_type: "gpt_oss",
        bias: Bias::AllUnless,
        sinks: true,
        norm_eps: 1e-5,
        window: SlidingWindow::Pattern(2),
        rope_theta: 150_000.0,
        default_rope: Some(rope_config::gpt_oss),
        clamped_swiglu: true,
        head_dim: Some(64),
        kv_heads: Some(8),
        max_positions: 131_072,
        heads_divide_hidden: false,
        experts: Some(ExpertRules {
            count: 128,
            active: 4,
            ff_key: "intermediate_size",
            always_normalized: true,
            router_bias: true,
            files: ExpertFiles::Columns,
            ..EXPERTS
        }),
        names: Names { router: "mlp.router", ..NAMES },
        ..LLAMA
    },
    encoder::BERT,
    encoder::MPNET,
    encoder::NOMIC_BERT,
];

/// Qwen3.5, from which the one with experts is derived.
const QWEN35: Family = Family {
    name: "qwen3.5",
    summary: "Qwen3.5, dense (the text model of multimodal models)",
    architectures: &["Qwen3_5ForCausalLM"],
    model_type: "qwen3_5_text",
    bias: Bias::Configured { mlp: false },
    qk_norm: QkNorm::PerHead,
    delta_nets: true,
    gated_attention: true,
    norm_offset: 1.0,
    rotation: Rotation { partial: Some(0.25), has_sections: true, ..WHOLE_HEADS },
    head_dim: Some(256),
    kv_heads: Some(4),
    max_positions: 32_768,
    heads_divide_hidden: false,
    ..LLAMA
};

impl Family {
    /// The family of an architecture named in config.json.
    ///
    /// ```
    /// use openwork_llm::model::Family;
    /// assert_eq!(Family::find("Qwen3ForCausalLM").unwrap().name, "qwen3");
    /// assert!(Family::find("BloomForCausalLM").is_none());
    /// ```
    pub fn find(architecture: &str) -> Option<&'static Family> {
        FAMILIES.iter().find(|family| family.architectures.contains(&architecture))
    }

    /// The family's differences from Llama, a few words each.
    pub fn traits(&self) -> Vec<&'static str> {
        if let Some(encoder) = &self.encoder {
            return encoder.traits();
        }
        let mut traits = Vec::new();
        match self.bias {
            Bias::Qkv | Bias::QkvUnless { .. } => traits.push("q/k/v biases"),
            Bias::Configured { .. } => traits.push("biases if configured"),
            Bias::AllUnless => traits.push("biases"),
            Bias::Never => {}
        }
        match self.window {
            SlidingWindow::Never => {}
            SlidingWindow::AllIfSet { .. } => traits.push("sliding window if set"),
            SlidingWindow::AllIfEnabled => traits.push("sliding window if enabled"),
            SlidingWindow::UpperIfEnabled => {
                traits.push("sliding window in upper layers if enabled")
            }
            SlidingWindow::LowerIfEnabled | SlidingWindow::UnrotatedIfEnabled => {
                traits.push("sliding window in some layers if enabled")
            }
            SlidingWindow::Pattern(_) => traits.push("sliding and global layers"),
        }
        for (has, text) in [
            (self.experts.is_some_and(|experts| experts.switch.is_none()), "experts"),
            (self.experts.is_some_and(|experts| experts.switch.is_some()), "experts if enabled"),
            (self.experts.is_some_and(|experts| experts.shared), "shared expert"),
            (self.delta_nets, "gated delta nets"),
            (self.gated_attention, "gated attention"),
            (self.differing_heads, "larger heads in global layers"),
            (self.value_norm, "v norm"),
            (self.layer_scale, "scaled layers"),
            (self.per_layer_embedding, "per-layer embeddings and shared keys if configured"),
            (self.sinks, "attention sinks"),
            (self.clamped_swiglu, "clamped SwiGLU"),
            (self.qk_norm != QkNorm::None, "q/k norm"),
            (self.clip_qkv, "q/k/v clamped if set"),
            (self.norm_offset != 0.0, "norms scale by 1 + weight"),
            (self.norms.before_mlp.is_none(), "norms on outputs only"),
            (
                self.norms.before_mlp.is_some() && self.norms.after_mlp.is_some(),
                "four norms per layer",
            ),
            (self.rotation.partial.is_some(), "partial rope"),
            (self.rotation.interleaved, "interleaved rope"),
            (self.rotation.skips_layers, "layers without rope"),
            (self.rotation.scales_queries, "queries scaled by position"),
            (self.local_rope.is_some(), "two ropes"),
            (self.multipliers, "multipliers"),
            (self.softcaps.is_some(), "bounded scores and logits"),
            (!self.fused.is_empty(), "fused linear layers"),
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
