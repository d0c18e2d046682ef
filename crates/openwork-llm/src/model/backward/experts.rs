//! Backward pass of a mixture of experts.
//!
//! With the weights `w_e` of a token's experts `E`, their outputs `y_e`, and the gradient
//! `d` of `y = sum over E of w_e y_e`:
//!
//! ```text
//! dy_e = w_e d        dw_e = d . y_e
//! dl_j = w_j ([j in E] dw_j - sum over E of w_e dw_e)        dx = sum of the experts' dx_e + R' dl
//! ```
//!
//! where `w_j` is the softmax of the router's logits `l = R x`, over `E` if the weights are
//! normalized, else over all experts. The router itself is not trained, and the choice of
//! experts is taken as constant. A shared expert `g y_s` with `g = sigmoid(s . x)` adds
//! `s g (1 - g) (d . y_s)`.

use super::layer::{Activations, Interior, LayerGradients, MlpValues, copy};
use crate::model::experts::{Router, Routes};
use crate::model::layer::{Layer, NormSlot};
use crate::model::vector;
use crate::model::weight::apply;
use openwork::linalg::{Threads, gemm};
use openwork::{Matrix, MatrixMut, MatrixRef};

/// What the experts of a layer computed on one window.
#[derive(Debug, Default)]
pub(super) struct ExpertActivations {
    routes: Routes,
    /// One for each expert.
    each: Vec<ExpertValues>,
    /// The output of the shared expert, `[T, hidden]`.
    shared: Vec<f32>,
    /// The sum of all outputs, `[T, hidden]`.
    sum: Vec<f32>,
}

/// The values inside one expert, for the tokens that are routed to it.
#[derive(Debug, Default)]
struct ExpertValues {
    x: Vec<f32>,
    gate: Vec<f32>,
    up: Vec<f32>,
    act: Vec<f32>,
    out: Vec<f32>,
}

impl ExpertValues {
    fn mlp(&self) -> MlpValues<'_> {
        MlpValues { x: &self.x, gate: &self.gate, up: &self.up, act: &self.act }
    }
}

impl Layer {
    /// As [`mix_experts`](Self::mix_experts), keeping what the backward pass needs.
    pub(super) fn experts_saving(&self, h: &mut [f32], kept: &mut Activations) {
        let Activations { mlp, raw_gate, experts, .. } = kept;
        let router = self.router.as_ref().expect("a layer with experts");
        let d = self.config().hidden;
        let t = h.len() / d;
        experts.routes = router.routes(MatrixRef::new(&mlp.normed, t, d));
        experts.each.resize_with(experts.routes.len(), Default::default);
        experts.sum.clear();
        experts.sum.resize(h.len(), 0.0);
        for (expert, (tokens, values)) in experts.routes.iter().zip(&mut experts.each).enumerate() {
            if tokens.is_empty() {
                continue;
            }
            let ExpertValues { x, gate, up, act, out } = values;
            x.clear();
            tokens.iter().for_each(|&(token, _)| x.extend(&mlp.normed[token * d..][..d]));
            let x = MatrixRef::new(x, tokens.len(), d);
            self.project_mlp(Some(expert as u16), x, gate, up);
            self.down_saving(Some(expert as u16), gate, up, (act, out));
            for (&(token, weight), y) in tokens.iter().zip(out.chunks_exact(d)) {
                vector::add_scaled(&mut experts.sum[token * d..][..d], y, weight);
            }
        }
        if let Some(gate) = &router.shared_gate {
            self.project_gate(h.len(), mlp);
            copy(raw_gate, &mlp.gate);
            self.down_saving(None, raw_gate, &mlp.up, (&mut mlp.gate, &mut experts.shared));
            let rows = mlp.normed.chunks_exact(d).zip(experts.shared.chunks_exact(d));
            for ((x, y), sum) in rows.zip(experts.sum.chunks_exact_mut(d)) {
                vector::add_scaled(sum, y, sigmoid(x, gate));
            }
        }
        self.add_output(&mut experts.sum.clone(), self.norm(NormSlot::AfterMlp), h);
    }

    /// From gate, before its activation, and up to the input and the output of down.
    fn down_saving(
        &self,
        expert: Option<u16>,
        gate: &[f32],
        up: &[f32],
        (act, out): (&mut Vec<f32>, &mut Vec<f32>),
    ) {
        let [.., down_proj] = self.mlp_linears(expert);
        copy(act, gate);
        self.activate(act, up);
        let (n, d) = (act.len() / down_proj.weight.cols(), self.config().hidden);
        out.resize(n * d, 0.0);
        let x = MatrixRef::new(act, n, down_proj.weight.cols());
        apply(x, &mut [(&down_proj.weight, MatrixMut::new(out, n, d))]);
        down_proj.add_bias(out);
    }

    /// Leaves the gradient of the experts' normalized input in the second narrow buffer,
    /// given that of the layer's output.
    pub(super) fn experts_backward(
        &self,
        kept: &Activations,
        interior: &mut Interior,
        d: &[f32],
        grads: &mut LayerGradients,
    ) {
        let Activations { mlp, raw_gate, experts, .. } = kept;
        let router = self.router.as_ref().expect("a layer with experts");
        let width = self.config().hidden;
        let t = d.len() / width;
        let mut d_sum = Vec::new();
        let d_sum = self.output_backward(NormSlot::AfterMlp, &experts.sum, d, &mut d_sum, grads);
        let mut d_x = vec![0.0; d.len()];
        let mut d_weights = Matrix::zeros(t, experts.routes.len());

        // 1. Through each expert, for its tokens.
        for (expert, (tokens, values)) in experts.routes.iter().zip(&experts.each).enumerate() {
            if tokens.is_empty() {
                let first = self.info().first_of(Some(expert as u16));
                grads.weights[first..first + 3].iter_mut().for_each(|w| w.data_mut().fill(0.0));
                grads.biases[first..first + 3].iter_mut().for_each(|bias| bias.fill(0.0));
                continue;
            }
            let mut d_out = vec![0.0; values.out.len()];
            let outputs = values.out.chunks_exact(width).zip(d_out.chunks_exact_mut(width));
            for (&(token, weight), (y, d_y)) in tokens.iter().zip(outputs) {
                let d = &d_sum[token * width..][..width];
                d_weights.row_mut(token)[expert] = dot(d, y);
                vector::add_scaled(d_y, d, weight);
            }
            self.gated_backward(Some(expert as u16), values.mlp(), &d_out, interior, grads);
            for (&(token, _), dx) in tokens.iter().zip(interior.narrow[1].chunks_exact(width)) {
                vector::add(&mut d_x[token * width..][..width], dx);
            }
        }

        // 2. Through the router.
        let x = MatrixRef::new(&mlp.normed, t, width);
        router.backward(x, &experts.routes, &d_weights, &mut d_x);

        // 3. Through the shared expert and its gate.
        if let Some(gate) = &router.shared_gate {
            let mut d_out = vec![0.0; d.len()];
            for (i, d_out) in d_out.chunks_exact_mut(width).enumerate() {
                let row = i * width..(i + 1) * width;
                let (x, d, y) =
                    (&mlp.normed[row.clone()], &d_sum[row.clone()], &experts.shared[row.clone()]);
                let g = sigmoid(x, gate);
                vector::add_scaled(d_out, d, g);
                vector::add_scaled(&mut d_x[row], gate, g * (1.0 - g) * dot(d, y));
            }
            let values = MlpValues { x: &mlp.normed, gate: raw_gate, up: &mlp.up, act: &mlp.gate };
            self.gated_backward(None, values, &d_out, interior, grads);
            vector::add(&mut d_x, &interior.narrow[1]);
        }
        interior.narrow[1] = d_x;
    }
}

impl Router {
    /// Adds to `d_x` what comes through the weights of experts, given the gradients of these.
    fn backward(&self, x: MatrixRef<'_>, routes: &Routes, d_weights: &Matrix, d_x: &mut [f32]) {
        let (t, count, d) = (x.rows(), self.weights.rows(), x.cols());
        let mut weights = Matrix::zeros(t, count);
        for (expert, tokens) in routes.iter().enumerate() {
            tokens.iter().for_each(|&(token, w)| weights.row_mut(token)[expert] = w);
        }
        let mut d_logits = self.logits(x);
        for token in 0..t {
            let (w, dw, row) = (weights.row(token), d_weights.row(token), d_logits.row_mut(token));
            let mean = dot(w, dw);
            match self.normalized {
                true => row.copy_from_slice(w),
                false => {
                    let sum = vector::exp_in_place(row, vector::max(row));
                    vector::scale(row, sum.recip());
                }
            }
            row.iter_mut().zip(dw).for_each(|(p, dw)| *p *= dw - mean);
        }
        let d_x = MatrixMut::new(d_x, t, d);
        gemm(1.0, d_x, 1.0, d_logits.view(), self.weights.view(), Threads::All);
    }
}

/// `1 / (1 + e^(-x . gate))`, as in the forward pass.
fn sigmoid(x: &[f32], gate: &[f32]) -> f32 {
    let logit: f32 = x.iter().zip(gate).map(|(x, g)| x * g).sum();
    1.0 / (1.0 + (-logit).exp())
}

fn dot(x: &[f32], y: &[f32]) -> f32 {
    x.iter().zip(y).map(|(x, y)| x * y).sum()
}
