//! The search for a learning rate: short trainings from the same weights, each with one
//! rate of a grid, judged by the held-out loss.
//!
//! The search starts in the middle of the grid and moves to a neighbor as long as that is
//! better, so three or four trials are usual.

use serde::{Deserialize, Serialize};

/// Learning rates, rising by a factor of two.
const GRID: [f64; 9] = [1.25e-5, 2.5e-5, 5e-5, 1e-4, 2e-4, 4e-4, 8e-4, 1.6e-3, 3.2e-3];
const START: usize = 4;

/// Trials of a usual search, for estimates of its time.
pub const USUAL_TRIALS: usize = 3;

/// Steps of a trial before a training of `steps` steps: a twentieth, but enough of them that
/// the moments of Adam settle.
pub fn trial_steps(steps: usize) -> usize {
    (steps / 20).max(10).min(steps)
}

/// A short training with one learning rate.
#[derive(Clone, Copy, Debug, PartialEq, Serialize, Deserialize)]
pub struct RateTrial {
    /// The peak learning rate.
    pub lr: f64,
    /// The loss of the held-out windows after it; `None` if training diverged.
    pub held_out: Option<f64>,
}

/// The learning rate of the next trial, or `None` if the best one so far has been compared
/// with its neighbors.
pub fn next_rate(trials: &[RateTrial]) -> Option<f64> {
    let Some(best) = best(trials) else { return Some(GRID[START]) };
    let tried = |lr: f64| trials.iter().any(|trial| trial.lr == lr);
    let place = GRID.iter().position(|&lr| lr == best.lr)?;
    // Above a rate that diverged, there is nothing to find.
    let above = GRID.get(place + 1).filter(|_| best.held_out.is_some());
    let below = place.checked_sub(1).map(|place| &GRID[place]);
    above.into_iter().chain(below).copied().find(|&lr| !tried(lr))
}

/// The learning rates to train with, until one lowers the held-out loss: the best of the
/// trials, then smaller ones.
pub fn chosen_rates(trials: &[RateTrial]) -> Vec<f64> {
    let best = best(trials).map_or(GRID[START], |trial| trial.lr);
    vec![best, best / 4.0, best / 16.0]
}

/// The trial with the lowest loss; of equal ones, that of the lowest rate.
fn best(trials: &[RateTrial]) -> Option<&RateTrial> {
    let key = |trial: &RateTrial| (trial.held_out.unwrap_or(f64::INFINITY), trial.lr);
    trials.iter().min_by(|a, b| {
        let ((a, a_lr), (b, b_lr)) = (key(a), key(b));
        a.total_cmp(&b).then(a_lr.total_cmp(&b_lr))
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Searches where the loss is `loss(lr)`.
    fn search(loss: impl Fn(f64) -> Option<f64>) -> Vec<RateTrial> {
        let mut trials = Vec::new();
        while let Some(lr) = next_rate(&trials) {
            assert!(trials.iter().all(|trial: &RateTrial| trial.lr != lr), "{lr} twice");
            trials.push(RateTrial { lr, held_out: loss(lr) });
        }
        trials
    }

    #[test]
    fn the_search_ends_at_the_lowest_loss_of_a_valley() {
        for (i, &lowest) in GRID.iter().enumerate() {
            let trials = search(|lr| Some((lr / lowest).ln().abs()));
            assert_eq!(chosen_rates(&trials)[0], lowest);
            // Each rate on the way, and its neighbors.
            assert!(trials.len() <= 3 + i.abs_diff(START), "{lowest}: {trials:?}");
        }
    }

    #[test]
    fn rates_that_diverge_are_avoided() {
        for &limit in &GRID {
            let trials = search(|lr| (lr <= limit).then_some(-lr));
            assert_eq!(chosen_rates(&trials)[0], limit);
        }
        let trials = search(|_| None);
        assert_eq!(chosen_rates(&trials)[0], GRID[0]);
    }

    #[test]
    fn trials_are_not_longer_than_the_training() {
        for steps in 1..1000 {
            assert!((1..=steps).contains(&trial_steps(steps)));
        }
        assert_eq!(trial_steps(400), 20);
    }
}
