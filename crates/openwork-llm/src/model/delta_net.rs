//! The gated delta net: attention whose memory is one matrix per head (Qwen3.5).
//!
//! ```text
//! q, k, v = silu(convolution of their projections), q and k scaled to length 1
//! out = the delta rule (delta_rule.rs) of q, k, v, g and b
//! g = -exp(A) softplus(a + d)                  b = sigmoid of its own projection
//! y = norm(out) o silu(z)                      per head, with the output's gate z
//! ```
//!
//! The convolution is causal, channel by channel. A head is one task on one thread, so the
//! result does not depend on the number of threads.

use super::config::{Config, DeltaNetSizes};
use super::delta_rule::Head;
use super::norm::Norm;
use super::vector;
use crate::checkpoint::{Checkpoint, CheckpointError};
use openwork::linalg::{Threads, gemm};
use openwork::{Matrix, MatrixRef};
use rayon::prelude::*;

/// Added to the squared length of queries and keys.
pub(super) const LENGTH_EPS: f32 = 1e-6;

/// The memory of a sequence.
#[derive(Clone, Debug, Default)]
pub struct DeltaState {
    /// The last inputs of the convolution, `[kernel - 1, channels]`; empty before the
    /// first token.
    tail: Vec<f32>,
    /// `S` of every value head, `[heads, key width, value width]`; empty before the first
    /// token.
    memory: Vec<f32>,
}

impl DeltaState {
    /// Resets the state for a new sequence.
    pub fn clear(&mut self) {
        self.tail.clear();
        self.memory.clear();
    }

    /// Size in bytes.
    pub fn bytes(&self) -> usize {
        (self.tail.len() + self.memory.len()) * size_of::<f32>()
    }
}

/// The parameters of a gated delta net besides its linear layers.
#[derive(Clone, Debug)]
pub struct DeltaNet {
    pub(super) sizes: DeltaNetSizes,
    /// `[channels, kernel]`.
    pub(super) convolution: Vec<f32>,
    /// The projections of `a` and `b`, `[value heads, hidden]` each.
    pub(super) decay: Matrix,
    pub(super) rate: Matrix,
    /// `exp(A)` and `d` of every value head.
    pub(super) speed: Vec<f32>,
    offset: Vec<f32>,
    /// The norm on the output of every value head.
    pub(super) norm: Norm,
}

/// `g` and `b` of every token and value head, `[tokens, value heads]` each.
pub(super) struct Gates {
    pub log_decay: Matrix,
    pub rate: Matrix,
}

/// The projections of a sequence of tokens.
#[derive(Clone, Copy)]
pub(super) struct Projected<'a> {
    /// The layer's normalized input, `[tokens, hidden]`.
    pub input: MatrixRef<'a>,
    /// Queries, keys and values before the convolution, `[tokens, channels]`.
    pub mixed: &'a [f32],
    /// The output's gate, `[tokens, value heads * value width]`.
    pub gate: &'a [f32],
}

impl DeltaNet {
    /// Names within the layer and shapes of its tensors.
    pub(super) fn tensors(c: &Config, sizes: &DeltaNetSizes) -> [(&'static str, Vec<usize>); 6] {
        let heads = sizes.value_heads;
        [
            ("linear_attn.conv1d.weight", vec![sizes.channels(), 1, sizes.kernel]),
            ("linear_attn.in_proj_a.weight", vec![heads, c.hidden]),
            ("linear_attn.in_proj_b.weight", vec![heads, c.hidden]),
            ("linear_attn.A_log", vec![heads]),
            ("linear_attn.dt_bias", vec![heads]),
            ("linear_attn.norm.weight", vec![sizes.value_dim]),
        ]
    }

    /// Loads it.
    pub(super) fn load(
        checkpoint: &Checkpoint,
        c: &Config,
        sizes: DeltaNetSizes,
        prefix: &str,
    ) -> Result<Self, CheckpointError> {
        let mut numbers = Vec::new();
        for (name, shape) in Self::tensors(c, &sizes) {
            let tensor = checkpoint.tensor_with_shape(&format!("{prefix}{name}"), &shape)?;
            numbers.push(tensor.to_f32());
        }
        let [convolution, decay, rate, logs, offset, norm] =
            <[Vec<f32>; 6]>::try_from(numbers).expect("one for each tensor");
        let projection = |numbers| Matrix::from_vec(sizes.value_heads, c.hidden, numbers);
        Ok(Self {
            convolution,
            decay: projection(decay),
            rate: projection(rate),
            speed: logs.iter().map(|log| log.exp()).collect(),
            offset,
            norm: Norm::new(norm, 0.0, c.norm_eps),
            sizes,
        })
    }

    /// Computes the next tokens of a sequence: `out` is `[tokens, value heads * value
    /// width]`, the input of the output projection. `state` is what earlier tokens left.
    pub(super) fn mix(&self, x: &Projected<'_>, state: &mut DeltaState, out: &mut [f32]) {
        self.mix_heads(x, state, out);
        self.norm_and_gate(x.gate, out);
    }

    /// The outputs of the delta rule, before their norm and gate.
    pub(super) fn mix_heads(&self, x: &Projected<'_>, state: &mut DeltaState, out: &mut [f32]) {
        let s = &self.sizes;
        let (t, channels) = (x.input.rows(), s.channels());
        let mut qkv = vec![0.0; t * channels];
        self.convolve(x.mixed, &mut state.tail, &mut qkv);
        qkv.par_chunks_mut(channels).with_min_len(8).for_each(silu);
        let gates = self.gates(x.input);
        let head_size = s.key_dim * s.value_dim;
        state.memory.resize(s.value_heads * head_size, 0.0);
        let heads: Vec<Matrix> = state
            .memory
            .par_chunks_exact_mut(head_size)
            .enumerate()
            .map(|(head, memory)| {
                let head = self.head(head, &qkv, &gates);
                match t {
                    1 => head.step(memory),
                    _ => head.chunks(memory),
                }
            })
            .collect();
        let width = s.value_width();
        let rows = out.par_chunks_exact_mut(width).enumerate().with_min_len(8);
        rows.for_each(|(token, out)| {
            let outs = out.chunks_exact_mut(s.value_dim).zip(&heads);
            outs.for_each(|(out, head)| out.copy_from_slice(head.row(token)));
        });
    }

    /// Normalizes and gates the outputs of the delta rule, head by head.
    pub(super) fn norm_and_gate(&self, gate: &[f32], out: &mut [f32]) {
        let width = self.sizes.value_width();
        let rows = out.par_chunks_exact_mut(width).zip(gate.par_chunks_exact(width));
        rows.with_min_len(8).for_each(|(out, gate)| {
            let heads = out.chunks_exact_mut(self.sizes.value_dim);
            heads.for_each(|out| self.norm.in_place(out));
            for (out, z) in out.iter_mut().zip(gate) {
                *out *= z / (1.0 + (-z).exp());
            }
        });
    }

    /// The inputs of a value head, from queries, keys and values after the convolution.
    pub(super) fn head(&self, head: usize, qkv: &[f32], gates: &Gates) -> Head {
        let s = &self.sizes;
        let (t, channels) = (gates.log_decay.rows(), s.channels());
        let [q, k, v] = self.first_columns(head);
        let [q, k] = [q, k].map(|at| unit_rows(columns(qkv, channels, at, s.key_dim)));
        let v = columns(qkv, channels, v, s.value_dim);
        let of_head = |x: &Matrix| (0..t).map(|i| x.row(i)[head]).collect::<Vec<f32>>();
        let (log_decay, rate) = (of_head(&gates.log_decay), of_head(&gates.rate));
        Head { q, k, v, log_decay, rate }
    }

    /// The first columns of a value head's queries, keys and values.
    pub(super) fn first_columns(&self, head: usize) -> [usize; 3] {
        let s = &self.sizes;
        let (group, keys) = (s.value_heads / s.key_heads, s.key_heads * s.key_dim);
        let at = head / group * s.key_dim;
        [at, keys + at, 2 * keys + head * s.value_dim]
    }

    /// Adds the causal convolution to `out`; `tail` becomes the last inputs.
    pub(super) fn convolve(&self, x: &[f32], tail: &mut Vec<f32>, out: &mut [f32]) {
        let (channels, kernel) = (self.sizes.channels(), self.sizes.kernel);
        // Before the first token there are zeros.
        tail.resize((kernel - 1) * channels, 0.0);
        let before = tail.len() / channels;
        let row = |i: usize| match i.checked_sub(before) {
            None => &tail[i * channels..][..channels],
            Some(i) => &x[i * channels..][..channels],
        };
        out.par_chunks_exact_mut(channels).enumerate().with_min_len(8).for_each(|(t, out)| {
            for k in 0..kernel {
                let weights = self.convolution[k..].iter().step_by(kernel);
                for ((out, x), w) in out.iter_mut().zip(row(t + k)).zip(weights) {
                    *out += w * x;
                }
            }
        });
        let rows = before + x.len() / channels;
        let last: Vec<f32> = (rows - before..rows).flat_map(row).copied().collect();
        *tail = last;
    }

    /// `g` and `b` of every token and value head.
    pub(super) fn gates(&self, x: MatrixRef<'_>) -> Gates {
        let mut log_decay = self.decay_logits(x);
        for row in log_decay.data_mut().chunks_exact_mut(self.speed.len()) {
            row.iter_mut().zip(&self.speed).for_each(|(x, speed)| *x = -speed * softplus(*x));
        }
        let mut rate = project(x, &self.rate);
        rate.data_mut().iter_mut().for_each(|x| *x = 1.0 / (1.0 + (-*x).exp()));
        Gates { log_decay, rate }
    }

    /// `a + d` of every token and value head.
    pub(super) fn decay_logits(&self, x: MatrixRef<'_>) -> Matrix {
        let mut logits = project(x, &self.decay);
        let rows = logits.data_mut().chunks_exact_mut(self.offset.len());
        rows.for_each(|row| vector::add(row, &self.offset));
        logits
    }
}

/// `x W'`.
fn project(x: MatrixRef<'_>, weights: &Matrix) -> Matrix {
    let mut out = Matrix::zeros(x.rows(), weights.rows());
    gemm(0.0, out.view_mut(), 1.0, x, weights.view().t(), Threads::All);
    out
}

/// `x_i <- silu(x_i)`.
pub(super) fn silu(x: &mut [f32]) {
    x.iter_mut().for_each(|x| *x /= 1.0 + (-*x).exp());
}

/// `ln(1 + e^x)`, without overflow.
fn softplus(x: f32) -> f32 {
    x.max(0.0) + (-x.abs()).exp().ln_1p()
}

/// Columns `at..at + width` of rows of `stride` entries.
pub(super) fn columns(x: &[f32], stride: usize, at: usize, width: usize) -> Matrix {
    let rows = x.chunks_exact(stride).flat_map(|row| &row[at..at + width]);
    Matrix::from_vec(x.len() / stride, width, rows.copied().collect())
}

/// Scales every row to length 1.
pub(super) fn unit_rows(mut x: Matrix) -> Matrix {
    let width = x.cols();
    for row in x.data_mut().chunks_exact_mut(width) {
        let length = vector::sum_of_squares(row) + LENGTH_EPS;
        vector::scale(row, length.sqrt().recip());
    }
    x
}
