//! Chooses the experts of a layer to keep.
//!
//! With the experts `E(t)` of a token, their weights `w` and their outputs `f`, the layer
//! adds `y_te = w_te f_e(x_t)` for each of them. The score of an expert is one of
//!
//! ```text
//! reap    mean over its tokens of |y_te|            (REAP)
//! load    number of its tokens
//! s-obd   sum over its tokens of |y_te|^2           the loss of the output
//! s-obs   1 / [G^-1]_ee, G_ef = sum of y_te . y_tf  the same, if the other experts are scaled
//!                                                   to compensate; dropped one at a time
//! ```
//!
//! The statistics are those of the dense model on the calibration windows.

use super::PipelineError;
use super::calibration::Calibration;
use super::depth::Seen;
use crate::model::{ExpertOutputs, Model, NoTap, Storage};
use openwork::Matrix;
use openwork::linalg::cholesky;
use std::fmt;

/// How experts are scored.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum ExpertScore {
    /// Mean norm of the expert's contribution to the output.
    Reap,
    /// Number of tokens.
    Load,
    /// Squared norm of its contribution.
    SObd,
    /// Squared norm of the part that the other experts cannot replace.
    SObs,
}

impl ExpertScore {
    /// All of them.
    pub const ALL: [Self; 4] = [Self::Reap, Self::Load, Self::SObd, Self::SObs];

    /// Its name in a spec.
    pub fn name(self) -> &'static str {
        match self {
            Self::Reap => "reap",
            Self::Load => "load",
            Self::SObd => "s-obd",
            Self::SObs => "s-obs",
        }
    }
}

impl fmt::Display for ExpertScore {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(self.name())
    }
}

/// Statistics of a layer's experts on the calibration windows.
#[derive(Clone, Debug)]
pub struct ExpertStatistics {
    tokens: Vec<usize>,
    norms: Vec<f64>,
    /// `[experts, experts]`.
    gram: Matrix<f64>,
}

impl ExpertStatistics {
    fn new(experts: usize) -> Self {
        let gram = Matrix::zeros(experts, experts);
        Self { tokens: vec![0; experts], norms: vec![0.0; experts], gram }
    }

    fn add(&mut self, outputs: &ExpertOutputs) {
        let dot = |a: &[f32], b: &[f32]| -> f64 {
            a.iter().zip(b).map(|(a, b)| f64::from(*a) * f64::from(*b)).sum()
        };
        for token in outputs.by_token() {
            for (i, (e, weight, y)) in token.iter().enumerate() {
                for (f, other, z) in &token[i..] {
                    let product = f64::from(*weight) * f64::from(*other) * dot(y, z);
                    self.gram.row_mut(*e)[*f] += product;
                    if e == f {
                        self.tokens[*e] += 1;
                        self.norms[*e] += product.max(0.0).sqrt();
                    } else {
                        self.gram.row_mut(*f)[*e] += product;
                    }
                }
            }
        }
    }

    /// The `kept` experts to keep, in order, and the other experts' fraction of the total
    /// score.
    pub fn choose(&self, score: ExpertScore, kept: usize) -> (Vec<usize>, f64) {
        let mut left: Vec<usize> = (0..self.tokens.len()).collect();
        let all: f64 = self.scores(score, &left).iter().sum();
        let mut lost = 0.0;
        while left.len() > kept.max(1) {
            let scores = self.scores(score, &left);
            // Ties break by index, so that runs repeat.
            let least = (0..left.len()).min_by(|&a, &b| scores[a].total_cmp(&scores[b]));
            let least = least.unwrap_or(0);
            lost += scores[least];
            left.remove(least);
        }
        (left, if all > 0.0 { lost / all } else { 0.0 })
    }

    /// The score of each expert of `left`, in a layer with only these experts.
    fn scores(&self, score: ExpertScore, left: &[usize]) -> Vec<f64> {
        let energy = |&e: &usize| self.gram.row(e)[e];
        match score {
            ExpertScore::Reap => {
                left.iter().map(|&e| self.norms[e] / self.tokens[e].max(1) as f64).collect()
            }
            ExpertScore::Load => left.iter().map(|&e| self.tokens[e] as f64).collect(),
            ExpertScore::SObd => left.iter().map(energy).collect(),
            ExpertScore::SObs => {
                // Experts without tokens have zero rows, so G needs a small damping.
                let mean = left.iter().map(energy).sum::<f64>() / left.len() as f64;
                let little = 1e-9 * mean.max(f64::MIN_POSITIVE);
                let gram = Matrix::from_fn(left.len(), left.len(), |i, j| {
                    self.gram.row(left[i])[left[j]] + if i == j { little } else { 0.0 }
                });
                match cholesky::inverse(gram, 0.0) {
                    Ok(inverse) => {
                        (0..left.len()).map(|i| inverse.row(i)[i].recip() - little).collect()
                    }
                    Err(_) => left.iter().map(energy).collect(),
                }
            }
        }
    }
}

/// The experts to keep in each layer; none for a layer without experts.
pub struct ExpertChoice {
    /// By layer.
    pub kept: Vec<Vec<usize>>,
    /// The dropped experts' fraction of the total score, averaged over layers.
    pub lost: f64,
}

/// Chooses the `kept` best experts of every layer.
pub fn choose(
    model: &Model<'_>,
    calibration: &Calibration,
    (score, kept): (ExpertScore, usize),
    seen: &Seen<'_>,
) -> Result<ExpertChoice, PipelineError> {
    let config = model.config();
    let mut hidden = Vec::new();
    for windows in calibration.chunks() {
        hidden.push(model.embed(windows)?);
    }
    let (mut choice, mut shares) = (Vec::with_capacity(config.layers), Vec::new());
    for index in 0..config.layers {
        seen(index, index as f64 / config.layers as f64)?;
        let layer = model.layer(index, Storage::F32)?;
        let experts = layer.info().experts;
        let mut statistics = ExpertStatistics::new(experts);
        for hidden in &mut hidden {
            match experts {
                0 => layer.forward(hidden, &mut NoTap),
                _ => layer.forward_experts(hidden, &mut |outputs| statistics.add(outputs)),
            }
        }
        let (kept, lost) = match experts {
            0 => (Vec::new(), None),
            _ => {
                let (kept, lost) = statistics.choose(score, kept);
                (kept, Some(lost))
            }
        };
        choice.push(kept);
        shares.extend(lost);
        model.checkpoint().release();
    }
    let lost = shares.iter().sum::<f64>() / shares.len().max(1) as f64;
    Ok(ExpertChoice { kept: choice, lost })
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Four experts, of which the last two add the same.
    fn statistics() -> ExpertStatistics {
        let y = [[3.0, 0.0, 0.0], [0.0, 1.0, 0.0], [0.0, 0.0, 2.0], [0.0, 0.0, 2.5]];
        let gram = Matrix::from_fn(4, 4, |i, j| (0..3).map(|k| y[i][k] * y[j][k]).sum());
        let norms = (0..4).map(|i| f64::sqrt(gram.row(i)[i])).collect();
        ExpertStatistics { tokens: vec![1, 9, 2, 2], norms, gram }
    }

    #[test]
    fn each_score_drops_what_it_says() {
        let choose = |score, kept| statistics().choose(score, kept).0;
        assert_eq!(choose(ExpertScore::Load, 2), [1, 3]);
        assert_eq!(choose(ExpertScore::SObd, 3), [0, 2, 3]);
        assert_eq!(choose(ExpertScore::Reap, 3), [0, 2, 3]);
        // Either of the last two can replace the other, and nothing else can be replaced.
        let kept = choose(ExpertScore::SObs, 3);
        assert!(kept == [0, 1, 2] || kept == [0, 1, 3], "{kept:?}");
        for score in ExpertScore::ALL {
            assert_eq!(choose(score, 4), [0, 1, 2, 3]);
            assert_eq!(statistics().choose(score, 4).1, 0.0);
        }
    }
}
