//! Why a model was not pruned.

use crate::checkpoint::CheckpointError;
use crate::checkpoint::write::WriteError;
use crate::evaluate::EvaluateError;
use crate::model::ModelError;
use crate::output::OutputError;
use crate::shrink::ShrinkError;
use crate::tokens::TextError;
use openwork::hessian::HessianError;
use openwork::prune::PruneError;
use std::path::{Path, PathBuf};

/// Why a model was not pruned.
#[derive(Debug, thiserror::Error)]
pub enum PipelineError {
    /// What was asked for cannot be done to this model.
    #[error("{0}")]
    Plan(String),
    /// The folder for the result is not one that can be used.
    #[error("{}: {why}", path.display())]
    Folder {
        /// The folder.
        path: PathBuf,
        /// What is wrong with it.
        why: String,
    },
    /// What the run left on the disk is not what it wrote.
    #[error("{}: {why}", path.display())]
    State {
        /// The file.
        path: PathBuf,
        /// What is wrong with it.
        why: String,
    },
    /// A file could not be written or read.
    #[error("{}: {error}", path.display())]
    Io {
        /// The file.
        path: PathBuf,
        /// The system's words.
        error: std::io::Error,
    },
    /// The inputs of a linear are not numbers.
    #[error("the inputs of {tensor}: {error}")]
    Inputs {
        /// The linear.
        tensor: String,
        /// What is wrong.
        error: HessianError,
    },
    /// A linear cannot be pruned.
    #[error("{tensors}: {error}")]
    Prune {
        /// The linears.
        tensors: String,
        /// What is wrong.
        error: PruneError,
    },
    /// The model's files, or what it computes.
    #[error(transparent)]
    Model(#[from] ModelError),
    /// A text.
    #[error(transparent)]
    Text(#[from] TextError),
    /// Perplexity.
    #[error(transparent)]
    Evaluate(#[from] EvaluateError),
    /// The folder that is written.
    #[error(transparent)]
    Write(#[from] WriteError),
    /// The output cannot be used.
    #[error(transparent)]
    Output(#[from] OutputError),
    /// Structures cannot be removed.
    #[error(transparent)]
    Shrink(#[from] ShrinkError),
    /// Those who do the steps could not.
    #[error("{0}")]
    Executor(String),
    /// Somebody asked to stop.
    #[error("stopped; what is done is kept, and --resume goes on from there")]
    Stopped,
}

impl PipelineError {
    /// A file could not be written or read.
    pub fn io(path: &Path, error: std::io::Error) -> Self {
        Self::Io { path: path.to_path_buf(), error }
    }

    /// Whether what the user gave is at fault, rather than the run.
    pub fn is_input(&self) -> bool {
        if let Self::Output(error) = self {
            return error.is_input();
        }
        matches!(
            self,
            Self::Plan(_)
                | Self::Folder { .. }
                | Self::State { .. }
                | Self::Text(_)
                | Self::Shrink(
                    ShrinkError::Nothing | ShrinkError::Uneven { .. } | ShrinkError::Heads { .. }
                )
                | Self::Model(
                    ModelError::Checkpoint(_)
                        | ModelError::Config { .. }
                        | ModelError::Foreign { .. }
                        | ModelError::Token { .. }
                        | ModelError::Tokenizer { .. }
                        | ModelError::TooLong { .. }
                )
        )
    }
}

impl From<CheckpointError> for PipelineError {
    fn from(error: CheckpointError) -> Self {
        Self::Model(error.into())
    }
}
