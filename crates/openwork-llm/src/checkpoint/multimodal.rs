//! Multimodal models: extracts the text model from the folder.

use super::tensor::TensorInfo;
use serde_json::{Map, Value, json};

/// A multimodal model in transformers, and its text model.
struct Multimodal {
    class: &'static str,
    text_class: &'static str,
    text_type: &'static str,
    /// transformers' defaults for sizes that `text_config` omits.
    sizes: &'static [(&'static str, u64)],
}

/// Every multimodal model whose text model is supported.
const MULTIMODAL: &[Multimodal] = &[
    Multimodal {
        class: "Gemma3ForConditionalGeneration",
        text_class: "Gemma3ForCausalLM",
        text_type: "gemma3_text",
        sizes: &[
            ("vocab_size", 262_208),
            ("hidden_size", 2304),
            ("intermediate_size", 9216),
            ("num_hidden_layers", 26),
            ("num_attention_heads", 8),
        ],
    },
    Multimodal {
        class: "Qwen3_5ForConditionalGeneration",
        text_class: "Qwen3_5ForCausalLM",
        text_type: "qwen3_5_text",
        sizes: &[],
    },
    Multimodal {
        class: "Qwen3_5MoeForConditionalGeneration",
        text_class: "Qwen3_5MoeForCausalLM",
        text_type: "qwen3_5_moe_text",
        sizes: &[],
    },
    Multimodal {
        class: "Gemma4ForConditionalGeneration",
        text_class: "Gemma4ForCausalLM",
        text_type: "gemma4_text",
        sizes: &[],
    },
    // Ministral 3 is published as a multimodal model.
    Multimodal {
        class: "Mistral3ForConditionalGeneration",
        text_class: "Ministral3ForCausalLM",
        text_type: "ministral3",
        sizes: &[],
    },
];

/// Top-level keys that do not apply to the text model.
const OF_IMAGES: &[&str] = &[
    "architectures",
    "model_type",
    "text_config",
    "vision_config",
    "boi_token_index",
    "eoi_token_index",
    "image_token_index",
    "mm_tokens_per_image",
    "image_token_id",
    "video_token_id",
    "vision_start_token_id",
    "vision_end_token_id",
    "multimodal_projector_bias",
    "projector_hidden_act",
    "spatial_merge_size",
    "vision_feature_layer",
    "audio_config",
    "audio_token_id",
    "boi_token_id",
    "eoi_token_id",
    "boa_token_id",
    "eoa_token_id",
    "eoa_token_index",
    "vision_soft_tokens_per_image",
];

/// Prefixes of the text model's tensors, as transformers 4 and 5 write them, and
/// the prefixes of the text model alone.
const TEXT: &[(&str, &str)] = &[
    ("language_model.model.", "model."),
    ("language_model.lm_head.", "lm_head."),
    ("model.language_model.", "model."),
];
/// Prefixes of all other tensors.
const IMAGES: &[&str] = &[
    "vision_tower.",
    "multi_modal_projector.",
    "model.vision_tower.",
    "model.multi_modal_projector.",
    "model.visual.",
    "model.audio_tower.",
    "model.embed_vision.",
    "model.embed_audio.",
    // Multi-token prediction layers.
    "mtp.",
];

/// Replaces the config and tensors of a multimodal model by those of its text
/// model and returns a note; leaves other models unchanged.
pub(super) fn text_model(config: &mut Value, tensors: &mut Vec<TensorInfo>) -> Option<String> {
    let text = config["text_config"].as_object()?;
    let row = MULTIMODAL.iter().find(|row| config["architectures"] == json!([row.class]))?;
    // Mistral3 is also used with text models of other families.
    if text.get("model_type").is_some_and(|name| name != row.text_type) {
        return None;
    }
    let sizes = row.sizes.iter().map(|(key, value)| (key.to_string(), json!(value)));
    let mut whole: Map<String, Value> = sizes.collect();
    let activation = match row.text_type {
        "gemma3_text" | "gemma4_text" => ("hidden_activation", "gelu_pytorch_tanh"),
        _ => ("hidden_act", "silu"),
    };
    whole.insert(activation.0.to_string(), json!(activation.1));
    let outer = config.as_object().into_iter().flatten();
    let outer = outer.filter(|(key, _)| !OF_IMAGES.contains(&key.as_str()));
    whole.extend(outer.chain(text).map(|(key, value)| (key.clone(), value.clone())));
    whole.insert("architectures".to_string(), json!([row.text_class]));
    whole.insert("model_type".to_string(), json!(row.text_type));
    *config = Value::Object(whole);

    let all = tensors.len();
    tensors.retain(|tensor| !IMAGES.iter().any(|prefix| tensor.name.starts_with(prefix)));
    for tensor in tensors.iter_mut() {
        let rest =
            |(old, new): &(&str, &str)| Some([*new, tensor.name.strip_prefix(old)?].concat());
        if let Some(name) = TEXT.iter().find_map(rest) {
            tensor.name = name;
        }
    }
    Some(format!(
        "{}: only the text model is used (and written, as {}); {} other tensors are ignored",
        row.class,
        row.text_class,
        all - tensors.len()
    ))
}

#[cfg(test)]
mod tests {
    use super::super::Dtype;
    use super::super::tensor::{Convention, RowOrder};
    use super::*;
    use crate::model::Config;

    fn tensor(name: &str) -> TensorInfo {
        let (name, shape, order) = (name.to_string(), vec![0], RowOrder::AsStored);
        let (dtype, range, convention) = (Dtype::F32, 0..0, Convention::Same);
        TensorInfo { name, shape, dtype, file: 0, range, order, convention, packed: None }
    }

    /// Gemma 3 4B's config.json, as published.
    fn gemma() -> Value {
        json!({
            "architectures": ["Gemma3ForConditionalGeneration"], "model_type": "gemma3", "boi_token_index": 255999,
            "eoi_token_index": 256000, "image_token_index": 262144, "mm_tokens_per_image": 256,
            "eos_token_id": [1, 106], "initializer_range": 0.02, "torch_dtype": "bfloat16",
            "transformers_version": "4.50.0.dev0",
            "text_config": {
                "hidden_size": 2560, "intermediate_size": 10240, "model_type": "gemma3_text",
                "num_hidden_layers": 34, "rope_scaling": {"factor": 8.0, "rope_type": "linear"},
                "sliding_window": 1024,
            },
            "vision_config": {"hidden_size": 1152, "model_type": "siglip_vision_model"},
        })
    }

    #[test]
    fn a_config_for_texts_and_images_is_that_of_its_texts() {
        let mut config = gemma();
        assert!(text_model(&mut config, &mut Vec::new()).is_some());
        assert_eq!(config["eos_token_id"], json!([1, 106]));
        let config = Config::new(&config).expect("a text model");
        assert_eq!((config.hidden, config.ff, config.layers), (2560, 10240, 34));
        assert_eq!((config.heads, config.kv_heads, config.head_dim), (8, 4, 256));
        assert_eq!((config.vocab, config.max_positions, config.tied), (262_208, 131_072, true));
        assert_eq!(config.notes, Vec::<String>::new());

        // What would change the text model is still refused.
        let mut quantized = gemma();
        quantized["quantization_config"] = json!({"bits": 4});
        text_model(&mut quantized, &mut Vec::new());
        assert!(Config::new(&quantized).is_err());
    }

    #[test]
    fn names_become_those_of_the_text_model() {
        let names = |names: &[&str]| {
            let mut tensors: Vec<TensorInfo> = names.iter().map(|name| tensor(name)).collect();
            let note = text_model(&mut gemma(), &mut tensors).expect("a note");
            (tensors.into_iter().map(|tensor| tensor.name).collect::<Vec<_>>(), note)
        };
        let want = ["model.norm.weight", "lm_head.weight"];
        let (old, note) = names(&[
            "language_model.model.norm.weight",
            "language_model.lm_head.weight",
            "vision_tower.head.probe",
            "multi_modal_projector.mm_soft_emb_norm.weight",
        ]);
        assert_eq!(old, want);
        assert_eq!(
            note,
            "Gemma3ForConditionalGeneration: only the text model is used (and written, as \
             Gemma3ForCausalLM); 2 other tensors are ignored"
        );
        let new = ["model.language_model.norm.weight", "lm_head.weight", "model.vision_tower.x"];
        assert_eq!(names(&new).0, want);

        let mut other = json!({"architectures": ["Gemma3ForCausalLM"], "text_config": {}});
        let mut tensors = vec![tensor("vision_tower.x")];
        assert_eq!(text_model(&mut other, &mut tensors), None);
        assert_eq!(tensors.len(), 1);
    }
}
