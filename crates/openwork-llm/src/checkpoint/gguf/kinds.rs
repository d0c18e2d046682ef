//! Keys of models whose layers are of two kinds, sliding and global, with heads of their own,
//! and whose last layers use the keys and values of earlier ones (Gemma 4).

use super::config::ConfigBuilder;
use super::metadata::MetadataValue;
use super::metadata_writer::MetadataWriter;
use super::names::Architecture;
use crate::checkpoint::error::Fault;
use crate::checkpoint::tensor::TensorInfo;
use crate::model::Config;
use serde_json::{Value, json};

/// The table of per-layer embeddings, in Hugging Face's terms.
const TABLE: &str = "model.embed_tokens_per_layer.weight";
const SHARED: &str = "attention.shared_kv_layers";
const WIDTHS: &str = "feed_forward_length";
const KV_HEADS: &str = "attention.head_count_kv";

impl ConfigBuilder<'_> {
    /// A number for each layer, from a list; `None` if the key is not a list.
    fn layer_numbers(&self, key: &str) -> Result<Option<Vec<u32>>, Fault> {
        let (full, layers) = (self.key(key), self.layers()?);
        let Some(MetadataValue::List { .. }) = self.metadata.get(&full) else { return Ok(None) };
        let numbers = self.metadata.integers(&full, self.bytes)?.unwrap_or_default();
        if numbers.len() != layers as usize {
            let why = format!("has {} entries for {layers} layers", numbers.len());
            return Err(self.refuse(key, why));
        }
        match numbers.iter().map(|&n| u32::try_from(n).ok().filter(|&n| n > 0)).collect() {
            Some(numbers) => Ok(Some(numbers)),
            None => Err(self.refuse(key, "has entries below 1".to_string())),
        }
    }

    /// Key-value heads of sliding and of global layers, from a number or a list.
    pub fn kv_heads_by_kind(&self) -> Result<Option<[u32; 2]>, Fault> {
        let list = match self.family.differing_heads {
            true => self.layer_numbers(KV_HEADS)?,
            false => None,
        };
        let Some(list) = list else { return Ok(self.number(KV_HEADS)?.map(|n| [n, n])) };
        let slides = self.slides(self.layers()?)?;
        let mut found = [None, None];
        for (&heads, slides) in list.iter().zip(slides) {
            let known = found[usize::from(!slides)].get_or_insert(heads);
            if *known != heads {
                let why = "differs between layers of one kind, which is not supported".to_string();
                return Err(self.refuse(KV_HEADS, why));
            }
        }
        let [sliding, global] = found;
        Ok(sliding.or(global).zip(global.or(sliding)).map(|(sliding, global)| [sliding, global]))
    }

    /// The width of MLPs: a number, or a list in which layers that use the keys and values of
    /// others may have twice the width.
    pub fn feed_forward(&self) -> Result<Option<u32>, Fault> {
        let list = match self.family.differing_heads {
            true => self.layer_numbers(WIDTHS)?,
            false => None,
        };
        let Some(list) = list else { return self.number(WIDTHS) };
        let own = self.own_keys()? as usize;
        let width = list.first().copied();
        let wide = width.map(|width| if self.double_wide(&list) { 2 * width } else { width });
        let fits = |(i, found)| Some(found) == if i < own { width } else { wide };
        match list.iter().copied().enumerate().all(fits) {
            true => Ok(width),
            false => {
                let why = format!("is not one width, or twice it from layer {own} on");
                Err(self.refuse(WIDTHS, why))
            }
        }
    }

    fn double_wide(&self, widths: &[u32]) -> bool {
        widths.first().zip(widths.last()).is_some_and(|(first, last)| first != last)
    }

    /// The number of layers that compute their own keys and values.
    pub fn own_keys(&self) -> Result<u32, Fault> {
        let layers = self.layers()?;
        if !self.family.per_layer_embedding {
            return Ok(layers);
        }
        let shared = self.number(SHARED)?.unwrap_or(0);
        let why = || format!("is {shared}, but block_count is {layers}");
        layers.checked_sub(shared).filter(|&own| own > 0).ok_or_else(|| self.refuse(SHARED, why()))
    }

    /// Sets what is particular to layers of two kinds; `global` is the head size of global
    /// layers. `tensors` have Hugging Face's names.
    pub fn set_kinds(
        &self,
        global: u32,
        tensors: &[TensorInfo],
        set: &mut impl FnMut(&str, Value) -> Option<Value>,
    ) -> Result<(), Fault> {
        if !self.family.differing_heads {
            return Ok(());
        }
        let (layers, own) = (self.layers()?, self.own_keys()?);
        let slides = self.slides(layers)?;
        if slides.last() == Some(&true) {
            let why = "lets the last layer slide, which is not supported".to_string();
            return Err(self.refuse("attention.sliding_window_pattern", why));
        }
        set("global_head_dim", json!(global));
        // Global layers may use their keys as values.
        let has_values = |layer: usize| {
            let name = format!("model.layers.{layer}.self_attn.v_proj.weight");
            tensors.iter().any(|tensor| tensor.name == name)
        };
        let first = slides[..own as usize].iter().position(|slides| !slides);
        let keys_are_values = first.is_some_and(|layer| !has_values(layer));
        set("attention_k_eq_v", json!(keys_are_values));
        if let Some([sliding, global]) = self.kv_heads_by_kind()? {
            if sliding != global && !keys_are_values {
                let why = "differs between layers with values of their own, which is not supported";
                return Err(self.refuse(KV_HEADS, why.to_string()));
            }
            set("num_global_key_value_heads", json!(global));
        }
        set("num_kv_shared_layers", json!(layers - own));
        let widths = self.layer_numbers(WIDTHS)?.unwrap_or_default();
        set("use_double_wide_mlp", json!(self.double_wide(&widths)));
        let width = self.number("embedding_length_per_layer_input")?.unwrap_or(0);
        set("hidden_size_per_layer_input", json!(width));
        if let Some(table) = tensors.iter().find(|tensor| tensor.name == TABLE) {
            set("vocab_size_per_layer_input", json!(table.shape.first()));
        }
        Ok(())
    }
}

/// Writes the sizes of heads and MLPs, and what layers share.
pub(super) fn write_kinds(
    entries: &mut MetadataWriter,
    architecture: &Architecture,
    config: &Config,
) -> Result<(), String> {
    let key = |key: &str| format!("{}.{key}", architecture.name);
    let mut one_or_list = |name: &str, values: Vec<usize>| match values[..] {
        [first, ref others @ ..] if others.iter().all(|other| *other == first) => {
            entries.number(&key(name), first as u32)
        }
        // The sizes of a config fit 32 bits with a sign.
        _ => entries.integers(&key(name), &values.iter().map(|&n| n as i32).collect::<Vec<_>>()),
    };
    one_or_list(KV_HEADS, config.attention.iter().map(|layer| layer.kv_heads).collect());
    one_or_list(WIDTHS, (0..config.layers).filter_map(|layer| config.mlp_width(layer)).collect());
    let mut number = |name: &str, value: usize| entries.number(&key(name), value as u32);
    let global = config.attention.iter().find(|layer| layer.window.is_none());
    let global = global.map_or(config.head_dim, |layer| layer.head_dim);
    for part in ["attention.key_length", "attention.value_length", "rope.dimension_count"] {
        number(part, global);
        number(&format!("{part}_swa"), config.head_dim);
    }
    let shared = config.attention.iter().filter(|layer| layer.shared_from.is_some()).count();
    number(SHARED, shared);
    number("embedding_length_per_layer_input", config.per_layer.map_or(0, |all| all.width));
    match config.per_layer {
        Some(all) if all.vocab != config.vocab => Err(format!(
            "its per-layer embeddings have {} tokens, but its vocabulary has {}",
            all.vocab, config.vocab
        )),
        _ => Ok(()),
    }
}
