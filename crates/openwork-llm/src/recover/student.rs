//! The model in training: its parameters, their gradients, and one window's forward and
//! backward pass. [`Student::flat`] and [`Gradients::flat`] are the form in which weights and
//! gradients move between processes.

use super::RecoverError;
use super::latent::{CodedLinear, LatentWeights};
use super::optimizer::CHUNK;
use crate::model::backward::{
    Activations, Interior, LayerGradients, Objective, Reference, token_loss,
};
use crate::model::keep_awake::keep_awake;
use crate::model::vector::{self, add_scaled};
use crate::model::{Config, Head, Hidden, Layer, Model, Norm, Parameter, Storage};
use openwork::MatrixRef;
use rayon::prelude::*;

/// The weights in training.
pub struct Student<'a> {
    pub(super) layers: Vec<Layer>,
    pub(super) norm: Norm,
    /// Of each layer.
    latent: Vec<LatentWeights<'a>>,
    /// The family's offset, added to the stored weights of the norm.
    offset: f32,
}

/// Layer `index`, whose products may round their operands to bf16 if `rounds`.
pub(super) fn training_layer(
    model: &Model<'_>,
    index: usize,
    rounds: bool,
) -> Result<Layer, RecoverError> {
    let mut layer = model.layer(index, Storage::F32)?;
    layer.round_products(rounds);
    Ok(layer)
}

/// The gradients of a window.
#[derive(Clone)]
pub(super) struct Gradients {
    layers: Vec<LayerGradients>,
    norm: Vec<f32>,
}

impl Gradients {
    pub fn new(student: &Student<'_>) -> Self {
        Self {
            layers: student.layers.iter().map(LayerGradients::new).collect(),
            norm: vec![0.0; student.norm.width()],
        }
    }

    pub fn slices(&self) -> impl Iterator<Item = &[f32]> {
        self.layers.iter().flat_map(LayerGradients::slices).chain([self.norm.as_slice()])
    }

    fn slices_mut(&mut self) -> impl Iterator<Item = &mut [f32]> {
        let layers = self.layers.iter_mut().flat_map(LayerGradients::slices_mut);
        layers.chain([self.norm.as_mut_slice()])
    }

    /// All gradients, one after the other.
    pub fn flat(&self) -> Vec<f32> {
        self.slices().collect::<Vec<_>>().concat()
    }
}

/// The sum of the gradients of some windows.
pub struct GradientSum {
    sum: Gradients,
    /// Those of one window, if they are computed here and are not the first.
    one: Option<Gradients>,
    /// Number of windows.
    count: usize,
}

impl GradientSum {
    /// Of no windows.
    pub(super) fn new(student: &Student<'_>) -> Self {
        Self { sum: Gradients::new(student), one: None, count: 0 }
    }

    /// Begins the sum of other windows.
    pub(super) fn clear(&mut self) {
        self.count = 0;
    }

    /// The gradients of all parameters; those of no window are undefined.
    pub(super) fn slices(&self) -> impl Iterator<Item = &[f32]> {
        self.sum.slices()
    }

    /// Adds the gradients of the next window, which `compute` writes.
    pub(super) fn add(
        &mut self,
        compute: impl FnOnce(&mut Gradients) -> Result<f64, RecoverError>,
    ) -> Result<f64, RecoverError> {
        let Self { sum, one, count } = self;
        *count += 1;
        if *count == 1 {
            return compute(sum);
        }
        let one = one.get_or_insert_with(|| sum.clone());
        let loss = compute(one)?;
        sum.slices_mut().zip(one.slices()).for_each(|(sum, one)| add(sum, one));
        Ok(loss)
    }

    /// Adds the gradients of the next window, which another process computed
    /// ([`WindowWorker::gradients`](super::WindowWorker::gradients)).
    pub fn add_flat(&mut self, gradients: &[f32]) -> Result<(), RecoverError> {
        let slices = self.sum.slices_mut();
        let parts = split(gradients, slices.collect(), "gradients")?;
        self.count += 1;
        for (sum, one) in parts {
            match self.count {
                1 => sum.copy_from_slice(one),
                _ => add(sum, one),
            }
        }
        Ok(())
    }
}

fn add(sum: &mut [f32], one: &[f32]) {
    let chunks = sum.par_chunks_mut(CHUNK).zip(one.par_chunks(CHUNK));
    chunks.for_each(|(sum, one)| vector::add(sum, one));
}

/// Pairs the numbers of several slices with those that another process sent for them, one slice
/// after the other. `what` names them in errors.
fn split<'s, 'f>(
    mut flat: &'f [f32],
    slices: Vec<&'s mut [f32]>,
    what: &str,
) -> Result<Vec<(&'s mut [f32], &'f [f32])>, RecoverError> {
    let wanted: usize = slices.iter().map(|slice| slice.len()).sum();
    if flat.len() != wanted {
        let found = flat.len();
        return Err(RecoverError::Executor(format!(
            "{found} {what} arrived from another process for {wanted} parameters; its model differs"
        )));
    }
    let pair = |slice: &'s mut [f32]| {
        let (own, rest) = flat.split_at(slice.len());
        flat = rest;
        (slice, own)
    };
    Ok(slices.into_iter().map(pair).collect())
}

impl<'a> Student<'a> {
    /// The model's weights; `rounds` says whether products may round their operands to bf16.
    /// `coded` lists, by layer, the linears whose weights stay values of codes.
    pub(super) fn load(
        model: &Model<'_>,
        rounds: bool,
        coded: &'a [Vec<CodedLinear>],
    ) -> Result<Self, RecoverError> {
        let (mut layers, mut latent) = (Vec::new(), Vec::new());
        for index in 0..model.config().layers {
            let mut layer = training_layer(model, index, rounds)?;
            let coded = coded.get(index).map_or(&[][..], Vec::as_slice);
            latent.push(LatentWeights::new(&mut layer, coded));
            layers.push(layer);
        }
        let offset = model.config().family.norm_offset;
        Ok(Self { layers, norm: model.head()?.norm.clone(), latent, offset })
    }

    /// Every parameter with the numbers that are trained; the last norm comes last, and is
    /// `None`. After a change of them, [`encode`](Self::encode) is due.
    pub(super) fn parameters_mut(
        &mut self,
    ) -> impl Iterator<Item = (Option<Parameter>, &mut [f32])> {
        let layers = self.layers.iter_mut().zip(&mut self.latent);
        let layers = layers.flat_map(|(layer, latent)| latent.parameters_mut(layer));
        layers
            .map(|(parameter, numbers)| (Some(parameter), numbers))
            .chain([(None, self.norm.factors_mut())])
    }

    /// Every parameter as the passes of windows use it, one after the other: with the values of
    /// codes, not the latent weights behind them.
    pub fn flat(&self) -> Vec<f32> {
        let layers = self
            .layers
            .iter()
            .flat_map(|layer| Parameter::all(layer.info()).map(move |p| layer.parameter(p)));
        layers.chain([self.norm.factors()]).collect::<Vec<_>>().concat()
    }

    /// Receives the [`flat`](Self::flat) parameters of a student of the same model.
    pub(super) fn set_flat(&mut self, flat: &[f32]) -> Result<(), RecoverError> {
        let layers = self.layers.iter_mut().flat_map(Layer::parameters_mut);
        let own = layers.map(|(_, numbers)| numbers).chain([self.norm.factors_mut()]);
        for (own, new) in split(flat, own.collect(), "weights")? {
            own.copy_from_slice(new);
        }
        Ok(())
    }

    /// Gives the layers the values of the codes that are nearest to their latent weights.
    pub(super) fn encode(&mut self) {
        let layers = self.layers.iter_mut().zip(&mut self.latent);
        layers.for_each(|(layer, latent)| latent.encode(layer));
    }

    /// Rounds the weights of the layers, as they will be stored.
    pub(super) fn round(&mut self, round: &dyn Fn(&mut [f32])) {
        self.layers.iter_mut().for_each(|layer| layer.round(round));
        let (norm, offset) = (self.norm.factors_mut(), self.offset);
        norm.iter_mut().for_each(|x| *x -= offset);
        round(norm);
        norm.iter_mut().for_each(|x| *x += offset);
    }
}

impl super::state::Parameters for Student<'_> {
    fn tensors(&mut self) -> Vec<&mut [f32]> {
        self.parameters_mut().map(|(_, numbers)| numbers).collect()
    }
}

/// What a window is trained towards.
pub(super) struct Goal<'a> {
    pub objective: Objective,
    /// The dense model's head and last states.
    pub reference: Reference<'a>,
    /// The next tokens.
    pub next: &'a [Option<u32>],
    /// The dense model's states after each layer, and the weight of the mean over layers of
    /// the distance to them ([`token_loss`]).
    pub states: Option<(f32, &'a [Vec<f32>])>,
}

/// Bytes of activations that are kept for the backward pass.
const ACTIVATION_BYTES: u64 = 3 << 30;

/// Whether the activations of all layers are kept for windows of `t` tokens; else only the
/// inputs of layers are, and every layer runs forward a second time.
fn keeps_all(c: &Config, t: usize) -> bool {
    c.layers as u64 * Activations::bytes(c, t) <= ACTIVATION_BYTES
}

/// Bytes that the passes of a window of `t` tokens keep.
pub fn pass_bytes(c: &Config, t: usize) -> u64 {
    let (layers, one) = (c.layers as u64, Activations::bytes(c, t));
    match keeps_all(c, t) {
        true => layers * one,
        false => one + layers * (t * c.hidden * size_of::<f32>()) as u64,
    }
}

/// Memory of the passes of one window.
pub(super) struct PassMemory {
    /// One for each layer if all are kept, else one.
    activations: Vec<Activations>,
    /// Inputs of the layers, if activations are not kept.
    inputs: Vec<Vec<f32>>,
    interior: Interior,
}

impl PassMemory {
    /// For windows of `t` tokens.
    pub fn new(model: &Model<'_>, t: usize) -> Self {
        let c = model.config();
        let all = keeps_all(c, t);
        let count = if all { c.layers } else { 1 };
        Self {
            activations: (0..count).map(|_| Activations::default()).collect(),
            inputs: vec![Vec::new(); if all { 0 } else { c.layers }],
            interior: Interior::default(),
        }
    }

    /// The objective of one window, given its embedded tokens. If asked for, the gradients of
    /// the objective with the distance of states.
    pub fn run(
        &mut self,
        student: &Student<'_>,
        head: &Head<'_>,
        embedded: Hidden,
        goal: &Goal<'_>,
        into: Option<&mut Gradients>,
    ) -> f64 {
        let Self { activations, inputs, interior } = self;
        let (t, width) = (goal.next.len(), student.norm.width());
        let keeps = inputs.is_empty();
        keep_awake(|| {
            // Layers overwrite only their own shared keys and values, so these stay those that
            // each layer reads.
            let (states, mut carried) = embedded.into_parts();
            let mut h = states.into_vec();
            for (i, layer) in student.layers.iter().enumerate() {
                if !keeps {
                    inputs[i].clone_from(&h);
                }
                let kept = &mut activations[if keeps { i } else { 0 }];
                layer.forward_saving(&mut h, &mut carried, kept);
            }
            let states = MatrixRef::new(&h, t, width);
            let Some(into) = into else {
                return head.objective(goal.objective, states, Some(goal.reference), goal.next);
            };
            let top = head.backward(goal.objective, states, Some(goal.reference), goal.next);
            into.norm.copy_from_slice(&top.norm);
            let mut d = top.states.into_vec();
            let mut d_shared = vec![0.0; carried.keys_values.len()];
            for (i, layer) in student.layers.iter().enumerate().rev() {
                if let Some((weight, wanted)) = goal.states {
                    // `h` is the output of this layer; it becomes the gradient of its distance.
                    token_loss(&mut h, MatrixRef::new(&wanted[i], t, width));
                    add_scaled(&mut d, &h, weight / student.layers.len() as f32);
                }
                let kept = &mut activations[if keeps { i } else { 0 }];
                if !keeps {
                    h.copy_from_slice(&inputs[i]);
                    layer.forward_saving(&mut h, &mut carried, kept);
                }
                layer.backward(kept, interior, &mut d, &mut d_shared, &mut into.layers[i]);
                h.copy_from_slice(kept.input());
            }
            top.loss
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::checkpoint::Checkpoint;
    use std::path::Path;

    /// Moves along the gradient change the loss by its square.
    #[test]
    fn gradients_are_those_of_the_loss_with_its_states() {
        // Layers on their own, gated delta nets, and layers that share keys and values.
        ["llama", "qwen3.5-moe", "gemma4-e2b", "gemma4-e2b-moe"]
            .into_iter()
            .for_each(check_gradients);
    }

    fn check_gradients(name: &str) {
        let models = Path::new(env!("CARGO_MANIFEST_DIR")).join("../../testdata/models");
        let folder = models.join(name);
        let checkpoint = Checkpoint::open(&folder).unwrap();
        let model = Model::open(&checkpoint).unwrap();
        let tokens: Vec<u32> = (0..20).map(|i| i * 13 % 250).collect();
        let embedded = model.embed(std::slice::from_ref(&tokens)).unwrap();
        let (t, width) = (tokens.len(), model.config().hidden);
        let head = model.head().unwrap();
        let next: Vec<Option<u32>> = tokens[1..].iter().copied().map(Some).chain([None]).collect();
        let objective = Objective { distillation: 1.0, cross_entropy: 0.5, temperature: 1.0 };
        // States unlike those of the model.
        let number = |i: usize| (i * 7919 % 251) as f32 / 100.0 - 1.2;
        let states = |seed: usize| (0..t * width).map(|i| number(i + seed)).collect::<Vec<f32>>();
        let wanted: Vec<Vec<f32>> = (0..model.config().layers).map(states).collect();
        let reference = Reference { head: &head, states: MatrixRef::new(&wanted[0], t, width) };
        for (weight, keeps) in [(0.0, true), (3.0, true), (3.0, false)] {
            let goal = Goal {
                objective,
                reference,
                next: &next,
                states: (weight > 0.0).then_some((weight, wanted.as_slice())),
            };
            let mut student = Student::load(&model, false, &[]).unwrap();
            let mut memory = PassMemory::new(&model, t);
            if !keeps {
                memory.activations.truncate(1);
                memory.inputs = vec![Vec::new(); model.config().layers];
            }
            let mut gradients = Gradients::new(&student);
            memory.run(&student, &head, embedded.copy(), &goal, Some(&mut gradients));
            let mut loss = |student: &Student<'_>| {
                let (states, mut carried) = embedded.copy().into_parts();
                let mut h = states.into_vec();
                let mut sum = 0.0;
                let mut kept = Activations::default();
                for (layer, wanted) in student.layers.iter().zip(&wanted) {
                    layer.forward_saving(&mut h, &mut carried, &mut kept);
                    let mut o = h.clone();
                    sum += token_loss(&mut o, MatrixRef::new(wanted, t, width));
                }
                let top = memory.run(student, &head, embedded.copy(), &goal, None);
                top + f64::from(weight) * sum / student.layers.len() as f64
            };
            // The last norm is part of the head here, so it does not move.
            let squares: f64 = gradients
                .layers
                .iter()
                .flat_map(LayerGradients::slices)
                .flatten()
                .map(|g| f64::from(*g) * f64::from(*g))
                .sum();
            // So short that no token changes its experts.
            let step = 1e-4 / squares.sqrt();
            let mut along = |by: f64| {
                for (layer, gradients) in student.layers.iter_mut().zip(&gradients.layers) {
                    for ((_, numbers), g) in layer.parameters_mut().zip(gradients.slices()) {
                        add_scaled(numbers, g, by as f32);
                    }
                }
                loss(&student)
            };
            let (up, down) = (along(step), along(-2.0 * step));
            let got = (up - down) / (2.0 * step);
            assert!(
                (got / squares - 1.0).abs() < 0.002,
                "{name}, weight {weight}: {got} for {squares}"
            );
        }
    }
}
