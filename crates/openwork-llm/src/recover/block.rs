//! Trains a layer, or one half of it after the other, towards the dense model's
//! states.
//!
//! ```text
//! min over the parameters of    mean over tokens t of  |f(x_t) - y_t|^2 / |y_t|^2
//! ```
//!
//! with the inputs `x` of the pruned model and the outputs `y` that the dense model
//! computes from its own inputs. The keys and values of other layers are constants.

use super::chain::Chain;
use super::latent::{CodedLinear, LatentWeights};
use super::optimizer::{Moments, Update, pull};
use super::regrow::{self, PatternGroup};
use super::text::{StageOptions, Unit};
use super::{OnProgress, Progress, RecoverError, held_out};
use crate::model::backward::{Activations, Interior, LayerGradients, token_loss};
use crate::model::keep_awake::keep_awake;
use crate::model::{Half, Layer, Parameter};
use openwork::MatrixRef;
use openwork::random::SplitMix64;

/// Trains layers of a chain.
pub struct LayerTrainer<'a> {
    /// The stage.
    pub options: &'a StageOptions,
    /// The layer's patterns, if blocks move.
    pub groups: &'a [PatternGroup],
    /// The layer's linears whose weights are values of codes.
    pub coded: &'a [CodedLinear],
    /// Random seed of the order of windows.
    pub seed: u64,
    /// Rounds parameters as they will be stored.
    pub round: &'a dyn Fn(&mut [f32]),
}

/// The result of training a layer.
#[derive(Clone, Debug, PartialEq)]
pub struct TrainedLayer {
    /// Loss of the held-out windows before.
    pub before: f64,
    /// Loss of the held-out windows after, with parameters as stored.
    pub after: f64,
    /// The learning rate; `None` if none lowered the loss, and nothing was changed.
    pub lr: Option<f64>,
    /// Tokens that were trained on, repetitions included.
    pub tokens: u64,
}

/// The parameters of a layer at some moment, in the order of [`Parameter::all`].
type Snapshot = Vec<Vec<f32>>;

fn snapshot(layer: &mut Layer, latent: &mut LatentWeights<'_>) -> Snapshot {
    latent.parameters_mut(layer).map(|(_, numbers)| numbers.to_vec()).collect()
}

fn restore(layer: &mut Layer, latent: &mut LatentWeights<'_>, from: &Snapshot) {
    for ((_, numbers), from) in latent.parameters_mut(layer).zip(from) {
        numbers.copy_from_slice(from);
    }
    latent.encode(layer);
}

impl LayerTrainer<'_> {
    /// Trains a layer, given the dense model's, and advances the chain through both.
    pub fn train(
        &self,
        layer: &mut Layer,
        dense: &Layer,
        chain: &mut Chain,
        on_progress: &mut OnProgress<'_>,
    ) -> Result<TrainedLayer, RecoverError> {
        let groups: &[&[Half]] = match self.options.unit {
            Unit::Half => &[&[Half::Attention], &[Half::Mlp]],
            _ => &[&Half::ALL],
        };
        let mut result: Option<TrainedLayer> = None;
        for (i, halves) in groups.iter().enumerate() {
            chain.advance_dense(dense, halves)?;
            let mut part = |mut progress: Progress| {
                progress.share = (i as f64 + progress.share) / groups.len() as f64;
                on_progress(progress)
            };
            let mut training = Training { trainer: self, halves, chain: &mut *chain };
            let one = training.run(layer, &mut part)?;
            chain.advance_pruned(layer, halves)?;
            result = Some(match result {
                None => one,
                // The loss after the MLP is that of the layer.
                Some(first) => TrainedLayer {
                    tokens: first.tokens + one.tokens,
                    lr: one.lr.or(first.lr),
                    ..one
                },
            });
        }
        Ok(result.expect("a layer has halves"))
    }
}

/// The training of some halves of a layer.
struct Training<'a> {
    trainer: &'a LayerTrainer<'a>,
    halves: &'a [Half],
    chain: &'a mut Chain,
}

impl Training<'_> {
    fn run(
        &mut self,
        layer: &mut Layer,
        on_progress: &mut OnProgress<'_>,
    ) -> Result<TrainedLayer, RecoverError> {
        let options = self.trainer.options;
        let mut latent = LatentWeights::new(layer, self.trainer.coded);
        let start = snapshot(layer, &mut latent);
        let before = self.held_out_loss(layer)?;
        let mut tokens = 0;
        for lr in options.rates() {
            let trained = (&mut *layer, &mut latent);
            let best = self.attempt(trained, &start, before, lr, &mut tokens, on_progress)?;
            if let Some(best) = best {
                restore(layer, &mut latent, &best);
                layer.round(self.trainer.round);
                let after = self.held_out_loss(layer)?;
                if after < before {
                    return Ok(TrainedLayer { before, after, lr: Some(lr), tokens });
                }
            }
            restore(layer, &mut latent, &start);
        }
        Ok(TrainedLayer { before, after: before, lr: None, tokens })
    }

    /// Trains with one learning rate; returns the parameters with the lowest held-out loss,
    /// if that is below `before`.
    fn attempt(
        &mut self,
        (layer, latent): (&mut Layer, &mut LatentWeights<'_>),
        start: &Snapshot,
        before: f64,
        lr: f64,
        tokens: &mut u64,
        on_progress: &mut OnProgress<'_>,
    ) -> Result<Option<Snapshot>, RecoverError> {
        let StageOptions { epochs, batch, schedule, trained, decay, .. } = *self.trainer.options;
        let windows = self.chain.windows() - held_out(self.chain.windows());
        let steps = epochs * windows.div_ceil(batch);
        let moves =
            regrow::schedule(self.trainer.options.regrow, self.trainer.options.every, steps);
        let halves = self.halves;
        let info = layer.info().clone();
        let moved = |p: Parameter| trained.includes(p) && halves.contains(&p.half(&info));
        let sizes = start.iter().zip(Parameter::all(&info));
        let mut moments =
            Moments::new(sizes.map(|(numbers, p)| if moved(p) { numbers.len() } else { 0 }));
        let mut sum = LayerGradients::new(layer);
        let mut one = (batch > 1).then(|| LayerGradients::new(layer));
        let (mut kept, mut interior) = (Activations::default(), Interior::default());
        let mut best: Option<(f64, Snapshot)> = None;
        let mut random = SplitMix64(self.trainer.seed ^ (layer.index() as u64) << 32);
        let (mut step, mut held) = (0, before);
        for _ in 0..epochs {
            for batch in shuffled(windows, &mut random).chunks(batch) {
                if let Some(fraction) = moves.at(step as u64) {
                    regrow::move_blocks(layer, self.trainer.groups, &moments.mean, fraction);
                }
                let mut loss = 0.0;
                for (i, &window) in batch.iter().enumerate() {
                    let memory = (&mut kept, &mut interior);
                    match one.as_mut().filter(|_| i > 0) {
                        None => loss += self.gradients(layer, window, memory, &mut sum)?,
                        Some(one) => {
                            loss += self.gradients(layer, window, memory, one)?;
                            sum.add(one);
                        }
                    }
                }
                let latest = loss / batch.len() as f64;
                if !latest.is_finite() {
                    return Ok(best.map(|(_, best)| best));
                }
                let rate = lr * schedule.share(step, steps);
                let updates = latent.parameters_mut(layer).zip(sum.slices());
                moments.step(
                    step,
                    rate,
                    1.0 / batch.len() as f64,
                    updates.map(|((parameter, numbers), gradient)| Update {
                        sparse: matches!(parameter, Parameter::Weight(_)),
                        numbers,
                        gradient,
                    }),
                );
                if decay > 0.0 {
                    let share = (rate * decay).min(1.0) as f32;
                    for ((parameter, numbers), to) in latent.parameters_mut(layer).zip(start) {
                        if moved(parameter) {
                            pull(numbers, to, share);
                        }
                    }
                }
                latent.encode(layer);
                step += 1;
                *tokens += (batch.len() * self.chain.seq_len()) as u64;
                let share = step as f64 / steps as f64;
                if !on_progress(Progress { share, loss: latest, held_out: held }) {
                    return Err(RecoverError::Stopped);
                }
            }
            held = self.held_out_loss(layer)?;
            if held < best.as_ref().map_or(before, |(best, _)| *best) {
                best = Some((held, snapshot(layer, latent)));
            } else if !held.is_finite() || held > 1.5 * before {
                break;
            }
        }
        Ok(best.map(|(_, best)| best))
    }

    /// The gradients of one window's loss, which is returned.
    fn gradients(
        &mut self,
        layer: &Layer,
        window: usize,
        (kept, interior): (&mut Activations, &mut Interior),
        into: &mut LayerGradients,
    ) -> Result<f64, RecoverError> {
        let halves = self.halves;
        let (t, width) = (self.chain.seq_len(), self.chain.width());
        let mut pair = self.chain.pair(window)?;
        let mut h = std::mem::take(&mut pair.input);
        Ok(keep_awake(|| {
            for &half in halves {
                layer.forward_half_saving(half, &mut h, &mut pair.carried, kept);
            }
            let loss = token_loss(&mut h, MatrixRef::new(pair.output(), t, width));
            for &half in halves.iter().rev() {
                layer.backward_half(half, kept, interior, &mut h, &mut [], into);
            }
            loss
        }))
    }

    /// The mean loss of the held-out windows, which are the last ones.
    fn held_out_loss(&mut self, layer: &Layer) -> Result<f64, RecoverError> {
        let windows = self.chain.windows();
        let first = windows - held_out(windows);
        let (t, width) = (self.chain.seq_len(), self.chain.width());
        let mut kept = Activations::default();
        let mut sum = 0.0;
        for window in first..windows {
            let mut pair = self.chain.pair(window)?;
            let mut h = std::mem::take(&mut pair.input);
            sum += keep_awake(|| {
                for &half in self.halves {
                    layer.forward_half_saving(half, &mut h, &mut pair.carried, &mut kept);
                }
                token_loss(&mut h, MatrixRef::new(pair.output(), t, width))
            });
        }
        Ok(sum / (windows - first) as f64)
    }
}

/// The numbers below `n` in random order.
pub(super) fn shuffled(n: usize, random: &mut SplitMix64) -> Vec<usize> {
    let mut order: Vec<usize> = (0..n).collect();
    for i in (1..n).rev() {
        order.swap(i, random.below(i as u64 + 1) as usize);
    }
    order
}
