//! How a command ends when it cannot do what was asked.

use std::process::ExitCode;

/// Characters of the longest message that is printed whole.
const LONGEST: usize = 4000;

/// Why a command stopped.
#[derive(Debug)]
pub enum Failure {
    /// The user's input is wrong: exit code 2, nothing was written.
    Input(String),
    /// It failed while running: exit code 1.
    Running(String),
}

impl Failure {
    /// The user's input is wrong, in the words of `error`.
    pub fn input(error: impl std::fmt::Display) -> Self {
        Self::Input(error.to_string())
    }

    /// It failed while running, in the words of `error`.
    pub fn running(error: impl std::fmt::Display) -> Self {
        Self::Running(error.to_string())
    }

    /// What to tell the user, without the leading `error: `. A name of a million
    /// characters would hide what is said about it: the middle is left out.
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

    /// The exit code that says which kind it was.
    pub fn code(&self) -> ExitCode {
        match self {
            Self::Input(_) => ExitCode::from(2),
            Self::Running(_) => ExitCode::from(1),
        }
    }
}
