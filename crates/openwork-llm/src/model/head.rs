//! The output head: logits, and cross-entropy loss.

use super::config::Config;
use super::norm::Norm;
use super::vector;
use super::weight::Weight;
use crate::checkpoint::Tensor;
use openwork::linalg::{Threads, gemm};
use openwork::{Matrix, MatrixMut, MatrixRef};
use rayon::prelude::*;
use std::ops::Range;

/// Rows of the head converted to f32 at a time.
const PANEL_ROWS: usize = 4096;
/// Hidden states multiplied by a panel at a time.
const STATE_ROWS: usize = 1024;

/// The rows of an embedding or head, in memory or in a mapped file.
pub enum EmbeddingRows<'a> {
    /// In memory.
    Held(&'a Weight),
    /// In the file.
    Mapped(Tensor<'a>),
}

impl EmbeddingRows<'_> {
    /// Number of rows: the size of the vocabulary.
    pub fn count(&self) -> usize {
        match self {
            EmbeddingRows::Held(weight) => weight.rows(),
            EmbeddingRows::Mapped(tensor) => tensor.rows(),
        }
    }

    /// Converts rows to f32 into `out`.
    pub fn read(&self, rows: Range<usize>, out: &mut [f32]) {
        match self {
            EmbeddingRows::Held(weight) => weight.rows_f32(rows, out),
            EmbeddingRows::Mapped(tensor) => tensor.rows_f32(rows, out),
        }
    }

    /// As [`read`](Self::read), on all threads.
    fn read_parallel(&self, rows: Range<usize>, width: usize, out: &mut [f32]) {
        let share = rows.len().div_ceil(rayon::current_num_threads()).max(1);
        out.par_chunks_mut(share * width).enumerate().for_each(|(i, part)| {
            let first = rows.start + i * share;
            self.read(first..first + part.len() / width, part);
        });
    }
}

/// The final norm and output projection.
pub struct Head<'a> {
    /// The final norm.
    pub norm: &'a Norm,
    /// The head's rows.
    pub rows: EmbeddingRows<'a>,
    /// Maps its products to logits.
    pub logits: LogitMap,
}

/// Maps the products of states and head rows to logits: `cap tanh(scale x / cap)`.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct LogitMap {
    /// Factor.
    pub scale: f32,
    /// Bound, if any.
    pub cap: Option<f32>,
}

impl LogitMap {
    /// The map of a model.
    pub fn new(config: &Config) -> Self {
        Self { scale: config.logit_scale, cap: config.logit_cap }
    }

    /// Bounds logits to which the factor has been applied.
    pub(super) fn bound(self, logits: &mut [f32]) {
        if let Some(cap) = self.cap {
            logits.iter_mut().for_each(|x| *x = cap * (*x / cap).tanh());
        }
    }
}

impl Head<'_> {
    /// Logits of hidden states, `[rows, hidden]` to `[rows, vocabulary]`. The result
    /// is large: use it for a few rows.
    pub fn logits(&self, states: MatrixRef<'_>) -> Matrix {
        let mut logits = Matrix::zeros(states.rows(), self.rows.count());
        self.logits_into(states, logits.view_mut());
        logits
    }

    /// As [`logits`](Self::logits), into existing memory.
    ///
    /// # Panics
    ///
    /// If `logits` is not `[rows, vocabulary]`.
    pub fn logits_into(&self, states: MatrixRef<'_>, mut logits: MatrixMut<'_>) {
        let t = states.rows();
        assert_eq!((logits.rows(), logits.cols()), (t, self.rows.count()), "room for the logits");
        let normed = self.normed(states);
        self.panels(|rows, panel| {
            let part = logits.reborrow().part(0, t, rows.start, rows.len());
            gemm(0.0, part, self.logits.scale, normed.view(), panel.t(), Threads::All);
        });
        if self.logits.cap.is_some() {
            (0..t).for_each(|r| self.logits.bound(logits.row_mut(r)));
        }
    }

    /// The cross-entropy loss of each state's next token, in nats:
    ///
    /// ```text
    /// -log p(y_t) = log sum_v exp(l_tv) - l_{t y_t}
    /// ```
    ///
    /// The head is processed panel by panel with a running maximum and sum per row;
    /// logits exist for one panel and `STATE_ROWS` states at a time. `None` marks a
    /// state that is not scored. A NaN logit makes its row's loss NaN.
    ///
    /// # Panics
    ///
    /// If the number of targets differs from that of states.
    pub fn losses(&self, states: MatrixRef<'_>, targets: &[Option<u32>]) -> Vec<f64> {
        self.scores(states, targets).into_iter().map(|score| score.loss).collect()
    }

    /// As [`losses`](Self::losses), and whether each next token is the most likely one.
    pub fn scores(&self, states: MatrixRef<'_>, targets: &[Option<u32>]) -> Vec<TokenScore> {
        assert_eq!(states.rows(), targets.len(), "a target for each state");
        let normed = self.normed(states);
        let mut runs =
            vec![LogSumExp { max: f32::NEG_INFINITY, sum: 0.0, target: 0.0 }; targets.len()];
        let mut logits =
            vec![0.0; STATE_ROWS.min(targets.len()) * PANEL_ROWS.min(self.rows.count())];
        self.panels(|rows, panel| {
            for start in (0..targets.len()).step_by(STATE_ROWS) {
                let t = STATE_ROWS.min(targets.len() - start);
                let logits = &mut logits[..t * rows.len()];
                let out = MatrixMut::new(logits, t, rows.len());
                let states = normed.view().part(start, t, 0, normed.cols());
                gemm(0.0, out, self.logits.scale, states, panel.t(), Threads::All);
                let part = runs[start..start + t].par_iter_mut().zip(&targets[start..start + t]);
                let logits = logits.par_chunks_mut(rows.len());
                part.zip(logits).for_each(|((run, target), logits)| {
                    self.logits.bound(logits);
                    run.add(logits);
                    if let Some(y) = target.map(|y| y as usize).filter(|y| rows.contains(y)) {
                        run.target = logits[y - rows.start];
                    }
                });
            }
        });
        runs.iter().map(LogSumExp::score).collect()
    }

    /// The normalized states.
    pub(super) fn normed(&self, states: MatrixRef<'_>) -> Matrix {
        let mut normed = Matrix::zeros(states.rows(), states.cols());
        self.norm.apply(&states.data()[..states.rows() * states.cols()], normed.data_mut());
        normed
    }

    /// `C <- beta C + alpha A B`, rounded as the products of the head's rows.
    pub(super) fn product_of_rows(
        &self,
        beta: f32,
        c: MatrixMut<'_>,
        alpha: f32,
        a: MatrixRef<'_>,
        b: MatrixRef<'_>,
    ) {
        match &self.rows {
            EmbeddingRows::Held(weight) => weight.product(beta, c, alpha, a, b),
            _ => gemm(beta, c, alpha, a, b, Threads::All),
        }
    }

    /// Visits the head's rows as f32, a panel at a time.
    pub(super) fn panels(&self, mut visit: impl FnMut(Range<usize>, MatrixRef<'_>)) {
        let (v, d) = (self.rows.count(), self.norm.width());
        if let EmbeddingRows::Held(weight) = &self.rows
            && let Some(matrix) = weight.matrix()
        {
            for start in (0..v).step_by(PANEL_ROWS) {
                let rows = start..v.min(start + PANEL_ROWS);
                visit(rows.clone(), matrix.view().part(start, rows.len(), 0, d));
            }
            return;
        }
        let mut panel = vec![0.0; PANEL_ROWS.min(v) * d];
        for start in (0..v).step_by(PANEL_ROWS) {
            let rows = start..v.min(start + PANEL_ROWS);
            let panel = &mut panel[..rows.len() * d];
            self.rows.read_parallel(rows.clone(), d, panel);
            visit(rows.clone(), MatrixRef::new(panel, rows.len(), d));
        }
    }
}

/// How well a state predicts its next token.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct TokenScore {
    /// `-log p` of the token, in nats.
    pub loss: f64,
    /// Whether no token is likelier, so that greedy decoding may choose it.
    pub greedy: bool,
}

/// A running sum of exponentials, `sum * e^max`, and the target's logit.
#[derive(Clone)]
struct LogSumExp {
    max: f32,
    sum: f64,
    target: f32,
}

impl LogSumExp {
    /// Adds logits.
    fn add(&mut self, logits: &[f32]) {
        let max = vector::max(logits).max(self.max);
        self.sum *= f64::from(self.max - max).exp();
        self.sum += f64::from(vector::sum_of_exp(logits, max));
        self.max = max;
    }

    fn score(&self) -> TokenScore {
        let loss = f64::from(self.max) + self.sum.ln() - f64::from(self.target);
        TokenScore { loss, greedy: self.target >= self.max }
    }
}
