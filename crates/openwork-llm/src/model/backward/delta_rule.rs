//! Backward pass of the delta rule, a chunk of tokens at a time, the last first.
//!
//! With the symbols of `model/delta_rule.rs`, the rows of `Q` (divided by the root of their
//! width), `K`, `V` and `U`, the diagonal matrices `E = exp(G_i)`, `F = exp(G_n - G_i)` and
//! `b`, `D_ij = exp(G_i - G_j)` for `j <= i`, the state `S` before the chunk, and the
//! gradients `dO` of its outputs and `dS` of the state after it:
//!
//! ```text
//! dU = P' dO + F K dS        (I + b A)' W = dU        X = b W        M = dO U' o D        N = X U' o D, j < i
//! dQ = E dO S' + M K         dK = L + R               dV = X         b_i db_i = w_i . u_i
//! L = -E X S' - N K          R = M' Q - N' K + F U dS'
//! dG_i = q_i . dq_i + k_i . (l_i - r_i)               dG_n also + exp(G_n) S . dS + sum of k_i . (F U dS')_i
//! dS <- exp(G_n) dS + Q' E dO - K' E X
//! ```
//!
//! Each `exp(G_i)` multiplies `q_i` or the left key of a product, and each `exp(-G_i)` the
//! right key, so `dG` follows from their gradients without products of its own.
//!
//! The chunks are computed again from the first one; they exist for one head at a time, and
//! a head is one task on one thread.

use crate::model::delta_rule::{CHUNK, Chunk, Head, decay};
use crate::model::vector::{self, dot};
use openwork::linalg::{Threads, gemm};
use openwork::{Matrix, MatrixRef};

/// Gradients of the inputs of a head.
pub(super) struct HeadGradients {
    /// Of the queries and keys of unit length.
    pub q: Matrix,
    pub k: Matrix,
    pub v: Matrix,
    /// Of `g`.
    pub log_decay: Vec<f32>,
    /// Of `ln b`.
    pub log_rate: Vec<f32>,
}

impl Head {
    /// The gradients of its inputs, given that of its outputs, `[tokens, value width]`. The
    /// state before the first token is zero.
    pub(super) fn backward(&self, d_out: &Matrix) -> HeadGradients {
        let (t, dk, dv) = (self.v.rows(), self.k.cols(), self.v.cols());
        let mut state = Matrix::zeros(dk, dv);
        let mut chunks = Vec::new();
        for first in (0..t).step_by(CHUNK) {
            let chunk = Chunk::new(self, first, state.data());
            let before = state.clone();
            chunk.advance(state.data_mut());
            chunks.push((chunk, before));
        }
        let mut grads = HeadGradients {
            q: Matrix::zeros(t, dk),
            k: Matrix::zeros(t, dk),
            v: Matrix::zeros(t, dv),
            log_decay: vec![0.0; t],
            log_rate: vec![0.0; t],
        };
        let mut d_state = Matrix::zeros(dk, dv);
        for (i, (chunk, before)) in chunks.iter().enumerate().rev() {
            chunk.backward(self, i * CHUNK, before, d_out, &mut d_state, &mut grads);
        }
        vector::scale(grads.q.data_mut(), (dk as f32).sqrt().recip());
        grads
    }
}

impl Chunk {
    /// Writes the gradients of its tokens, those of the queries before their division, and
    /// replaces `d_state`, of the state after the chunk, by that of the state before it.
    fn backward(
        &self,
        head: &Head,
        first: usize,
        before: &Matrix,
        d_out: &Matrix,
        d_state: &mut Matrix,
        grads: &mut HeadGradients,
    ) {
        let (n, dk, dv) = (self.k.rows(), self.k.cols(), self.u.cols());
        let d_out = d_out.view().part(first, n, 0, dv).to_matrix();
        let rate = &head.rate[first..first + n];

        // 1. dU, then W in place, from the last row on, and X.
        let mut w = product(self.of_queries.view().t(), d_out.view());
        let keys = self.decayed_to_end(&self.k);
        gemm(1.0, w.view_mut(), 1.0, keys.view(), d_state.view(), Threads::One);
        let mut x = Matrix::zeros(n, dv);
        for i in (0..n).rev() {
            for j in i + 1..n {
                vector::add_scaled(w.row_mut(i), x.row(j), -self.of_keys.row(j)[i]);
            }
            vector::add_scaled(x.row_mut(i), w.row(i), rate[i]);
            grads.log_rate[first + i] = dot(w.row(i), self.u.row(i));
        }
        grads.v.data_mut()[first * dv..(first + n) * dv].copy_from_slice(x.data());

        // 2. M and N.
        let mut m = product(d_out.view(), self.u.view().t());
        decay(&mut m, &self.sums);
        let mut n_below = product(x.view(), self.u.view().t());
        decay(&mut n_below, &self.sums);
        (0..n).for_each(|i| n_below.row_mut(i)[i] = 0.0);

        // 3. dQ, and L and R of dK.
        let (d_out, x) = (self.decayed(&d_out), self.decayed(&x));
        let mut dq = product(d_out.view(), before.view().t());
        gemm(1.0, dq.view_mut(), 1.0, m.view(), self.k.view(), Threads::One);
        let mut left = product(x.view(), before.view().t());
        gemm(-1.0, left.view_mut(), -1.0, n_below.view(), self.k.view(), Threads::One);
        let mut right = product(self.decayed_to_end(&self.u).view(), d_state.view().t());
        let of_state: f32 = (0..n).map(|i| dot(self.k.row(i), right.row(i))).sum();
        gemm(1.0, right.view_mut(), 1.0, m.view().t(), self.q.view(), Threads::One);
        gemm(1.0, right.view_mut(), -1.0, n_below.view().t(), self.k.view(), Threads::One);

        // 4. dG, and from it dg: g_i is part of the G of all later tokens.
        let decay = self.total().exp();
        let mut sum = of_state + decay * dot(before.data(), d_state.data());
        for i in (0..n).rev() {
            let (q, k) = (self.q.row(i), self.k.row(i));
            sum += dot(q, dq.row(i)) + dot(k, left.row(i)) - dot(k, right.row(i));
            grads.log_decay[first + i] = sum;
        }
        let rows = first * dk..(first + n) * dk;
        grads.q.data_mut()[rows.clone()].copy_from_slice(dq.data());
        vector::add(left.data_mut(), right.data());
        grads.k.data_mut()[rows].copy_from_slice(left.data());

        // 5. dS.
        let (q, k) = (self.q.view().t(), self.k.view().t());
        gemm(decay, d_state.view_mut(), 1.0, q, d_out.view(), Threads::One);
        gemm(1.0, d_state.view_mut(), -1.0, k, x.view(), Threads::One);
    }
}

/// `a b`.
fn product(a: MatrixRef<'_>, b: MatrixRef<'_>) -> Matrix {
    let mut out = Matrix::zeros(a.rows(), b.cols());
    gemm(0.0, out.view_mut(), 1.0, a, b, Threads::One);
    out
}

#[cfg(test)]
mod tests {
    use super::*;

    /// The inputs of a head in f64: `q`, `k`, `v`, `g` and `ln b`.
    type Inputs = [Vec<f64>; 5];

    /// `sum of w . out`, by the definition.
    fn loss([q, k, v, g, log_rate]: &Inputs, w: &Matrix, dk: usize) -> f64 {
        let dv = w.cols();
        let mut state = vec![0.0; dk * dv];
        let mut loss = 0.0;
        for t in 0..w.rows() {
            let (q, k, v) = (&q[t * dk..][..dk], &k[t * dk..][..dk], &v[t * dv..][..dv]);
            state.iter_mut().for_each(|s| *s *= g[t].exp());
            for j in 0..dv {
                let seen: f64 = (0..dk).map(|i| state[i * dv + j] * k[i]).sum();
                let u = log_rate[t].exp() * (v[j] - seen);
                (0..dk).for_each(|i| state[i * dv + j] += k[i] * u);
                let out: f64 = (0..dk).map(|i| state[i * dv + j] * q[i]).sum();
                loss += out / (dk as f64).sqrt() * f64::from(w.row(t)[j]);
            }
        }
        loss
    }

    #[test]
    fn gradients_equal_finite_differences() {
        let (dk, dv) = (6, 5);
        for t in [1, 2, 3, 63, 64, 65, 130, 200] {
            let number = |i: usize| ((i * 7919 + 13) % 251) as f32 / 125.0 - 1.0;
            let matrix = |width: usize, seed: usize| {
                Matrix::from_fn(t, width, |i, j| 0.5 * number(i * width + j + seed))
            };
            let head = Head {
                q: matrix(dk, 1),
                k: matrix(dk, 5),
                v: matrix(dv, 9),
                log_decay: (0..t).map(|i| -0.3 * (number(i) + 1.0)).collect(),
                rate: (0..t).map(|i| 0.5 + 0.45 * number(i + 3)).collect(),
            };
            let w = matrix(dv, 11);
            let grads = head.backward(&w);
            let wide = |x: &[f32]| -> Vec<f64> { x.iter().map(|&x| f64::from(x)).collect() };
            let inputs: Inputs = [
                wide(head.q.data()),
                wide(head.k.data()),
                wide(head.v.data()),
                wide(&head.log_decay),
                head.rate.iter().map(|&b| f64::from(b).ln()).collect(),
            ];
            let got =
                [grads.q.data(), grads.k.data(), grads.v.data(), &grads.log_decay, &grads.log_rate];
            for (which, grad) in got.into_iter().enumerate() {
                for i in (0..grad.len()).step_by(1 + grad.len() / 40) {
                    let at = |step: f64| {
                        let mut x = inputs.clone();
                        x[which][i] += step;
                        loss(&x, &w, dk)
                    };
                    let want = (at(1e-5) - at(-1e-5)) / 2e-5;
                    let got = f64::from(grad[i]);
                    assert!(
                        (got - want).abs() <= 1e-5 * (1.0 + want.abs()),
                        "{t} tokens, input {which}, entry {i}: {got} for {want}"
                    );
                }
            }
        }
    }

    #[test]
    fn forgetting_everything_at_once_is_finite() {
        let head = Head {
            q: Matrix::from_fn(70, 4, |i, j| (i + j) as f32 / 100.0),
            k: Matrix::from_fn(70, 4, |i, j| (i * j) as f32 / 300.0),
            v: Matrix::from_fn(70, 3, |_, _| 1.0),
            log_decay: vec![-80.0; 70],
            rate: vec![0.0; 70],
        };
        let grads = head.backward(&Matrix::from_fn(70, 3, |_, _| 1.0));
        let all = [grads.q.data(), grads.k.data(), grads.v.data(), &grads.log_decay];
        assert!(all.into_iter().flatten().chain(&grads.log_rate).all(|x| x.is_finite()));
    }
}
