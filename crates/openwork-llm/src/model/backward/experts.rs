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
//!
//! With factors `f_e` of the weights, `w_e = f_e p_e` and `dl_j = p_j ([j in E] f_j dw_j - sum over
//! E of w_e dw_e)`, `p` being the softmax. Experts beside an MLP, the MLP and the router each read
//! the layer's state through a norm of their own:
//!
//! ```text
//! y = norm_1(mlp(norm(h))) + norm_2(experts(norm_3(h)))        l = R norm_4(h)
//! ```
//!
//! `f` and `norm_1` to `norm_4` are not trained.

use super::layer::{Activations, Interior, LayerGradients, MlpValues, copy};
use crate::model::experts::{Router, Routes};
use crate::model::layer::{Layer, NormSlot, sized};
use crate::model::vector::{self, dot};
use crate::model::weight::apply;
use openwork::linalg::{Threads, gemm};
use openwork::{Matrix, MatrixMut, MatrixRef};

/// What the experts of a layer computed on one window.
#[derive(Debug, Default)]
pub(super) struct ExpertActivations {
    routes: Routes,
    /// One for each expert.
    each: Vec<ExpertValues>,
    /// The output of the shared expert, or of the MLP beside the experts, `[T, hidden]`.
    shared: Vec<f32>,
    /// The inputs of the experts and of the router, `[T, hidden]`, if they have norms of
    /// their own.
    input: Vec<f32>,
    router_input: Vec<f32>,
    /// The sum of the experts' outputs before its norm, if it has one.
    mixed: Vec<f32>,
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

        // 1. The inputs, and the tokens of each expert.
        let ExpertActivations { routes, each, shared, input, router_input, mixed, sum } = experts;
        let (input, router_input) = match &router.beside {
            None => (&*mlp.normed, &*mlp.normed),
            Some(beside) => {
                beside.before_experts.apply(h, sized(input, h.len()));
                beside.router.apply(h, sized(router_input, h.len()));
                (&**input, &**router_input)
            }
        };
        *routes = router.routes(MatrixRef::new(router_input, t, d));

        // 2. Their outputs.
        each.resize_with(routes.len(), Default::default);
        sum.clear();
        sum.resize(h.len(), 0.0);
        for (expert, (tokens, values)) in routes.iter().zip(each).enumerate() {
            if tokens.is_empty() {
                continue;
            }
            let ExpertValues { x, gate, up, act, out } = values;
            x.clear();
            tokens.iter().for_each(|&(token, _)| x.extend(&input[token * d..][..d]));
            let x = MatrixRef::new(x, tokens.len(), d);
            self.project_mlp(Some(expert as u16), x, gate, up);
            self.down_saving(Some(expert as u16), gate, up, (act, out));
            for (&(token, weight), y) in tokens.iter().zip(out.chunks_exact(d)) {
                vector::add_scaled(&mut sum[token * d..][..d], y, weight);
            }
        }

        // 3. The MLP that every token goes through.
        if self.info().has_mlp {
            self.project_gate(h.len(), mlp);
            copy(raw_gate, &mlp.gate);
            self.down_saving(None, raw_gate, &mlp.up, (&mut mlp.gate, shared));
        }
        if let Some(gate) = &router.shared_gate {
            let rows = mlp.normed.chunks_exact(d).zip(shared.chunks_exact(d));
            for ((x, y), sum) in rows.zip(sum.chunks_exact_mut(d)) {
                vector::add_scaled(sum, y, sigmoid(x, gate));
            }
        }
        if let Some(beside) = &router.beside {
            copy(mixed, sum);
            beside.after_experts.rows_in_place(sum);
            let mut of_mlp = shared.clone();
            beside.after_mlp.rows_in_place(&mut of_mlp);
            vector::add(sum, &of_mlp);
        }
        self.add_output(&mut sum.clone(), self.norm(NormSlot::AfterMlp), h);
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

    /// Leaves the gradient of the MLP's normalized input, or of the experts', in the second
    /// narrow buffer, given that of the layer's output; adds to the latter what comes
    /// through the norms of experts beside an MLP.
    pub(super) fn experts_backward(
        &self,
        kept: &Activations,
        interior: &mut Interior,
        d: &mut [f32],
        grads: &mut LayerGradients,
    ) {
        let Activations { middle, mlp, experts, .. } = kept;
        let router = self.router.as_ref().expect("a layer with experts");
        let (size, width) = (d.len(), self.config().hidden);
        let t = size / width;
        let mut d_sum = Vec::new();
        let d_sum = self.output_backward(NormSlot::AfterMlp, &experts.sum, d, &mut d_sum, grads);

        // 1. Through each expert, for its tokens.
        let mut d_mixed = Vec::new();
        let d_mixed = match &router.beside {
            None => d_sum,
            Some(beside) => {
                d_mixed.resize(size, 0.0);
                beside.after_experts.backward_frozen(&experts.mixed, d_sum, &mut d_mixed);
                &d_mixed
            }
        };
        let mut d_x = vec![0.0; size];
        let mut d_weights = Matrix::zeros(t, experts.routes.len());
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
                let d = &d_mixed[token * width..][..width];
                d_weights.row_mut(token)[expert] = dot(d, y);
                vector::add_scaled(d_y, d, weight);
            }
            self.gated_backward(Some(expert as u16), values.mlp(), &d_out, interior, grads);
            for (&(token, _), dx) in tokens.iter().zip(interior.narrow[1].chunks_exact(width)) {
                vector::add(&mut d_x[token * width..][..width], dx);
            }
        }

        // 2. Through the router.
        let input = if router.beside.is_some() { &experts.router_input } else { &mlp.normed };
        let x = MatrixRef::new(input, t, width);
        let d_router = router.backward(x, &experts.routes, &d_weights);

        // 3. Through the MLP that every token goes through.
        let Some(beside) = &router.beside else {
            vector::add(&mut d_x, &d_router);
            if let Some(gate) = &router.shared_gate {
                self.shared_backward(gate, kept, d_sum, &mut d_x, interior, grads);
            }
            interior.narrow[1] = d_x;
            return;
        };
        let mut d_out = vec![0.0; size];
        beside.after_mlp.backward_frozen(&experts.shared, d_sum, &mut d_out);
        self.gated_backward(None, kept.mlp_values(), &d_out, interior, grads);
        beside.before_experts.backward_frozen(middle, &d_x, d);
        beside.router.backward_frozen(middle, &d_router, d);
    }

    /// Adds to the gradient of the normalized input what comes through the shared expert and
    /// its gate.
    fn shared_backward(
        &self,
        gate: &[f32],
        kept: &Activations,
        d_sum: &[f32],
        d_x: &mut [f32],
        interior: &mut Interior,
        grads: &mut LayerGradients,
    ) {
        let Activations { mlp, experts, .. } = kept;
        let width = self.config().hidden;
        let mut d_out = vec![0.0; d_sum.len()];
        for (i, d_out) in d_out.chunks_exact_mut(width).enumerate() {
            let row = i * width..(i + 1) * width;
            let (x, d, y) =
                (&mlp.normed[row.clone()], &d_sum[row.clone()], &experts.shared[row.clone()]);
            let g = sigmoid(x, gate);
            vector::add_scaled(d_out, d, g);
            vector::add_scaled(&mut d_x[row], gate, g * (1.0 - g) * dot(d, y));
        }
        self.gated_backward(None, kept.mlp_values(), &d_out, interior, grads);
        vector::add(d_x, &interior.narrow[1]);
    }
}

impl Router {
    /// The gradient of the router's input, by way of the weights of experts, given the
    /// gradients of these.
    fn backward(&self, x: MatrixRef<'_>, routes: &Routes, d_weights: &Matrix) -> Vec<f32> {
        let (t, count, d) = (x.rows(), self.weights.rows(), x.cols());
        let mut chosen = vec![false; t * count];
        for (expert, tokens) in routes.iter().enumerate() {
            tokens.iter().for_each(|&(token, _)| chosen[token * count + expert] = true);
        }
        let mut d_logits = self.logits(x);
        for (token, chosen) in chosen.chunks_exact(count).enumerate() {
            let row = d_logits.row_mut(token);
            vector::exp_in_place(row, vector::max(row));
            if self.normalized {
                let others = row.iter_mut().zip(chosen).filter(|(_, chosen)| !**chosen);
                others.for_each(|(p, _)| *p = 0.0);
            }
            let sum: f32 = row.iter().sum();
            vector::scale(row, sum.recip());
            let mut dw = d_weights.row(token).to_vec();
            if let Some(beside) = &self.beside {
                dw.iter_mut().zip(&beside.factors).for_each(|(dw, f)| *dw *= f);
            }
            let mean = dot(row, &dw);
            row.iter_mut().zip(&dw).for_each(|(p, dw)| *p *= dw - mean);
        }
        let mut d_x = vec![0.0; t * d];
        let view = MatrixMut::new(&mut d_x, t, d);
        gemm(0.0, view, 1.0, d_logits.view(), self.weights.view(), Threads::All);
        d_x
    }
}

/// `1 / (1 + e^(-x . gate))`, as in the forward pass.
fn sigmoid(x: &[f32], gate: &[f32]) -> f32 {
    let logit: f32 = x.iter().zip(gate).map(|(x, g)| x * g).sum();
    1.0 / (1.0 + (-logit).exp())
}
