//! Backward pass of a gated delta net, around that of the delta rule.
//!
//! ```text
//! y = norm(o) silu(z)               dz = dy norm(o) silu'(z)           d norm(o) = dy silu(z)
//! q = x / |x|                       dx = (dq - q (q . dq)) / |x|       |x|^2 = sum of squares + eps
//! c_t = sum over k of w_k m_(t - K + 1 + k)                            dm_s = sum over k of w_k dc_(s + K - 1 - k)
//! g = -s softplus(l)                dl = -s sigmoid(l) dg              s = exp(A), l = a + d
//! b = sigmoid(r)                    dr = (1 - b) b db
//! ```
//!
//! The convolution `w`, `A`, `d`, the norm and the projections of `a` and `r` are not trained.

use super::delta_rule::HeadGradients;
use super::layer::copy;
use crate::model::delta_net::{DeltaNet, LENGTH_EPS, Projected, columns, silu};
use crate::model::layer::ACTIVATION_CHUNK;
use crate::model::vector::{self, dot};
use openwork::linalg::{Threads, gemm};
use openwork::{Matrix, MatrixMut};
use rayon::prelude::*;

/// Gradients of what a delta net reads; all are overwritten.
pub(super) struct DeltaGradients<'a> {
    /// Of queries, keys and values before the convolution, `[tokens, channels]`.
    pub mixed: &'a mut Vec<f32>,
    /// Of the output's gate.
    pub gate: &'a mut Vec<f32>,
    /// Of the layer's normalized input, by way of `g` and `b`.
    pub input: &'a mut Vec<f32>,
}

impl DeltaNet {
    /// The gradients of one window, given those of its outputs; `heads` are the outputs of
    /// the delta rule.
    pub(super) fn backward(
        &self,
        x: Projected<'_>,
        heads: &[f32],
        d_out: &[f32],
        into: DeltaGradients<'_>,
    ) {
        let s = &self.sizes;
        let (t, channels, width) = (x.input.rows(), s.channels(), s.value_width());

        // 1. Through the gate and the norm: `normed` becomes its own gradient.
        copy(into.gate, x.gate);
        let mut normed = heads.to_vec();
        self.norm.rows_in_place(&mut normed);
        let parts = into.gate.par_chunks_mut(ACTIVATION_CHUNK);
        let parts = parts.zip(normed.par_chunks_mut(ACTIVATION_CHUNK));
        parts
            .zip(d_out.par_chunks(ACTIVATION_CHUNK))
            .for_each(|((z, normed), d)| vector::silu_gate_backward(z, normed, d));
        let mut d_heads = vec![0.0; heads.len()];
        self.norm.backward_frozen(heads, &normed, &mut d_heads);

        // 2. Through the delta rule.
        let mut convolved = vec![0.0; t * channels];
        self.convolve(x.mixed, &mut Vec::new(), &mut convolved);
        let mut qkv = convolved.clone();
        qkv.par_chunks_mut(channels).for_each(silu);
        let gates = self.gates(x.input);
        let of_head = |head: usize| {
            let d_out = columns(&d_heads, width, head * s.value_dim, s.value_dim);
            self.head(head, &qkv, &gates).backward(&d_out)
        };
        let grads: Vec<HeadGradients> =
            (0..s.value_heads).into_par_iter().with_max_len(1).map(of_head).collect();

        // 3. Through the lengths of queries and keys, and the activation.
        let mut d_qkv = vec![0.0; t * channels];
        let rows = d_qkv.par_chunks_exact_mut(channels).enumerate();
        let inputs = qkv.par_chunks_exact(channels).zip(convolved.par_chunks_exact(channels));
        rows.zip(inputs).for_each(|((token, d), (qkv, convolved))| {
            for (head, grads) in grads.iter().enumerate() {
                let parts = [&grads.q, &grads.k, &grads.v];
                for (at, part) in self.first_columns(head).into_iter().zip(parts) {
                    vector::add(&mut d[at..][..part.cols()], part.row(token));
                }
            }
            let keys = 2 * s.key_heads * s.key_dim;
            let heads = d[..keys].chunks_exact_mut(s.key_dim);
            heads.zip(qkv.chunks_exact(s.key_dim)).for_each(|(d, x)| unit_backward(d, x));
            vector::silu_backward(d, convolved);
        });

        // 4. Through the convolution.
        into.mixed.resize(t * channels, 0.0);
        let rows = into.mixed.par_chunks_exact_mut(channels).enumerate();
        rows.for_each(|(token, row)| {
            row.fill(0.0);
            // The last entry of the kernel is that of the token itself.
            for (k, later) in (0..s.kernel).rev().zip(token..t) {
                let weights = self.convolution[k..].iter().step_by(s.kernel);
                let d = &d_qkv[later * channels..][..channels];
                row.iter_mut().zip(d).zip(weights).for_each(|((x, d), w)| *x += w * d);
            }
        });

        // 5. Through g and b.
        let mut d_decay = self.decay_logits(x.input);
        let mut d_rate = Matrix::zeros(t, s.value_heads);
        for token in 0..t {
            let rates = d_rate.row_mut(token).iter_mut().zip(gates.rate.row(token));
            let decays = d_decay.row_mut(token).iter_mut().zip(&self.speed);
            for (((dl, speed), (dr, b)), head) in decays.zip(rates).zip(&grads) {
                *dl = -speed / (1.0 + (-*dl).exp()) * head.log_decay[token];
                *dr = (1.0 - b) * head.log_rate[token];
            }
        }
        let hidden = x.input.cols();
        into.input.resize(t * hidden, 0.0);
        let mut input = MatrixMut::new(into.input, t, hidden);
        gemm(0.0, input.reborrow(), 1.0, d_decay.view(), self.decay.view(), Threads::All);
        gemm(1.0, input, 1.0, d_rate.view(), self.rate.view(), Threads::All);
    }
}

/// The gradient of a row `x`, given in `d` that of the row scaled to length 1.
fn unit_backward(d: &mut [f32], x: &[f32]) {
    let r = (vector::sum_of_squares(x) + LENGTH_EPS).sqrt().recip();
    let along = dot(d, x) * r * r;
    vector::add_scaled(d, x, -along);
    vector::scale(d, r);
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::checkpoint::Checkpoint;
    use crate::model::{Model, Storage};
    use openwork::MatrixRef;
    use std::path::Path;

    #[test]
    fn gradients_equal_finite_differences() {
        let folder = Path::new(env!("CARGO_MANIFEST_DIR")).join("../../testdata/models/qwen3.5");
        let checkpoint = Checkpoint::open(&folder).unwrap();
        let model = Model::open(&checkpoint).unwrap();
        let layer = model.layer(0, Storage::F32).unwrap();
        let net = layer.delta_net.as_ref().unwrap();
        // More than one chunk of the delta rule.
        let (t, hidden) = (70, model.config().hidden);
        let some = |n: usize, seed: usize| -> Vec<f32> {
            (0..n).map(|i| ((i + seed) * 7919 % 251) as f32 / 100.0 - 1.2).collect()
        };
        let width = net.sizes.value_width();
        let inputs = [some(t * net.sizes.channels(), 1), some(t * width, 5), some(t * hidden, 9)];
        let w = some(t * width, 3);
        fn projected(x: &[Vec<f32>; 3], t: usize) -> Projected<'_> {
            Projected { mixed: &x[0], gate: &x[1], input: MatrixRef::new(&x[2], t, x[2].len() / t) }
        }
        let mut heads = vec![0.0; t * width];
        net.mix_heads(&projected(&inputs, t), &mut Default::default(), &mut heads);
        let [mut mixed, mut gate, mut input] = [const { Vec::new() }; 3];
        let into = DeltaGradients { mixed: &mut mixed, gate: &mut gate, input: &mut input };
        net.backward(projected(&inputs, t), &heads, &w, into);
        let loss = |x: &[Vec<f32>; 3]| -> f64 {
            let mut out = vec![0.0; t * width];
            net.mix(&projected(x, t), &mut Default::default(), &mut out);
            out.iter().zip(&w).map(|(o, w)| f64::from(*o) * f64::from(*w)).sum()
        };
        // Along the gradient of each input, the loss changes by the square of its length.
        for (which, gradient) in [&mixed, &gate, &input].into_iter().enumerate() {
            let squares: f64 = gradient.iter().map(|g| f64::from(*g) * f64::from(*g)).sum();
            let step = 1e-2 / squares.sqrt();
            let at = |by: f64| {
                let mut x = inputs.clone();
                vector::add_scaled(&mut x[which], gradient, by as f32);
                loss(&x)
            };
            let got = (at(step) - at(-step)) / (2.0 * step);
            assert!((got / squares - 1.0).abs() < 0.01, "input {which}: {got} for {squares}");
        }
    }
}
