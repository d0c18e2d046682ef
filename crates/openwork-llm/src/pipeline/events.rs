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
    /// `share` of a stage of a layer is done, from 0 to 1.
    Progress {
        /// The layer.
        layer: usize,
        /// Which stage it is.
        stage: Stage,
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
            Event::Progress { .. } => return None,
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
pub enum Stage {
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

impl Stage {
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
pub trait Observer: Sync {
    /// Something happened.
    fn on_event(&self, event: Event<'_>);
    /// Whether to stop as soon as possible; what is on the disk stays there.
    fn stopped(&self) -> bool {
        false
    }
}

/// Nobody looks on.
impl Observer for () {
    fn on_event(&self, _: Event<'_>) {}
}

/// A stage of a layer as the pruners see it.
pub(super) struct StageObserver<'a> {
    pub observer: &'a dyn Observer,
    pub layer: usize,
    pub stage: Stage,
}

impl openwork::prune::Monitor for StageObserver<'_> {
    fn progress(&self, share: f64) {
        self.observer.on_event(Event::Progress { layer: self.layer, stage: self.stage, share });
    }

    fn cancelled(&self) -> bool {
        self.observer.stopped()
    }
}
