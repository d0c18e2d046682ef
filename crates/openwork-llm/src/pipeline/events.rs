//! Progress events of a run, and its cancellation.

use super::PipelineError;
use crate::recover::Progress;
use crate::report::{
    EvaluationRecord, LayerRecord, LinearRecord, RecoveryRecord, SimilarityRecord, TaskRecord,
};
use serde::Serialize;
use serde_json::{Value, json};

/// Something that happened in a run.
#[derive(Clone, Debug)]
pub enum Event<'a> {
    /// A pass starts, or continues after layers that are finished already.
    Start {
        /// The pass, from 1.
        pass: usize,
        /// All passes.
        passes: usize,
        /// Its spec, as given in the recipe.
        spec: &'a str,
        /// The first layer to prune.
        first: usize,
        /// All layers.
        layers: usize,
    },
    /// Progress within a stage of a layer.
    Progress {
        /// The layer.
        layer: usize,
        /// The stage.
        stage: Stage,
        /// The fraction of it that is done, from 0 to 1.
        share: f64,
    },
    /// Progress of recovery training.
    Training {
        /// The layer that is trained; `None` for the whole model.
        layer: Option<usize>,
        /// How much is done and the losses.
        progress: Progress,
    },
    /// A linear was pruned.
    Pruned {
        /// Its layer.
        layer: usize,
        /// The linear.
        linear: &'a LinearRecord,
    },
    /// A layer was pruned and its shard written.
    Layer(&'a LayerRecord),
    /// A stage of the recovery trained the whole model.
    Recovered(&'a RecoveryRecord),
    /// A perplexity was measured.
    Evaluated(&'a EvaluationRecord),
    /// The vectors of a pruned encoder were compared with those of the dense one.
    Compared(&'a SimilarityRecord),
    /// The accuracy on a task was measured.
    Scored(&'a TaskRecord),
    /// Something the user should know.
    Note(&'a str),
}

impl Event<'_> {
    /// Whether it only reports progress; such events are frequent.
    pub fn is_progress(&self) -> bool {
        matches!(self, Self::Progress { .. } | Self::Training { .. })
    }

    /// The event as `--events` prints it and as Python's progress function receives it.
    pub fn to_json(&self) -> Value {
        match self {
            Self::Start { pass, passes, spec, first, layers } => json!({
                "event": "start", "pass": pass, "passes": passes, "spec": spec, "first": first,
                "layers": layers,
            }),
            Self::Progress { layer, stage, share } => json!({
                "event": "progress", "layer": layer, "stage": stage.name(), "share": share,
            }),
            Self::Training { layer, progress: Progress { share, loss, held_out } } => json!({
                "event": "progress", "layer": layer, "stage": Stage::Recover.name(),
                "share": share, "loss": loss, "held_out": held_out,
            }),
            Self::Pruned { layer, linear } => {
                json!({"event": "pruned", "layer": layer, "linear": linear})
            }
            Self::Layer(record) => {
                let LayerRecord {
                    index,
                    seconds,
                    forward_seconds,
                    prune_seconds,
                    decoder_error,
                    linears,
                    recovery,
                } = record;
                let mut event = json!({
                    "event": "layer", "layer": index, "seconds": seconds,
                    "forward_seconds": forward_seconds, "prune_seconds": prune_seconds,
                    "decoder_error": decoder_error, "linears": linears,
                });
                if let Some(recovery) = recovery {
                    event["recovery"] = json!(recovery);
                }
                event
            }
            Self::Recovered(record) => named("recovered", record),
            Self::Evaluated(record) => named("evaluated", record),
            Self::Compared(record) => named("compared", record),
            Self::Scored(record) => named("scored", record),
            Self::Note(text) => json!({"event": "note", "text": text}),
        }
    }
}

/// A record as an event.
fn named(event: &str, record: &impl Serialize) -> Value {
    let mut json = json!(record);
    json["event"] = json!(event);
    json
}

/// The stages of a layer, in order; in a sequential run some of them repeat.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Stage {
    /// Finished layers are run again after a restart.
    Replay,
    /// Sensitivities are measured.
    Probe,
    /// Windows go through the layer, and its inputs are summed.
    Calibrate,
    /// Linears are pruned.
    Prune,
    /// The kept weights are trained.
    Recover,
    /// Windows go through the pruned layer.
    Advance,
    /// Perplexity is measured.
    Evaluate,
}

impl Stage {
    /// Its name in events and progress bars.
    pub fn name(self) -> &'static str {
        match self {
            Self::Replay => "replay",
            Self::Probe => "probe",
            Self::Calibrate => "calibrate",
            Self::Prune => "prune",
            Self::Recover => "recover",
            Self::Advance => "advance",
            Self::Evaluate => "evaluate",
        }
    }
}

/// Receives the events of a run, and may cancel it.
pub trait Observer: Sync {
    /// Something happened.
    fn on_event(&self, event: Event<'_>);
    /// Whether to stop as soon as possible; finished layers are kept.
    fn cancelled(&self) -> bool {
        false
    }
}

impl dyn Observer + '_ {
    /// Reports progress, unless the run is cancelled.
    pub fn progress(&self, layer: usize, stage: Stage, share: f64) -> Result<(), PipelineError> {
        if self.cancelled() {
            return Err(PipelineError::Stopped);
        }
        self.on_event(Event::Progress { layer, stage, share });
        Ok(())
    }
}

/// Ignores every event.
impl Observer for () {
    fn on_event(&self, _: Event<'_>) {}
}

/// Reports the progress of a pruning method as events of a stage.
pub(super) struct StageObserver<'a> {
    pub observer: &'a dyn Observer,
    pub layer: usize,
    pub stage: Stage,
}

impl openwork::prune::Monitor for StageObserver<'_> {
    fn progress(&self, share: f64) {
        let (layer, stage) = (self.layer, self.stage);
        self.observer.on_event(Event::Progress { layer, stage, share });
    }

    fn cancelled(&self) -> bool {
        self.observer.cancelled()
    }
}
