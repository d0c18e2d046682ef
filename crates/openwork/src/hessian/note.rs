//! Notes for the user about the statistics behind a result.

use std::fmt;

use super::Damping;

/// A change or a weakness that does not stop the computation.
#[derive(Clone, Debug, PartialEq)]
pub enum Note {
    /// H was not positive definite with the requested damping.
    DampingRaised {
        /// The requested damping.
        from: Damping,
        /// The damping that made it positive definite.
        to: Damping,
    },
    /// Columns whose inputs are all zero: their weights have no effect.
    DeadColumns {
        /// Their number.
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
        /// The damping by the rule.
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
                     these weights have no effect"
                )
            }
            Self::FewSamples { samples, columns } => write!(
                f,
                "{samples} samples for {columns} columns: the result depends on damping; \
                 use more calibration tokens"
            ),
            Self::DampingByRule { used, samples: Some(n) } => {
                write!(
                    f,
                    "no held-out samples to choose the damping by; used {used} for {n} samples"
                )
            }
            Self::DampingByRule { used, samples: None } => {
                write!(f, "no samples to choose the damping by; used {used}")
            }
        }
    }
}
