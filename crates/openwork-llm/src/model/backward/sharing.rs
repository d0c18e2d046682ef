//! Gradients of the keys and values that layers share.
//!
//! A layer that attends to the keys and values of an earlier one adds their gradients to
//! those of all such layers. The earlier layer, whose turn comes later, adds these to its
//! own:
//!
//! ```text
//! dK = sum over the layers that use K of the dK of their attention
//! ```

use crate::model::layer::Layer;
use crate::model::vector;

impl Layer {
    /// Adds the gradients of another layer's keys and values to `shared`, and clears them;
    /// or adds to those of its own keys and values what other layers left there. `shared` has
    /// the columns of `Config::shared_columns`; if it is empty, other layers' keys and values
    /// are constants.
    pub(super) fn share_backward(
        &self,
        d_k: &mut Vec<f32>,
        d_v: &mut Vec<f32>,
        shared: &mut [f32],
    ) {
        let Some(columns) = &self.shared else { return };
        let uses_others = self.config.attention[self.index()].shared_from.is_some();
        let half = columns.len() / 2;
        let rows = shared.chunks_exact_mut(self.config.shared_width());
        let heads = d_k.chunks_exact_mut(half).zip(d_v.chunks_exact_mut(half));
        for (row, (k, v)) in rows.zip(heads) {
            let (keys, values) = row[columns.clone()].split_at_mut(half);
            match uses_others {
                true => {
                    vector::add(keys, k);
                    vector::add(values, v);
                }
                false => {
                    vector::add(k, keys);
                    vector::add(v, values);
                }
            }
        }
        if uses_others {
            d_k.clear();
            d_v.clear();
        }
    }
}
