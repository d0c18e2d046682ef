//! The windows of a stage that trains the whole model. The loss of a window and its gradients
//! depend only on the weights in training and on the window itself, so windows can be computed
//! anywhere: [`LocalPasses`] runs them in this process, one after the other, a cluster by
//! [`WindowWorker`](super::WindowWorker)s. Gradients are added in the order of the windows, so
//! the sum has the same bytes everywhere.

use super::RecoverError;
use super::student::{Goal, GradientSum, Gradients, PassMemory, Student, training_layer};
use super::text::{LossKind, StageOptions};
use crate::chunk_store::ChunkStore;
use crate::model::backward::{Objective, Reference};
use crate::model::{EmbeddingRows, Head, Hidden, Layer, LogitMap, Model, NoTap, Norm, Weight};
use openwork::{Matrix, MatrixRef};
use std::path::Path;

/// Bytes of the dense model's last hidden states that are held in memory, if the user
/// sets no limit.
const STATE_BYTES: u64 = 2 << 30;

/// Bytes of hidden states that the dense model computes at a time.
const GROUP_BYTES: usize = 64 << 20;

/// What a stage trains on, and towards: everything that the loss of a window depends on,
/// except the weights in training.
#[derive(Clone, Copy)]
pub struct Distillation<'a> {
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
    /// Bytes of hidden states that may be held in memory.
    pub memory: Option<u64>,
    /// The folder for hidden states and for the state of the optimizer.
    pub folder: &'a Path,
}

impl Distillation<'_> {
    /// Number of windows, those that are held out included.
    pub fn count(&self) -> usize {
        self.windows.len() + self.held_out.len()
    }

    /// Window `index`; those that are held out come last.
    ///
    /// # Panics
    ///
    /// If `index` is not below [`count`](Self::count).
    pub fn window(&self, index: usize) -> &Vec<u32> {
        let held_out = || &self.held_out[index - self.windows.len()];
        self.windows.get(index).unwrap_or_else(held_out)
    }

    /// Tokens per window.
    pub fn length(&self) -> usize {
        self.windows.first().map_or(0, Vec::len)
    }

    /// Whether the dense model's states after each layer are targets too.
    fn follows(&self) -> bool {
        self.options.states > 0.0
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

/// Computes the windows of a stage that trains the whole model, in this process or on a
/// cluster.
pub trait WindowPasses {
    /// The losses of windows in their order, with the student's current weights. If `sum` is
    /// given, adds the gradients of every window to it, in the order of the windows.
    fn losses(
        &mut self,
        student: &Student<'_>,
        windows: &[usize],
        sum: Option<&mut GradientSum>,
    ) -> Result<Vec<f64>, RecoverError>;
}

/// Computes windows in this process, one after the other, each on all threads.
pub struct LocalPasses<'a> {
    task: &'a Distillation<'a>,
    computer: WindowComputer,
}

impl<'a> LocalPasses<'a> {
    /// For the windows of a stage.
    pub fn new(task: &'a Distillation<'a>) -> Result<Self, RecoverError> {
        Ok(Self { task, computer: WindowComputer::new(task, GROUP_BYTES)? })
    }
}

impl WindowPasses for LocalPasses<'_> {
    fn losses(
        &mut self,
        student: &Student<'_>,
        windows: &[usize],
        mut sum: Option<&mut GradientSum>,
    ) -> Result<Vec<f64>, RecoverError> {
        let Self { task, computer } = self;
        let mut loss = |&window: &usize| match sum.as_deref_mut() {
            None => computer.loss(task, student, window, None),
            Some(sum) => sum.add(|into| computer.loss(task, student, window, Some(into))),
        };
        windows.iter().map(&mut loss).collect()
    }
}

/// The memory and the targets of the passes of single windows.
pub(super) struct WindowComputer {
    memory: PassMemory,
    targets: Targets,
    head: Weight,
}

impl WindowComputer {
    /// `group` is the number of bytes of hidden states that the dense model computes at a
    /// time: if it has room, also those of the windows after the one that is needed.
    pub fn new(task: &Distillation<'_>, group: usize) -> Result<Self, RecoverError> {
        Ok(Self {
            memory: PassMemory::new(task.model, task.length()),
            targets: Targets::new(task, group)?,
            head: load_head(task.model, task.options.rounds)?,
        })
    }

    /// The loss of a window, and its gradients if asked for.
    pub fn loss(
        &mut self,
        task: &Distillation<'_>,
        student: &Student<'_>,
        window: usize,
        into: Option<&mut Gradients>,
    ) -> Result<f64, RecoverError> {
        let Distillation { model, reference, options, folder, .. } = *task;
        let tokens = task.window(window);
        let embedded = model.embed(std::slice::from_ref(tokens))?;
        let t = tokens.len();
        let next: Vec<Option<u32>> = tokens[1..].iter().copied().map(Some).chain([None]).collect();
        let follows = task.follows() && into.is_some();
        if follows {
            self.targets.follow(reference, tokens)?;
        } else if !self.targets.computed[window - self.targets.first] {
            self.targets.compute(task, window)?;
        }
        let Targets { states: dense, first, head, norm, by_layer, .. } = &mut self.targets;
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
        let ours = Head { norm: &student.norm, rows: EmbeddingRows::Held(&self.head), logits };
        let goal = Goal {
            objective: task.objective(),
            reference: top,
            next: &next,
            states: follows.then_some((options.states as f32, by_layer.as_slice())),
        };
        Ok(self.memory.run(student, &ours, embedded, &goal, into))
    }
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
    /// Bytes of states that are computed at a time.
    group: usize,
    head: Weight,
    norm: Norm,
    /// The dense model's layers, if the states after each of them are targets too.
    layers: Vec<Layer>,
    /// These states, of the latest window.
    by_layer: Vec<Vec<f32>>,
}

impl Targets {
    /// None of them computed yet.
    fn new(task: &Distillation<'_>, group: usize) -> Result<Self, RecoverError> {
        let model = task.reference;
        let first = if task.follows() { task.windows.len() } else { 0 };
        let count = task.count() - first;
        let layers = if task.follows() { 0..model.config().layers } else { 0..0 };
        let layers: Result<Vec<Layer>, RecoverError> =
            layers.map(|index| training_layer(model, index, task.options.rounds)).collect();
        let size = task.length() * model.config().hidden;
        let sizes = vec![size; count];
        let bytes = (count * size * size_of::<f32>()) as u64;
        let states = match bytes > task.memory.unwrap_or(STATE_BYTES) {
            true => ChunkStore::in_file(task.folder, &sizes)
                .map_err(|error| RecoverError::io(task.folder, error))?,
            false => ChunkStore::in_memory(&sizes),
        };
        Ok(Self {
            states,
            computed: vec![false; count],
            first,
            group,
            head: load_head(model, task.options.rounds)?,
            norm: model.head()?.norm.clone(),
            layers: layers?,
            by_layer: Vec::new(),
        })
    }

    /// Runs the dense model on a window whose last states are not known yet, and on those
    /// that follow it, as far as the group has room: layers are loaded once for all of them.
    /// Each window runs alone, because products of a few rows and of many may round
    /// differently.
    fn compute(&mut self, task: &Distillation<'_>, window: usize) -> Result<(), RecoverError> {
        let model = task.reference;
        let size = task.window(window).len() * model.config().hidden;
        let group = (self.group / (size * size_of::<f32>()).max(1)).max(1);
        let missing = |&window: &usize| !self.computed[window - self.first];
        let end = self.first + self.computed.len();
        let group: Vec<usize> = (window..end).take_while(missing).take(group).collect();
        let embed = |&window: &usize| model.embed(std::slice::from_ref(task.window(window)));
        let mut hidden = group.iter().map(embed).collect::<Result<Vec<Hidden>, _>>()?;
        for index in 0..model.config().layers {
            let layer = training_layer(model, index, task.options.rounds)?;
            hidden.iter_mut().for_each(|hidden| layer.forward(hidden, &mut NoTap));
        }
        for (&window, hidden) in group.iter().zip(hidden) {
            let states = hidden.into_states().into_vec();
            self.states
                .put(window - self.first, states)
                .map_err(|error| RecoverError::io(task.folder, error))?;
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
