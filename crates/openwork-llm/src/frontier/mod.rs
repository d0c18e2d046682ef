//! The frontier of a model: perplexity against bytes and against tokens per second, for the
//! unpruned model at several value types, files given by the user, and pruned variants;
//! the Pareto-optimal points, and a verdict on whether pruning pays off.

mod measure;
mod options;
mod verdict;

pub use measure::{FrontierError, FrontierEvent, measure};
pub use options::{FrontierOptions, VALUES};
pub use verdict::verdict;

use crate::task::TaskScore;
use serde::{Deserialize, Serialize};

/// What a point stands for.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum Kind {
    /// The model with all its weights.
    Dense,
    /// Some weights, channels, heads or layers are missing.
    Pruned,
    /// A GGUF file of the model, with all its weights.
    Gguf,
}

/// One stored form of the model.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct Point {
    /// Its name: `dense int4`, `2:4 int8`, a file name.
    pub name: String,
    /// What it stands for.
    pub kind: Kind,
    /// Bytes of its weight files.
    pub bytes: u64,
    /// Perplexity per token.
    pub token_perplexity: f64,
    /// Tokens per second, unless openwork does not compute with the stored form.
    pub tokens_per_second: Option<f64>,
    /// No point of at most as many bytes has a lower perplexity.
    #[serde(default)]
    pub best: bool,
    /// No point that is at least as fast has a lower perplexity.
    #[serde(default)]
    pub best_for_speed: bool,
    /// Its accuracy on every task.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub tasks: Vec<TaskAccuracy>,
    /// How it was made, or what was not measured.
    #[serde(default, skip_serializing_if = "String::is_empty")]
    pub note: String,
}

/// The accuracy of a point on a task.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct TaskAccuracy {
    /// Name of the file, without its path and extension.
    pub name: String,
    /// Number of documents.
    pub docs: usize,
    /// Share of correct answers.
    pub acc: f64,
    /// Share of correct answers by log-likelihood per byte.
    pub acc_norm: f64,
    /// Standard error of `acc`; `None` for one document.
    pub stderr: Option<f64>,
}

impl From<&TaskScore> for TaskAccuracy {
    fn from(score: &TaskScore) -> Self {
        Self {
            name: score.name.clone(),
            docs: score.documents.len(),
            acc: score.acc(),
            acc_norm: score.acc_norm(),
            stderr: score.stderr(),
        }
    }
}

/// All points of a model, and what follows from them.
#[derive(Clone, Debug, Serialize)]
pub struct Frontier {
    /// The model's name.
    pub model: String,
    /// The evaluation text's name.
    pub text: String,
    /// Tokens that were scored.
    pub tokens: usize,
    /// Tokens per window.
    pub seq_len: usize,
    /// Threads.
    pub threads: usize,
    /// All points, the smallest first.
    pub points: Vec<Point>,
    /// What to take, in one sentence.
    pub verdict: String,
}

/// Marks the Pareto-optimal points, and sorts all by size.
pub fn mark(points: &mut [Point]) {
    points.sort_by(|a, b| a.bytes.cmp(&b.bytes).then_with(|| a.name.cmp(&b.name)));
    let all = points.to_vec();
    for point in points {
        let better = |other: &Point| other.token_perplexity < point.token_perplexity;
        let equal = |other: &Point| other.token_perplexity == point.token_perplexity;
        point.best = !all.iter().any(|other| {
            let smaller = other.bytes < point.bytes;
            (better(other) && other.bytes <= point.bytes) || (equal(other) && smaller)
        });
        point.best_for_speed = point.tokens_per_second.is_some_and(|speed| {
            !all.iter().any(|other| {
                other.tokens_per_second.is_some_and(|rate| {
                    (better(other) && rate >= speed) || (equal(other) && rate > speed)
                })
            })
        });
    }
}

#[cfg(test)]
pub(crate) mod tests {
    use super::*;

    pub(crate) fn point(name: &str, bytes: u64, perplexity: f64, speed: Option<f64>) -> Point {
        let pruned = name.contains(':') || name.contains("rows");
        Point {
            name: name.to_string(),
            kind: if pruned { Kind::Pruned } else { Kind::Dense },
            bytes: bytes * 1_000_000,
            token_perplexity: perplexity,
            tokens_per_second: speed,
            best: false,
            best_for_speed: false,
            tasks: Vec::new(),
            note: String::new(),
        }
    }

    /// A point is marked if and only if no other is as good in one respect and better in
    /// the other.
    #[test]
    fn the_marked_points_are_those_that_nothing_beats() {
        let mut state = 1u64;
        let mut random = |n: u64| {
            state = state.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1);
            (state >> 33) % n
        };
        for _ in 0..200 {
            let mut points: Vec<Point> = (0..random(12))
                .map(|i| {
                    let speed = (random(3) > 0).then(|| random(9) as f64);
                    point(&format!("p{i}"), random(9) + 1, random(9) as f64 + 1.0, speed)
                })
                .collect();
            mark(&mut points);
            for p in &points {
                let beaten = points.iter().any(|q| {
                    (q.bytes <= p.bytes && q.token_perplexity < p.token_perplexity)
                        || (q.bytes < p.bytes && q.token_perplexity <= p.token_perplexity)
                });
                assert_eq!(p.best, !beaten, "{p:?} in {points:?}");
                let Some(speed) = p.tokens_per_second else {
                    assert!(!p.best_for_speed);
                    continue;
                };
                let beaten = points.iter().any(|q| {
                    q.tokens_per_second.is_some_and(|rate| {
                        (rate >= speed && q.token_perplexity < p.token_perplexity)
                            || (rate > speed && q.token_perplexity <= p.token_perplexity)
                    })
                });
                assert_eq!(p.best_for_speed, !beaten, "{p:?} in {points:?}");
            }
            assert!(points.is_sorted_by_key(|p| p.bytes));
        }
    }
}
