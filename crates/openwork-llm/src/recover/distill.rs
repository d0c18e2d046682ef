//! Trains all layers of a pruned model together, towards the dense model's
//! distribution of the next token.
//!
//! The dense model runs once on every window, when it is first used, and its last hidden
//! states are kept; if its states after each layer are targets too, it runs with every step
//! instead. A step runs one batch of windows forward and backward. A learning rate that the
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
use super::student::{Goal, Gradients, Passes, Student, training_layer};
use super::text::{LossKind, StageOptions};
use super::{OnProgress, Progress, RecoverError};
use crate::chunk_store::ChunkStore;
use crate::model::backward::{Objective, Reference};
use crate::model::{EmbeddingRows, Head, Layer, LogitMap, Model, NoTap, Norm, Parameter, Weight};
use openwork::random::SplitMix64;
use openwork::{Matrix, MatrixRef};
use serde::{Deserialize, Serialize};
use std::path::Path;

/// Gradients of a step are scaled down to this norm.
const MAX_NORM: f64 = 1.0;

/// How often the held-out loss is measured and the state saved.
const EVALUATIONS: usize = 8;

/// Bytes of the dense model's last hidden states that are held in memory, if the user
/// sets no limit.
const STATE_BYTES: u64 = 2 << 30;

/// Bytes of hidden states that the dense model computes at a time.
const GROUP_BYTES: usize = 64 << 20;

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
    /// The dense model.
    pub reference: &'a Model<'a>,
    /// The pruned model.
    pub model: &'a Model<'a>,
    /// The stage.
    pub options: &'a StageOptions,
    /// Windows to train on, all of one length.
    pub windows: &'a [Vec<u32>],
    /// Windows of the same length that the loss is measured on.
    pub held_out: &'a [Vec<u32>],
    /// The patterns of each layer, if blocks move.
    pub groups: &'a [Vec<PatternGroup>],
    /// The linears of each layer whose weights are values of codes; none if empty.
    pub coded: &'a [Vec<CodedLinear>],
    /// Random seed of the order of windows.
    pub seed: u64,
    /// Rounds parameters as they will be stored.
    pub round: &'a dyn Fn(&mut [f32]),
    /// Bytes of hidden states that may be held in memory.
    pub memory: Option<u64>,
    /// The folder for the state of the optimizer.
    pub folder: &'a Path,
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

/// The training targets of the windows.
struct Targets {
    /// The dense model's last hidden states, by window; those that are held out come
    /// last.
    states: ChunkStore,
    /// Which of them are computed.
    computed: Vec<bool>,
    /// The first window in `states`: 0, or the first that is held out if the dense model
    /// runs with every step.
    first: usize,
    head: Weight,
    norm: Norm,
    /// The dense model's layers, if the states after each of them are targets too.
    layers: Vec<Layer>,
    /// These states, of the latest window.
    by_layer: Vec<Vec<f32>>,
}

impl Targets {
    /// Runs the dense model on a window whose last states are not known yet, and on those
    /// that follow it: layers are loaded once for all of them.
    fn compute(&mut self, distiller: &Distiller<'_>, window: usize) -> Result<(), RecoverError> {
        let model = distiller.reference;
        let size = distiller.window(window).len() * model.config().hidden;
        let group = (GROUP_BYTES / (size * size_of::<f32>()).max(1)).max(1);
        let missing = |&window: &usize| !self.computed[window - self.first];
        let end = self.first + self.computed.len();
        let group: Vec<usize> = (window..end).take_while(missing).take(group).collect();
        let windows: Vec<Vec<u32>> =
            group.iter().map(|&window| distiller.window(window).clone()).collect();
        let mut hidden = model.embed(&windows)?;
        for index in 0..model.config().layers {
            let layer = training_layer(model, index, distiller.options.rounds)?;
            layer.forward(&mut hidden, &mut NoTap);
        }
        let io = |error| RecoverError::io(distiller.folder, error);
        for (window, states) in group.iter().zip(hidden.into_states().into_vec().chunks(size)) {
            self.states.put(window - self.first, states.to_vec()).map_err(io)?;
            self.computed[window - self.first] = true;
        }
        Ok(())
    }

    /// Runs the dense model on a window, keeping the states after each layer.
    fn follow(&mut self, model: &Model<'_>, window: &Vec<u32>) -> Result<(), RecoverError> {
        let mut hidden = model.embed(std::slice::from_ref(window))?;
        self.by_layer.resize(self.layers.len(), Vec::new());
        for (layer, states) in self.layers.iter().zip(&mut self.by_layer) {
            layer.forward(&mut hidden, &mut NoTap);
            states.clear();
            states.extend_from_slice(hidden.states().data());
        }
        Ok(())
    }
}

impl Distiller<'_> {
    /// Trains, continuing an interrupted stage.
    pub fn run(&self, on_progress: &mut OnProgress<'_>) -> Result<Distilled, RecoverError> {
        let dir = StateDir::new(self.folder);
        let mut targets = self.targets()?;
        let head = load_head(self.model, self.options.rounds)?;
        let mut student = self.student()?;
        let mut run = Run {
            distiller: self,
            passes: Passes::new(self.model, self.windows.first().map_or(0, Vec::len)),
            targets: &mut targets,
            head: &head,
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
        let mut rates = self.options.rates();
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
        Student::load(self.model, self.options.rounds, self.coded)
    }

    fn moments(&self, student: &mut Student<'_>) -> Moments {
        let trained = self.options.trained;
        Moments::new(student.parameters_mut().map(|(parameter, numbers)| {
            match parameter.map_or(trained.norms(), |parameter| trained.includes(parameter)) {
                true => numbers.len(),
                false => 0,
            }
        }))
    }

    /// The targets, none of which is computed yet.
    fn targets(&self) -> Result<Targets, RecoverError> {
        let model = self.reference;
        let follows = self.options.states > 0.0;
        let first = if follows { self.windows.len() } else { 0 };
        let count = self.windows.len() + self.held_out.len() - first;
        let layers = if follows { 0..model.config().layers } else { 0..0 };
        let layers: Result<Vec<Layer>, RecoverError> =
            layers.map(|index| training_layer(model, index, self.options.rounds)).collect();
        let size = self.windows.first().map_or(0, Vec::len) * model.config().hidden;
        let sizes = vec![size; count];
        let bytes = (count * size * size_of::<f32>()) as u64;
        let states = match bytes > self.memory.unwrap_or(STATE_BYTES) {
            true => ChunkStore::in_file(self.folder, &sizes)
                .map_err(|error| RecoverError::io(self.folder, error))?,
            false => ChunkStore::in_memory(&sizes),
        };
        Ok(Targets {
            states,
            computed: vec![false; count],
            first,
            head: load_head(model, self.options.rounds)?,
            norm: model.head()?.norm.clone(),
            layers: layers?,
            by_layer: Vec::new(),
        })
    }

    /// Window `index`; those that are held out come last.
    fn window(&self, index: usize) -> &Vec<u32> {
        let held_out = || &self.held_out[index - self.windows.len()];
        self.windows.get(index).unwrap_or_else(held_out)
    }

    fn objective(&self) -> Objective {
        let (distillation, cross_entropy) = match self.options.loss {
            LossKind::Kl => (1.0, 0.0),
            LossKind::CrossEntropy => (0.0, 1.0),
            LossKind::Mix => (0.5, 0.5),
        };
        Objective { distillation, cross_entropy, temperature: self.options.temperature as f32 }
    }
}

/// The output projection of a model, in f32.
fn load_head(model: &Model<'_>, rounds: bool) -> Result<Weight, RecoverError> {
    let head = model.head()?;
    let (rows, width) = (head.rows.count(), model.config().hidden);
    let mut matrix = Matrix::zeros(rows, width);
    head.rows.read(0..rows, matrix.data_mut());
    let mut weight = Weight::F32(matrix);
    weight.round_products(rounds);
    Ok(weight)
}

/// Memory of the steps of a training.
struct StepMemory {
    /// The gradients of a batch, and those of one window if there are several.
    sum: Gradients,
    one: Option<Gradients>,
    /// The pruned weights, if weights decay towards them.
    anchor: Option<Student<'static>>,
}

impl StepMemory {
    fn new(distiller: &Distiller<'_>, student: &Student<'_>) -> Result<Self, RecoverError> {
        let StageOptions { batch, decay, .. } = *distiller.options;
        Ok(Self {
            sum: Gradients::new(student),
            one: (batch > 1).then(|| Gradients::new(student)),
            anchor: (decay > 0.0)
                .then(|| Student::load(distiller.model, false, &[]))
                .transpose()?,
        })
    }
}

/// A stage in progress.
struct Run<'a> {
    distiller: &'a Distiller<'a>,
    passes: Passes,
    targets: &'a mut Targets,
    head: &'a Weight,
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
        let Distiller { options, windows, .. } = *self.distiller;
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
        let StageOptions { steps, schedule, .. } = *self.distiller.options;
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
        let Distiller { options, windows, seed, .. } = *self.distiller;
        let StageOptions { batch, decay, .. } = *options;
        let StepMemory { sum, one, anchor } = memory;
        let mut loss = 0.0;
        for i in 0..batch {
            let window = window_at(step * batch + i, windows.len(), seed);
            match one.as_mut().filter(|_| i > 0) {
                None => loss += self.gradients(student, window, Some(&mut *sum))?,
                Some(one) => {
                    loss += self.gradients(student, window, Some(&mut *one))?;
                    sum.add(one);
                }
            }
        }
        loss /= batch as f64;
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
        let (first, count) = (self.distiller.windows.len(), self.distiller.held_out.len());
        let mut sum = 0.0;
        for window in first..first + count {
            sum += self.gradients(student, window, None)?;
        }
        Ok(sum / count as f64)
    }

    /// The loss of one window, and its gradients if asked for.
    fn gradients(
        &mut self,
        student: &Student<'_>,
        window: usize,
        into: Option<&mut Gradients>,
    ) -> Result<f64, RecoverError> {
        let Distiller { model, options, folder, .. } = *self.distiller;
        let tokens = self.distiller.window(window);
        let embedded = model.embed(std::slice::from_ref(tokens))?;
        let t = tokens.len();
        let next: Vec<Option<u32>> = tokens[1..].iter().copied().map(Some).chain([None]).collect();
        let (weight, reference) = (options.states as f32, self.distiller.reference);
        let follows = weight > 0.0 && into.is_some();
        if follows {
            self.targets.follow(reference, tokens)?;
        } else if !self.targets.computed[window - self.targets.first] {
            self.targets.compute(self.distiller, window)?;
        }
        let Targets { states: dense, first, head, norm, by_layer, .. } = &mut *self.targets;
        let wanted = match by_layer.last().filter(|_| follows) {
            Some(last) => last.as_slice().into(),
            None => dense.get(window - *first).map_err(|error| RecoverError::io(folder, error))?,
        };
        let logits = LogitMap::new(model.config());
        let theirs = Head { norm, rows: EmbeddingRows::Held(head), logits };
        let top = Reference {
            head: &theirs,
            states: MatrixRef::new(&wanted, t, reference.config().hidden),
        };
        let ours = Head { norm: &student.norm, rows: EmbeddingRows::Held(self.head), logits };
        let goal = Goal {
            objective: self.distiller.objective(),
            reference: top,
            next: &next,
            states: follows.then_some((weight, by_layer.as_slice())),
        };
        Ok(self.passes.run(student, &ours, embedded, &goal, into))
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
