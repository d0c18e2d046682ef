//! Why a run failed.
//!
//! Messages contain options as `{max_memory}`; [`PipelineError::spelled`] replaces them
//! by flags of the command or keywords of Python.

use super::options::{RunOption, Spelling};
use crate::checkpoint::CheckpointError;
use crate::checkpoint::write::WriteError;
use crate::evaluate::EvaluateError;
use crate::model::ModelError;
use crate::output::OutputError;
use crate::shrink::ShrinkError;
use crate::task::TaskError;
use crate::tokens::TextError;
use openwork::hessian::HessianError;
use openwork::prune::PruneError;
use std::path::{Path, PathBuf};

/// Why a run failed.
#[derive(Debug, thiserror::Error)]
pub enum PipelineError {
    /// The plan does not fit the model.
    #[error("{0}")]
    Plan(String),
    /// An option has a value that cannot be used.
    #[error("{{{name}}} {value}: {why}")]
    Option {
        /// Its name.
        name: &'static str,
        /// Its value.
        value: String,
        /// What is wrong with it, and what to give.
        why: String,
    },
    /// The output folder cannot be used.
    #[error("{}: {why}", path.display())]
    Folder {
        /// The folder.
        path: PathBuf,
        /// What is wrong with it.
        why: String,
    },
    /// A file of the run is damaged or missing.
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
        /// The system's error.
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
    /// A task.
    #[error(transparent)]
    Task(#[from] TaskError),
    /// The folder that is written.
    #[error(transparent)]
    Write(#[from] WriteError),
    /// The output cannot be used.
    #[error(transparent)]
    Output(#[from] OutputError),
    /// Structures cannot be removed.
    #[error(transparent)]
    Shrink(#[from] ShrinkError),
    /// The executor failed.
    #[error("{0}")]
    Executor(String),
    /// The observer asked to stop.
    #[error("stopped; finished layers are kept, and {{resume}} continues from there")]
    Stopped,
}

impl PipelineError {
    /// A file could not be written or read.
    pub fn io(path: &Path, error: std::io::Error) -> Self {
        Self::Io { path: path.to_path_buf(), error }
    }

    /// An option has a value that cannot be used.
    pub fn option(name: &'static str, value: impl ToString, why: impl Into<String>) -> Self {
        Self::Option { name, value: value.to_string(), why: why.into() }
    }

    /// The message, with options as the command or Python spells them.
    pub fn spelled(&self, spelling: Spelling) -> String {
        match self {
            Self::Option { name, value, why } => {
                let option = RunOption::find(name).map_or_else(
                    || name.to_string(),
                    |option| spelling.option(option, Some(value)),
                );
                format!("{option}: {}", spelling.message(why))
            }
            error => spelling.message(&error.to_string()),
        }
    }

    /// Whether the user's input is at fault, rather than the run.
    pub fn is_input(&self) -> bool {
        match self {
            Self::Output(error) => error.is_input(),
            Self::Model(error) => error.is_input(),
            Self::Task(error) => error.is_input(),
            Self::Plan(_)
            | Self::Option { .. }
            | Self::Folder { .. }
            | Self::State { .. }
            | Self::Text(_)
            | Self::Shrink(
                ShrinkError::Nothing | ShrinkError::Uneven { .. } | ShrinkError::Heads { .. },
            ) => true,
            _ => false,
        }
    }
}

impl From<CheckpointError> for PipelineError {
    fn from(error: CheckpointError) -> Self {
        Self::Model(error.into())
    }
}
