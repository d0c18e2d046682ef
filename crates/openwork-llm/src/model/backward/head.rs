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
        let (t, d) = (states.rows(), states.cols());
        let mut d_normed = Matrix::zeros(t, d);
        let loss = self.each_chunk(objective, states, reference, targets, |start, d_logits| {
            let out = d_normed.view_mut().part(start, d_logits.rows(), 0, d);
            self.product_back(d_logits, out);
        });
        let mut gradients = HeadGradients { loss, states: Matrix::zeros(t, d), norm: vec![0.0; d] };
        let x = &states.data()[..t * d];
        self.norm.backward(x, d_normed.data(), gradients.states.data_mut(), &mut gradients.norm);
        gradients
    }

    /// The objective's mean alone, see [`backward`](Self::backward).
    ///
    /// # Panics
    ///
    /// As [`backward`](Self::backward).
    pub fn objective(
        &self,
        objective: Objective,
        states: MatrixRef<'_>,
        reference: Option<Reference<'_>>,
        targets: &[Option<u32>],
    ) -> f64 {
        self.each_chunk(objective, states, reference, targets, |_, _| {})
    }

    /// The objective's mean; `visit` receives the gradients of the products of states and
    /// head rows, [`ROWS`] tokens at a time, with the number of the first.
    fn each_chunk(
        &self,
        objective: Objective,
        states: MatrixRef<'_>,
        reference: Option<Reference<'_>>,
        targets: &[Option<u32>],
        mut visit: impl FnMut(usize, MatrixRef<'_>),
    ) -> f64 {
        let (t, d, vocab) = (states.rows(), states.cols(), self.rows.count());
        assert_eq!(targets.len(), t, "a target for each state");
        let normed = self.normed(states);
        let reference = reference.filter(|_| objective.distillation != 0.0).map(|reference| {
            assert_eq!(reference.states.rows(), t, "as many states of the reference");
            assert_eq!(reference.head.rows.count(), vocab, "the reference's vocabulary");
            (reference.head, reference.head.normed(reference.states))
        });
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
                let bounded = self.logits.cap.map(|cap| (cap, row.to_vec()));
                *loss = objective.row(row, wanted, targets[start + i], 1.0 / t as f32);
                if let Some((cap, bounded)) = bounded {
                    vector::tanh_backward(row, &bounded, cap);
                }
            });
            visit(start, MatrixRef::new(logits, n, vocab));
        }
        losses.iter().sum::<f64>() / t as f64
    }

    /// The logits of normalized states.
    fn product(&self, normed: MatrixRef<'_>, logits: &mut [f32]) {
        let (n, vocab) = (normed.rows(), self.rows.count());
        let mut logits = MatrixMut::new(logits, n, vocab);
        self.panels(|rows, panel| {
            let part = logits.reborrow().part(0, n, rows.start, rows.len());
            self.product_of_rows(0.0, part, self.logits.scale, normed, panel.t());
        });
        if self.logits.cap.is_some() {
            (0..n).for_each(|r| self.logits.bound(logits.row_mut(r)));
        }
    }

    /// The gradient of normalized states, given that of their products with head rows, times
    /// the factor of logits.
    fn product_back(&self, d_logits: MatrixRef<'_>, mut out: MatrixMut<'_>) {
        let n = d_logits.rows();
        self.panels(|rows, panel| {
            let beta = if rows.start == 0 { 0.0 } else { 1.0 };
            let part = d_logits.part(0, n, rows.start, rows.len());
            self.product_of_rows(beta, out.reborrow(), self.logits.scale, part, panel);
        });
    }
}

impl Objective {
    /// The loss of one token, whose logits are replaced by their gradient times `scale`.
    fn row(
        &self,
        logits: &mut [f32],
        wanted: Option<&[f32]>,
        target: Option<u32>,
        scale: f32,
    ) -> f64 {
        let target = target.filter(|_| self.cross_entropy != 0.0);
        let Some(wanted) = wanted else {
            return self.next_token(logits, target, scale);
        };
        let mut of_next = target.map(|_| logits.to_vec());
        let a = self.temperature;
        let (p, q) = (softmax(logits, a), softmax(wanted, a));
        // sum of p(y/a) (y/a - z/a) + log sum exp(z/a) - log sum exp(y/a)
        let log_sum = |p: vector::Softmax| f64::from(p.shift) - f64::from(p.scale).ln();
        let cross = vector::distill(logits, wanted, p, q, scale * self.distillation * a);
        let kl = f64::from(cross) / f64::from(a) + log_sum(p) - log_sum(q);
        let mut loss = f64::from(self.distillation * a * a) * kl;
        if let Some(of_next) = &mut of_next {
            loss += self.next_token(of_next, target, scale);
            vector::add(logits, of_next);
        }
        loss
    }

    /// The cross-entropy alone.
    fn next_token(&self, logits: &mut [f32], target: Option<u32>, scale: f32) -> f64 {
        let Some(target) = target else {
            logits.fill(0.0);
            return 0.0;
        };
        let target_logit = f64::from(logits[target as usize]);
        let most = vector::max(logits);
        let sum = vector::exp_in_place(logits, most);
        let weight = scale * self.cross_entropy;
        vector::scale(logits, weight / sum);
        logits[target as usize] -= weight;
        let log_sum = f64::from(most) + f64::from(sum).ln();
        f64::from(self.cross_entropy) * (log_sum - target_logit)
    }
}

/// The softmax of `x / a`.
fn softmax(x: &[f32], a: f32) -> vector::Softmax {
    let factor = a.recip();
    let shift = factor * vector::max(x);
    vector::Softmax { factor, shift, scale: vector::sum_of_scaled_exp(x, factor, shift).recip() }
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
    fn logits(x: &[f64], f: &[f32], head: &Matrix, map: LogitMap) -> Vec<f64> {
        let ms: f64 = x.iter().map(|x| x * x).sum::<f64>() / x.len() as f64;
        let r = (ms + f64::from(1e-5f32)).sqrt().recip();
        let row = |v: usize| {
            let terms = x.iter().zip(f).zip(head.row(v));
            let sum: f64 = terms.map(|((x, f), w)| x * r * f64::from(*f) * f64::from(*w)).sum();
            let sum = f64::from(map.scale) * sum;
            map.cap.map_or(sum, |cap| f64::from(cap) * (sum / f64::from(cap)).tanh())
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
        let targets: Vec<Option<u32>> =
            (0..t).map(|i| (i % 5 != 4).then_some((i * 3 % vocab) as u32)).collect();
        let plain = LogitMap { scale: 1.0, cap: None };
        for (objective, map) in [
            (Objective { distillation: 1.0, cross_entropy: 0.0, temperature: 1.0 }, plain),
            (Objective { distillation: 0.7, cross_entropy: 0.4, temperature: 2.5 }, plain),
            (
                Objective { distillation: 0.0, cross_entropy: 1.0, temperature: 1.0 },
                LogitMap { scale: 0.4, cap: None },
            ),
            (
                Objective { distillation: 0.5, cross_entropy: 0.5, temperature: 1.0 },
                LogitMap { scale: 0.8, cap: Some(1.5) },
            ),
        ] {
            let ours = Head { norm: &norm, rows: EmbeddingRows::Held(&head_weight), logits: map };
            let theirs =
                Head { norm: &norm, rows: EmbeddingRows::Held(&other_weight), logits: map };
            let loss = |states: &[f64]| -> f64 {
                let a = f64::from(objective.temperature);
                let token = |i: usize| {
                    let z = logits(&states[i * d..][..d], &factors, &head, map);
                    let y: Vec<f64> = wanted.row(i).iter().map(|&x| f64::from(x)).collect();
                    let (p, q) = (log_p(&logits(&y, &factors, &other, map), a), log_p(&z, a));
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
            let alone = ours.objective(objective, states.view(), Some(reference), &targets);
            assert_eq!(alone.to_bits(), got.loss.to_bits());
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
