//! Mixture of experts: each token is processed by a few of a layer's many MLPs.
//!
//! ```text
//! p = softmax(R x)        E = the experts with the largest p_e        w_e = p_e, or p_e / sum over E
//! y = sum over E of w_e mlp_e(x)  (+ sigmoid(s . x) mlp(x), with a shared expert)
//! ```
//!
//! In Gemma 4 the experts run in parallel with the layer's MLP, both with a norm before and
//! after, and the router has its own norm and a factor for each expert:
//!
//! ```text
//! p = softmax(R (scale o norm(h)) / sqrt(d))        w_e = f_e p_e / sum over E
//! y = norm_1(mlp(normed h)) + norm_2(sum over E of w_e mlp_e(norm_3(h)))
//! ```
//!
//! Tokens are gathered by expert, so that each expert is one product of matrices; the
//! outputs are added in the order of experts.

use super::config::Config;
use super::hidden::{Hidden, Scratch};
use super::layer::{Layer, NormSlot, sized};
use super::linear::{Input, Site};
use super::norm::Norm;
use super::tap::{NoTap, Tap};
use super::vector;
use super::weight::apply;
use crate::checkpoint::{Checkpoint, CheckpointError};
use openwork::linalg::{Threads, gemm};
use openwork::{Matrix, MatrixMut, MatrixRef};

/// Chooses the experts of each token.
#[derive(Clone, Debug)]
pub struct Router {
    /// `[experts, hidden]`.
    pub(super) weights: Matrix,
    /// Added to the logits, if the family does.
    bias: Option<Vec<f32>>,
    /// The gate of the shared expert, if there is one.
    pub(super) shared_gate: Option<Vec<f32>>,
    active: usize,
    pub(super) normalized: bool,
    /// The additional norms and factors of Gemma 4.
    pub(super) beside: Option<Beside>,
}

/// The norms and factors of experts that run in parallel with an MLP.
#[derive(Clone, Debug)]
pub(super) struct Beside {
    /// Of the router's input.
    pub router: Norm,
    /// Of the weight of each expert.
    pub factors: Vec<f32>,
    /// On the output of the MLP, on the input of experts, and on their output.
    pub after_mlp: Norm,
    pub before_experts: Norm,
    pub after_experts: Norm,
}

impl Beside {
    /// Names within the layer and shapes of its tensors.
    fn tensors(hidden: usize, experts: usize) -> [(&'static str, Vec<usize>); 5] {
        [
            ("router.scale", vec![hidden]),
            ("router.per_expert_scale", vec![experts]),
            ("post_feedforward_layernorm_1.weight", vec![hidden]),
            ("pre_feedforward_layernorm_2.weight", vec![hidden]),
            ("post_feedforward_layernorm_2.weight", vec![hidden]),
        ]
    }

    /// From its tensors, in that order.
    fn new(mut numbers: impl Iterator<Item = Vec<f32>>, eps: f32) -> Option<Self> {
        let mut router = numbers.next()?;
        let scale = (router.len() as f32).sqrt().recip();
        vector::scale(&mut router, scale);
        let factors = numbers.next()?;
        let mut norm = || Some(Norm::new(numbers.next()?, 0.0, eps));
        Some(Self {
            router: Norm::new(router, 0.0, eps),
            factors,
            after_mlp: norm()?,
            before_experts: norm()?,
            after_experts: norm()?,
        })
    }
}

/// The tokens of each expert, in order, each with its weight.
pub type Routes = Vec<Vec<(usize, f32)>>;

impl Router {
    /// Names and shapes of its tensors.
    pub(super) fn tensors(c: &Config, prefix: &str) -> Vec<(String, Vec<usize>)> {
        let Some(experts) = &c.experts else { return Vec::new() };
        let names = &c.family.names;
        let router = (format!("{prefix}{}.weight", names.router), vec![experts.count, c.hidden]);
        let bias = experts
            .router_bias
            .then(|| (format!("{prefix}{}.bias", names.router), vec![experts.count]));
        let shared = experts
            .shared_ff
            .filter(|_| !experts.beside_mlp)
            .map(|_| (format!("{prefix}{}.weight", names.shared_gate), vec![1, c.hidden]));
        let beside = experts.beside_mlp.then(|| Beside::tensors(c.hidden, experts.count));
        let named = |(name, shape)| (format!("{prefix}{name}"), shape);
        let beside = beside.into_iter().flatten().map(named);
        [Some(router), bias, shared].into_iter().flatten().chain(beside).collect()
    }

    /// Loads it.
    pub(super) fn load(
        checkpoint: &Checkpoint,
        c: &Config,
        prefix: &str,
    ) -> Result<Self, CheckpointError> {
        let experts = c.experts.as_ref().expect("a layer with a router has experts");
        let mut numbers = Vec::new();
        for (name, shape) in Self::tensors(c, prefix) {
            numbers.push(checkpoint.tensor_with_shape(&name, &shape)?.to_f32());
        }
        let mut numbers = numbers.into_iter();
        let weights = numbers.next().unwrap_or_default();
        Ok(Self {
            weights: Matrix::from_vec(experts.count, c.hidden, weights),
            bias: experts.router_bias.then(|| numbers.next()).flatten(),
            shared_gate: experts
                .shared_ff
                .filter(|_| !experts.beside_mlp)
                .and_then(|_| numbers.next()),
            beside: experts.beside_mlp.then(|| Beside::new(numbers, c.norm_eps)).flatten(),
            active: experts.active,
            normalized: experts.normalized,
        })
    }

    /// The scores of experts, `[tokens, experts]`.
    pub(super) fn logits(&self, x: MatrixRef<'_>) -> Matrix {
        let mut logits = Matrix::zeros(x.rows(), self.weights.rows());
        gemm(0.0, logits.view_mut(), 1.0, x, self.weights.view().t(), Threads::All);
        if let Some(bias) = &self.bias {
            (0..x.rows()).for_each(|r| vector::add(logits.row_mut(r), bias));
        }
        logits
    }

    /// The tokens of each expert, from the normalized input of the experts.
    pub fn routes(&self, x: MatrixRef<'_>) -> Routes {
        let count = self.weights.rows();
        let mut logits = self.logits(x);
        let mut routes = vec![Vec::new(); count];
        let mut order: Vec<usize> = Vec::with_capacity(count);
        for (token, row) in logits.data_mut().chunks_exact_mut(count).enumerate() {
            let sum = vector::exp_in_place(row, vector::max(row));
            order.clear();
            order.extend(0..count);
            // Largest first; ties break by index.
            let larger = |a: &usize, b: &usize| row[*b].total_cmp(&row[*a]).then(a.cmp(b));
            if self.active < count {
                order.select_nth_unstable_by(self.active - 1, larger);
                order.truncate(self.active);
            }
            let chosen: f32 = order.iter().map(|&expert| row[expert]).sum();
            let total = if self.normalized { chosen } else { sum };
            for &expert in &order {
                let factor = self.beside.as_ref().map_or(1.0, |beside| beside.factors[expert]);
                routes[expert].push((token, row[expert] / total * factor));
            }
        }
        routes
    }
}

/// The outputs of a layer's experts for one window.
#[derive(Debug, Default)]
pub struct ExpertOutputs {
    /// For each expert, its tokens with their weights, and its outputs, one row per token.
    experts: Vec<(Vec<(usize, f32)>, Vec<f32>)>,
    width: usize,
}

impl ExpertOutputs {
    /// The experts of each token that has any: their numbers, weights and outputs.
    pub fn by_token(&self) -> Vec<Vec<(usize, f32, &[f32])>> {
        let tokens = self.experts.iter().flat_map(|(tokens, _)| tokens).map(|(token, _)| token + 1);
        let mut all = vec![Vec::new(); tokens.max().unwrap_or(0)];
        for (expert, (tokens, outputs)) in self.experts.iter().enumerate() {
            for (&(token, weight), y) in tokens.iter().zip(outputs.chunks_exact(self.width)) {
                all[token].push((expert, weight, y));
            }
        }
        all
    }
}

impl Layer {
    /// As [`forward`](Self::forward); `visit` also receives the outputs of the experts,
    /// batch by batch.
    pub fn forward_experts(
        &self,
        hidden: &mut Hidden,
        visit: &mut (dyn FnMut(&ExpertOutputs) + Send),
    ) {
        self.forward_attention(hidden, &mut NoTap);
        self.each_batch(hidden, |layer, h, _, carried, scratch| {
            layer.mlp_input(h, scratch, &mut NoTap);
            let mut outputs = ExpertOutputs { width: layer.config.hidden, experts: Vec::new() };
            layer.mix_experts(h, scratch, &mut NoTap, Some(&mut outputs));
            layer.finish(h, carried.tokens, scratch, &mut NoTap);
            visit(&outputs);
        });
    }

    /// The experts on a batch, from `normed`, with the residual connection.
    pub(super) fn mix_experts(
        &self,
        h: &mut [f32],
        scratch: &mut Scratch,
        tap: &mut dyn Tap,
        mut outputs: Option<&mut ExpertOutputs>,
    ) {
        let Some(router) = &self.router else { return };
        let d = self.config.hidden;
        let t = h.len() / d;
        let mut sum = std::mem::take(&mut scratch.sum);
        sum.clear();
        sum.resize(h.len(), 0.0);
        if let Some(beside) = &router.beside {
            self.gate(h.len(), scratch, tap);
            let Scratch { gate, .. } = scratch;
            let [.., down_proj] = self.mlp_linears(None);
            let x = MatrixRef::new(gate, t, down_proj.weight.cols());
            apply(x, &mut [(&down_proj.weight, MatrixMut::new(&mut sum, t, d))]);
            down_proj.add_bias(&mut sum);
            sum.chunks_exact_mut(d).for_each(|row| beside.after_mlp.in_place(row));
        }
        let routes = self.routes(router, h, scratch);
        let of_mlp = router.beside.is_some().then(|| {
            let zeros = vec![0.0; sum.len()];
            std::mem::replace(&mut sum, zeros)
        });
        if let Some(outputs) = &mut outputs {
            outputs.experts = vec![Default::default(); routes.len()];
        }
        for (expert, tokens) in routes.iter().enumerate().filter(|(_, tokens)| !tokens.is_empty()) {
            let number = expert;
            let expert = expert as u16;
            self.expert_inputs(expert, tokens, Input::Down, scratch, tap);
            let Scratch { gate, out, .. } = scratch;
            let [.., down_proj] = self.mlp_linears(Some(expert));
            let n = tokens.len();
            let x = MatrixRef::new(gate, n, down_proj.weight.cols());
            let out = sized(out, n * d);
            apply(x, &mut [(&down_proj.weight, MatrixMut::new(out, n, d))]);
            down_proj.add_bias(out);
            if let Some(outputs) = &mut outputs {
                outputs.experts[number] = (tokens.clone(), out.to_vec());
            }
            for (&(token, weight), y) in tokens.iter().zip(out.chunks_exact(d)) {
                vector::add_scaled(&mut sum[token * d..][..d], y, weight);
            }
        }
        if let Some(shared_gate) = &router.shared_gate {
            self.gate(h.len(), scratch, tap);
            let Scratch { normed, gate, out, .. } = scratch;
            let [.., down_proj] = self.mlp_linears(None);
            let out = sized(out, h.len());
            let x = MatrixRef::new(gate, t, down_proj.weight.cols());
            apply(x, &mut [(&down_proj.weight, MatrixMut::new(out, t, d))]);
            down_proj.add_bias(out);
            let rows = normed.chunks_exact(d).zip(out.chunks_exact(d));
            for ((x, y), sum) in rows.zip(sum.chunks_exact_mut(d)) {
                let logit: f32 = x.iter().zip(shared_gate).map(|(x, g)| x * g).sum();
                vector::add_scaled(sum, y, 1.0 / (1.0 + (-logit).exp()));
            }
        }
        if let (Some(beside), Some(of_mlp)) = (&router.beside, of_mlp) {
            sum.chunks_exact_mut(d).for_each(|row| beside.after_experts.in_place(row));
            vector::add(&mut sum, &of_mlp);
        }
        self.add_output(&mut sum, self.norm(NormSlot::AfterMlp), h);
        scratch.sum = sum;
    }

    /// The tokens of each expert; `normed` becomes the input of the experts.
    fn routes(&self, router: &Router, h: &[f32], scratch: &mut Scratch) -> Routes {
        let (t, d) = (h.len() / self.config.hidden, self.config.hidden);
        let Scratch { normed, rows, .. } = scratch;
        match &router.beside {
            None => router.routes(MatrixRef::new(normed, t, d)),
            Some(beside) => {
                let rows = sized(rows, h.len());
                beside.router.apply(h, rows);
                beside.before_experts.apply(h, sized(normed, h.len()));
                router.routes(MatrixRef::new(rows, t, d))
            }
        }
    }

    /// Computes the inputs of experts up to `last` for `tap`, where it wants them; from
    /// `h` and `normed`.
    pub(super) fn observe_experts(
        &self,
        h: &[f32],
        last: Input,
        scratch: &mut Scratch,
        tap: &mut dyn Tap,
    ) {
        let Some(router) = &self.router else { return };
        let routes = self.routes(router, h, scratch);
        for (expert, tokens) in routes.iter().enumerate().filter(|(_, tokens)| !tokens.is_empty()) {
            let expert = expert as u16;
            let wants = |input| tap.wants(Site { input, expert: Some(expert) });
            let last = match (wants(Input::GateUp), last == Input::Down && wants(Input::Down)) {
                (_, true) => Input::Down,
                (true, false) => Input::GateUp,
                (false, false) => continue,
            };
            self.expert_inputs(expert, tokens, last, scratch, tap);
        }
    }

    /// The inputs of one expert up to `last`: `gate` is that of down.
    fn expert_inputs(
        &self,
        expert: u16,
        tokens: &[(usize, f32)],
        last: Input,
        scratch: &mut Scratch,
        tap: &mut dyn Tap,
    ) {
        let d = self.config.hidden;
        let Scratch { normed, rows, gate, up, .. } = scratch;
        let rows = sized(rows, tokens.len() * d);
        for (row, &(token, _)) in rows.chunks_exact_mut(d).zip(tokens) {
            row.copy_from_slice(&normed[token * d..][..d]);
        }
        let x = MatrixRef::new(rows, tokens.len(), d);
        let site = |input| Site { input, expert: Some(expert) };
        tap.on_input(site(Input::GateUp), x);
        if last == Input::Down {
            self.project_mlp(Some(expert), x, gate, up);
            self.activate(gate, up);
            let width = gate.len() / tokens.len();
            tap.on_input(site(Input::Down), MatrixRef::new(gate, tokens.len(), width));
        }
    }
}
