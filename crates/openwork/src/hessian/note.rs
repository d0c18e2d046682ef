//! What a user should know about the statistics a result rests on.

use std::fmt;

use super::Damping;

/// A change or a weakness that did not stop the computation.
#[derive(Clone, Debug, PartialEq)]
pub enum Note {
    /// H was not positive definite with the damping asked for.
    DampingRaised {
        /// The damping asked for.
        from: Damping,
        /// The least damping tried that made it positive definite.
        to: Damping,
    },
    /// Columns whose inputs were always zero: their weights cost nothing.
    DeadColumns {
        /// How many.
        count: usize,
        /// The first of them.
        first: usize,
        /// All columns.
        columns: usize,
    },
    /// Fewer samples than columns: H has no full rank without damping.
    FewSamples {
        /// Samples in H.
        samples: usize,
        /// Columns of H.
        columns: usize,
    },
    /// Automatic damping had no held-out samples and used a rule instead.
    DampingByRule {
        /// What the rule gave.
        used: Damping,
        /// Samples in H, where known.
        samples: Option<usize>,
    },
}

impl fmt::Display for Note {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::DampingRaised { from, to } => {
                write!(f, "H is not positive definite with {from}; damping was raised to {to}")
            }
            Self::DeadColumns { count, first, columns } => {
                let verb = if *count == 1 { "has" } else { "have" };
                write!(
                    f,
                    "{count} of {columns} columns {verb} only zero inputs (the first is {first}); \
                     weights there cost nothing"
                )
            }
            Self::FewSamples { samples, columns } => write!(
                f,
                "{samples} samples for {columns} columns: the fit leans on damping; \
                 use more calibration tokens"
            ),
            Self::DampingByRule { used, samples: Some(n) } => {
                write!(f, "no held-out samples to choose damping by; used {used} for {n} samples")
            }
            Self::DampingByRule { used, samples: None } => {
                write!(f, "no samples to choose damping by; used {used}")
            }
        }
    }
}
