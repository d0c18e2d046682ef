//! The cache of a layer: what it keeps of a sequence between decoding steps.

use super::delta_net::DeltaState;

/// Keys and values of one layer, `[tokens, kv_heads * head_dim]` each, or the state of its
/// gated delta net.
#[derive(Clone, Debug, Default)]
pub struct Cache {
    keys: Vec<f32>,
    values: Vec<f32>,
    pub(super) delta: DeltaState,
}

impl Cache {
    /// Appends the keys and values of new tokens.
    pub fn extend(&mut self, keys: &[f32], values: &[f32]) {
        self.keys.extend_from_slice(keys);
        self.values.extend_from_slice(values);
    }

    /// Removes all tokens.
    pub fn clear(&mut self) {
        self.keys.clear();
        self.values.clear();
        self.delta.clear();
    }

    /// All keys.
    pub fn keys(&self) -> &[f32] {
        &self.keys
    }

    /// All values.
    pub fn values(&self) -> &[f32] {
        &self.values
    }

    /// Bytes that one attention step reads, without a sliding window.
    pub fn bytes(&self) -> usize {
        (self.keys.len() + self.values.len()) * size_of::<f32>() + self.delta.bytes()
    }
}
