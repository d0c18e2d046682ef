//! Trains all layers of a pruned model together, towards the dense model's
//! distribution of the next token.
//!
//! A step runs one batch of windows forward and backward, here or on a cluster
//! ([`super::window`]), and updates the weights here. The dense model runs once on every
//! window, when it is first used, and its last hidden states are kept; if its states after each
//! layer are targets too, it runs with every step instead. A learning rate that the
//! user does not give is chosen by short trials ([`super::rates`]). The held-out loss is
//! measured several times during a stage, and the weights with the lowest loss are kept. The
//! state of the optimizer is saved at the same points, so that an interrupted stage continues
//! to the same bytes.

use super::block::shuffled;
use super::latent::CodedLinear;
use super::optimizer::{Moments, Update, pull, sum_of_squares};
use super::rates::{RateTrial, USUAL_TRIALS, chosen_rates, next_rate, trial_steps};
use super::regrow::{self, PatternGroup};
use super::state::{Saved, StateDir};
use super::student::{GradientSum, Student};
use super::text::StageOptions;
use super::window::{Distillation, WindowPasses};
use super::{OnProgress, Progress, RecoverError};
use crate::model::{Layer, Norm, Parameter};
use openwork::random::SplitMix64;
use serde::{Deserialize, Serialize};

/// Gradients of a step are scaled down to this norm.
const MAX_NORM: f64 = 1.0;

/// How often the held-out loss is measured and the state saved.
const EVALUATIONS: usize = 8;

/// A point of the curve of losses.
#[derive(Clone, Copy, Debug, PartialEq, Serialize, Deserialize)]
pub struct CurvePoint {
    /// Steps done.
    pub step: usize,
    /// Mean loss of the training windows since the previous point.
    pub loss: Option<f64>,
    /// Loss of the held-out windows.
    pub held_out: f64,
}

/// A stage that trains a whole model.
pub struct Distiller<'a> {
    /// The models and windows.
    pub task: &'a Distillation<'a>,
    /// The patterns of each layer, if blocks move.
    pub groups: &'a [Vec<PatternGroup>],
    /// The linears of each layer whose weights are values of codes; none if empty.
    pub coded: &'a [Vec<CodedLinear>],
    /// Random seed of the order of windows.
    pub seed: u64,
    /// Rounds parameters as they will be stored.
    pub round: &'a dyn Fn(&mut [f32]),
}

/// The result of a stage.
pub struct Distilled {
    /// The trained layers; they hold f32 weights, rounded as they will be stored.
    pub layers: Vec<Layer>,
    /// The trained last norm.
    pub norm: Norm,
    /// Loss of the held-out windows before.
    pub before: f64,
    /// Loss of the held-out windows after.
    pub after: f64,
    /// The learning rate; `None` if none lowered the loss, and nothing was changed.
    pub lr: Option<f64>,
    /// Tokens that were trained on, repetitions included.
    pub tokens: u64,
    /// The learning rates that were tried for a short time, to choose one.
    pub trials: Vec<RateTrial>,
    /// Losses along the way.
    pub curve: Vec<CurvePoint>,
}

impl Distiller<'_> {
    /// Trains, continuing an interrupted stage. `passes` computes the windows.
    pub fn run(
        &self,
        passes: &mut dyn WindowPasses,
        on_progress: &mut OnProgress<'_>,
    ) -> Result<Distilled, RecoverError> {
        let dir = StateDir::new(self.task.folder);
        let mut student = self.student()?;
        let mut run = Run {
            distiller: self,
            passes,
            moments: Moments { mean: Vec::new(), square: Vec::new() },
            dir: &dir,
        };
        let mut saved = match dir.load(&mut student, &mut run.moments)? {
            Some(saved) => {
                student.encode();
                saved
            }
            None => {
                let before = run.held_out_loss(&student)?;
                Saved { before, best: before, ..Saved::default() }
            }
        };
        let mut rates = self.task.options.rates();
        if rates.is_empty() {
            while let Some(lr) = next_rate(&saved.trials) {
                let held_out = run.trial(&saved, lr, on_progress)?;
                saved.trials.push(RateTrial { lr, held_out });
                dir.save_progress(&saved)?;
            }
            rates = chosen_rates(&saved.trials);
        }
        while saved.attempt < rates.len() {
            if saved.step == 0 {
                run.moments = self.moments(&mut student);
            }
            let lr = rates[saved.attempt];
            if run.attempt(&mut student, &mut saved, lr, on_progress)? {
                dir.load_best(&mut student)?;
                student.encode();
                student.round(self.round);
                let after = run.held_out_loss(&student)?;
                if after < saved.before {
                    let Student { layers, norm, .. } = student;
                    let Saved { before, tokens, trials, curve, .. } = saved;
                    return Ok(Distilled {
                        layers,
                        norm,
                        before,
                        after,
                        lr: Some(lr),
                        tokens,
                        trials,
                        curve,
                    });
                }
            }
            student = self.student()?;
            saved = Saved {
                attempt: saved.attempt + 1,
                step: 0,
                best: saved.before,
                curve: Vec::new(),
                ..saved
            };
        }
        let Student { layers, norm, .. } = student;
        let Saved { before, tokens, trials, curve, .. } = saved;
        Ok(Distilled { layers, norm, before, after: before, lr: None, tokens, trials, curve })
    }

    /// The pruned model before training.
    fn student(&self) -> Result<Student<'_>, RecoverError> {
        Student::load(self.task.model, self.task.options.rounds, self.coded)
    }

    fn moments(&self, student: &mut Student<'_>) -> Moments {
        let trained = self.task.options.trained;
        Moments::new(student.parameters_mut().map(|(parameter, numbers)| {
            match parameter.map_or(trained.norms(), |parameter| trained.includes(parameter)) {
                true => numbers.len(),
                false => 0,
            }
        }))
    }
}

/// Memory of the steps of a training.
struct StepMemory {
    /// The gradients of a batch.
    sum: GradientSum,
    /// The pruned weights, if weights decay towards them.
    anchor: Option<Student<'static>>,
}

impl StepMemory {
    fn new(distiller: &Distiller<'_>, student: &Student<'_>) -> Result<Self, RecoverError> {
        let Distillation { model, options, .. } = *distiller.task;
        let anchor = (options.decay > 0.0).then(|| Student::load(model, false, &[]));
        Ok(Self { sum: GradientSum::new(student), anchor: anchor.transpose()? })
    }
}

/// A stage in progress.
struct Run<'a> {
    distiller: &'a Distiller<'a>,
    passes: &'a mut dyn WindowPasses,
    moments: Moments,
    dir: &'a StateDir,
}

impl Run<'_> {
    /// Trains with one learning rate, continuing from `saved`. Returns whether the held-out
    /// loss fell; if so, the best weights are in the state's folder.
    fn attempt(
        &mut self,
        student: &mut Student<'_>,
        saved: &mut Saved,
        lr: f64,
        on_progress: &mut OnProgress<'_>,
    ) -> Result<bool, RecoverError> {
        let Distillation { options, windows, .. } = *self.distiller.task;
        let StageOptions { steps, batch, schedule, .. } = *options;
        let every = steps.div_ceil(EVALUATIONS);
        let moves = regrow::schedule(options.regrow, options.every, steps);
        let mut memory = StepMemory::new(self.distiller, student)?;
        let trial_steps = saved.trials.len() * trial_steps(steps);
        let mut latest = Vec::new();
        let held = |saved: &Saved| saved.curve.last().map_or(saved.before, |point| point.held_out);
        while saved.step < steps {
            // Before a step, so that what is saved after it has no weight that just grew.
            if let Some(fraction) = moves.at(saved.step as u64) {
                self.move_blocks(student, fraction);
            }
            let rate = lr * schedule.share(saved.step, steps);
            let loss = self.step(student, &mut memory, saved.step, rate)?;
            if !loss.is_finite() {
                return Ok(saved.best < saved.before);
            }
            saved.step += 1;
            saved.tokens += (batch * windows[0].len()) as u64;
            latest.push(loss);
            if saved.step.is_multiple_of(every) || saved.step == steps {
                let held_out = self.held_out_loss(student)?;
                let mean = latest.iter().sum::<f64>() / latest.len() as f64;
                latest.clear();
                let point = CurvePoint { step: saved.step, loss: Some(mean), held_out };
                saved.curve.push(point);
                if held_out < saved.best {
                    saved.best = held_out;
                    self.dir.save_best(student)?;
                } else if !held_out.is_finite() || held_out > 1.5 * saved.before {
                    return Ok(saved.best < saved.before);
                }
                if saved.step < steps {
                    self.dir.save(student, &self.moments, saved)?;
                }
            }
            let share = (trial_steps + saved.step) as f64 / (trial_steps + steps) as f64;
            if !on_progress(Progress { share, loss, held_out: held(saved) }) {
                return Err(RecoverError::Stopped);
            }
        }
        Ok(saved.best < saved.before)
    }

    /// Trains for a short time with one learning rate, and returns the held-out loss if it is
    /// finite.
    fn trial(
        &mut self,
        saved: &Saved,
        lr: f64,
        on_progress: &mut OnProgress<'_>,
    ) -> Result<Option<f64>, RecoverError> {
        let StageOptions { steps, schedule, .. } = *self.distiller.task.options;
        let mut student = self.distiller.student()?;
        self.moments = self.distiller.moments(&mut student);
        let mut memory = StepMemory::new(self.distiller, &student)?;
        let trial = trial_steps(steps);
        let done = saved.trials.len() * trial;
        let total = steps + trial * (saved.trials.len() + 1).max(USUAL_TRIALS);
        for step in 0..trial {
            let rate = lr * schedule.share(step, trial);
            let loss = self.step(&mut student, &mut memory, step, rate)?;
            if !loss.is_finite() {
                return Ok(None);
            }
            let share = (done + step + 1) as f64 / total as f64;
            if !on_progress(Progress { share, loss, held_out: saved.before }) {
                return Err(RecoverError::Stopped);
            }
        }
        let held_out = self.held_out_loss(&student)?;
        Ok(held_out.is_finite().then_some(held_out))
    }

    /// Step `step`, counted from 0, of Adam with the learning rate `rate`. Returns the loss
    /// before the step; if that is not finite, nothing changes.
    fn step(
        &mut self,
        student: &mut Student<'_>,
        memory: &mut StepMemory,
        step: usize,
        rate: f64,
    ) -> Result<f64, RecoverError> {
        let Distillation { options, windows, .. } = *self.distiller.task;
        let StageOptions { batch, decay, .. } = *options;
        let StepMemory { sum, anchor } = memory;
        let window = |i| window_at(step * batch + i, windows.len(), self.distiller.seed);
        let batch_windows: Vec<usize> = (0..batch).map(window).collect();
        sum.clear();
        let losses = self.passes.losses(student, &batch_windows, Some(&mut *sum))?;
        let loss = losses.iter().sum::<f64>() / batch as f64;
        if !loss.is_finite() {
            return Ok(loss);
        }
        let norm = sum_of_squares(sum.slices()).sqrt() / batch as f64;
        let factor = (MAX_NORM / norm.max(MAX_NORM)) / batch as f64;
        let updates = student.parameters_mut().zip(sum.slices());
        self.moments.step(
            step,
            rate,
            factor,
            updates.map(|((parameter, numbers), gradient)| Update {
                sparse: matches!(parameter, Some(Parameter::Weight(_))),
                numbers,
                gradient,
            }),
        );
        if let Some(anchor) = anchor {
            let share = (rate * decay).min(1.0) as f32;
            for ((_, numbers), (_, to)) in student.parameters_mut().zip(anchor.parameters_mut()) {
                pull(numbers, to, share);
            }
        }
        student.encode();
        Ok(loss)
    }

    /// Moves blocks of every layer.
    fn move_blocks(&self, student: &mut Student<'_>, fraction: f64) {
        let mut means = self.moments.mean.as_slice();
        for (layer, groups) in student.layers.iter_mut().zip(self.distiller.groups) {
            let own = means.split_at(Parameter::all(layer.info()).count());
            regrow::move_blocks(layer, groups, own.0, fraction);
            means = own.1;
        }
    }

    /// The mean loss of the held-out windows.
    fn held_out_loss(&mut self, student: &Student<'_>) -> Result<f64, RecoverError> {
        let Distillation { windows, held_out, .. } = *self.distiller.task;
        let all: Vec<usize> = (windows.len()..windows.len() + held_out.len()).collect();
        let losses = self.passes.losses(student, &all, None)?;
        Ok(losses.iter().sum::<f64>() / losses.len() as f64)
    }
}

/// The window of the `n`-th gradient: the first round uses all windows in their order, which
/// is random already, each further one in another order.
fn window_at(n: usize, windows: usize, seed: u64) -> usize {
    let (round, place) = (n / windows, n % windows);
    if round == 0 {
        return place;
    }
    shuffled(windows, &mut SplitMix64(seed.wrapping_add(round as u64)))[place]
}
