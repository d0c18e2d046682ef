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

    /// The logits of normalized states.
    fn product(&self, normed: MatrixRef<'_>, logits: &mut [f32]) {
        let (n, vocab) = (normed.rows(), self.rows.count());
        let mut logits = MatrixMut::new(logits, n, vocab);
        self.panels(|rows, panel| {
            let part = logits.reborrow().part(0, n, rows.start, rows.len());
            gemm(0.0, part, 1.0, normed, panel.t(), Threads::All);
        });
    }

    /// The gradient of normalized states, given that of their logits.
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

#[cfg(test)]
mod tests {
    use super::*;
    use crate::model::head::EmbeddingRows;
    use crate::model::head::LogitMap;
    use crate::model::norm::Norm;
    use crate::model::weight::Weight;

    fn some(n: usize, seed: usize) -> Vec<f32> {
        (0..n).map(|i| ((i + seed) * 7919 % 251) as f32 / 100.0 - 1.2).collect()
    }

    fn matrix(rows: usize, cols: usize, seed: usize) -> Matrix {
        Matrix::from_vec(rows, cols, some(rows * cols, seed))
    }

    /// Logits of one state by the definition, in f64.
    fn logits(x: &[f64], f: &[f32], head: &Matrix) -> Vec<f64> {
        let ms: f64 = x.iter().map(|x| x * x).sum::<f64>() / x.len() as f64;
        let r = (ms + f64::from(1e-5f32)).sqrt().recip();
        let row = |v: usize| {
            let terms = x.iter().zip(f).zip(head.row(v));
            terms.map(|((x, f), w)| x * r * f64::from(*f) * f64::from(*w)).sum()
        };
        (0..head.rows()).map(row).collect()
    }

    fn log_p(z: &[f64], a: f64) -> Vec<f64> {
        let sum: f64 = z.iter().map(|z| (z / a).exp()).sum();
        z.iter().map(|z| z / a - sum.ln()).collect()
    }

    #[test]
    fn losses_and_gradients_equal_their_definition() {
        // More tokens than are held at a time.
        let (t, d, vocab) = (ROWS + 3, 6, 11);
        let (head, other) = (matrix(vocab, d, 3), matrix(vocab, d, 77));
        let (states, wanted) = (matrix(t, d, 5), matrix(t, d, 29));
        let factors = some(d, 13);
        let norm = Norm::new(factors.clone(), 0.0, 1e-5);
        let (head_weight, other_weight) = (Weight::F32(head.clone()), Weight::F32(other.clone()));
        let map = LogitMap { scale: 1.0, cap: None };
        let ours = Head { norm: &norm, rows: EmbeddingRows::Held(&head_weight), logits: map };
        let theirs = Head { norm: &norm, rows: EmbeddingRows::Held(&other_weight), logits: map };
        let targets: Vec<Option<u32>> =
            (0..t).map(|i| (i % 5 != 4).then_some((i * 3 % vocab) as u32)).collect();
        for objective in [
            Objective { distillation: 1.0, cross_entropy: 0.0, temperature: 1.0 },
            Objective { distillation: 0.7, cross_entropy: 0.4, temperature: 2.5 },
            Objective { distillation: 0.0, cross_entropy: 1.0, temperature: 1.0 },
        ] {
            let loss = |states: &[f64]| -> f64 {
                let a = f64::from(objective.temperature);
                let token = |i: usize| {
                    let z = logits(&states[i * d..][..d], &factors, &head);
                    let y: Vec<f64> = wanted.row(i).iter().map(|&x| f64::from(x)).collect();
                    let (p, q) = (log_p(&logits(&y, &factors, &other), a), log_p(&z, a));
                    let kl: f64 = p.iter().zip(&q).map(|(p, q)| p.exp() * (p - q)).sum();
                    let ce = targets[i].map_or(0.0, |n| -log_p(&z, 1.0)[n as usize]);
                    f64::from(objective.distillation) * a * a * kl
                        + f64::from(objective.cross_entropy) * ce
                };
                (0..t).map(token).sum::<f64>() / t as f64
            };
            let reference = Reference { head: &theirs, states: wanted.view() };
            let got = ours.backward(objective, states.view(), Some(reference), &targets);
            let x: Vec<f64> = states.data().iter().map(|&x| f64::from(x)).collect();
            let want = loss(&x);
            assert!((got.loss - want).abs() < 1e-5 * (1.0 + want), "{} for {want}", got.loss);
            for i in (0..x.len()).step_by(37) {
                let at = |step: f64| {
                    let mut moved = x.clone();
                    moved[i] += step;
                    loss(&moved)
                };
                let want = (at(1e-4) - at(-1e-4)) / 2e-4;
                let got = f64::from(got.states.data()[i]);
                assert!(
                    (got - want).abs() <= 1e-4 * want.abs() + 1e-7,
                    "{objective:?}, entry {i}: {got} for {want}"
                );
            }
        }
    }
}
