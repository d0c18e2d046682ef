//! Backward pass of a decoder layer on one window of tokens.
//!
//! ```text
//! m = h + norm(attention(norm(h)) Wo')        out = m + norm(act(norm(m) Wg') o (norm(m) Wu') Wd')
//! ```
//!
//! (the outer norms where the family has them). For a linear `Y = X W' + b` and
//! the gradient `dY`: `dX = dY W`, `dW = dY' X`, `db = sum of the rows of dY`.

use super::attention::{Forward, Gradients};
use crate::model::config::Activation;
use crate::model::hidden::Scratch;
use crate::model::layer::{ACTIVATION_CHUNK, Layer, Linear, NormSlot};
use crate::model::norm::Norm;
use crate::model::parameter::Half;
use crate::model::tap::NoTap;
use crate::model::vector;
use crate::model::weight::{apply, apply_add};
use openwork::linalg::{Threads, gemm};
use openwork::{Matrix, MatrixMut, MatrixRef};
use rayon::prelude::*;

/// What a layer computed on one window, for its backward pass.
#[derive(Debug, Default)]
pub struct Activations {
    /// The layer's input, `[T, hidden]`.
    input: Vec<f32>,
    /// The first half: `normed`, rotated `q` and `k`, `v`, `mixed`, `out`.
    attention: Scratch,
    /// Queries and keys before their norms, if the family has those.
    raw_heads: [Vec<f32>; 2],
    /// The states between the halves, `[T, hidden]`.
    middle: Vec<f32>,
    /// The second half: `normed`, `gate` after the activation, `up`, `out`.
    mlp: Scratch,
    /// `gate` before the activation, `[T, ff]`.
    raw_gate: Vec<f32>,
    /// Memory of the backward pass.
    gradients: Interior,
}

/// Gradients inside a layer.
#[derive(Debug, Default)]
struct Interior {
    wide: [Vec<f32>; 3],
    narrow: [Vec<f32>; 3],
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
    pub fn forward_saving(&self, h: &mut [f32], kept: &mut Activations) {
        Half::ALL.into_iter().for_each(|half| self.forward_half_saving(half, h, kept));
    }

    /// One half of [`forward_saving`](Self::forward_saving).
    pub fn forward_half_saving(&self, half: Half, h: &mut [f32], kept: &mut Activations) {
        match half {
            Half::Attention => self.attention_saving(h, kept),
            Half::Mlp => self.mlp_saving(h, kept),
        }
    }

    fn attention_saving(&self, h: &mut [f32], kept: &mut Activations) {
        let Activations { input, attention, raw_heads, .. } = kept;
        copy(input, h);
        self.attention_input(h, attention, &mut NoTap);
        self.project_heads(h.len(), attention);
        if self.norm(NormSlot::Query).is_some() {
            copy(&mut raw_heads[0], &attention.q);
            copy(&mut raw_heads[1], &attention.k);
        }
        self.rotate_rows(h.len(), &|row| row, attention);
        self.mix(h.len() / self.config().hidden, None, attention);
        let o_proj = self.output_linear();
        let t = h.len() / self.config().hidden;
        let x = MatrixRef::new(&attention.mixed, t, o_proj.weight.cols());
        let norm = self.norm(NormSlot::AfterAttention);
        self.add_residual_saving(x, o_proj, norm, &mut attention.out, h);
    }

    fn mlp_saving(&self, h: &mut [f32], kept: &mut Activations) {
        let Activations { middle, mlp, raw_gate, .. } = kept;
        copy(middle, h);
        self.mlp_input(h, mlp, &mut NoTap);
        self.project_gate(h.len(), mlp);
        copy(raw_gate, &mlp.gate);
        self.activate_gate(h.len(), mlp, &mut NoTap);
        let x = MatrixRef::new(&mlp.gate, h.len() / self.config().hidden, self.config().ff);
        let norm = self.norm(NormSlot::AfterMlp);
        let [.., down_proj] = self.mlp_linears(None);
        self.add_residual_saving(x, down_proj, norm, &mut mlp.out, h);
    }

    /// `h <- h + norm(x W' + b)`, leaving the norm's input in `out`.
    fn add_residual_saving(
        &self,
        x: MatrixRef<'_>,
        linear: &Linear,
        norm: Option<&Norm>,
        out: &mut Vec<f32>,
        h: &mut [f32],
    ) {
        let Some(norm) = norm else {
            apply_add(x, linear.weight(), MatrixMut::new(h, x.rows(), self.config().hidden));
            return linear.add_bias(h);
        };
        let (t, d) = (x.rows(), self.config().hidden);
        out.resize(t * d, 0.0);
        apply(x, &mut [(linear.weight(), MatrixMut::new(out, t, d))]);
        linear.add_bias(out);
        let mut normed = out.clone();
        norm.apply_add(&mut normed, h);
    }

    /// Replaces the gradient `d` of the layer's output, `[T, hidden]`, by that of
    /// its input, and `grads` by the gradients of its parameters. `kept` is what
    /// [`forward_saving`](Self::forward_saving) left.
    ///
    /// # Panics
    ///
    /// If the layer does not hold f32 weights.
    pub fn backward(&self, kept: &mut Activations, d: &mut [f32], grads: &mut LayerGradients) {
        Half::ALL.into_iter().rev().for_each(|half| self.backward_half(half, kept, d, grads));
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
        kept: &mut Activations,
        d: &mut [f32],
        grads: &mut LayerGradients,
    ) {
        for slot in NormSlot::ALL.into_iter().filter(|&slot| slot.half() == half) {
            grads.norms[slot as usize].fill(0.0);
        }
        match half {
            Half::Attention => self.attention_backward(kept, d, grads),
            Half::Mlp => self.mlp_backward(kept, d, grads),
        }
    }

    fn mlp_backward(&self, kept: &mut Activations, d: &mut [f32], grads: &mut LayerGradients) {
        let Activations { middle, mlp, raw_gate, gradients, .. } = kept;
        let c = self.config();
        let t = d.len() / c.hidden;
        let [d_act, d_gate, d_up] = &mut gradients.wide;
        let [d_out, d_normed, _] = &mut gradients.narrow;
        let [gate_proj, up_proj, down_proj] = self.mlp_linears(None);
        let first = self.info().first_of(None);

        // 1. Through the norm after the MLP, if any, and down.
        let d_out = self.norm_backward(NormSlot::AfterMlp, &mlp.out, d, d_out, grads);
        let act = MatrixRef::new(&mlp.gate, t, c.ff);
        linear_backward(down_proj, act, d_out, (0.0, d_act), first + 2, grads);

        // 2. Through the activation; `gate` and `up` become their gradients.
        copy(d_gate, raw_gate);
        copy(d_up, &mlp.up);
        let backward = match c.activation {
            Activation::Gelu => unreachable!("only encoders have it, which are not trained"),
            Activation::Silu => vector::silu_gate_backward,
            Activation::GeluTanh => vector::gelu_gate_backward,
            Activation::ClampedSwiglu { .. } => unreachable!("such models are not trained"),
        };
        let parts =
            d_gate.par_chunks_mut(ACTIVATION_CHUNK).zip(d_up.par_chunks_mut(ACTIVATION_CHUNK));
        parts.zip(d_act.par_chunks(ACTIVATION_CHUNK)).for_each(|((g, u), d)| backward(g, u, d));

        // 3. Through gate and up, and the norm before them.
        let x = MatrixRef::new(&mlp.normed, t, c.hidden);
        linear_backward(gate_proj, x, d_gate, (0.0, d_normed), first, grads);
        linear_backward(up_proj, x, d_up, (1.0, d_normed), first + 1, grads);
        self.input_norm_backward(NormSlot::BeforeMlp, middle, d_normed, d, grads);
    }

    fn attention_backward(
        &self,
        kept: &mut Activations,
        d: &mut [f32],
        grads: &mut LayerGradients,
    ) {
        let Activations { input, attention, raw_heads, gradients, .. } = kept;
        let c = self.config();
        let t = d.len() / c.hidden;
        let [d_q, d_k, d_v] = &mut gradients.wide;
        let [d_out, d_normed, d_mixed] = &mut gradients.narrow;

        // 1. Through the norm after attention, if any, and the output projection.
        let d_out = self.norm_backward(NormSlot::AfterAttention, &attention.out, d, d_out, grads);
        let mixed = MatrixRef::new(&attention.mixed, t, c.q_width());
        let o_proj = self.output_linear();
        linear_backward(o_proj, mixed, d_out, (0.0, d_mixed), 3, grads);

        // 2. Through attention, the rotation, and the norms of heads, if any.
        for (grad, width) in
            [(&mut *d_q, c.q_width()), (&mut *d_k, c.kv_width()), (&mut *d_v, c.kv_width())]
        {
            grad.resize(t * width, 0.0);
        }
        let Scratch { q, k, v, mixed, .. } = attention;
        let forward = Forward { q, k, v, out: mixed };
        self.grouped_attention().backward(forward, d_mixed, Gradients { q: d_q, k: d_k, v: d_v });
        self.rotate_back(d_q, c.q_width());
        self.rotate_back(d_k, c.kv_width());
        let slots = [NormSlot::Query, NormSlot::Key];
        for ((slot, raw), grad) in slots.into_iter().zip(raw_heads).zip([&mut *d_q, &mut *d_k]) {
            if let Some(norm) = self.norm(slot) {
                let mut d_raw = vec![0.0; grad.len()];
                norm.backward(raw, grad, &mut d_raw, &mut grads.norms[slot as usize]);
                *grad = d_raw;
            }
        }

        // 3. Through the three projections, and the norm before them.
        let x = MatrixRef::new(&attention.normed, t, c.hidden);
        for (i, grad) in [&*d_q, d_k, d_v].into_iter().enumerate() {
            let beta = if i == 0 { 0.0 } else { 1.0 };
            linear_backward(&self.linears[i], x, grad, (beta, d_normed), i, grads);
        }
        self.input_norm_backward(NormSlot::BeforeAttention, input, d_normed, d, grads);
    }

    /// The gradient of a norm's input, given that of its output: `d` itself if
    /// the layer has no such norm.
    fn norm_backward<'a>(
        &self,
        slot: NormSlot,
        x: &[f32],
        d: &'a [f32],
        into: &'a mut Vec<f32>,
        grads: &mut LayerGradients,
    ) -> &'a [f32] {
        let Some(norm) = self.norm(slot) else { return d };
        into.clear();
        into.resize(d.len(), 0.0);
        norm.backward(x, d, into, &mut grads.norms[slot as usize]);
        into
    }

    /// Adds to `d` what comes through the norm at the input of a half.
    fn input_norm_backward(
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

    /// Rotates every head of the rows back by its position.
    fn rotate_back(&self, rows: &mut [f32], width: usize) {
        let Some(rope) = self.rope() else { return };
        let table = rope.table(rows.len() / width);
        let rows = rows.par_chunks_mut(width).enumerate().with_min_len(32);
        rows.for_each(|(p, row)| table.rotate_back(row, p));
    }
}

/// Writes the gradients of linear `i` and `dX <- beta dX + dY W`.
fn linear_backward(
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
    gemm(0.0, grads.weights[i].view_mut(), 1.0, d_y.t(), x, Threads::All);
    d_x.resize(t * k, 0.0);
    gemm(beta, MatrixMut::new(d_x, t, k), 1.0, d_y, weight.view(), Threads::All);
    let bias = &mut grads.biases[i];
    bias.fill(0.0);
    if !bias.is_empty() {
        (0..t).for_each(|r| vector::add(bias, d_y.row(r)));
    }
}

/// Overwrites a vector, keeping its memory.
fn copy(to: &mut Vec<f32>, from: &[f32]) {
    to.clear();
    to.extend_from_slice(from);
}
