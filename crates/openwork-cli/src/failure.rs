//! Failures of a command, and the exit codes they become.

use openwork_llm::checkpoint::CheckpointError;
use openwork_llm::model::ModelError;

/// Characters of the longest message that is printed whole.
const LONGEST: usize = 4000;

/// Why a command stopped.
#[derive(Debug)]
pub enum Failure {
    /// The input is wrong: exit code 2, and nothing was written.
    Input(String),
    /// The command failed while running: exit code 1.
    Running(String),
}

impl Failure {
    /// Wrong input, described by `error`.
    pub fn input(error: impl std::fmt::Display) -> Self {
        Self::Input(error.to_string())
    }

    /// A failure while running, described by `error`.
    pub fn running(error: impl std::fmt::Display) -> Self {
        Self::Running(error.to_string())
    }

    /// The message for the user, without the leading `error: `. The middle of a
    /// message with a name of a million characters is left out.
    pub fn message(&self) -> String {
        let (Self::Input(message) | Self::Running(message)) = self;
        let count = message.chars().count();
        if count <= LONGEST {
            return message.clone();
        }
        let head: String = message.chars().take(LONGEST / 2).collect();
        let tail: String = message.chars().skip(count - LONGEST / 2).collect();
        format!("{head} [..] {tail}")
    }

    /// The exit code.
    pub fn code(&self) -> u8 {
        match self {
            Self::Input(_) => 2,
            Self::Running(_) => 1,
        }
    }
}

impl From<ModelError> for Failure {
    fn from(error: ModelError) -> Self {
        if error.is_input() { Self::input(error) } else { Self::running(error) }
    }
}

impl From<CheckpointError> for Failure {
    fn from(error: CheckpointError) -> Self {
        ModelError::from(error).into()
    }
}
