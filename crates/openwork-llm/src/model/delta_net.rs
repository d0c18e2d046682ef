//! The gated delta net: attention whose memory is one matrix per head (Qwen3.5).
//!
//! With keys `k` and queries `q` of unit length, for each value head and token:
//!
//! ```text
//! S <- exp(g) S        u = b (v - S' k)        S <- S + k u'        out = S' q / sqrt(width of k)
//! g = -exp(A) softplus(a + d)                  b = sigmoid of its own projection
//! ```
//!
//! `q`, `k` and `v` first go through a causal convolution, channel by channel. Chunks of
//! tokens are computed together: with `G` the sum of `g` within the chunk and `S` its
//! state before the chunk, the `u` of a chunk solve a triangular system,
//!
//! ```text
//! u_i + sum over j < i of b_i exp(G_i - G_j) (k_i . k_j) u_j = b_i (v_i - exp(G_i) S' k_i)
//! out_i = exp(G_i) S' q_i + sum over j <= i of exp(G_i - G_j) (q_i . k_j) u_j
//! S <- exp(G_n) S + sum over j of exp(G_n - G_j) k_j u_j'
//! ```
//!
//! A head is one task on one thread, so the result does not depend on the number of
//! threads.

use super::config::{Config, DeltaNetSizes};
use super::norm::Norm;
use super::vector;
use crate::checkpoint::{Checkpoint, CheckpointError};
use openwork::linalg::{Threads, gemm};
use openwork::{Matrix, MatrixMut, MatrixRef};
use rayon::prelude::*;

/// Tokens computed together.
const CHUNK: usize = 64;
/// Added to the squared length of queries and keys.
const LENGTH_EPS: f32 = 1e-6;

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
    sizes: DeltaNetSizes,
    /// `[channels, kernel]`.
    convolution: Vec<f32>,
    /// The projections of `a` and `b`, `[value heads, hidden]` each.
    decay: Matrix,
    rate: Matrix,
    /// `exp(A)` and `d` of every value head.
    speed: Vec<f32>,
    offset: Vec<f32>,
    /// The norm on the output of every value head.
    norm: Norm,
}

/// The projections of a sequence of tokens.
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
        let s = &self.sizes;
        let (t, channels) = (x.input.rows(), s.channels());
        let mut qkv = vec![0.0; t * channels];
        self.convolve(x.mixed, &mut state.tail, &mut qkv);
        let (decay, rate) = self.gates(x.input);
        let head_size = s.key_dim * s.value_dim;
        state.memory.resize(s.value_heads * head_size, 0.0);
        let group = s.value_heads / s.key_heads;
        let heads: Vec<Matrix> = state
            .memory
            .par_chunks_exact_mut(head_size)
            .enumerate()
            .map(|(head, memory)| {
                let at = head / group * s.key_dim;
                let [q, k] = [at, s.key_heads * s.key_dim + at]
                    .map(|at| unit_rows(columns(&qkv, channels, at, s.key_dim)));
                let at = 2 * s.key_heads * s.key_dim + head * s.value_dim;
                let v = columns(&qkv, channels, at, s.value_dim);
                let of_head = |x: &Matrix| (0..t).map(|i| x.row(i)[head]).collect::<Vec<f32>>();
                let head = Head { q, k, v, log_decay: of_head(&decay), rate: of_head(&rate) };
                match t {
                    1 => head.step(memory),
                    _ => head.chunks(memory),
                }
            })
            .collect();
        let width = s.value_heads * s.value_dim;
        let rows = out.par_chunks_exact_mut(width).zip(x.gate.par_chunks_exact(width));
        rows.enumerate().with_min_len(8).for_each(|(token, (out, gate))| {
            for (head, out) in out.chunks_exact_mut(s.value_dim).enumerate() {
                out.copy_from_slice(heads[head].row(token));
                self.norm.in_place(out);
            }
            for (out, z) in out.iter_mut().zip(gate) {
                *out *= z / (1.0 + (-z).exp());
            }
        });
    }

    /// The causal convolution and its activation; `tail` becomes the last inputs.
    fn convolve(&self, x: &[f32], tail: &mut Vec<f32>, out: &mut [f32]) {
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
            out.iter_mut().for_each(|x| *x /= 1.0 + (-*x).exp());
        });
        let rows = before + x.len() / channels;
        let last: Vec<f32> = (rows - before..rows).flat_map(row).copied().collect();
        *tail = last;
    }

    /// `g` and `b` of every token and value head.
    fn gates(&self, x: MatrixRef<'_>) -> (Matrix, Matrix) {
        let project = |weights: &Matrix| {
            let mut out = Matrix::zeros(x.rows(), weights.rows());
            gemm(0.0, out.view_mut(), 1.0, x, weights.view().t(), Threads::All);
            out
        };
        let (mut decay, mut rate) = (project(&self.decay), project(&self.rate));
        for row in decay.data_mut().chunks_exact_mut(self.speed.len()) {
            for ((x, speed), offset) in row.iter_mut().zip(&self.speed).zip(&self.offset) {
                *x = -speed * softplus(*x + offset);
            }
        }
        rate.data_mut().iter_mut().for_each(|x| *x = 1.0 / (1.0 + (-*x).exp()));
        (decay, rate)
    }
}

/// `ln(1 + e^x)`, without overflow.
fn softplus(x: f32) -> f32 {
    x.max(0.0) + (-x.abs()).exp().ln_1p()
}

/// Columns `at..at + width` of rows of `stride` entries.
fn columns(x: &[f32], stride: usize, at: usize, width: usize) -> Matrix {
    let rows = x.chunks_exact(stride).flat_map(|row| &row[at..at + width]);
    Matrix::from_vec(x.len() / stride, width, rows.copied().collect())
}

/// Scales every row to length 1.
fn unit_rows(mut x: Matrix) -> Matrix {
    let width = x.cols();
    for row in x.data_mut().chunks_exact_mut(width) {
        let length = vector::sum_of_squares(row) + LENGTH_EPS;
        vector::scale(row, length.sqrt().recip());
    }
    x
}

/// One value head: queries and keys of unit length, values, `g` and `b` of every token.
struct Head {
    q: Matrix,
    k: Matrix,
    v: Matrix,
    log_decay: Vec<f32>,
    rate: Vec<f32>,
}

impl Head {
    /// The outputs token by token: the definition. `memory` is `S`.
    fn step(&self, memory: &mut [f32]) -> Matrix {
        let (t, dv) = (self.v.rows(), self.v.cols());
        let scale = (self.k.cols() as f32).sqrt().recip();
        let mut out = Matrix::zeros(t, dv);
        let mut u = vec![0.0; dv];
        for i in 0..t {
            vector::scale(memory, self.log_decay[i].exp());
            u.copy_from_slice(self.v.row(i));
            for (row, k) in memory.chunks_exact(dv).zip(self.k.row(i)) {
                vector::add_scaled(&mut u, row, -k);
            }
            vector::scale(&mut u, self.rate[i]);
            let out = out.row_mut(i);
            let coordinates = self.k.row(i).iter().zip(self.q.row(i));
            for (row, (k, q)) in memory.chunks_exact_mut(dv).zip(coordinates) {
                vector::add_scaled(row, &u, *k);
                vector::add_scaled(out, row, q * scale);
            }
        }
        out
    }

    /// The outputs, chunk by chunk.
    fn chunks(&self, memory: &mut [f32]) -> Matrix {
        let (t, dk, dv) = (self.v.rows(), self.k.cols(), self.v.cols());
        let mut out = Matrix::zeros(t, dv);
        for first in (0..t).step_by(CHUNK) {
            let n = CHUNK.min(t - first);
            let part = |x: &Matrix| {
                let width = x.cols();
                Matrix::from_vec(n, width, x.data()[first * width..(first + n) * width].to_vec())
            };
            let (mut q, mut k) = (part(&self.q), part(&self.k));
            let rate = &self.rate[first..first + n];
            // G of every token of the chunk.
            let mut total = 0.0;
            let sums = self.log_decay[first..first + n].iter().map(|g| {
                total += g;
                total
            });
            let sums: Vec<f32> = sums.collect();
            vector::scale(q.data_mut(), (dk as f32).sqrt().recip());

            // 1. (k_i . k_j) and (q_i . k_j), with the decay between j and i.
            let products = |x: &Matrix| {
                let mut products = Matrix::zeros(n, n);
                gemm(0.0, products.view_mut(), 1.0, x.view(), k.view().t(), Threads::One);
                for i in 0..n {
                    let row = products.row_mut(i);
                    for j in 0..=i {
                        row[j] *= (sums[i] - sums[j]).exp();
                    }
                    row[i + 1..].fill(0.0);
                }
                products
            };
            let (of_keys, of_queries) = (products(&k), products(&q));

            // 2. The right side, b_i (v_i - exp(G_i) S' k_i), and the system.
            let state = MatrixRef::new(memory, dk, dv);
            let mut u = Matrix::zeros(n, dv);
            gemm(0.0, u.view_mut(), 1.0, k.view(), state, Threads::One);
            for i in 0..n {
                let decay = sums[i].exp();
                for (u, v) in u.row_mut(i).iter_mut().zip(self.v.row(first + i)) {
                    *u = rate[i] * (v - decay * *u);
                }
                let (solved, rest) = u.data_mut().split_at_mut(i * dv);
                for (j, u_j) in solved.chunks_exact(dv).enumerate() {
                    vector::add_scaled(&mut rest[..dv], u_j, -rate[i] * of_keys.row(i)[j]);
                }
            }

            // 3. The outputs: the contribution of S, and that of the chunk itself.
            for i in 0..n {
                vector::scale(q.row_mut(i), sums[i].exp());
            }
            let rows = &mut out.data_mut()[first * dv..(first + n) * dv];
            gemm(0.0, MatrixMut::new(rows, n, dv), 1.0, q.view(), state, Threads::One);
            gemm(1.0, MatrixMut::new(rows, n, dv), 1.0, of_queries.view(), u.view(), Threads::One);

            // 4. S after the chunk.
            for i in 0..n {
                vector::scale(k.row_mut(i), (total - sums[i]).exp());
            }
            let state = MatrixMut::new(memory, dk, dv);
            gemm(total.exp(), state, 1.0, k.view().t(), u.view(), Threads::One);
        }
        out
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn head(t: usize, dk: usize, dv: usize) -> Head {
        let number = |i: usize| ((i * 7919 + 13) % 251) as f32 / 125.0 - 1.0;
        let matrix = |width: usize, seed: usize| {
            Matrix::from_fn(t, width, |i, j| number(i * width + j + seed))
        };
        Head {
            q: unit_rows(matrix(dk, 1)),
            k: unit_rows(matrix(dk, 5)),
            v: matrix(dv, 9),
            log_decay: (0..t).map(|i| -0.4 * (number(i) + 1.0)).collect(),
            rate: (0..t).map(|i| 0.5 + 0.45 * number(i + 3)).collect(),
        }
    }

    #[test]
    fn chunks_equal_the_definition() {
        for t in [1, 2, 3, 63, 64, 65, 127, 128, 130, 200] {
            let head = head(t, 8, 6);
            let start: Vec<f32> = (0..48).map(|i| (i % 7) as f32 / 7.0 - 0.4).collect();
            let (mut one, mut other) = (start.clone(), start);
            let (want, got) = (head.step(&mut one), head.chunks(&mut other));
            for (x, y) in got.data().iter().chain(&other).zip(want.data().iter().chain(&one)) {
                assert!((x - y).abs() < 1e-5, "{t} tokens: {x} for {y}");
            }
        }
    }

    #[test]
    fn forgetting_everything_at_once_is_finite() {
        let mut head = head(70, 4, 4);
        head.log_decay.iter_mut().for_each(|g| *g = -80.0);
        let mut memory = vec![1.0; 16];
        assert!(head.chunks(&mut memory).data().iter().all(|x| x.is_finite()));
        assert!(memory.iter().all(|x| x.is_finite()));
    }
}
