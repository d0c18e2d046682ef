//! Per-layer embeddings, and layers that use the keys and values of earlier ones: what
//! config.json says of them, and what tokens carry from layer to layer for them.

use super::config::{Config, ConfigError, LayerAttention, PerLayerEmbedding};
use super::config_reader::ConfigReader;
use super::family::Family;
use std::collections::BTreeSet;
use std::ops::Range;

/// transformers' defaults.
const WIDTH: usize = 256;
const VOCAB: usize = 262_144;

/// The per-layer embeddings of a family that has them, unless their width is 0.
pub(super) fn per_layer_embedding(
    keys: &mut ConfigReader<'_>,
    family: &Family,
) -> Result<Option<PerLayerEmbedding>, ConfigError> {
    if !family.per_layer_embedding {
        return Ok(None);
    }
    let width = match keys.absent("hidden_size_per_layer_input") {
        true => WIDTH,
        false => keys.optional_count("hidden_size_per_layer_input")?.unwrap_or(0),
    };
    let vocab = keys.size_or("vocab_size_per_layer_input", VOCAB)?;
    Ok((width > 0).then_some(PerLayerEmbedding { width, vocab }))
}

/// Lets the last `num_kv_shared_layers` layers use the keys and values of the last layer
/// before them that is of their kind, sliding or global.
pub(super) fn share_keys(
    keys: &mut ConfigReader<'_>,
    family: &Family,
    attention: &mut [LayerAttention],
) -> Result<(), ConfigError> {
    if !family.per_layer_embedding {
        return Ok(());
    }
    let (layers, shared) =
        (attention.len(), keys.optional_count("num_kv_shared_layers")?.unwrap_or(0));
    if shared == 0 {
        return Ok(());
    }
    if shared > layers {
        return Err(ConfigError::Contradiction(format!(
            "num_kv_shared_layers is {shared}, but there are {layers} layers"
        )));
    }
    let own = layers - shared;
    let slides = |layer: &LayerAttention| layer.window.is_some();
    for index in own..layers {
        let kind = slides(&attention[index]);
        let source = attention[..own].iter().rposition(|layer| slides(layer) == kind);
        attention[index].shared_from = Some(source.ok_or_else(|| {
            let kind = if kind { "sliding_attention" } else { "full_attention" };
            ConfigError::Contradiction(format!(
                "num_kv_shared_layers is {shared}, but none of the first {own} layers has {kind}, which layer {index} shares"
            ))
        })?);
    }
    Ok(())
}

impl Config {
    /// Whether some layer uses the keys and values of another.
    pub fn shares_keys(&self) -> bool {
        self.attention.iter().any(|attention| attention.shared_from.is_some())
    }

    /// The layers whose keys and values other layers use, each with the columns that these
    /// take in a row of all shared keys and values: first the keys, then the values.
    pub fn shared_columns(&self) -> impl Iterator<Item = (usize, Range<usize>)> {
        let sources: BTreeSet<usize> =
            self.attention.iter().filter_map(|a| a.shared_from).collect();
        sources.into_iter().scan(0, |start, layer| {
            let LayerAttention { kv_heads, head_dim, .. } = self.attention[layer];
            let columns = *start..*start + 2 * kv_heads * head_dim;
            *start = columns.end;
            Some((layer, columns))
        })
    }

    /// Width of a row of all shared keys and values.
    pub fn shared_width(&self) -> usize {
        self.shared_columns().last().map_or(0, |(_, columns)| columns.end)
    }

    /// Numbers that a token takes from layer to layer: its hidden state, and shared keys and
    /// values.
    pub fn state_width(&self) -> usize {
        self.hidden + self.shared_width()
    }

    /// Number of tokens that can be embedded.
    pub fn token_limit(&self) -> usize {
        self.per_layer.map_or(self.vocab, |all| all.vocab.min(self.vocab))
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use serde_json::{Value, json};

    /// A config of `kinds`, `s` for sliding and `f` for global layers, with other keys.
    fn gemma(kinds: &str, others: Value) -> Result<Config, ConfigError> {
        let kind = |kind| if kind == 's' { "sliding_attention" } else { "full_attention" };
        let mut config = json!({
            "architectures": ["Gemma4ForCausalLM"], "model_type": "gemma4_text",
            "hidden_size": 64, "intermediate_size": 24, "num_hidden_layers": kinds.len(),
            "num_attention_heads": 4, "num_key_value_heads": 2, "head_dim": 8,
            "global_head_dim": 16, "vocab_size": 100, "hidden_activation": "gelu_pytorch_tanh",
            "layer_types": kinds.chars().map(kind).collect::<Vec<_>>(),
        });
        let others = others.as_object().expect("an object").clone();
        config.as_object_mut().expect("an object").extend(others);
        Config::new(&config)
    }

    #[test]
    fn layers_share_with_the_last_of_their_kind_before_the_shared_ones() {
        let config =
            gemma("ssfsf", json!({"num_kv_shared_layers": 2, "use_double_wide_mlp": true}))
                .expect("a config");
        let from: Vec<_> = config.attention.iter().map(|layer| layer.shared_from).collect();
        assert_eq!(from, [None, None, None, Some(1), Some(2)]);
        let widths: Vec<_> = (0..5).map(|layer| config.mlp_width(layer)).collect();
        assert_eq!(widths, [Some(24), Some(24), Some(24), Some(48), Some(48)]);
        // Keys and values of two heads of 8, then of two heads of 16.
        assert_eq!(config.shared_columns().collect::<Vec<_>>(), [(1, 0..32), (2, 32..96)]);
        assert_eq!(config.state_width(), 64 + 96);
        let none = gemma("ssfsf", json!({})).expect("a config");
        assert_eq!((none.shared_width(), none.shares_keys()), (0, false));
    }

    #[test]
    fn layers_without_one_to_share_with_are_refused() {
        for (kinds, shared, why) in [
            (
                "ssf",
                1,
                "config.json: num_kv_shared_layers is 1, but none of the first 2 layers has full_attention, which layer 2 shares",
            ),
            (
                "sf",
                2,
                "config.json: num_kv_shared_layers is 2, but none of the first 0 layers has sliding_attention, which layer 0 shares",
            ),
            ("sf", 9, "config.json: num_kv_shared_layers is 9, but there are 2 layers"),
        ] {
            let error =
                gemma(kinds, json!({"num_kv_shared_layers": shared})).expect_err("a refusal");
            assert_eq!(error.to_string(), why);
        }
    }

    #[test]
    fn heads_are_given_for_all_global_layers_or_none() {
        let with = |list: Value| gemma("ssfsf", json!({"per_layer_config": list}));
        let heads = json!({"head_dim": 12, "num_key_value_heads": 4});
        let config = with(json!({"2": heads, "4": heads})).expect("a config");
        let sizes: Vec<_> = config.attention.iter().map(|a| (a.head_dim, a.kv_heads)).collect();
        assert_eq!(sizes, [(8, 2), (8, 2), (12, 4), (8, 2), (12, 4)]);
        // None differ, whatever global_head_dim says.
        let config = with(json!({})).expect("a config");
        assert!(config.attention.iter().all(|a| (a.head_dim, a.kv_heads) == (8, 2)));
        for list in [json!({"2": heads}), json!({"1": heads, "2": heads}), json!({"9": heads})] {
            let error = with(list).expect_err("a refusal").to_string();
            assert!(error.contains("which are not the 2 with full_attention"), "{error}");
        }
        // The last layer is global in any case.
        let config = gemma("sss", json!({})).expect("a config");
        assert_eq!(config.attention[2].window, None);
    }

    #[test]
    fn per_layer_embeddings_have_the_defaults_of_transformers() {
        let config = gemma("sf", json!({})).expect("a config");
        let default = PerLayerEmbedding { width: 256, vocab: 262_144 };
        assert_eq!((config.per_layer, config.token_limit()), (Some(default), 100));
        let small = json!({"hidden_size_per_layer_input": 6, "vocab_size_per_layer_input": 90});
        let config = gemma("sf", small).expect("a config");
        assert_eq!(config.per_layer, Some(PerLayerEmbedding { width: 6, vocab: 90 }));
        assert_eq!(config.token_limit(), 90);
        let config = gemma("sf", json!({"hidden_size_per_layer_input": 0})).expect("a config");
        assert_eq!(config.per_layer, None);
    }
}
