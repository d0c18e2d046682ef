//! Backward pass of per-layer embeddings.
//!
//! ```text
//! out = h + norm(W_out a)        a = act(g) o p        g = W_gate h
//! ```
//!
//! `p`, what the layer looks up for each token, is not trained.

use super::layer::{Interior, LayerGradients, copy, linear_backward};
use crate::model::layer::{Layer, NormSlot, sized};
use crate::model::linear::Role;
use crate::model::per_layer::PerLayerInput;
use crate::model::vector;
use crate::model::weight::apply;
use openwork::{MatrixMut, MatrixRef};

/// What the per-layer embedding of a layer computed on one window.
#[derive(Debug, Default)]
pub(super) struct PerLayerActivations {
    /// `h`, `[T, hidden]`.
    input: Vec<f32>,
    /// `g`, `p` and `a`, `[T, width]`.
    gate: Vec<f32>,
    embedding: Vec<f32>,
    act: Vec<f32>,
    /// Before the norm, `[T, hidden]`.
    out: Vec<f32>,
}

impl Layer {
    /// The indices of the linears of the per-layer embedding.
    fn per_layer_linears(&self) -> [usize; 2] {
        Role::PER_LAYER
            .map(|role| self.info().position(role).expect("the layer has per-layer embeddings"))
    }

    /// As [`add_per_layer`](Self::add_per_layer), keeping what the backward pass needs.
    pub(super) fn per_layer_saving(
        &self,
        input: &PerLayerInput,
        h: &mut [f32],
        tokens: &[u32],
        kept: &mut PerLayerActivations,
    ) {
        let [gate_proj, out_proj] = self.per_layer_linears().map(|i| &self.linears[i].weight);
        let (t, d, width) = (tokens.len(), self.config().hidden, gate_proj.rows());
        copy(&mut kept.input, h);
        let gate = MatrixMut::new(sized(&mut kept.gate, t * width), t, width);
        apply(MatrixRef::new(h, t, d), &mut [(gate_proj, gate)]);
        input.of(tokens, &mut kept.embedding);
        copy(&mut kept.act, &kept.gate);
        self.activate(&mut kept.act, &kept.embedding);
        let out = MatrixMut::new(sized(&mut kept.out, t * d), t, d);
        apply(MatrixRef::new(&kept.act, t, width), &mut [(out_proj, out)]);
        let mut out = kept.out.clone();
        if let Some(norm) = self.norm(NormSlot::AfterPerLayer) {
            norm.rows_in_place(&mut out);
        }
        vector::add(h, &out);
    }

    /// Adds to the gradient `d` of the output what comes through the embedding's gate.
    pub(super) fn per_layer_backward(
        &self,
        kept: &PerLayerActivations,
        interior: &mut Interior,
        d: &mut [f32],
        grads: &mut LayerGradients,
    ) {
        let [d_act, d_gate, d_embedding] = &mut interior.wide;
        let [d_out, d_input, _] = &mut interior.narrow;
        let [gate, out] = self.per_layer_linears();
        let t = d.len() / self.config().hidden;
        let d_out = match self.norm(NormSlot::AfterPerLayer) {
            None => &*d,
            Some(norm) => {
                d_out.clear();
                d_out.resize(d.len(), 0.0);
                let factors = &mut grads.norms[NormSlot::AfterPerLayer as usize];
                norm.backward(&kept.out, d, d_out, factors);
                &*d_out
            }
        };
        let act = MatrixRef::new(&kept.act, t, kept.act.len() / t);
        linear_backward(&self.linears[out], act, d_out, (0.0, d_act), out, grads);
        copy(d_gate, &kept.gate);
        copy(d_embedding, &kept.embedding);
        self.activation_backward(d_gate, d_embedding, d_act);
        let input = MatrixRef::new(&kept.input, t, self.config().hidden);
        linear_backward(&self.linears[gate], input, d_gate, (0.0, d_input), gate, grads);
        vector::add(d, d_input);
    }
}
