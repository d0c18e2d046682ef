//! Backward pass of causal attention, a tile of queries at a time.
//!
//! In one head, with the rows of `Q`, `K`, `V` and the gradient `dO` of the
//! output `O = P V`, `P = softmax(c Q K')` over the keys that each query sees:
//!
//! ```text
//! dV = P' dO      dP = dO V'      dS = P o (dP - rowsum(dO o O))      dQ = c dS K      dK = c dS' Q
//! ```
//!
//! If scores are bounded, `S = b tanh(c Q K' / b)`, then `dS` is multiplied by `1 - (S / b)^2`. A
//! sink adds to the denominators of `P` only, so the equations hold unchanged.
//!
//! `P` is computed again for one tile of queries and the heads of one group:
//! no `[T, T]` matrix exists. Each tile leaves its share of `dK` and `dV`,
//! which are added in the order of the tiles, so that the result does not
//! depend on the number of threads.

use crate::model::attention::GroupedQueryAttention;
use crate::model::vector;
use openwork::linalg::{Threads, gemm};
use openwork::{Matrix, MatrixMut, MatrixRef};
use rayon::prelude::*;
use std::cell::RefCell;
use std::ops::Range;

/// Tokens that one task adds up.
const SUM_TOKENS: usize = 64;

thread_local! {
    /// Probabilities and their gradients of one tile.
    static SCRATCH: RefCell<[Vec<f32>; 2]> = const { RefCell::new([Vec::new(), Vec::new()]) };
}

/// What one attention read and wrote; the queries and keys are rotated.
#[derive(Clone, Copy)]
pub(super) struct Forward<'a> {
    /// `[T, heads * head_dim]`.
    pub q: &'a [f32],
    /// `[T, kv_heads * head_dim]`.
    pub k: &'a [f32],
    /// `[T, kv_heads * head_dim]`.
    pub v: &'a [f32],
    /// `[T, heads * head_dim]`.
    pub out: &'a [f32],
}

/// Gradients of the inputs of one attention, of the shapes of [`Forward`].
pub(super) struct Gradients<'a> {
    pub q: &'a mut [f32],
    pub k: &'a mut [f32],
    pub v: &'a mut [f32],
}

/// What one tile of one group gives.
struct Tile {
    /// `[group * rows, head_dim]`, head after head.
    dq: Matrix,
    /// The keys that it saw.
    keys: Range<usize>,
    /// `[keys, head_dim]`.
    dk: Matrix,
    dv: Matrix,
}

impl GroupedQueryAttention {
    /// Overwrites `grads` with the gradients of `q`, `k` and `v`, given that of
    /// the output.
    pub(super) fn backward(&self, forward: Forward<'_>, d_out: &[f32], grads: Gradients<'_>) {
        let (d, width, kv_width) =
            (self.head_dim, self.heads * self.head_dim, self.kv_heads * self.head_dim);
        let t = forward.q.len() / width;
        let rows = self.tile_tokens();
        let tiles: Vec<(Range<usize>, usize)> = (0..t)
            .step_by(rows)
            .flat_map(|first| (0..self.kv_heads).map(move |g| (first..t.min(first + rows), g)))
            .collect();
        // Later tiles see more keys, so they are begun first.
        let done: Vec<Tile> = tiles
            .par_iter()
            .rev()
            .with_max_len(1)
            .map(|(rows, g)| self.backward_tile(forward, d_out, rows.clone(), *g))
            .rev()
            .collect();

        let of_rows = grads.q.par_chunks_mut(rows * width).zip(done.par_chunks(self.kv_heads));
        of_rows.for_each(|(dq, tiles)| {
            for (g, tile) in tiles.iter().enumerate() {
                self.scatter(&tile.dq, g, dq);
            }
        });
        let chunk = SUM_TOKENS * kv_width;
        let sums = grads.k.par_chunks_mut(chunk).zip(grads.v.par_chunks_mut(chunk)).enumerate();
        sums.for_each(|(i, (dk, dv))| {
            dk.fill(0.0);
            dv.fill(0.0);
            let first = i * SUM_TOKENS;
            for (tile, (_, g)) in done.iter().zip(&tiles) {
                let end = tile.keys.end.min(first + dk.len() / kv_width);
                for key in tile.keys.start.max(first)..end {
                    let at = (key - first) * kv_width + g * d;
                    vector::add(&mut dk[at..][..d], tile.dk.row(key - tile.keys.start));
                    vector::add(&mut dv[at..][..d], tile.dv.row(key - tile.keys.start));
                }
            }
        });
    }

    fn backward_tile(&self, f: Forward<'_>, d_out: &[f32], rows: Range<usize>, g: usize) -> Tile {
        let (d, group, n) = (self.head_dim, self.heads / self.kv_heads, rows.len());
        let kv_width = self.kv_heads * d;
        let keys = self.seen(rows.start).start..rows.end;
        let (s, first) = (keys.len(), keys.start * kv_width + g * d);
        let of_keys = |x| MatrixRef::with_strides(x, s, d, kv_width, 1);
        let (k, v) = (of_keys(&f.k[first..]), of_keys(&f.v[first..]));
        let q = self.gather(f.q, rows.clone(), g);
        let d_o = self.gather(d_out, rows.clone(), g);
        let out = self.gather(f.out, rows.clone(), g);
        let m = group * n;
        let (mut dk, mut dv) = (Matrix::zeros(s, d), Matrix::zeros(s, d));
        let mut dq = q.clone();
        SCRATCH.with_borrow_mut(|[p, dp]| {
            for scratch in [&mut *p, &mut *dp] {
                scratch.resize(scratch.len().max(m * s), 0.0);
            }
            let (p, dp) = (&mut p[..m * s], &mut dp[..m * s]);
            let mut bounded = vec![0.0; if self.cap.is_some() { m * s } else { 0 }];

            // 1. P: [m, s], zero where a query does not see a key.
            gemm(0.0, MatrixMut::new(p, m, s), self.scale, q.view(), k.t(), Threads::One);
            for (i, row) in p.chunks_exact_mut(s).enumerate() {
                let seen = self.seen(rows.start + i % n);
                let seen = seen.start - keys.start..seen.end - keys.start;
                let first_seen = seen.start;
                row[..seen.start].fill(0.0);
                row[seen.end..].fill(0.0);
                let row = &mut row[seen];
                self.bound(row);
                if self.cap.is_some() {
                    bounded[i * s + first_seen..][..row.len()].copy_from_slice(row);
                }
                let sum = self.softmax(row, g * group + i / n);
                vector::scale(row, sum.recip());
            }

            // 2. dV, then dP and from it dS in place.
            let p_view = MatrixRef::new(p, m, s);
            gemm(0.0, dv.view_mut(), 1.0, p_view.t(), d_o.view(), Threads::One);
            gemm(0.0, MatrixMut::new(dp, m, s), 1.0, d_o.view(), v.t(), Threads::One);
            for (i, (dp, p)) in dp.chunks_exact_mut(s).zip(p.chunks_exact(s)).enumerate() {
                let mean: f32 = d_o.row(i).iter().zip(out.row(i)).map(|(a, b)| a * b).sum();
                vector::softmax_backward(dp, p, mean);
                if let Some(cap) = self.cap {
                    vector::tanh_backward(dp, &bounded[i * s..][..s], cap);
                }
            }

            // 3. dQ and dK.
            let ds = MatrixRef::new(dp, m, s);
            gemm(0.0, dk.view_mut(), self.scale, ds.t(), q.view(), Threads::One);
            gemm(0.0, dq.view_mut(), self.scale, ds, k, Threads::One);
        });
        Tile { dq, keys, dk, dv }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// `sum of w . attend(q, k, v)`, by the definition in f64.
    fn loss(a: &GroupedQueryAttention, q: &[f64], k: &[f64], v: &[f64], w: &[f32]) -> f64 {
        let (d, width, kv_width) = (a.head_dim, a.heads * a.head_dim, a.kv_heads * a.head_dim);
        let mut loss = 0.0;
        for t in 0..q.len() / width {
            for h in 0..a.heads {
                let at = h / (a.heads / a.kv_heads) * d;
                let keys = a.seen(t);
                let e: Vec<f64> = keys
                    .clone()
                    .map(|s| {
                        let dot: f64 = (0..d)
                            .map(|i| q[t * width + h * d + i] * k[s * kv_width + at + i])
                            .sum();
                        let score = f64::from(a.scale) * dot;
                        let bounded = |cap: f32| f64::from(cap) * (score / f64::from(cap)).tanh();
                        a.cap.map_or(score, bounded).exp()
                    })
                    .collect();
                let sink = a.sinks.as_ref().map_or(0.0, |sinks| f64::from(sinks[h]).exp());
                let sum = e.iter().sum::<f64>() + sink;
                for i in 0..d {
                    let mean: f64 =
                        keys.clone().zip(&e).map(|(s, e)| e * v[s * kv_width + at + i]).sum();
                    loss += mean / sum * f64::from(w[t * width + h * d + i]);
                }
            }
        }
        loss
    }

    #[test]
    fn gradients_equal_finite_differences() {
        let number = |i: usize| ((i * 7919 + 5) % 251) as f32 / 100.0 - 1.2;
        let some =
            |n: usize, seed: usize| -> Vec<f32> { (0..n).map(|i| number(i + seed)).collect() };
        let shapes = [
            (2, 1, 1, None),
            (4, 2, 9, None),
            (6, 2, 70, None),
            (4, 2, 70, Some(5)),
            (2, 2, 20, Some(1)),
        ];
        let kinds = [(None, false), (Some(0.7), false), (None, true)];
        let cases = shapes.into_iter().flat_map(|shape| kinds.map(|kind| (shape, kind)));
        for ((heads, kv_heads, t, window), (cap, sinks)) in cases {
            let (head_dim, scale) = (4, 0.5);
            let (causal, bias) = (true, None);
            let sinks = sinks.then(|| (0..heads).map(|h| h as f32 / 2.0).collect());
            let a = GroupedQueryAttention {
                heads,
                kv_heads,
                head_dim,
                scale,
                cap,
                window,
                causal,
                bias,
                sinks,
            };
            let (q, k, v) =
                (some(t * heads * 4, 0), some(t * kv_heads * 4, 3), some(t * kv_heads * 4, 7));
            let w = some(t * heads * 4, 11);
            let mut out = vec![0.0; q.len()];
            a.attend(&q, &k, &v, &mut out);
            let (mut dq, mut dk, mut dv) =
                (vec![f32::NAN; q.len()], vec![f32::NAN; k.len()], vec![f32::NAN; v.len()]);
            let forward = Forward { q: &q, k: &k, v: &v, out: &out };
            a.backward(forward, &w, Gradients { q: &mut dq, k: &mut dk, v: &mut dv });
            let wide = |x: &[f32]| -> Vec<f64> { x.iter().map(|&x| f64::from(x)).collect() };
            let inputs = [wide(&q), wide(&k), wide(&v)];
            for (which, grad) in [&dq, &dk, &dv].into_iter().enumerate() {
                for i in (0..grad.len()).step_by(1 + grad.len() / 40) {
                    let at = |step: f64| {
                        let mut x = inputs.clone();
                        x[which][i] += step;
                        loss(&a, &x[0], &x[1], &x[2], &w)
                    };
                    let want = (at(1e-5) - at(-1e-5)) / 2e-5;
                    let got = f64::from(grad[i]);
                    assert!(
                        (got - want).abs() <= 1e-4 * (1.0 + want.abs()),
                        "{heads} heads, {t} tokens, window {window:?}, cap {cap:?}, input {which}, entry {i}: {got} for {want}"
                    );
                }
            }
        }
    }
}
