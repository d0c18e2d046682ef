//! Pruning methods: from weights, input statistics and a spec to a mask and new
//! weights with a small output error.
//!
//! Methods and patterns are independent of each other: a method sees only blocks,
//! which are kept or dropped whole, and scopes, which keep a fixed number of their
//! blocks.
//!
//! ```
//! use openwork::{Matrix, Pattern, hessian::HessianSum, prune::{Method, Task, prune}};
//!
//! let w = Matrix::from_fn(4, 8, |i, j| ((i * 5 + j * 3) % 7) as f32 - 3.0);
//! let x = Matrix::from_fn(64, 8, |i, j| ((i * (j + 3)) % 11) as f32 - 5.0);
//! let mut sum = HessianSum::new(8);
//! sum.add(x.view()).unwrap();
//! let h = sum.finish().unwrap();
//!
//! let spec = "2:4".parse::<Pattern>().unwrap().bind(&[4, 8]).unwrap();
//! let method: Method = "s-obs".parse().unwrap();
//! let pruned = prune(&method, &Task::one(&spec, w.data(), Some(&h))).unwrap();
//! assert_eq!(pruned.mask.density(), 0.5);
//! assert_eq!(pruned.mask.conforms(&spec), Ok(()));
//! ```

mod admm;
mod auto;
mod batches;
mod levels;
pub mod measure;
mod obs;
mod problem;
mod project;
mod quant;
mod refit;
mod score;
mod sparsegpt;
mod stored;
mod swap;
mod text;

pub use problem::{Group, Problem, Weights};
pub use stored::prune_stored;
pub use text::{
    Build, DAMPING, Method, MethodError, OptionInfo, Settings, hint, parse_chain, split_list,
};

use crate::hessian::{Curvature, Damping, Hessian, HessianError, Note};
use crate::mask::Mask;
use crate::matrix::Matrix;
use crate::sparse::Encoding;
use crate::spec::{Spec, TooWide};
use crate::values::{ValueType, ValuesRef};
use measure::{OutputError, measured};
use problem::CurvatureCache;
use std::sync::Arc;
use std::time::Instant;

/// The input statistics that a method needs.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum Needs {
    /// None: the weights suffice.
    Weights,
    /// The norm of each input column.
    Norms,
    /// All of H.
    Hessian,
}

/// A row of [`METHODS`] or [`MODIFIERS`].
pub struct MethodInfo {
    /// Its name in method text.
    pub name: &'static str,
    /// One line of help.
    pub summary: &'static str,
    /// The options it takes in brackets, besides `damping`.
    pub options: &'static [OptionInfo],
    /// The default damping.
    pub damping: Damping,
    /// How it is constructed.
    pub build: Build,
}

/// Every base method: those that choose a mask. To add one, write its file and list it here.
pub const METHODS: &[MethodInfo] =
    &[score::MAGNITUDE, score::WANDA, score::S_OBD, sparsegpt::METHOD, obs::METHOD, admm::METHOD];

/// The method used where none is given, by the command, by Python and in recipes.
pub const DEFAULT_METHOD: &str = admm::METHOD.name;

/// Every modifier, written after a plus sign.
pub const MODIFIERS: &[MethodInfo] = &[refit::METHOD, swap::METHOD, quant::METHOD];

/// A mask and the weights that go with it.
#[derive(Clone, Debug)]
pub struct Solution {
    /// The kept weights.
    pub mask: Mask,
    /// The weights of each tensor; exactly zero where they are dropped.
    pub weights: Vec<Matrix>,
    /// Notes for the user.
    pub notes: Vec<String>,
}

/// A base method: chooses a mask and weights.
pub trait Pruner: Send + Sync {
    /// The input statistics it needs.
    fn needs(&self) -> Needs;
    /// Whether rows that share no scope may be pruned separately.
    fn by_rows(&self) -> bool {
        true
    }
    /// Computes the factors it will need of a curvature that several calls share.
    fn factor(&self, _: &Curvature) {}
    /// Prunes.
    fn prune(&self, problem: &Problem<'_>, monitor: &dyn Monitor) -> Result<Solution, PruneError>;
}

/// A step after the base method that improves the mask or its weights; needs H.
pub trait Modifier: Send + Sync {
    /// Improves `solution`.
    fn improve(
        &self,
        problem: &Problem<'_>,
        solution: Solution,
        monitor: &dyn Monitor,
    ) -> Result<Solution, PruneError>;
    /// How the weights it leaves are to be packed, if it rounds them. It then comes last,
    /// and rounds all weights of the tensors, inside and outside of the domain.
    fn encoding(&self) -> Option<Encoding> {
        None
    }
}

/// Receives progress and may cancel.
pub trait Monitor: Sync {
    /// Reports that `share` of the current step is done, from 0 to 1.
    fn progress(&self, share: f64);
    /// Whether to stop as soon as possible.
    fn cancelled(&self) -> bool {
        false
    }
}

/// Ignores progress and never cancels.
impl Monitor for () {
    fn progress(&self, _: f64) {}
}

/// One tensor to prune.
#[derive(Clone, Copy)]
pub struct Member<'a> {
    /// Its weights, row-major in the dims that the spec is bound to.
    pub weights: ValuesRef<'a>,
    /// The statistics of its inputs; tensors that share inputs share a reference.
    pub hessian: Option<&'a Hessian>,
}

/// Tensors to prune together under one spec.
pub struct Task<'a> {
    /// The spec.
    pub spec: &'a Spec,
    /// The tensors, in the spec's order.
    pub members: Vec<Member<'a>>,
    /// Receives progress.
    pub monitor: &'a dyn Monitor,
}

impl<'a> Task<'a> {
    /// A task with one tensor.
    pub fn one(spec: &'a Spec, weights: &'a [f32], hessian: Option<&'a Hessian>) -> Self {
        Self { spec, members: vec![Member { weights: weights.into(), hessian }], monitor: &() }
    }
}

/// The result of pruning; weights as f32 matrices, or in their storage type.
#[derive(Clone, Debug)]
pub struct Pruned<W = Matrix> {
    /// The kept weights.
    pub mask: Mask,
    /// The new weights of each tensor.
    pub weights: Vec<W>,
    /// sqrt(tr(D H D') / tr(W H W')) with the undamped H over all tensors; with
    /// H = I where no statistics were given.
    pub error: f64,
    /// The same for each tensor.
    pub errors: Vec<f64>,
    /// The sums that `errors` are computed from; those of rows pruned separately add
    /// up.
    pub parts: Vec<OutputError>,
    /// The damping used; `None` if the method uses none.
    pub damping: Option<Damping>,
    /// Seconds from checks and factorizations to weights; measuring the error is not
    /// included.
    pub seconds: f64,
    /// Notes for the user.
    pub notes: Vec<String>,
}

/// Why a task could not be pruned.
#[derive(Debug, thiserror::Error)]
pub enum PruneError {
    /// A tensor of another size than the spec is bound to.
    #[error("tensor `{tensor}` has {found} weights, but the spec is bound to {expected}")]
    Size {
        /// The tensor.
        tensor: String,
        /// Its weights.
        found: usize,
        /// The spec's.
        expected: usize,
    },
    /// Another number of tensors than the spec has.
    #[error("found {found} tensors, but the spec is for {expected}")]
    Count {
        /// Tensors given.
        found: usize,
        /// Tensors of the spec.
        expected: usize,
    },
    /// NaN or infinity among the weights.
    #[error(
        "tensor `{tensor}` has {value} in row {row}, column {column}; every weight must be finite"
    )]
    Weight {
        /// The tensor.
        tensor: String,
        /// The row.
        row: usize,
        /// The column.
        column: usize,
        /// The value.
        value: f32,
    },
    /// A method that needs statistics got none.
    #[error(
        "{method} needs statistics of the inputs of `{tensor}`; give a Hessian or inputs, or use magnitude"
    )]
    NoHessian {
        /// The method.
        method: String,
        /// The tensor.
        tensor: String,
    },
    /// An invalid Hessian.
    #[error("tensor `{tensor}`: {error}")]
    Hessian {
        /// The tensor.
        tensor: String,
        /// What is wrong.
        error: HessianError,
    },
    /// The pattern couples too many rows.
    #[error(transparent)]
    TooWide(#[from] TooWide),
    /// A new weight outside the range of its storage type.
    #[error(
        "the new weight {value:e} at offset {offset} of `{tensor}` is outside the range of {stored}; \
         nothing was written: use more damping, or store the weights as f32 or bf16"
    )]
    Beyond {
        /// The tensor.
        tensor: String,
        /// The weight's row-major offset.
        offset: usize,
        /// The weight.
        value: f32,
        /// The type.
        stored: ValueType,
    },
    /// The monitor cancelled.
    #[error("cancelled before it finished; nothing was changed")]
    Stopped,
}

impl PruneError {
    /// An invalid Hessian of a tensor.
    pub fn hessian(tensor: &str, error: HessianError) -> Self {
        Self::Hessian { tensor: tensor.to_string(), error }
    }
}

/// Prunes a task by a method and its modifiers. The given weights are not modified.
pub fn prune(method: &Method, task: &Task<'_>) -> Result<Pruned, PruneError> {
    let started = Instant::now();
    let factors = Factors::new(method, task)?;
    let factoring = started.elapsed().as_secs_f64();
    let mut pruned = prune_with(method, task, &factors)?;
    pruned.seconds += factoring;
    Ok(pruned)
}

/// The damped and factored Hessians of a task, shared by rows that are pruned
/// separately.
#[derive(Debug)]
pub struct Factors {
    /// One for each distinct Hessian; none if the method needs none.
    curvatures: Vec<Arc<Curvature>>,
    /// Curvatures of subsets of the columns, computed on demand.
    parts: CurvatureCache,
    notes: Vec<String>,
}

impl Factors {
    /// Resolves the damping and factors. The task must hold everything that will be
    /// pruned, even if its rows are then pruned separately.
    pub fn new(method: &Method, task: &Task<'_>) -> Result<Self, PruneError> {
        checked_weights(task)?;
        let inputs = Inputs::new(method, task)?;
        let (mut notes, mut curvatures) = (Vec::new(), Vec::new());
        match method.needs() {
            Needs::Weights => {}
            Needs::Norms => {
                for (h, name) in inputs.each() {
                    add_notes(&mut notes, inputs.names.len(), name, h.dead_note().as_slice());
                }
            }
            Needs::Hessian => {
                let damping = resolved(method, task, &inputs, &mut notes)?;
                for (h, name) in inputs.each() {
                    let curvature =
                        h.damp(damping).map_err(|error| PruneError::hessian(name, error))?;
                    add_notes(&mut notes, inputs.names.len(), name, curvature.notes());
                    method.base.factor(&curvature);
                    curvatures.push(Arc::new(curvature));
                }
            }
        }
        Ok(Self { curvatures, parts: CurvatureCache::default(), notes })
    }
}

/// The damping that a method would use for a task, with notes on how it was
/// chosen; `None` if it uses none. Together with [`Method::with_damping`] it lets
/// rows that are pruned on several machines share one choice.
pub fn damping(
    method: &Method,
    task: &Task<'_>,
) -> Result<Option<(Damping, Vec<String>)>, PruneError> {
    if method.needs() != Needs::Hessian {
        return Ok(None);
    }
    let mut notes = Vec::new();
    let inputs = Inputs::new(method, task)?;
    Ok(Some((resolved(method, task, &inputs, &mut notes)?, notes)))
}

fn resolved(
    method: &Method,
    task: &Task<'_>,
    inputs: &Inputs<'_>,
    notes: &mut Vec<String>,
) -> Result<Damping, PruneError> {
    if method.damping != Damping::Auto {
        return Ok(method.damping);
    }
    let weights = checked_weights(task)?;
    let choice =
        auto::choose(task.spec, &weights, &inputs.hessian_of, &inputs.hessians, &inputs.names)?;
    add_notes(notes, 1, inputs.names[0], &choice.notes);
    Ok(choice.damping)
}

/// The distinct Hessians of a task.
struct Inputs<'a> {
    hessians: Vec<&'a Hessian>,
    /// The index of each tensor's Hessian.
    hessian_of: Vec<usize>,
    /// The first tensor that has each.
    names: Vec<&'a str>,
}

impl<'a> Inputs<'a> {
    /// Hessians are compared by reference: tensors with the same inputs share one.
    fn new(method: &Method, task: &Task<'a>) -> Result<Self, PruneError> {
        let mut found = Self { hessians: Vec::new(), hessian_of: Vec::new(), names: Vec::new() };
        for (tensor, member) in task.spec.tensors().iter().zip(&task.members) {
            let name = tensor.name();
            let Some(h) = member.hessian else {
                if method.needs() == Needs::Weights {
                    continue;
                }
                let method = method.to_string();
                return Err(PruneError::NoHessian { method, tensor: name.to_string() });
            };
            h.fits(tensor.matrix().1).map_err(|error| PruneError::hessian(name, error))?;
            let known = found.hessians.iter().position(|known| std::ptr::eq(*known, h));
            found.hessian_of.push(known.unwrap_or(found.hessians.len()));
            if known.is_none() {
                found.hessians.push(h);
                found.names.push(name);
            }
        }
        Ok(found)
    }

    fn each(&self) -> impl Iterator<Item = (&'a Hessian, &'a str)> {
        self.hessians.iter().copied().zip(self.names.iter().copied())
    }
}

/// Prunes with factors computed before, from this task or from a larger one that
/// contains its rows and has the same Hessians.
pub fn prune_with(
    method: &Method,
    task: &Task<'_>,
    factors: &Factors,
) -> Result<Pruned, PruneError> {
    let started = Instant::now();
    let spec = task.spec;
    let weights = checked_weights(task)?;
    let inputs = Inputs::new(method, task)?;
    let (curvatures, mut notes) = (factors.curvatures.clone(), factors.notes.clone());
    let damping =
        curvatures.iter().map(|c| c.damping()).max_by(|a, b| a.strength().total_cmp(&b.strength()));
    let problem = Problem::new(spec, weights, inputs.hessian_of, inputs.hessians, curvatures)
        .sharing(&factors.parts);
    let solve = |problem: &Problem<'_>| {
        let solution = method.base.prune(problem, task.monitor)?;
        method.modifiers.iter().try_fold(solution, |solution, modifier| {
            modifier.improve(problem, solution, task.monitor)
        })
    };
    let mut solution = match spec.has_levels() {
        true => levels::prune(&problem, method.needs(), task.monitor, &solve)?,
        false => solve(&problem)?,
    };
    if let Some(rounding) = &method.rounding {
        solution = rounding.improve(&problem, solution, task.monitor)?;
    }
    for note in solution.notes {
        if !notes.contains(&note) {
            notes.push(note);
        }
    }
    let seconds = started.elapsed().as_secs_f64();
    let parts: Vec<OutputError> = (0..spec.tensors().len())
        .map(|t| {
            let (w, new) = (problem.weights[t], &solution.weights[t]);
            match problem.hessian(t) {
                Some(h) => {
                    let (h, new) = (h.matrix().view(), new.view());
                    measured((w.rows(), w.cols()), h, |i, j| w.at(i, j), |i, j| new.at(i, j))
                }
                None => weight_error(w, new),
            }
        })
        .collect();
    Ok(Pruned {
        mask: solution.mask,
        weights: solution.weights,
        error: parts.iter().copied().sum::<OutputError>().relative(),
        errors: parts.iter().map(|part| part.relative()).collect(),
        parts,
        damping,
        seconds,
        notes,
    })
}

fn add_notes(notes: &mut Vec<String>, hessians: usize, name: &str, new: &[Note]) {
    for note in new {
        notes.push(if hessians == 1 { note.to_string() } else { format!("{name}: {note}") });
    }
}

/// The change of the weights themselves, which is the output error for H = I.
fn weight_error(w: Weights<'_>, new: &Matrix) -> OutputError {
    let square = |x: f32| f64::from(x) * f64::from(x);
    let w = w.values();
    OutputError {
        change: new.data().iter().enumerate().map(|(i, new)| square(w.at(i) - new)).sum(),
        size: (0..w.len()).map(|i| square(w.at(i))).sum(),
    }
}

fn checked_weights<'a>(task: &Task<'a>) -> Result<Vec<Weights<'a>>, PruneError> {
    let tensors = task.spec.tensors();
    if tensors.len() != task.members.len() {
        return Err(PruneError::Count { found: task.members.len(), expected: tensors.len() });
    }
    let mut weights = Vec::with_capacity(tensors.len());
    for (tensor, member) in tensors.iter().zip(&task.members) {
        let name = || tensor.name().to_string();
        if member.weights.len() != tensor.size() {
            let (found, expected) = (member.weights.len(), tensor.size());
            return Err(PruneError::Size { tensor: name(), found, expected });
        }
        let (rows, cols) = tensor.matrix();
        if let Some((at, value)) = member.weights.first_not_finite() {
            let (row, column) = (at / cols, at % cols);
            return Err(PruneError::Weight { tensor: name(), row, column, value });
        }
        weights.push(Weights::new(member.weights, rows, cols));
    }
    Ok(weights)
}
