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
//! The loop in [`run`] is made of the functions in [`stages`], which an [`Executor`]
//! does: this process ([`LocalExecutor`]), or others that get the same bytes. What is asked for
//! is a [`Recipe`], bound to the model as a [`Plan`]; what was measured is a
//! [`Record`](crate::report::Record).
//!
//! [`Passes`] are several runs one after the other, with heads, channels
//! ([`structure`]) or whole layers ([`depth`]) left out of the model in between.

mod budget;
mod calibration;
mod card;
mod chunk_store;
pub mod depth;
mod dry_run;
mod error;
pub mod estimate;
mod events;
mod executor;
mod options;
mod passes;
mod plan;
mod recipe;
mod run;
mod run_dir;
pub mod stages;
mod states;
pub mod structure;

pub use calibration::{Calibration, Sampling};
pub use chunk_store::ChunkStore;
pub use dry_run::DryRun;
pub use error::PipelineError;
pub use events::{Event, Observer, Stage};
pub use executor::{Capture, Executor, LocalExecutor};
pub use options::{PreparedRun, RunOptions, written_dtype};
pub use passes::{Pass, Passes, run_passes};
pub use plan::{LayerPlan, METHOD, Plan, TaskPlan, TensorFilter, linear_called};
pub use recipe::{Budget, Recipe, RecipeError, Rule};
pub use run::{Evaluation, Job, fingerprint, run, run_with};
pub use run_dir::{Fingerprint, LayerDone, RunDir, Start, check_folder};
pub use states::{CHUNK_TOKENS, States};
