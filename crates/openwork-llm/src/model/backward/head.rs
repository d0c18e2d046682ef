//! Losses of the output head, with the gradient of the last hidden states.
//!
//! For the logits `z` of one token, the logits `y` of a reference model, the next
//! token `n` and a temperature `a`, with `p(z) = softmax(z)`:
//!
//! ```text
//! distillation    a^2 sum_v p_v(y/a) (log p_v(y/a) - log p_v(z/a))        gradient  a (p(z/a) - p(y/a))
//! cross-entropy   -log p_n(z)                                             gradient  p(z) - e_n
//! ```
//!
//! Logits are held for [`ROWS`] tokens at a time.

use crate::model::head::Head;
use crate::model::vector;
use openwork::linalg::{Threads, gemm};
use openwork::{Matrix, MatrixMut, MatrixRef};
use rayon::prelude::*;

/// Tokens whose logits are held at a time.
const ROWS: usize = 128;

/// What the output of a model is trained towards: a weighted sum of two losses.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Objective {
    /// Weight of the distance to the reference's distribution.
    pub distillation: f32,
    /// Weight of the cross-entropy of the next token.
    pub cross_entropy: f32,
    /// Both distributions of the distillation are softened by it.
    pub temperature: f32,
}

/// The output of a reference model: its head, and its last hidden states of the
/// same tokens.
#[derive(Clone, Copy)]
pub struct Reference<'a> {
    /// Its norm and output matrix.
    pub head: &'a Head<'a>,
    /// `[tokens, hidden]` of the reference.
    pub states: MatrixRef<'a>,
}

/// A loss and the gradients behind it.
#[derive(Debug)]
pub struct HeadGradients {
    /// Mean over the tokens that have a loss, in nats.
    pub loss: f64,
    /// Gradient of the last hidden states, `[tokens, hidden]`.
    pub states: Matrix,
    /// Gradient of the last norm's factors.
    pub norm: Vec<f32>,
}

impl Head<'_> {
    /// The objective's mean over tokens and its gradients. `targets` are the next
    /// tokens; one that is `None` has no cross-entropy. Without a `reference`
    /// the distillation is left out.
    ///
    /// # Panics
    ///
    /// If states, reference and targets differ in number, or the vocabularies do.
    pub fn backward(
        &self,
        objective: Objective,
        states: MatrixRef<'_>,
        reference: Option<Reference<'_>>,
        targets: &[Option<u32>],
    ) -> HeadGradients {
        let (t, d, vocab) = (states.rows(), states.cols(), self.rows.count());
        assert_eq!(targets.len(), t, "a target for each state");
        let normed = self.normed(states);
        let reference = reference.filter(|_| objective.distillation != 0.0).map(|reference| {
            assert_eq!(reference.states.rows(), t, "as many states of the reference");
            assert_eq!(reference.head.rows.count(), vocab, "the reference's vocabulary");
            (reference.head, reference.head.normed(reference.states))
        });
        let mut d_normed = Matrix::zeros(t, d);
        let mut losses = vec![0.0_f64; t];
        let mut logits = vec![0.0; ROWS.min(t) * vocab];
        let mut wanted = vec![0.0; if reference.is_some() { logits.len() } else { 0 }];
        for start in (0..t).step_by(ROWS) {
            let n = ROWS.min(t - start);
            let logits = &mut logits[..n * vocab];
            self.product(normed.view().part(start, n, 0, d), logits);
            let wanted = match &reference {
                Some((head, normed)) => {
                    let wanted = &mut wanted[..n * vocab];
                    head.product(normed.view().part(start, n, 0, normed.cols()), wanted);
                    wanted
                }
                None => &mut [],
            };
            // From here on `logits` holds the gradient of the mean.
            let rows = logits.par_chunks_mut(vocab).zip(&mut losses[start..start + n]).enumerate();
            rows.for_each(|(i, (row, loss))| {
                let wanted = wanted.get(i * vocab..(i + 1) * vocab);
                *loss = objective.row(row, wanted, targets[start + i]);
                vector::scale(row, 1.0 / t as f32);
            });
            let out = d_normed.view_mut().part(start, n, 0, d);
            self.product_back(MatrixRef::new(logits, n, vocab), out);
        }
        let mut gradients = HeadGradients {
            loss: losses.iter().sum::<f64>() / t as f64,
            states: Matrix::zeros(t, d),
            norm: vec![0.0; d],
        };
        let x = &states.data()[..t * d];
        self.norm.backward(x, d_normed.data(), gradients.states.data_mut(), &mut gradients.norm);
        gradients
    }

    /// The logits of normalised states.
    fn product(&self, normed: MatrixRef<'_>, logits: &mut [f32]) {
        let (n, vocab) = (normed.rows(), self.rows.count());
        let mut logits = MatrixMut::new(logits, n, vocab);
        self.panels(|rows, panel| {
            let part = logits.reborrow().part(0, n, rows.start, rows.len());
            gemm(0.0, part, 1.0, normed, panel.t(), Threads::All);
        });
    }

    /// The gradient of normalised states, given that of their logits.
    fn product_back(&self, d_logits: MatrixRef<'_>, mut out: MatrixMut<'_>) {
        let n = d_logits.rows();
        self.panels(|rows, panel| {
            let beta = if rows.start == 0 { 0.0 } else { 1.0 };
            let part = d_logits.part(0, n, rows.start, rows.len());
            gemm(beta, out.reborrow(), 1.0, part, panel, Threads::All);
        });
    }
}

impl Objective {
    /// The loss of one token, whose logits are replaced by their gradient.
    fn row(&self, logits: &mut [f32], wanted: Option<&[f32]>, target: Option<u32>) -> f64 {
        let mut loss = 0.0;
        let mut gradient = vec![0.0; logits.len()];
        if let Some(wanted) = wanted {
            let a = self.temperature;
            let (mut z, mut y) = (logits.to_vec(), wanted.to_vec());
            let (log_z, log_y) = (log_softmax(&mut z, a), log_softmax(&mut y, a));
            // sum of p(y/a) (y/a - z/a) + log sum exp(z/a) - log sum exp(y/a)
            let cross: f64 = y
                .iter()
                .zip(wanted.iter().zip(logits.iter()))
                .map(|(p, (y, z))| f64::from(*p) * f64::from(y - z))
                .sum();
            let kl = cross / f64::from(a) + log_z - log_y;
            loss += f64::from(self.distillation * a * a) * kl;
            vector::add_scaled(&mut gradient, &z, self.distillation * a);
            vector::add_scaled(&mut gradient, &y, -self.distillation * a);
        }
        if let Some(target) = target.filter(|_| self.cross_entropy != 0.0) {
            let target_logit = f64::from(logits[target as usize]);
            let log_z = log_softmax(logits, 1.0);
            loss += f64::from(self.cross_entropy) * (log_z - target_logit);
            logits[target as usize] -= 1.0;
            vector::add_scaled(&mut gradient, logits, self.cross_entropy);
        }
        logits.copy_from_slice(&gradient);
        loss
    }
}

/// Replaces `x` by `softmax(x / a)` and returns `log sum exp(x / a)`.
fn log_softmax(x: &mut [f32], a: f32) -> f64 {
    if a != 1.0 {
        vector::scale(x, a.recip());
    }
    let max = vector::max(x);
    let sum = vector::exp_in_place(x, max);
    vector::scale(x, sum.recip());
    f64::from(max) + f64::from(sum).ln()
}
