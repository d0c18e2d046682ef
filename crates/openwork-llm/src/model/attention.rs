//! Grouped-query attention, causal in decoders, computed in tiles.
//!
//! For the query `q_t` of one head and the keys and values of its group, with
//! `s` running over the tokens visible to `t`:
//!
//! ```text
//! p_s = exp(c q_t . k_s - m) / sum_s exp(c q_t . k_s - m)        out_t = sum_s p_s v_s
//! ```
//!
//! In families with attention sinks, the softmax of each head has one extra learned score,
//! which adds to the denominator only.
//!
//! In encoders every token is visible to every other, and a bias that depends on `s - t`
//! may be added to the score.
//!
//! Scores exist for one tile at a time (some tokens, the heads of one group, the
//! keys they see), never for `[T, T]`. A tile is one task on one thread, so the
//! result does not depend on the number of threads. For a single token, when
//! decoding, a task is one head.

use super::encoder::PositionBias;
use super::vector;
use openwork::linalg::{Threads, gemm};
use openwork::{Matrix, MatrixMut, MatrixRef};
use rayon::prelude::*;
use std::cell::RefCell;
use std::ops::Range;
use std::sync::Arc;

/// Rows of a tile; a token has one row per head of a group. The keys are packed
/// once per tile; its scores over 1024 keys take 768 kB.
const TILE_ROWS: usize = 192;
/// Minimum number of tokens in a tile.
const TILE_TOKENS: usize = 64;

/// Number of scores below which waking other threads does not pay.
const FEW_SCORES: usize = 256;

thread_local! {
    /// The scores of the current task. Its products run on its own thread, so no
    /// other task uses the buffer meanwhile.
    static SCORES: RefCell<Vec<f32>> = const { RefCell::new(Vec::new()) };
}

/// Parameters of an attention. Rows of `q` are `[heads, head_dim]`, rows of `k`
/// and `v` are `[kv_heads, head_dim]`.
pub struct GroupedQueryAttention {
    /// Query heads.
    pub heads: usize,
    /// Key and value heads.
    pub kv_heads: usize,
    /// Width of a head.
    pub head_dim: usize,
    /// `c` above.
    pub scale: f32,
    /// Scores are bounded by `cap tanh(score / cap)`.
    pub cap: Option<f32>,
    /// Sliding window: each token attends to this many tokens, including itself.
    pub window: Option<usize>,
    /// The sink of each head, if there are any.
    pub sinks: Option<Arc<[f32]>>,
    /// Whether a token attends only to itself and the tokens before it.
    pub causal: bool,
    /// Added to the scores.
    pub bias: Option<Arc<PositionBias>>,
}

impl GroupedQueryAttention {
    /// The keys visible to the query at position `p`.
    pub(super) fn seen(&self, p: usize) -> Range<usize> {
        self.window.map_or(0, |window| (p + 1).saturating_sub(window))..p + 1
    }

    /// The keys visible to the query at position `p` of `s` tokens.
    fn visible(&self, p: usize, s: usize) -> Range<usize> {
        if self.causal { self.seen(p) } else { 0..s }
    }

    /// Attends: `q` and `out` are `[T, heads * head_dim]`, `k` and `v` are
    /// `[S, kv_heads * head_dim]`; the queries are the last `T` of `S` tokens.
    pub fn attend(&self, q: &[f32], k: &[f32], v: &[f32], out: &mut [f32]) {
        let (width, kv_width) = (self.heads * self.head_dim, self.kv_heads * self.head_dim);
        let (t, s) = (q.len() / width, k.len() / kv_width);
        if t == 1 && self.causal {
            return self.attend_last(q, k, v, out);
        }
        let tile = self.tile_tokens();
        let tiles: Vec<_> = (0..t)
            .step_by(tile)
            .flat_map(|first| (0..self.kv_heads).map(move |g| (first..t.min(first + tile), g)))
            .collect();
        // Each task computes a block; the blocks are then copied into rows. Later
        // tiles attend to more keys, so they start first.
        let work = |(rows, g): &(Range<usize>, usize)| self.tile(q, k, v, rows.clone(), *g, s - t);
        let blocks: Vec<Matrix> = if t * s < FEW_SCORES {
            tiles.iter().map(work).collect()
        } else {
            tiles.par_iter().rev().with_max_len(1).map(work).rev().collect()
        };
        out.par_chunks_mut(tile * width).zip(blocks.par_chunks(self.kv_heads)).for_each(
            |(out, blocks)| {
                for (g, block) in blocks.iter().enumerate() {
                    self.scatter(block, g, out);
                }
            },
        );
    }

    /// [`attend`](Self::attend) for one token, without `gemm`, whose setup would
    /// dominate.
    fn attend_last(&self, q: &[f32], k: &[f32], v: &[f32], out: &mut [f32]) {
        let (d, stride, group) =
            (self.head_dim, self.kv_heads * self.head_dim, self.heads / self.kv_heads);
        let keys = self.seen(k.len() / stride - 1);
        let head = |(h, (q, out)): (usize, (&[f32], &mut [f32]))| {
            let start = keys.start * stride + h / group * d;
            SCORES.with_borrow_mut(|scores| {
                scores.resize(scores.len().max(keys.len()), 0.0);
                let scores = &mut scores[..keys.len()];
                vector::scaled_dots(scores, q, &k[start..], stride, self.scale);
                self.bound(scores);
                let sum = self.softmax(scores, h);
                vector::mix(out, scores, &v[start..], stride);
                vector::scale(out, sum.recip());
            });
        };
        if keys.len() < FEW_SCORES {
            q.chunks_exact(d).zip(out.chunks_exact_mut(d)).enumerate().for_each(head);
        } else {
            q.par_chunks_exact(d).zip(out.par_chunks_exact_mut(d)).enumerate().for_each(head);
        }
    }

    /// One tile of one group; row `h * rows + r` is head `h`, token `r`.
    fn tile(
        &self,
        q: &[f32],
        k: &[f32],
        v: &[f32],
        rows: Range<usize>,
        g: usize,
        past: usize,
    ) -> Matrix {
        let (d, group, n) = (self.head_dim, self.heads / self.kv_heads, rows.len());
        let kv_width = self.kv_heads * d;
        // The keys visible to some row of the tile.
        let total = k.len() / kv_width;
        let keys = self.visible(past + rows.start, total).start
            ..self.visible(past + rows.end - 1, total).end;
        let s = keys.len();
        let group_view = |x| MatrixRef::with_strides(x, s, d, kv_width, 1);
        let start = keys.start * kv_width + g * d;

        // 1. The queries of the group, head after head: [group * n, d].
        let mut queries = self.gather(q, rows.clone(), g);

        // 2. Scores: [group * n, s], in a buffer that a thread keeps: fresh pages
        // for every tile cost a few percent of a forward.
        SCORES.with_borrow_mut(|scores| {
            scores.resize(scores.len().max(group * n * s), 0.0);
            let scores = &mut scores[..group * n * s];
            let view = MatrixMut::new(scores, group * n, s);
            gemm(0.0, view, self.scale, queries.view(), group_view(&k[start..]).t(), Threads::One);

            // 3. Softmax of each row over its visible keys; zero elsewhere. The
            // division by the sum is applied to the output, which is narrower.
            let mut sums = vec![0.0; group * n];
            for (i, row) in scores.chunks_exact_mut(s).enumerate() {
                let seen = self.visible(past + rows.start + i % n, total);
                let (left, right) = (seen.start - keys.start, seen.end - keys.start);
                row[..left].fill(0.0);
                row[right..].fill(0.0);
                let row = &mut row[left..right];
                if let Some(bias) = &self.bias {
                    vector::add(row, bias.of(g * group + i / n, past + rows.start + i % n, seen));
                }
                self.bound(row);
                sums[i] = self.softmax(row, g * group + i / n);
            }

            // 4. The weighted sum of values: [group * n, d].
            gemm(
                0.0,
                queries.view_mut(),
                1.0,
                MatrixRef::new(scores, group * n, s),
                group_view(&v[start..]),
                Threads::One,
            );
            for (row, sum) in queries.data_mut().chunks_exact_mut(d).zip(sums) {
                vector::scale(row, sum.recip());
            }
        });
        queries
    }

    /// Takes the exponentials of a head's scores, less a common number; returns their sum,
    /// with that of the sink.
    pub(super) fn softmax(&self, scores: &mut [f32], head: usize) -> f32 {
        let most = vector::max(scores);
        match self.sinks.as_ref().map(|sinks| sinks[head]) {
            None => vector::exp_in_place(scores, most),
            Some(sink) => {
                let most = most.max(sink);
                vector::exp_in_place(scores, most) + (sink - most).exp()
            }
        }
    }

    /// Soft-caps scores, if the family does.
    pub(super) fn bound(&self, scores: &mut [f32]) {
        if let Some(cap) = self.cap {
            scores.iter_mut().for_each(|x| *x = cap * (*x / cap).tanh());
        }
    }

    /// Tokens of a tile.
    pub(super) fn tile_tokens(&self) -> usize {
        (TILE_ROWS / (self.heads / self.kv_heads)).max(TILE_TOKENS)
    }

    /// Some tokens' rows of the heads of a group, head after head: `[group * rows, d]`.
    pub(super) fn gather(&self, x: &[f32], rows: Range<usize>, g: usize) -> Matrix {
        let (d, group, width) =
            (self.head_dim, self.heads / self.kv_heads, self.heads * self.head_dim);
        let mut block = Matrix::zeros(group * rows.len(), d);
        for h in 0..group {
            for (r, t) in rows.clone().enumerate() {
                let from = t * width + (g * group + h) * d;
                block.row_mut(h * rows.len() + r).copy_from_slice(&x[from..][..d]);
            }
        }
        block
    }

    /// Puts a tile's block where its heads and tokens belong in the tile's rows.
    pub(super) fn scatter(&self, block: &Matrix, g: usize, out: &mut [f32]) {
        let (d, group, width) =
            (self.head_dim, self.heads / self.kv_heads, self.heads * self.head_dim);
        let n = out.len() / width;
        for (r, out) in out.chunks_exact_mut(width).enumerate() {
            let heads = out[g * group * d..][..group * d].chunks_exact_mut(d);
            heads.enumerate().for_each(|(h, out)| out.copy_from_slice(block.row(h * n + r)));
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// The definition, in f64.
    fn slow(a: &GroupedQueryAttention, q: &[f32], k: &[f32], v: &[f32]) -> Vec<f32> {
        let (d, width, kv_width) = (a.head_dim, a.heads * a.head_dim, a.kv_heads * a.head_dim);
        let (t, s) = (q.len() / width, k.len() / kv_width);
        let mut out = vec![0.0; q.len()];
        for r in 0..t {
            for h in 0..a.heads {
                let g = h / (a.heads / a.kv_heads);
                let at = |x: &[f32], row: usize, w: usize, head: usize, i: usize| {
                    f64::from(x[row * w + head * d + i])
                };
                let p = s - t + r;
                let least = a.window.map_or(0, |w| (p + 1).saturating_sub(w));
                let e: Vec<f64> = (least..=p)
                    .map(|j| {
                        let dot: f64 =
                            (0..d).map(|i| at(q, r, width, h, i) * at(k, j, kv_width, g, i)).sum();
                        let score = f64::from(a.scale) * dot;
                        let bounded = |cap: f32| f64::from(cap) * (score / f64::from(cap)).tanh();
                        a.cap.map_or(score, bounded).exp()
                    })
                    .collect();
                let sink = a.sinks.as_ref().map_or(0.0, |sinks| f64::from(sinks[h]).exp());
                let sum = e.iter().sum::<f64>() + sink;
                for i in 0..d {
                    let mean: f64 =
                        (least..=p).zip(&e).map(|(j, e)| e * at(v, j, kv_width, g, i)).sum();
                    out[r * width + h * d + i] = (mean / sum) as f32;
                }
            }
        }
        out
    }

    #[test]
    fn tiles_equal_the_definition() {
        let number = |i: usize| ((i * 7919 + 5) % 251) as f32 / 100.0 - 1.2;
        let sizes = [(1, 0), (1, 9), (1, 300), (2, 1), (63, 0), (64, 3), (65, 0), (130, 7)];
        // Three heads to a group, and one, whose tiles have more tokens.
        let groups = sizes.map(|size| (6, size)).into_iter().chain([(2, (191, 0)), (2, (200, 3))]);
        for (heads, (t, past)) in groups {
            for window in [None, Some(1), Some(5), Some(1000)] {
                let cap = (past == 3).then_some(0.7);
                let (causal, bias) = (true, None);
                let a = GroupedQueryAttention {
                    heads,
                    kv_heads: 2,
                    head_dim: 4,
                    scale: 0.5,
                    cap,
                    window,
                    sinks: (past == 7).then(|| (0..heads).map(|h| h as f32 / 2.0).collect()),
                    causal,
                    bias,
                };
                let q: Vec<f32> = (0..t * heads * 4).map(number).collect();
                let k: Vec<f32> = (0..(t + past) * 8).map(|i| number(i + 1)).collect();
                let v: Vec<f32> = (0..(t + past) * 8).map(|i| number(i + 2)).collect();
                let mut out = vec![f32::NAN; q.len()];
                a.attend(&q, &k, &v, &mut out);
                for (x, y) in out.iter().zip(slow(&a, &q, &k, &v)) {
                    assert!(
                        (x - y).abs() < 1e-5,
                        "{heads} heads, {t} after {past}, window {window:?}: {x} for {y}"
                    );
                }
            }
        }
    }
}
