//! Backward pass of the first half of a layer: attention or a gated delta net.
//!
//! ```text
//! x = norm(h)        m = h + r norm(mix(x) Wo')
//! attention:         mix(x) = attend(rotate(norm(x Wq')), rotate(norm(x Wk')), x Wv') o sigmoid(gate)
//! ```
//!
//! (norms, factor and gate where the family has them). In families with gates the rows of
//! `Wq` are the queries of a head and then its gates.

use super::attention::{Forward, Gradients};
use super::delta_net::DeltaGradients;
use super::layer::{Activations, Interior, LayerGradients, copy, linear_backward};
use crate::model::cache::Cache;
use crate::model::carried::CarriedRows;
use crate::model::delta_net::{DeltaNet, Projected};
use crate::model::hidden::Scratch;
use crate::model::layer::{ACTIVATION_CHUNK, Layer, NormSlot, sized};
use crate::model::linear::Role;
use crate::model::norm::Norm;
use crate::model::tap::NoTap;
use crate::model::vector;
use openwork::MatrixRef;
use rayon::prelude::*;

/// What the mixer of a layer computed on one window, beside its scratch buffers.
#[derive(Debug, Default)]
pub(super) struct MixerActivations {
    /// `normed`, rotated `q` and `k`, `v`, `mixed`, `out`; in a delta net, `q` are its
    /// projections before the convolution and `v` its gate.
    pub scratch: Scratch,
    /// Queries, keys and values before their norms and bounds, if the family has those.
    raw_heads: [Vec<f32>; 3],
    /// The outputs of heads before their gate, and before their norm in a delta net.
    ungated: Vec<f32>,
}

impl Layer {
    /// The first half of [`forward_saving`](Self::forward_saving).
    pub(super) fn mixer_saving(
        &self,
        h: &mut [f32],
        carried: &mut CarriedRows<'_>,
        kept: &mut Activations,
    ) {
        let Activations { input, mixer, .. } = kept;
        copy(input, h);
        self.attention_input(h, &mut mixer.scratch, &mut NoTap);
        match &self.delta_net {
            Some(net) => self.delta_saving(net, h.len(), mixer),
            None => self.attention_saving(h.len(), carried, mixer),
        }
        let o_proj = self.output_linear();
        let Scratch { mixed, out, .. } = &mut mixer.scratch;
        let x = MatrixRef::new(mixed, h.len() / self.config().hidden, o_proj.weight.cols());
        self.add_residual_saving(x, o_proj, self.norm(NormSlot::AfterAttention), out, h);
    }

    fn attention_saving(
        &self,
        size: usize,
        carried: &mut CarriedRows<'_>,
        kept: &mut MixerActivations,
    ) {
        let MixerActivations { scratch, raw_heads, ungated } = kept;
        self.project_heads(size, scratch);
        let norms = self.head_norms();
        if norms.iter().any(Option::is_some) || self.config().clip_qkv.is_some() {
            for (raw, heads) in raw_heads.iter_mut().zip([&scratch.q, &scratch.k, &scratch.v]) {
                copy(raw, heads);
            }
        }
        self.rotate_rows(size, &|row| row, scratch);
        self.share_keys(carried, scratch);
        self.mix(size / self.config().hidden, None, scratch);
        if self.config().family.gated_attention {
            copy(ungated, &scratch.mixed);
            self.gate_heads(scratch);
        }
    }

    fn delta_saving(&self, net: &DeltaNet, size: usize, kept: &mut MixerActivations) {
        let MixerActivations { scratch, ungated, .. } = kept;
        self.project_delta(size, scratch);
        let x = self.projected(scratch);
        net.mix_heads(&x, &mut Cache::default().delta, sized(ungated, scratch.v.len()));
        copy(&mut scratch.mixed, ungated);
        net.norm_and_gate(&scratch.v, &mut scratch.mixed);
    }

    /// The projections of a gated delta net on one window.
    fn projected<'a>(&self, scratch: &'a Scratch) -> Projected<'a> {
        let Scratch { normed, q, v, .. } = scratch;
        let hidden = self.config().hidden;
        let input = MatrixRef::new(normed, normed.len() / hidden, hidden);
        Projected { input, mixed: q, gate: v }
    }

    /// The norms on the heads of queries, keys and values.
    fn head_norms(&self) -> [Option<&Norm>; 3] {
        [self.norm(NormSlot::Query), self.norm(NormSlot::Key), self.value_norm.as_ref()]
    }

    /// The first half of [`backward`](Self::backward).
    pub(super) fn mixer_backward(
        &self,
        kept: &Activations,
        interior: &mut Interior,
        d: &mut [f32],
        d_shared: &mut [f32],
        grads: &mut LayerGradients,
    ) {
        let Activations { input, mixer, .. } = kept;
        let t = d.len() / self.config().hidden;

        // 1. Through the norm after it, if any, and the output projection.
        let [d_out, _, d_mixed] = &mut interior.narrow;
        let out = &mixer.scratch.out;
        let d_out = self.output_backward(NormSlot::AfterAttention, out, d, d_out, grads);
        let o_proj = self.output_linear();
        let mixed = MatrixRef::new(&mixer.scratch.mixed, t, o_proj.weight.cols());
        linear_backward(o_proj, mixed, d_out, (0.0, d_mixed), self.info().mixer - 1, grads);

        // 2. Through the mixer and its projections.
        match &self.delta_net {
            Some(net) => self.delta_backward(net, mixer, interior, grads),
            None => self.attention_backward(mixer, interior, d_shared, grads),
        }

        // 3. Through the norm before it.
        self.input_norm_backward(NormSlot::BeforeAttention, input, &interior.narrow[1], d, grads);
    }

    /// From the gradient of the heads, in the third narrow buffer, to that of the normalized
    /// input, in the second.
    fn delta_backward(
        &self,
        net: &DeltaNet,
        kept: &MixerActivations,
        interior: &mut Interior,
        grads: &mut LayerGradients,
    ) {
        let [d_qkv, d_gate, _] = &mut interior.wide;
        let [_, d_normed, d_mixed] = &mut interior.narrow;
        let x = self.projected(&kept.scratch);
        let into = DeltaGradients { mixed: d_qkv, gate: d_gate, input: d_normed };
        net.backward(x, &kept.ungated, d_mixed, into);
        for (i, grad) in [&*d_qkv, d_gate].into_iter().enumerate() {
            linear_backward(&self.linears[i], x.input, grad, (1.0, d_normed), i, grads);
        }
    }

    /// As [`delta_backward`](Self::delta_backward), of attention.
    fn attention_backward(
        &self,
        kept: &MixerActivations,
        interior: &mut Interior,
        d_shared: &mut [f32],
        grads: &mut LayerGradients,
    ) {
        let MixerActivations { scratch, ungated, .. } = kept;
        let Scratch { normed, q, k, v, mixed, head_gate, .. } = scratch;
        let [d_q, d_k, d_v] = &mut interior.wide;
        let [_, d_normed, d_mixed] = &mut interior.narrow;
        let c = self.config();
        let t = normed.len() / c.hidden;

        // 1. Through the gate.
        let gated = c.family.gated_attention;
        let mut d_gate = Vec::new();
        if gated {
            d_gate.extend_from_slice(head_gate);
            let parts = d_gate.par_chunks_mut(ACTIVATION_CHUNK);
            let parts = parts.zip(ungated.par_chunks(ACTIVATION_CHUNK));
            parts
                .zip(d_mixed.par_chunks_mut(ACTIVATION_CHUNK))
                .for_each(|((gate, x), d)| vector::sigmoid_gate_backward(gate, x, d));
        }

        // 2. Through attention and the rotation.
        for (grad, heads) in [(&mut *d_q, q), (&mut *d_k, k), (&mut *d_v, v)] {
            grad.resize(heads.len(), 0.0);
        }
        let out = if gated { ungated } else { mixed };
        let into = Gradients { q: d_q, k: d_k, v: d_v };
        self.grouped_attention().backward(Forward { q, k, v, out }, d_mixed, into);
        // Keys and values of another layer leave nothing to do here.
        self.share_backward(d_k, d_v, d_shared);
        let [q_width, kv_width] = [q, k].map(|heads| heads.len() / t);
        if let Some(scaling) = c.query_scaling {
            let rows = d_q.par_chunks_mut(q_width).enumerate();
            rows.for_each(|(p, row)| vector::scale(row, scaling.factor(p)));
        }
        self.rotate_back(d_q, q_width);
        self.rotate_back(d_k, kv_width);

        // 3. Through the norms and bounds of heads.
        self.heads_backward(kept, [&mut *d_q, &mut *d_k, &mut *d_v], grads);

        // 4. Through the projections.
        if self.info().position(Role::Value).is_none() {
            // The values are the keys.
            vector::add(d_k, d_v);
        }
        if gated {
            *d_q = join_heads(d_q, &d_gate, self.grouped_attention().head_dim);
        }
        let x = MatrixRef::new(normed, t, c.hidden);
        let roles = [(Role::Query, &*d_q), (Role::Key, d_k), (Role::Value, d_v)];
        for (role, grad) in roles {
            let Some(i) = self.info().position(role) else { continue };
            let beta = if role == Role::Query { 0.0 } else { 1.0 };
            linear_backward(&self.linears[i], x, grad, (beta, d_normed), i, grads);
        }
    }

    /// Replaces the gradients of queries, keys and values by those before their norms and
    /// bounds. The norm of values has no weights.
    fn heads_backward(
        &self,
        kept: &MixerActivations,
        d_heads: [&mut Vec<f32>; 3],
        grads: &mut LayerGradients,
    ) {
        let slots = [Some(NormSlot::Query), Some(NormSlot::Key), None];
        let heads = self.head_norms().into_iter().zip(slots).zip(&kept.raw_heads).zip(d_heads);
        for (((norm, slot), raw), grad) in heads {
            if let Some(clip) = self.config().clip_qkv {
                clip_backward(raw, norm, clip, grad);
            }
            if let Some(norm) = norm {
                let mut d_raw = vec![0.0; grad.len()];
                match slot {
                    Some(slot) => {
                        norm.backward(raw, grad, &mut d_raw, &mut grads.norms[slot as usize])
                    }
                    None => norm.backward_frozen(raw, grad, &mut d_raw),
                }
                *grad = d_raw;
            }
        }
    }

    /// Rotates every head of the rows back by its position.
    fn rotate_back(&self, rows: &mut [f32], width: usize) {
        let Some(rope) = self.rope() else { return };
        let table = rope.table(rows.len() / width);
        let rows = rows.par_chunks_mut(width).enumerate().with_min_len(32);
        rows.for_each(|(p, row)| table.rotate_back(row, p));
    }
}

/// The rows of queries with their gates, head by head: `q` and `gate` are `[T, heads *
/// head_dim]`.
fn join_heads(q: &[f32], gate: &[f32], head_dim: usize) -> Vec<f32> {
    let heads = q.chunks_exact(head_dim).zip(gate.chunks_exact(head_dim));
    heads.flat_map(|(q, gate)| q.iter().chain(gate)).copied().collect()
}

/// Clears the gradients of heads that were clamped after their norm.
fn clip_backward(raw: &[f32], norm: Option<&Norm>, clip: f32, grad: &mut [f32]) {
    let mut heads = raw.to_vec();
    if let Some(norm) = norm {
        norm.rows_in_place(&mut heads);
    }
    for (grad, x) in grad.iter_mut().zip(heads) {
        *grad = if x.abs() > clip { 0.0 } else { *grad };
    }
}
