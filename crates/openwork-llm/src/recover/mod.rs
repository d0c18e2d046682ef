//! Recovery: trains the weights that pruning kept, with the mask in place, towards
//! the outputs of the dense model.
//!
//! ```text
//! text        `blocks[epochs=4]+model`: the stages of a recovery and their options
//! chain       hidden states of the pruned and of the dense model, layer after layer
//! block       trains a layer, or half of one, towards the dense model's states
//! distill     trains the whole model towards the dense model's distribution
//! window      the windows of that training: their losses and gradients, and where they run
//! worker      a worker of a cluster that computes such windows
//! student     the model in that training, and its gradients on one window
//! state       the state of that training on disk
//! latent      weights in f32 behind those that were rounded to codes
//! rates       the search for a learning rate
//! regrow      masks that move during training
//! optimizer   Adam on sparse weights, and the schedule of its learning rate
//! ```
//!
//! Zero weights stay zero, which preserves the mask, unless `regrow` moves its blocks.
//! Gradients are computed one window at a time and added in order, so the result depends
//! neither on the number of threads nor on the number of workers. Some windows are held out;
//! a stage that does not lower their loss is undone.

mod block;
mod chain;
mod distill;
mod latent;
mod optimizer;
mod rates;
mod regrow;
mod state;
mod student;
mod text;
mod window;
mod worker;

pub use block::{LayerTrainer, TrainedLayer};
pub use chain::Chain;
pub use distill::{CurvePoint, Distilled, Distiller};
pub use latent::CodedLinear;
pub use optimizer::Schedule;
pub use rates::{RateTrial, USUAL_TRIALS, chosen_rates, next_rate, trial_steps};
pub use regrow::PatternGroup;
pub use student::{GradientSum, Student, pass_bytes};
pub use text::{LossKind, Recovery, RecoveryError, STAGES, StageInfo, StageOptions, Trained, Unit};
pub use window::{Distillation, LocalPasses, WindowPasses};
pub use worker::WindowWorker;

use crate::checkpoint::write::WriteError;
use crate::model::ModelError;
use std::path::{Path, PathBuf};

/// Why a model cannot be recovered.
#[derive(Debug, thiserror::Error)]
pub enum RecoverError {
    /// The model's files, or what it computes.
    #[error(transparent)]
    Model(#[from] ModelError),
    /// Hidden states or the state of the optimizer could not be written or read.
    #[error("{}: {error}", path.display())]
    Io {
        /// The file or folder.
        path: PathBuf,
        /// The system's error.
        error: std::io::Error,
    },
    /// The state of the optimizer could not be written.
    #[error(transparent)]
    Write(#[from] WriteError),
    /// The workers that compute windows failed, or sent what does not fit.
    #[error("{0}")]
    Executor(String),
    /// The observer asked to stop.
    #[error("stopped")]
    Stopped,
}

impl RecoverError {
    fn io(path: &Path, error: std::io::Error) -> Self {
        Self::Io { path: path.to_path_buf(), error }
    }
}

/// The progress of a stage.
#[derive(Clone, Copy, Debug)]
pub struct Progress {
    /// How much is done, from 0 to 1.
    pub share: f64,
    /// Mean loss of the latest windows that were trained on.
    pub loss: f64,
    /// Loss of the held-out windows when it was last measured.
    pub held_out: f64,
}

/// Receives progress; `false` stops the stage.
pub type OnProgress<'a> = dyn FnMut(Progress) -> bool + 'a;

/// Number of held-out windows of a stage with `windows` windows in total: an eighth, at
/// least one and at most 16.
pub fn held_out(windows: usize) -> usize {
    (windows / 8).clamp(1, 16)
}

/// Minimum number of windows of a stage, including one that is held out.
pub const MIN_WINDOWS: usize = 2;
