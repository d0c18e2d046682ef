//! Backward pass of a decoder layer on one window of tokens.
//!
//! ```text
//! m = h + r norm(mix(norm(h)) Wo')        out = s (m + r norm(act(norm(m) Wg') o (norm(m) Wu') Wd'))
//! ```
//!
//! (the outer norms and the factors `r` and `s` where the family has them). For a linear `Y = X W' + b` and
//! the gradient `dY`: `dX = dY W`, `dW = dY' X`, `db = sum of the rows of dY`.

use super::experts::ExpertActivations;
use super::mixer::MixerActivations;
use super::per_layer::PerLayerActivations;
use crate::model::carried::Carried;
use crate::model::config::{Activation, Config};
use crate::model::hidden::Scratch;
use crate::model::layer::{ACTIVATION_CHUNK, Layer, Linear, NormSlot};
use crate::model::norm::Norm;
use crate::model::parameter::Half;
use crate::model::tap::NoTap;
use crate::model::vector;
use crate::model::weight::{apply, apply_add};
use openwork::{Matrix, MatrixMut, MatrixRef};
use rayon::prelude::*;

/// What a layer computed on one window, for its backward pass.
#[derive(Debug, Default)]
pub struct Activations {
    /// The layer's input, `[T, hidden]`.
    pub(super) input: Vec<f32>,
    /// The first half.
    pub(super) mixer: MixerActivations,
    /// The states between the halves, `[T, hidden]`.
    pub(super) middle: Vec<f32>,
    /// The second half: `normed`, `gate` after the activation, `up`, `out`.
    pub(super) mlp: Scratch,
    /// `gate` before the activation, `[T, ff]`.
    pub(super) raw_gate: Vec<f32>,
    /// What the experts computed, if the layer has any.
    pub(super) experts: ExpertActivations,
    /// What the per-layer embedding computed, if the layer has one.
    per_layer: PerLayerActivations,
}

impl Activations {
    /// The layer's input, `[T, hidden]`.
    pub fn input(&self) -> &[f32] {
        &self.input
    }

    /// The values inside the MLP that every token goes through.
    pub(super) fn mlp_values(&self) -> MlpValues<'_> {
        let Self { mlp, raw_gate, .. } = self;
        MlpValues { x: &mlp.normed, gate: raw_gate, up: &mlp.up, act: &mlp.gate }
    }

    /// Bytes of one layer's activations on a window of `t` tokens.
    pub fn bytes(c: &Config, t: usize) -> u64 {
        let ff = (0..c.layers).filter_map(|layer| c.mlp_width(layer)).max().unwrap_or(c.ff);
        let gates = if c.family.gated_attention { 3 * c.q_width() } else { 0 };
        let experts = c.experts.as_ref().map_or(0, |e| {
            let beside = if e.beside_mlp { 4 * c.hidden } else { 0 };
            e.active * (2 * c.hidden + 3 * e.ff) + beside
        });
        let per_layer = c.per_layer.map_or(0, |p| 2 * c.hidden + 3 * p.width);
        let mixer = 3 * c.q_width() + gates + 3 * c.kv_width();
        let entries = 5 * c.hidden + mixer + 3 * ff + experts + per_layer;
        (t * entries * size_of::<f32>()) as u64
    }
}

/// Memory of the backward pass of a layer: gradients inside it.
#[derive(Debug, Default)]
pub struct Interior {
    pub(super) wide: [Vec<f32>; 3],
    pub(super) narrow: [Vec<f32>; 3],
}

/// Gradients of a layer's parameters on one window.
#[derive(Clone, Debug)]
pub struct LayerGradients {
    /// One for each linear, `[out, in]`.
    pub weights: Vec<Matrix>,
    /// One for each linear; empty without a bias.
    pub biases: Vec<Vec<f32>>,
    /// One for each of [`NormSlot::ALL`]; empty where the family has none.
    pub norms: [Vec<f32>; NormSlot::ALL.len()],
}

impl LayerGradients {
    /// Zeros, in the shapes of a layer's parameters.
    pub fn new(layer: &Layer) -> Self {
        let shape = |linear: &Linear| (linear.weight().rows(), linear.weight().cols());
        Self {
            weights: layer.linears().iter().map(shape).map(|(n, k)| Matrix::zeros(n, k)).collect(),
            biases: layer
                .linears()
                .iter()
                .map(|l| vec![0.0; l.bias().map_or(0, <[f32]>::len)])
                .collect(),
            norms: NormSlot::ALL.map(|slot| vec![0.0; layer.norm(slot).map_or(0, Norm::width)]),
        }
    }

    /// All gradients: weights, biases, norms.
    pub fn slices(&self) -> impl Iterator<Item = &[f32]> {
        let weights = self.weights.iter().map(Matrix::data);
        weights.chain(self.biases.iter().chain(&self.norms).map(Vec::as_slice))
    }

    /// All gradients, as [`slices`](Self::slices), to be changed.
    pub fn slices_mut(&mut self) -> impl Iterator<Item = &mut [f32]> {
        let weights = self.weights.iter_mut().map(Matrix::data_mut);
        weights.chain(self.biases.iter_mut().chain(&mut self.norms).map(Vec::as_mut_slice))
    }

    /// Adds the gradients of another window.
    pub fn add(&mut self, other: &Self) {
        for (sum, other) in self.slices_mut().zip(other.slices()) {
            sum.par_chunks_mut(ACTIVATION_CHUNK)
                .zip(other.par_chunks(ACTIVATION_CHUNK))
                .for_each(|(x, y)| vector::add(x, y));
        }
    }
}

impl Layer {
    /// As [`forward`](Self::forward) on one window `[T, hidden]` that begins at
    /// position 0, keeping in `kept` what [`backward`](Self::backward) needs.
    pub fn forward_saving(&self, h: &mut [f32], carried: &mut Carried, kept: &mut Activations) {
        Half::ALL.into_iter().for_each(|half| self.forward_half_saving(half, h, carried, kept));
    }

    /// One half of [`forward_saving`](Self::forward_saving).
    pub fn forward_half_saving(
        &self,
        half: Half,
        h: &mut [f32],
        carried: &mut Carried,
        kept: &mut Activations,
    ) {
        let t = h.len() / self.config().hidden;
        let mut carried = carried.rows(0..t, t);
        match half {
            Half::Attention => self.mixer_saving(h, &mut carried, kept),
            Half::Mlp => self.mlp_saving(h, carried.tokens, kept),
        }
    }

    fn mlp_saving(&self, h: &mut [f32], tokens: &[u32], kept: &mut Activations) {
        copy(&mut kept.middle, h);
        self.mlp_input(h, &mut kept.mlp, &mut NoTap);
        match self.router {
            Some(_) => self.experts_saving(h, kept),
            None => self.gated_saving(h, kept),
        }
        if let Some(input) = &self.per_layer {
            self.per_layer_saving(input, h, tokens, &mut kept.per_layer);
        }
        self.scale_output(h);
    }

    fn gated_saving(&self, h: &mut [f32], kept: &mut Activations) {
        let Activations { mlp, raw_gate, .. } = kept;
        self.project_gate(h.len(), mlp);
        copy(raw_gate, &mlp.gate);
        self.activate_gate(h.len(), mlp, &mut NoTap);
        let norm = self.norm(NormSlot::AfterMlp);
        let [.., down_proj] = self.mlp_linears(None);
        let width = down_proj.weight.cols();
        let x = MatrixRef::new(&mlp.gate, h.len() / self.config().hidden, width);
        self.add_residual_saving(x, down_proj, norm, &mut mlp.out, h);
    }

    /// `h <- h + r norm(x W' + b)`, leaving the norm's input in `out`.
    pub(super) fn add_residual_saving(
        &self,
        x: MatrixRef<'_>,
        linear: &Linear,
        norm: Option<&Norm>,
        out: &mut Vec<f32>,
        h: &mut [f32],
    ) {
        let (t, d) = (x.rows(), self.config().hidden);
        if norm.is_none() && self.config().residual_scale == 1.0 {
            apply_add(x, linear.weight(), MatrixMut::new(h, t, d));
            return linear.add_bias(h);
        }
        out.resize(t * d, 0.0);
        apply(x, &mut [(linear.weight(), MatrixMut::new(out, t, d))]);
        linear.add_bias(out);
        self.add_output(&mut out.clone(), norm, h);
    }

    /// Replaces the gradient `d` of the layer's output, `[T, hidden]`, by that of
    /// its input, and `grads` by the gradients of its parameters. `kept` is what
    /// [`forward_saving`](Self::forward_saving) left.
    ///
    /// `d_shared` passes the gradients of shared keys and values from the last layer to the
    /// first: zeros of the shape of [`Carried::keys_values`] before the last layer. If it is
    /// empty, the keys and values of other layers are constants.
    ///
    /// # Panics
    ///
    /// If the layer does not hold f32 weights.
    pub fn backward(
        &self,
        kept: &Activations,
        interior: &mut Interior,
        d: &mut [f32],
        d_shared: &mut [f32],
        grads: &mut LayerGradients,
    ) {
        for half in Half::ALL.into_iter().rev() {
            self.backward_half(half, kept, interior, d, d_shared, grads);
        }
    }

    /// One half of [`backward`](Self::backward); the gradients of the other half are left
    /// as they are.
    ///
    /// # Panics
    ///
    /// If the layer does not hold f32 weights.
    pub fn backward_half(
        &self,
        half: Half,
        kept: &Activations,
        interior: &mut Interior,
        d: &mut [f32],
        d_shared: &mut [f32],
        grads: &mut LayerGradients,
    ) {
        for slot in NormSlot::ALL.into_iter().filter(|&slot| slot.half() == half) {
            grads.norms[slot as usize].fill(0.0);
        }
        match half {
            Half::Attention => self.mixer_backward(kept, interior, d, d_shared, grads),
            Half::Mlp => self.mlp_backward(kept, interior, d, grads),
        }
    }

    fn mlp_backward(
        &self,
        kept: &Activations,
        interior: &mut Interior,
        d: &mut [f32],
        grads: &mut LayerGradients,
    ) {
        // 1. Through the factor of the output and the per-layer embedding.
        self.scale_output(d);
        if self.per_layer.is_some() {
            self.per_layer_backward(&kept.per_layer, interior, d, grads);
        }

        // 2. Through the experts; or the norm after the MLP, if any, and its three linears.
        if self.router.is_some() {
            self.experts_backward(kept, interior, d, grads);
        } else {
            let mut d_out = std::mem::take(&mut interior.narrow[0]);
            let from =
                self.output_backward(NormSlot::AfterMlp, &kept.mlp.out, d, &mut d_out, grads);
            self.gated_backward(None, kept.mlp_values(), from, interior, grads);
            interior.narrow[0] = d_out;
        }

        // 3. Through the norm before them.
        self.input_norm_backward(NormSlot::BeforeMlp, &kept.middle, &interior.narrow[1], d, grads);
    }

    /// Through the three linears of an MLP or expert, given the gradient of its output:
    /// leaves that of its input in the second narrow buffer.
    pub(super) fn gated_backward(
        &self,
        expert: Option<u16>,
        values: MlpValues<'_>,
        d_out: &[f32],
        interior: &mut Interior,
        grads: &mut LayerGradients,
    ) {
        let [d_act, d_gate, d_up] = &mut interior.wide;
        let d_normed = &mut interior.narrow[1];
        let t = d_out.len() / self.config().hidden;
        let [gate_proj, up_proj, down_proj] = self.mlp_linears(expert);
        let first = self.info().first_of(expert);

        // 1. Down.
        let act = MatrixRef::new(values.act, t, down_proj.weight.cols());
        linear_backward(down_proj, act, d_out, (0.0, d_act), first + 2, grads);

        // 2. The activation; `gate` and `up` become their gradients.
        copy(d_gate, values.gate);
        copy(d_up, values.up);
        self.activation_backward(d_gate, d_up, d_act);

        // 3. Gate and up.
        let x = MatrixRef::new(values.x, t, self.config().hidden);
        linear_backward(gate_proj, x, d_gate, (0.0, d_normed), first, grads);
        linear_backward(up_proj, x, d_up, (1.0, d_normed), first + 1, grads);
    }

    /// Replaces `gate`, before its activation, and `up` by their gradients, given that of the
    /// activation's output.
    pub(super) fn activation_backward(&self, gate: &mut [f32], up: &mut [f32], d: &[f32]) {
        let activation = self.config().activation;
        let parts = gate.par_chunks_mut(ACTIVATION_CHUNK).zip(up.par_chunks_mut(ACTIVATION_CHUNK));
        parts.zip(d.par_chunks(ACTIVATION_CHUNK)).for_each(|((g, u), d)| match activation {
            Activation::Gelu => unreachable!("only encoders have it, which are not trained"),
            Activation::Silu => vector::silu_gate_backward(g, u, d),
            Activation::GeluTanh => vector::gelu_gate_backward(g, u, d),
            Activation::ClampedSwiglu { alpha, limit } => {
                vector::clamped_swiglu_backward(g, u, d, alpha, limit)
            }
        });
    }

    /// The gradient of what a half computes, before its norm and factor, given that of the
    /// sum that it is added to: `d` itself if the layer has neither.
    pub(super) fn output_backward<'a>(
        &self,
        slot: NormSlot,
        x: &[f32],
        d: &'a [f32],
        into: &'a mut Vec<f32>,
        grads: &mut LayerGradients,
    ) -> &'a [f32] {
        let factor = self.config().residual_scale;
        let norm = self.norm(slot);
        if norm.is_none() && factor == 1.0 {
            return d;
        }
        copy(into, d);
        if factor != 1.0 {
            vector::scale(into, factor);
        }
        if let Some(norm) = norm {
            let d_normed = std::mem::replace(into, vec![0.0; d.len()]);
            norm.backward(x, &d_normed, into, &mut grads.norms[slot as usize]);
        }
        into
    }

    /// Adds to `d` what comes through the norm at the input of a half.
    pub(super) fn input_norm_backward(
        &self,
        slot: NormSlot,
        x: &[f32],
        d_normed: &[f32],
        d: &mut [f32],
        grads: &mut LayerGradients,
    ) {
        match self.norm(slot) {
            Some(norm) => norm.backward(x, d_normed, d, &mut grads.norms[slot as usize]),
            None => vector::add(d, d_normed),
        }
    }
}

/// The inputs of an MLP or expert, gate before its activation, up, and the input of down.
#[derive(Clone, Copy)]
pub(super) struct MlpValues<'a> {
    pub x: &'a [f32],
    pub gate: &'a [f32],
    pub up: &'a [f32],
    pub act: &'a [f32],
}

/// Writes the gradients of linear `i` and `dX <- beta dX + dY W`.
pub(super) fn linear_backward(
    linear: &Linear,
    x: MatrixRef<'_>,
    d_y: &[f32],
    (beta, d_x): (f32, &mut Vec<f32>),
    i: usize,
    grads: &mut LayerGradients,
) {
    let weight = linear.matrix().expect("training needs f32 weights");
    let (t, k) = (x.rows(), x.cols());
    let d_y = MatrixRef::new(d_y, t, weight.rows());
    linear.weight().product(0.0, grads.weights[i].view_mut(), 1.0, d_y.t(), x);
    d_x.resize(t * k, 0.0);
    linear.weight().product(beta, MatrixMut::new(d_x, t, k), 1.0, d_y, weight.view());
    let bias = &mut grads.biases[i];
    bias.fill(0.0);
    if !bias.is_empty() {
        (0..t).for_each(|r| vector::add(bias, d_y.row(r)));
    }
}

/// Overwrites a vector, keeping its memory.
pub(super) fn copy(to: &mut Vec<f32>, from: &[f32]) {
    to.clear();
    to.extend_from_slice(from);
}
