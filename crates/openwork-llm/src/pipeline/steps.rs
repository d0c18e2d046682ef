//! The steps that a run is made of. Each is a function of what it is given, so
//! that one machine runs them in a loop and a cluster runs the same ones
//! wherever the chunks are.
//!
//! ```text
//! begin    windows of a chunk through the layer as it is: its outputs, sums of X'X
//! look     inputs of later sites, with the sites before them pruned: sums of X'X
//! attend   the states after attention
//! finish   the states after the pruned layer, and how far they are from its outputs before
//! prune    one task of the plan: mask and weights from weights and Hessians
//! ```

use super::PipelineError;
use super::plan::TaskPlan;
use crate::model::{Config, Hidden, LINEARS, Layer, NoTap, Site, Tap};
use openwork::hessian::{Hessian, HessianError, HessianSum};
use openwork::prune::measure::OutputError;
use openwork::prune::{Member, Pruned, Task, prune};
use openwork::{Matrix, MatrixRef};

/// Tokens that a chunk has, as nearly as whole windows allow. Part of the
/// result: sums of X'X are closed at the end of every chunk.
pub const CHUNK_TOKENS: usize = 8192;

/// Windows in a chunk.
pub fn chunk_windows(seq_len: usize) -> usize {
    (CHUNK_TOKENS / seq_len.max(1)).max(1)
}

/// Where the inputs of a layer's linears are summed: one sum for each site asked for.
pub type Sums = Vec<(Site, HessianSum)>;

/// The states of one chunk of windows within a layer.
#[derive(Debug)]
pub struct Chunk {
    /// Which sample of the whole run its first token is.
    pub first: usize,
    /// The states.
    pub hidden: Hidden,
    /// The layer's outputs before it was pruned.
    pub target: Vec<f32>,
    /// Whether the states are those after attention.
    pub attended: bool,
}

impl Chunk {
    /// States of windows of `seq_len` tokens before a layer.
    pub fn new(first: usize, states: Vec<f32>, seq_len: usize, config: &Config) -> Self {
        let rows = states.len() / config.hidden;
        let states = Matrix::from_vec(rows, config.hidden, states);
        let hidden = Hidden::new(states, seq_len);
        Self { first, hidden, target: Vec::new(), attended: false }
    }

    /// Runs the layer as it is: keeps its outputs as the target, and sums the
    /// inputs of `sites`. The states stay before the layer.
    pub fn begin(&mut self, layer: &Layer, sites: &[Site]) -> Result<Sums, PipelineError> {
        let before = self.hidden.states().clone();
        let mut tap = Summing::new(self.first, sites);
        layer.forward(&mut self.hidden, &mut tap);
        let after = std::mem::replace(self.hidden.states_mut(), before);
        self.target = after.into_vec();
        tap.finish(layer.index())
    }

    /// Sums the inputs of `sites`, which all are in the half of the layer that
    /// the states stand before.
    pub fn look(&mut self, layer: &Layer, sites: &[Site]) -> Result<Sums, PipelineError> {
        let mut tap = Summing::new(self.first, sites);
        if let Some(&last) = sites.iter().max() {
            layer.look(&mut self.hidden, last, &mut tap);
        }
        tap.finish(layer.index())
    }

    /// Takes the states through attention.
    pub fn attend(&mut self, layer: &Layer) {
        layer.forward_attention(&mut self.hidden, &mut NoTap);
        self.attended = true;
    }

    /// Takes the states through the rest of the layer; how far they are from
    /// the target, which is dropped.
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

    fn finish(self, layer: usize) -> Result<Sums, PipelineError> {
        match self.error {
            Some((site, error)) => Err(PipelineError::Inputs { tensor: input(layer, site), error }),
            None => {
                Ok(self.sums.into_iter().filter_map(|(site, sum)| Some((site, sum?))).collect())
            }
        }
    }
}

impl Tap for Summing {
    fn see(&mut self, site: Site, inputs: MatrixRef<'_>) {
        let Some((_, sum)) = self.sums.iter_mut().find(|(wanted, _)| *wanted == site) else {
            return;
        };
        if self.error.is_none() {
            let sum = sum.get_or_insert_with(|| HessianSum::starting_at(inputs.cols(), self.first));
            self.error = sum.add(inputs).err().map(|error| (site, error));
        }
    }
}

/// A name for the inputs of a site: the first tensor that reads them.
fn input(layer: usize, site: Site) -> String {
    let name = LINEARS.iter().find(|(_, of)| *of == site).map_or("", |(name, _)| *name);
    format!("model.layers.{layer}.{name}")
}

/// Adds the sums of the next chunk, in the order of the chunks.
pub fn merge(total: &mut Sums, next: Sums) -> Result<(), PipelineError> {
    if total.is_empty() {
        *total = next;
        return Ok(());
    }
    for ((site, sum), (_, next)) in total.iter_mut().zip(next) {
        sum.merge(next)
            .map_err(|error| PipelineError::Inputs { tensor: site.name().to_string(), error })?;
    }
    Ok(())
}

/// Prunes one task of the plan. `hessian` gives the statistics of a site.
pub fn prune_task<'a>(
    task: &TaskPlan,
    layer: &'a Layer,
    hessian: &impl Fn(Site) -> Option<&'a Hessian>,
    watch: &dyn openwork::prune::Watch,
) -> Result<Pruned, PipelineError> {
    let members = task
        .linears
        .iter()
        .map(|&linear| {
            let linear = &layer.linears()[linear];
            let weights = linear.matrix().map_or(&[][..], Matrix::data);
            Member { weights, hessian: hessian(linear.site()) }
        })
        .collect();
    let recipe = task.recipe();
    prune(&recipe, &Task { spec: &task.spec, members, watch }).map_err(|error| match error {
        openwork::prune::PruneError::Stopped => PipelineError::Stopped,
        error => PipelineError::Prune { tensors: task.names(layer.index()), error },
    })
}
