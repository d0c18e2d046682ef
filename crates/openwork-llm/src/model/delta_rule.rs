//! The delta rule: the memory of one head of a gated delta net.
//!
//! With keys `k` and queries `q` of unit length, for each token:
//!
//! ```text
//! S <- exp(g) S        u = b (v - S' k)        S <- S + k u'        out = S' q / sqrt(width of k)
//! ```
//!
//! Chunks of tokens are computed together: with `G` the sum of `g` within the chunk, `S` its
//! state before the chunk, and `q` divided by the root of its width, the `u` of a chunk solve
//! a triangular system,
//!
//! ```text
//! u_i + sum over j < i of b_i A_ij u_j = b_i (v_i - exp(G_i) S' k_i)        A_ij = exp(G_i - G_j) (k_i . k_j)
//! out_i = exp(G_i) S' q_i + sum over j <= i of P_ij u_j                     P_ij = exp(G_i - G_j) (q_i . k_j)
//! S <- exp(G_n) S + sum over j of exp(G_n - G_j) k_j u_j'
//! ```

use super::vector;
use openwork::linalg::{Threads, gemm};
use openwork::{Matrix, MatrixMut, MatrixRef};

/// Tokens computed together.
pub(super) const CHUNK: usize = 64;

/// One value head: queries and keys of unit length, values, `g` and `b` of every token.
#[derive(Clone)]
pub(super) struct Head {
    pub q: Matrix,
    pub k: Matrix,
    pub v: Matrix,
    pub log_decay: Vec<f32>,
    pub rate: Vec<f32>,
}

/// What the tokens of a chunk compute from the state before them.
pub(super) struct Chunk {
    /// The queries, divided by the root of their width, and the keys.
    pub q: Matrix,
    pub k: Matrix,
    /// `G` of every token.
    pub sums: Vec<f32>,
    /// `A`, with its diagonal, and `P`.
    pub of_keys: Matrix,
    pub of_queries: Matrix,
    pub u: Matrix,
}

impl Head {
    /// The outputs token by token: the definition. `memory` is `S`.
    pub fn step(&self, memory: &mut [f32]) -> Matrix {
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
    pub fn chunks(&self, memory: &mut [f32]) -> Matrix {
        let (t, dv) = (self.v.rows(), self.v.cols());
        let mut out = Matrix::zeros(t, dv);
        for (chunk, out) in out.data_mut().chunks_mut(CHUNK * dv).enumerate() {
            let chunk = Chunk::new(self, chunk * CHUNK, memory);
            chunk.outputs(memory, out);
            chunk.advance(memory);
        }
        out
    }
}

impl Chunk {
    /// The chunk that begins at token `first`, from the state before it.
    pub fn new(head: &Head, first: usize, memory: &[f32]) -> Self {
        let (dk, dv) = (head.k.cols(), head.v.cols());
        let n = CHUNK.min(head.v.rows() - first);
        let part = |x: &Matrix| {
            let width = x.cols();
            Matrix::from_vec(n, width, x.data()[first * width..(first + n) * width].to_vec())
        };
        let (mut q, k) = (part(&head.q), part(&head.k));
        vector::scale(q.data_mut(), (dk as f32).sqrt().recip());
        let mut total = 0.0;
        let sums = head.log_decay[first..first + n].iter().map(|g| {
            total += g;
            total
        });
        let sums: Vec<f32> = sums.collect();

        // 1. A and P.
        let products = |x: &Matrix| {
            let mut products = Matrix::zeros(n, n);
            gemm(0.0, products.view_mut(), 1.0, x.view(), k.view().t(), Threads::One);
            decay(&mut products, &sums);
            products
        };
        let (of_keys, of_queries) = (products(&k), products(&q));

        // 2. The right side, b_i (v_i - exp(G_i) S' k_i), and the system.
        let rate = &head.rate[first..first + n];
        let mut u = Matrix::zeros(n, dv);
        gemm(0.0, u.view_mut(), 1.0, k.view(), MatrixRef::new(memory, dk, dv), Threads::One);
        for i in 0..n {
            let decay = sums[i].exp();
            for (u, v) in u.row_mut(i).iter_mut().zip(head.v.row(first + i)) {
                *u = rate[i] * (v - decay * *u);
            }
            let (solved, rest) = u.data_mut().split_at_mut(i * dv);
            for (j, u_j) in solved.chunks_exact(dv).enumerate() {
                vector::add_scaled(&mut rest[..dv], u_j, -rate[i] * of_keys.row(i)[j]);
            }
        }
        Self { q, k, sums, of_keys, of_queries, u }
    }

    /// The sum of `g` of all tokens.
    pub fn total(&self) -> f32 {
        *self.sums.last().expect("a chunk has tokens")
    }

    /// The rows `exp(G_i) x_i`.
    pub fn decayed(&self, x: &Matrix) -> Matrix {
        let mut x = x.clone();
        for (i, sum) in self.sums.iter().enumerate() {
            vector::scale(x.row_mut(i), sum.exp());
        }
        x
    }

    /// The rows `exp(G_n - G_i) x_i`.
    pub fn decayed_to_end(&self, x: &Matrix) -> Matrix {
        let mut x = x.clone();
        for (i, sum) in self.sums.iter().enumerate() {
            vector::scale(x.row_mut(i), (self.total() - sum).exp());
        }
        x
    }

    /// The outputs: the contribution of `S`, and that of the chunk itself.
    fn outputs(&self, memory: &[f32], out: &mut [f32]) {
        let (n, dk, dv) = (self.k.rows(), self.k.cols(), self.u.cols());
        let (q, state) = (self.decayed(&self.q), MatrixRef::new(memory, dk, dv));
        gemm(0.0, MatrixMut::new(out, n, dv), 1.0, q.view(), state, Threads::One);
        let (p, u) = (self.of_queries.view(), self.u.view());
        gemm(1.0, MatrixMut::new(out, n, dv), 1.0, p, u, Threads::One);
    }

    /// `S` after the chunk.
    pub fn advance(&self, memory: &mut [f32]) {
        let (k, u) = (self.decayed_to_end(&self.k), self.u.view());
        let state = MatrixMut::new(memory, k.cols(), u.cols());
        gemm(self.total().exp(), state, 1.0, k.view().t(), u, Threads::One);
    }
}

/// Multiplies entry `i, j` by `exp(G_i - G_j)` for `j <= i`, and by zero for other `j`.
pub(super) fn decay(products: &mut Matrix, sums: &[f32]) {
    for i in 0..sums.len() {
        let row = products.row_mut(i);
        for j in 0..=i {
            row[j] *= (sums[i] - sums[j]).exp();
        }
        row[i + 1..].fill(0.0);
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::model::delta_net::unit_rows;

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
