//! Executors: where the stages of a run are computed, in this process or on a cluster.

use super::PipelineError;
use super::events::{Observer, Stage, StageObserver};
use super::plan::TaskPlan;
use super::run::Job;
use super::stages::{self, Sums, TaskResult, merge};
use super::states::States;
use crate::model::{Layer, Model, Parameter, Site};
use crate::recover::{Distillation, LocalPasses, WindowPasses};
use openwork::hessian::Hessian;
use openwork::prune::measure::OutputError;
use rayon::prelude::*;
use serde_json::Value;
use std::path::Path;

/// One capture of inputs.
#[derive(Clone, Copy, Debug)]
pub struct Capture<'a> {
    /// Whether it is the layer's first: the outputs of the layer become the targets.
    pub begin: bool,
    /// Whether the hidden states go through attention first.
    pub attend: bool,
    /// The sites whose inputs are summed.
    pub sites: &'a [Site],
}

/// Holds the hidden states of all windows and computes the stages of a run. The run
/// decides what comes next, trains layers, writes the folder and evaluates.
///
/// The result must not depend on where stages are computed: sums are merged in chunk
/// order, gradients are added in window order, and every other stage is a function of its
/// arguments.
pub trait Executor {
    /// Embeds the calibration windows. `folder` is the folder in which shards are written.
    fn start(&mut self, job: &Job, model: &Model<'_>, folder: &Path) -> Result<(), PipelineError>;

    /// Runs all windows through the layer and sums its inputs.
    fn capture(
        &mut self,
        layer: &Layer,
        capture: Capture<'_>,
        observer: &dyn Observer,
    ) -> Result<Sums, PipelineError>;

    /// Prunes tasks that do not depend on each other; `hessians` has the statistics
    /// of all sites that they need.
    fn prune(
        &mut self,
        tasks: &[&TaskPlan],
        layer: &Layer,
        hessians: &[(Site, Hessian)],
        observer: &dyn Observer,
    ) -> Result<Vec<TaskResult>, PipelineError>;

    /// Called after some parameters of the layer received new numbers.
    fn changed(&mut self, _: &Layer, _: &[Parameter]) -> Result<(), PipelineError> {
        Ok(())
    }

    /// Runs all windows through the layer; returns the distance of each chunk's outputs
    /// from the targets, if there are any.
    fn advance(
        &mut self,
        layer: &Layer,
        stage: Stage,
        observer: &dyn Observer,
    ) -> Result<Vec<OutputError>, PipelineError>;

    /// What computes the windows of a stage that trains the whole model. Hidden states of
    /// earlier passes are not needed any more.
    fn window_passes<'a>(
        &'a mut self,
        task: &'a Distillation<'a>,
    ) -> Result<Box<dyn WindowPasses + 'a>, PipelineError> {
        Ok(Box::new(LocalPasses::new(task)?))
    }

    /// Executor-specific measurements, for the record.
    fn record(&mut self) -> Option<Value> {
        None
    }
}

/// This process, with all its threads.
#[derive(Debug, Default)]
pub struct LocalExecutor {
    states: Option<States>,
}

impl LocalExecutor {
    /// Runs `work` on every chunk in order, and `then` on its result.
    fn each<T>(
        &mut self,
        (layer, stage): (usize, Stage),
        observer: &dyn Observer,
        mut work: impl FnMut(&mut States, usize) -> Result<T, PipelineError>,
        mut then: impl FnMut(T) -> Result<(), PipelineError>,
    ) -> Result<(), PipelineError> {
        let Some(states) = &mut self.states else { return Ok(()) };
        let count = states.len();
        for chunk in 0..count {
            observer.progress(layer, stage, chunk as f64 / count as f64)?;
            then(work(states, chunk)?)?;
        }
        Ok(())
    }
}

impl Executor for LocalExecutor {
    fn start(&mut self, job: &Job, model: &Model<'_>, folder: &Path) -> Result<(), PipelineError> {
        let calibration = &job.calibration;
        let shapes: Vec<[usize; 2]> =
            calibration.chunks().map(|windows| [windows.len(), windows[0].len()]).collect();
        let needed = calibration.state_bytes(model.config());
        let spill = job.state_memory_limit.is_some_and(|limit| needed > limit).then_some(folder);
        let mut states = States::new(&shapes, model.config(), spill)?;
        for (i, windows) in calibration.chunks().enumerate() {
            states.put(i, model.embed(windows)?)?;
        }
        model.checkpoint().release();
        self.states = Some(states);
        Ok(())
    }

    fn capture(
        &mut self,
        layer: &Layer,
        capture: Capture<'_>,
        observer: &dyn Observer,
    ) -> Result<Sums, PipelineError> {
        let mut total: Sums = Vec::new();
        let work = |states: &mut States, chunk| match capture.begin {
            true => states.begin(chunk, layer, capture.sites),
            false => states.look(chunk, layer, capture.sites, capture.attend),
        };
        let stage = (layer.index(), Stage::Calibrate);
        self.each(stage, observer, work, |sums| merge(&mut total, sums))?;
        Ok(total)
    }

    fn prune(
        &mut self,
        tasks: &[&TaskPlan],
        layer: &Layer,
        hessians: &[(Site, Hessian)],
        observer: &dyn Observer,
    ) -> Result<Vec<TaskResult>, PipelineError> {
        let observer = StageObserver { observer, layer: layer.index(), stage: Stage::Prune };
        let of = |site| hessians.iter().find(|(known, _)| *known == site).map(|(_, h)| h);
        tasks.par_iter().map(|task| stages::prune_task(task, layer, &of, &observer)).collect()
    }

    fn advance(
        &mut self,
        layer: &Layer,
        stage: Stage,
        observer: &dyn Observer,
    ) -> Result<Vec<OutputError>, PipelineError> {
        let mut errors = Vec::new();
        let work = |states: &mut States, chunk| states.advance(chunk, layer);
        let keep = |error| {
            errors.push(error);
            Ok(())
        };
        self.each((layer.index(), stage), observer, work, keep)?;
        Ok(errors)
    }
}
