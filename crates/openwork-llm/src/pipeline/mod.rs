//! Prunes a whole model, layer by layer:
//!
//! ```text
//! for each layer:
//!     windows through the layer        its outputs, and X'X at four sites
//!     prune its linears                jointly where they are coupled
//!     windows through the pruned layer the inputs of the next
//!     shard and measurements           to the disk
//! ```
//!
//! The loop in [`run`] is made of the functions in [`steps`], which a [`Crew`]
//! does: this process ([`Local`]), or others that get the same bytes. What is asked for
//! is a [`Recipe`], bound to the model as a [`Plan`]; what was measured is a
//! [`Record`](crate::report::Record).
//!
//! [`Passes`] are several runs one after the other, with heads, channels
//! ([`structure`]) or whole layers ([`depth`]) left out of the model in between.

mod asked;
mod budget;
mod calibration;
mod card;
mod crew;
pub mod depth;
mod error;
pub mod estimate;
mod hidden;
mod passes;
mod plan;
mod prospect;
mod recipe;
mod run;
mod run_dir;
mod states;
pub mod steps;
pub mod structure;
mod watch;

pub use asked::{Asked, Ready, written_dtype};
pub use calibration::{Calibration, Draw};
pub use crew::{Capture, Crew, Local};
pub use error::PipelineError;
pub use hidden::Shelf;
pub use passes::{Pass, Passes, run_passes};
pub use plan::{Choice, LayerPlan, METHOD, Plan, TaskPlan, linear_called};
pub use prospect::Prospect;
pub use recipe::{Budget, Recipe, RecipeError, Rule};
pub use run::{Evaluation, Job, fingerprint, run, run_with};
pub use run_dir::{Fingerprint, LayerDone, RunDir, Start, check_folder};
pub use states::{CHUNK_TOKENS, States};
pub use watch::{Event, Step, Watch};
