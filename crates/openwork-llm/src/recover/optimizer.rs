//! Adam on sparse weights, and the schedule of its learning rate.

use crate::model::vector::{self, AdamStep};
use rayon::prelude::*;

const BETA1: f32 = 0.9;
const BETA2: f32 = 0.95;
const EPS: f32 = 1e-8;

/// Numbers that one task updates.
pub(super) const CHUNK: usize = 1 << 14;

/// How the learning rate decays after the warm-up.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Schedule {
    /// Linearly, to a twentieth of the peak.
    Linear,
    /// Along half a cosine, to a twentieth of the peak.
    Cosine,
    /// It stays constant.
    Constant,
}

impl Schedule {
    /// The fraction of the peak learning rate at a step, counted from 0. The first steps,
    /// at most ten, are a warm-up.
    pub fn share(self, step: usize, steps: usize) -> f64 {
        const LEAST: f64 = 0.05;
        let warm_up = (steps / 10).clamp(1, 10);
        if step < warm_up {
            return (step + 1) as f64 / warm_up as f64;
        }
        let done = (step - warm_up) as f64 / (steps - warm_up).max(1) as f64;
        let left = match self {
            Self::Linear => 1.0 - done,
            Self::Cosine => 0.5 * (1.0 + (std::f64::consts::PI * done).cos()),
            Self::Constant => 1.0,
        };
        LEAST + (1.0 - LEAST) * left
    }
}

/// The state of Adam for some tensors: running means of their gradients and of the
/// squares of these.
#[derive(Clone, Debug)]
pub struct Moments {
    /// Means of the gradients, by tensor; empty for one that is not trained.
    pub mean: Vec<Vec<f32>>,
    /// Means of their squares.
    pub square: Vec<Vec<f32>>,
}

/// A tensor that is updated, and its gradient.
pub(super) struct Update<'a> {
    pub numbers: &'a mut [f32],
    pub gradient: &'a [f32],
    /// Whether zeros stay zero.
    pub sparse: bool,
}

impl Moments {
    /// Zeros for tensors of these sizes.
    pub fn new(sizes: impl IntoIterator<Item = usize>) -> Self {
        let mean: Vec<Vec<f32>> = sizes.into_iter().map(|size| vec![0.0; size]).collect();
        Self { square: mean.clone(), mean }
    }

    /// Step `step`, counted from 0, on the tensors, in the order of their sizes; those
    /// of size 0 are skipped. Gradients are multiplied by `scale`.
    pub(super) fn step<'a>(
        &mut self,
        step: usize,
        lr: f64,
        scale: f64,
        updates: impl Iterator<Item = Update<'a>>,
    ) {
        let t = i32::try_from(step + 1).unwrap_or(i32::MAX);
        let correction = |beta: f32| (1.0 - f64::from(beta).powi(t)).recip() as f32;
        let (correction1, correction2) = (correction(BETA1), correction(BETA2));
        for ((update, mean), square) in updates.zip(&mut self.mean).zip(&mut self.square) {
            let Update { numbers, gradient, sparse } = update;
            let lr = lr as f32;
            let coefficients = AdamStep {
                scale: scale as f32,
                lr,
                beta1: BETA1,
                beta2: BETA2,
                correction1,
                correction2,
                eps: EPS,
                sparse,
            };
            let means = mean.par_chunks_mut(CHUNK).zip(square.par_chunks_mut(CHUNK));
            let weights = numbers.par_chunks_mut(CHUNK).zip(gradient.par_chunks(CHUNK));
            weights.zip(means).for_each(|((w, g), (m, v))| vector::adam(w, m, v, g, &coefficients));
        }
    }
}

/// Pulls numbers towards others by a share of their distance.
pub(super) fn pull(numbers: &mut [f32], to: &[f32], share: f32) {
    numbers
        .par_chunks_mut(CHUNK)
        .zip(to.par_chunks(CHUNK))
        .for_each(|(w, to)| vector::pull(w, to, share));
}

/// The sum of squares of some gradients, in a fixed order.
pub(super) fn sum_of_squares<'a>(gradients: impl Iterator<Item = &'a [f32]>) -> f64 {
    let of_one = |gradient: &[f32]| -> f64 {
        let sums: Vec<f64> = gradient
            .par_chunks(CHUNK)
            .map(|chunk| f64::from(vector::sum_of_squares(chunk)))
            .collect();
        sums.iter().sum()
    };
    gradients.map(of_one).sum()
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    proptest! {
        #[test]
        fn a_step_follows_its_definition_and_keeps_zeros(
            weights in prop::collection::vec(prop_oneof![Just(0.0f32), -2.0f32..2.0], 1..70),
            seed in 0u32..1000,
            sparse: bool,
        ) {
            let gradient = |t: u32, i: usize| {
                ((seed + 31 * t + 7 * i as u32) % 101) as f32 / 50.0 - 1.0
            };
            let mut moments = Moments::new([weights.len()]);
            let mut trained = weights.clone();
            for t in 0..3 {
                let g: Vec<f32> = (0..weights.len()).map(|i| gradient(t, i)).collect();
                let update = Update { numbers: &mut trained, gradient: &g, sparse };
                moments.step(t as usize, 0.01, 0.5, [update].into_iter());
            }
            for (i, (&start, &end)) in weights.iter().zip(&trained).enumerate() {
                let (mut w, mut m, mut v) = (f64::from(start), 0.0, 0.0);
                for t in 0..3 {
                    let g = 0.5 * f64::from(gradient(t, i));
                    m = 0.9 * m + 0.1 * g;
                    v = 0.95 * v + 0.05 * g * g;
                    let t = t as i32 + 1;
                    let (a, b) = (m / (1.0 - 0.9f64.powi(t)), v / (1.0 - 0.95f64.powi(t)));
                    w -= 0.01 * a / (b.sqrt() + 1e-8);
                }
                if sparse {
                    prop_assert_eq!(start == 0.0, end == 0.0);
                }
                if !(sparse && start == 0.0) {
                    prop_assert!((w - f64::from(end)).abs() < 1e-5, "{} is not {}", end, w);
                }
            }
        }
    }

    #[test]
    fn a_weight_never_lands_on_zero() {
        // The first step of Adam moves by the learning rate: here, exactly to zero.
        let (mut moments, mut w) = (Moments::new([1]), [0.5f32]);
        let update = Update { numbers: &mut w, gradient: &[1.0], sparse: true };
        moments.step(0, 0.5, 1.0, [update].into_iter());
        assert!(w[0] != 0.0 && w[0].abs() < 1e-6, "{}", w[0]);
    }

    #[test]
    fn schedules_rise_to_one_and_end_low() {
        for schedule in [Schedule::Linear, Schedule::Cosine, Schedule::Constant] {
            for steps in [1, 2, 9, 30, 500] {
                let shares: Vec<f64> = (0..steps).map(|step| schedule.share(step, steps)).collect();
                let top = shares.iter().copied().fold(0.0, f64::max);
                assert!((top - 1.0).abs() < 1e-12, "{schedule:?} of {steps}: {top}");
                let rises = (steps / 10).clamp(1, 10);
                assert!(shares[..rises].is_sorted(), "{schedule:?}: {shares:?}");
                assert!(shares[rises - 1..].is_sorted_by(|a, b| a >= b), "{schedule:?}");
            }
            let last = schedule.share(499, 500);
            assert_eq!(last < 0.06, schedule != Schedule::Constant, "{schedule:?}: {last}");
        }
    }
}
