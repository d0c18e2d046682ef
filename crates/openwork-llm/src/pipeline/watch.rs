//! Someone who looks on while a model is pruned, and may ask to stop.

use crate::report::{EvaluationRecord, LayerRecord, LinearRecord};
use serde_json::{Value, json};

/// What happens in a run.
#[derive(Clone, Debug)]
pub enum Event<'a> {
    /// Layers before `first` are done already; there are `layers` in all.
    Start {
        /// The first layer to prune.
        first: usize,
        /// All layers.
        layers: usize,
    },
    /// `share` of a step of a layer is done, from 0 to 1.
    Step {
        /// The layer.
        layer: usize,
        /// Which step it is.
        step: Step,
        /// How much of it is done.
        share: f64,
    },
    /// A linear was pruned.
    Pruned {
        /// The layer.
        layer: usize,
        /// The linear.
        linear: &'a LinearRecord,
    },
    /// A layer is on the disk.
    Layer(&'a LayerRecord),
    /// A perplexity was measured.
    Evaluated(&'a EvaluationRecord),
    /// Something the user should know.
    Note(&'a str),
}

impl Event<'_> {
    /// As `--events` prints it; steps come too often for that.
    pub fn to_json(&self) -> Option<Value> {
        Some(match self {
            Event::Start { first, layers } => {
                json!({"event": "start", "first": first, "layers": layers})
            }
            Event::Step { .. } => return None,
            Event::Pruned { layer, linear } => {
                json!({"event": "pruned", "layer": layer, "linear": linear})
            }
            Event::Layer(record) => json!({"event": "layer", "layer": record}),
            Event::Evaluated(found) => json!({"event": "evaluated", "evaluation": found}),
            Event::Note(note) => json!({"event": "note", "note": note}),
        })
    }
}

/// The steps of a layer, in order; in a sequential run some come several times.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Step {
    /// Finished layers are run again after a stop.
    Replay,
    /// Sensitivities are measured.
    Probe,
    /// Windows go through the layer, and inputs are summed.
    Calibrate,
    /// Linears are pruned.
    Prune,
    /// Windows go through the pruned layer.
    Advance,
    /// Perplexity is measured.
    Evaluate,
}

impl Step {
    /// One word for a person.
    pub fn name(self) -> &'static str {
        match self {
            Self::Replay => "replay",
            Self::Probe => "probe",
            Self::Calibrate => "calibrate",
            Self::Prune => "prune",
            Self::Advance => "advance",
            Self::Evaluate => "evaluate",
        }
    }
}

/// Someone who looks on and may ask to stop.
pub trait Watch: Sync {
    /// Something happened.
    fn see(&self, event: Event<'_>);
    /// Whether to stop as soon as possible; what is on the disk stays there.
    fn stopped(&self) -> bool {
        false
    }
}

/// Nobody looks on.
impl Watch for () {
    fn see(&self, _: Event<'_>) {}
}

/// A step of a layer as the pruners see it.
pub(super) struct StepWatch<'a> {
    pub watch: &'a dyn Watch,
    pub layer: usize,
    pub step: Step,
}

impl openwork::prune::Watch for StepWatch<'_> {
    fn progress(&self, share: f64) {
        self.watch.see(Event::Step { layer: self.layer, step: self.step, share });
    }

    fn stopped(&self) -> bool {
        self.watch.stopped()
    }
}
