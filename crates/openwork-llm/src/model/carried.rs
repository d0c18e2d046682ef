//! What tokens carry from layer to layer beside their hidden states: their ids, by which
//! per-layer embeddings are looked up, and the keys and values that later layers share.

use super::config::Config;
use super::hidden::Scratch;
use super::layer::Layer;
use std::ops::Range;

/// The ids, keys and values of some tokens, as far as the model needs them.
#[derive(Clone, Debug, Default)]
pub struct Carried {
    /// One per token; empty in a model without per-layer embeddings.
    pub tokens: Vec<u32>,
    /// `[tokens, Config::shared_width]`, in the columns of [`Config::shared_columns`]. Empty
    /// if no layer shares them, or if a cache holds them.
    pub keys_values: Vec<f32>,
}

/// The part of some consecutive tokens.
#[derive(Debug)]
pub(super) struct CarriedRows<'a> {
    pub tokens: &'a [u32],
    pub keys_values: &'a mut [f32],
}

impl Carried {
    /// Of tokens before the first layer.
    pub(super) fn new(config: &Config, tokens: &[u32]) -> Self {
        let keys_values = vec![0.0; tokens.len() * config.shared_width()];
        Self { keys_values, ..Self::cached(config, tokens) }
    }

    /// Of tokens whose keys and values are in a cache.
    pub(super) fn cached(config: &Config, tokens: &[u32]) -> Self {
        let tokens = if config.per_layer.is_some() { tokens.to_vec() } else { Vec::new() };
        Self { tokens, keys_values: Vec::new() }
    }

    /// The part of some of `total` tokens.
    pub(super) fn rows(&mut self, rows: Range<usize>, total: usize) -> CarriedRows<'_> {
        let part = |all: usize| rows.start * (all / total)..rows.end * (all / total);
        let (tokens, keys_values) = (part(self.tokens.len()), part(self.keys_values.len()));
        CarriedRows {
            tokens: &self.tokens[tokens],
            keys_values: &mut self.keys_values[keys_values],
        }
    }
}

impl CarriedRows<'_> {
    /// Stores the keys and values of a layer in their columns.
    pub fn store(&mut self, config: &Config, columns: &Range<usize>, k: &[f32], v: &[f32]) {
        if self.keys_values.is_empty() {
            return;
        }
        let half = columns.len() / 2;
        let rows = self.keys_values.chunks_exact_mut(config.shared_width());
        for (row, (k, v)) in rows.zip(k.chunks_exact(half).zip(v.chunks_exact(half))) {
            let (keys, values) = row[columns.clone()].split_at_mut(half);
            keys.copy_from_slice(k);
            values.copy_from_slice(v);
        }
    }

    /// Copies the keys and values of a layer from their columns.
    pub fn load(
        &self,
        config: &Config,
        columns: &Range<usize>,
        k: &mut Vec<f32>,
        v: &mut Vec<f32>,
    ) {
        k.clear();
        v.clear();
        if self.keys_values.is_empty() {
            return;
        }
        for row in self.keys_values.chunks_exact(config.shared_width()) {
            let (keys, values) = row[columns.clone()].split_at(columns.len() / 2);
            k.extend_from_slice(keys);
            v.extend_from_slice(values);
        }
    }
}

impl Layer {
    /// Stores the keys and values for later layers, or loads those of an earlier one.
    pub(super) fn share_keys(&self, carried: &mut CarriedRows<'_>, scratch: &mut Scratch) {
        let Some(columns) = &self.shared else { return };
        let Scratch { k, v, .. } = scratch;
        match self.config.attention[self.index()].shared_from {
            None => carried.store(&self.config, columns, k, v),
            Some(_) => carried.load(&self.config, columns, k, v),
        }
    }
}
