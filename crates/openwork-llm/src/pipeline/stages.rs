//! The stages of a run. Each is a pure function of its arguments, so one machine can
//! run them in a loop, and a cluster can run them on the workers that hold the chunks.
//!
//! ```text
//! begin    windows of a chunk through the dense layer: its outputs, sums of X'X
//! look     inputs of later sites, with the sites before them pruned: sums of X'X
//! attend   hidden states past attention
//! finish   hidden states past the pruned layer, and their distance from the dense outputs
//! settle   the damping of a task
//! prune    a band of rows of a task: weights from weights and Hessians
//! ```

use super::PipelineError;
use super::plan::TaskPlan;
use crate::model::{Hidden, Layer, LayerInfo, NoTap, Site, Tap};
use openwork::hessian::{Damping, Hessian, HessianError, HessianSum};
use openwork::prune::measure::OutputError;
use openwork::prune::{Factors, Member, PruneError, Pruned, Task, prune_with};
use openwork::spec::Band;
use openwork::{Matrix, MatrixRef, Spec};
use rayon::prelude::*;
use std::ops::Range;
use std::time::Instant;

/// Sums of X'X, one per captured site.
pub type Sums = Vec<(Site, HessianSum)>;

/// The states of one chunk of windows within a layer.
#[derive(Debug)]
pub struct Chunk {
    /// Index of its first token among the samples of the run.
    pub first: usize,
    /// The hidden states.
    pub hidden: Hidden,
    /// The layer's outputs before it was pruned.
    pub target: Vec<f32>,
    /// Whether the hidden states are past attention.
    pub attended: bool,
}

impl Chunk {
    /// The states of windows before a layer.
    pub fn new(first: usize, hidden: Hidden) -> Self {
        Self { first, hidden, target: Vec::new(), attended: false }
    }

    /// Runs the dense layer: stores its outputs as the target, and sums the inputs of
    /// `sites`. The hidden states do not advance. Keys and values that later layers share
    /// are replaced when the pruned layer runs.
    pub fn begin(&mut self, layer: &Layer, sites: &[Site]) -> Result<Sums, PipelineError> {
        let before = self.hidden.states().clone();
        let mut tap = Summing::new(self.first, sites);
        layer.forward(&mut self.hidden, &mut tap);
        let after = std::mem::replace(self.hidden.states_mut(), before);
        self.target = after.into_vec();
        tap.finish(layer.info())
    }

    /// Sums the inputs of `sites`, which are all in the half of the layer that comes
    /// next.
    pub fn look(&mut self, layer: &Layer, sites: &[Site]) -> Result<Sums, PipelineError> {
        let mut tap = Summing::new(self.first, sites);
        if let Some(&last) = sites.iter().max() {
            layer.observe_inputs(&mut self.hidden, last.input, &mut tap);
        }
        tap.finish(layer.info())
    }

    /// Advances through attention.
    pub fn attend(&mut self, layer: &Layer) {
        layer.forward_attention(&mut self.hidden, &mut NoTap);
        self.attended = true;
    }

    /// Advances through the rest of the layer; returns the distance from the target, and
    /// drops the target.
    pub fn finish(&mut self, layer: &Layer) -> OutputError {
        match self.attended {
            true => layer.forward_mlp(&mut self.hidden, &mut NoTap),
            false => layer.forward(&mut self.hidden, &mut NoTap),
        }
        self.attended = false;
        let square = |x: f32| f64::from(x) * f64::from(x);
        let mut error = OutputError { change: 0.0, size: 0.0 };
        // Rows are short and summed in order: the same bytes on every machine.
        for (new, old) in self.hidden.states().data().iter().zip(&self.target) {
            error.change += square(new - old);
            error.size += square(*old);
        }
        self.target = Vec::new();
        error
    }
}

/// Sums the inputs of some sites.
struct Summing {
    first: usize,
    sums: Vec<(Site, Option<HessianSum>)>,
    error: Option<(Site, HessianError)>,
}

impl Summing {
    fn new(first: usize, sites: &[Site]) -> Self {
        Self { first, sums: sites.iter().map(|&site| (site, None)).collect(), error: None }
    }

    fn finish(self, layer: &LayerInfo) -> Result<Sums, PipelineError> {
        match self.error {
            Some((site, error)) => Err(PipelineError::Inputs { tensor: input(layer, site), error }),
            None => {
                Ok(self.sums.into_iter().filter_map(|(site, sum)| Some((site, sum?))).collect())
            }
        }
    }
}

impl Tap for Summing {
    fn on_input(&mut self, site: Site, inputs: MatrixRef<'_>) {
        let Some((_, sum)) = self.sums.iter_mut().find(|(wanted, _)| *wanted == site) else {
            return;
        };
        if self.error.is_none() {
            let sum = sum.get_or_insert_with(|| HessianSum::starting_at(inputs.cols(), self.first));
            self.error = sum.add(inputs).err().map(|error| (site, error));
        }
    }

    fn wants(&self, site: Site) -> bool {
        self.sums.iter().any(|(wanted, _)| *wanted == site)
    }
}

/// The first tensor that reads the inputs of a site, for messages.
fn input(layer: &LayerInfo, site: Site) -> String {
    let name = layer.linears.iter().find(|linear| linear.site() == site);
    format!("{}{}.{}", layer.prefix, layer.index, name.map_or("", |linear| &linear.name))
}

/// Adds the sums of the next chunk, in the order of the chunks.
pub fn merge(total: &mut Sums, next: Sums) -> Result<(), PipelineError> {
    if total.is_empty() {
        *total = next;
        return Ok(());
    }
    for (site, next) in next {
        match total.iter_mut().find(|(known, _)| *known == site) {
            // An expert's samples are numbered without the tokens routed elsewhere.
            Some((_, sum)) if site.expert.is_some() => sum.merge_next(next),
            Some((_, sum)) => sum.merge(next),
            None => {
                let at = total.partition_point(|(known, _)| *known < site);
                total.insert(at, (site, next));
                Ok(())
            }
        }
        .map_err(|error| PipelineError::Inputs { tensor: site.to_string(), error })?;
    }
    Ok(())
}

/// The result of pruning a task, or a band of it.
#[derive(Clone, Debug)]
pub struct TaskResult {
    /// The new weights of each tensor.
    pub weights: Vec<Matrix>,
    /// The output error of each tensor.
    pub errors: Vec<OutputError>,
    /// The damping that was used; `None` if the method uses none.
    pub damping: Option<Damping>,
    /// Time taken, summed over bands.
    pub seconds: f64,
    /// Notes for the user.
    pub notes: Vec<String>,
}

impl TaskResult {
    /// Joins the bands of a task, from top to bottom.
    pub fn join(bands: Vec<Self>) -> Option<Self> {
        let mut bands = bands.into_iter().peekable();
        let mut whole = bands.next()?;
        if bands.peek().is_none() {
            return Some(whole);
        }
        let mut weights: Vec<f32> = whole.weights.pop().map_or(Vec::new(), Matrix::into_vec);
        let mut columns = 1;
        for band in bands {
            for rows in band.weights {
                columns = rows.cols();
                weights.extend_from_slice(rows.data());
            }
            let both = whole.errors.iter().zip(&band.errors);
            whole.errors = both.map(|(a, b)| [*a, *b].into_iter().sum()).collect();
            whole.seconds += band.seconds;
            let new = band.notes.into_iter().filter(|note| !whole.notes.contains(note));
            let new: Vec<String> = new.collect();
            whole.notes.extend(new);
        }
        whole.weights = vec![Matrix::from_vec(weights.len() / columns, columns, weights)];
        Some(whole)
    }
}

/// A task with the statistics of its inputs.
pub struct BoundTask<'a> {
    plan: &'a TaskPlan,
    layer: &'a Layer,
    hessians: Vec<Option<&'a Hessian>>,
    monitor: &'a dyn openwork::prune::Monitor,
}

impl<'a> BoundTask<'a> {
    /// `hessian` gives the statistics of a site.
    pub fn new(
        plan: &'a TaskPlan,
        layer: &'a Layer,
        hessian: &impl Fn(Site) -> Option<&'a Hessian>,
        monitor: &'a dyn openwork::prune::Monitor,
    ) -> Self {
        let site = |&linear: &usize| hessian(layer.linears()[linear].site());
        let hessians = plan.linears.iter().map(site).collect();
        Self { plan, layer, hessians, monitor }
    }

    /// The damping to use, with notes; nothing if the method uses none.
    pub fn settle(&self) -> Result<Option<(Damping, Vec<String>)>, PipelineError> {
        let task = self.task(&self.plan.spec, None);
        openwork::prune::damping(&self.plan.method, &task).map_err(|error| self.error(error))
    }

    /// What the bands share.
    pub fn factors(&self) -> Result<Factors, PipelineError> {
        let task = self.task(&self.plan.spec, None);
        Factors::new(&self.plan.method, &task).map_err(|error| self.error(error))
    }

    /// Prunes one band.
    pub fn prune(&self, band: &Band, factors: &Factors) -> Result<TaskResult, PipelineError> {
        let rows = (band.rows.len() < self.plan.spec.tensors()[0].matrix().0).then_some(&band.rows);
        let task = self.task(&band.spec, rows);
        let Pruned { weights, parts, damping, seconds, notes, .. } =
            prune_with(&self.plan.method, &task, factors).map_err(|error| self.error(error))?;
        Ok(TaskResult { weights, errors: parts, damping, seconds, notes })
    }

    /// The tensors, or some rows of the only one.
    fn task<'t>(&'t self, spec: &'t Spec, rows: Option<&Range<usize>>) -> Task<'t> {
        let member = |(&linear, hessian): (&usize, &Option<&'t Hessian>)| {
            let matrix = self.layer.linears()[linear].matrix();
            let weights = matrix.map_or(&[][..], |matrix| match rows {
                None => matrix.data(),
                Some(rows) => &matrix.data()[rows.start * matrix.cols()..rows.end * matrix.cols()],
            });
            Member { weights: weights.into(), hessian: *hessian }
        };
        let members = self.plan.linears.iter().zip(&self.hessians).map(member).collect();
        Task { spec, members, monitor: self.monitor }
    }

    fn error(&self, error: PruneError) -> PipelineError {
        match error {
            PruneError::Stopped => PipelineError::Stopped,
            error => PipelineError::Prune { tensors: self.plan.names(), error },
        }
    }
}

/// Prunes one task of the plan, its bands in parallel. `hessian` gives the
/// statistics of a site.
pub fn prune_task<'a>(
    plan: &'a TaskPlan,
    layer: &'a Layer,
    hessian: &impl Fn(Site) -> Option<&'a Hessian>,
    monitor: &'a dyn openwork::prune::Monitor,
) -> Result<TaskResult, PipelineError> {
    let started = Instant::now();
    let work = BoundTask::new(plan, layer, hessian, monitor);
    let factors = work.factors()?;
    let factoring = started.elapsed().as_secs_f64();
    let bands = plan.bands();
    let done: Vec<TaskResult> =
        bands.par_iter().map(|band| work.prune(band, &factors)).collect::<Result<_, _>>()?;
    let mut done = TaskResult::join(done).expect("a task has at least one band");
    done.seconds += factoring;
    Ok(done)
}
