//! Prunes a whole model, layer by layer:
//!
//! ```text
//! for each layer:
//!     windows through the layer         its outputs, and X'X at four sites
//!     prune its linears                 jointly where they are coupled
//!     windows through the pruned layer  the inputs of the next
//!     shard and measurements            to the disk
//! ```
//!
//! The command line, Python and clusters share one entry point:
//!
//! ```text
//! RunOptions   what a user asks for          options.rs: the one list of options
//! PreparedRun  read, checked, planned        prepare.rs; passes.rs, plan.rs: the typed plan
//! Record       what the run measured         run.rs: passes, evaluations, the record
//! ```
//!
//! [`PreparedRun::run`] runs the passes of a recipe one after the other; a plain
//! run has one. The layer loop of a pass is made of the functions in [`stages`],
//! which an [`Executor`] computes: this process ([`LocalExecutor`]), or a cluster,
//! with byte-identical results.

mod budget;
mod calibration;
mod card;
pub mod depth;
mod dry_run;
mod error;
pub mod estimate;
mod events;
mod executor;
mod expert_choice;
mod layer_loop;
mod measurements;
mod options;
mod passes;
mod plan;
mod prepare;
mod recipe;
mod recovery;
mod run;
mod run_dir;
mod run_status;
mod sentences;
mod site_inputs;
pub mod stages;
mod states;
mod statistics;
pub mod structure;

pub use crate::chunk_store::ChunkStore;
pub use calibration::{Calibration, Sampling};
pub use dry_run::DryRun;
pub use error::PipelineError;
pub use events::{Event, Observer, Stage};
pub use executor::{Capture, Executor, LocalExecutor};
pub use options::{
    ByteCount, OPTIONS, OptionKind, OptionValue, OutputDtype, RunOption, RunOptions, Spelling,
};
pub use passes::{Pass, Passes};
pub use plan::{LayerPlan, METHOD, Plan, PlanBuilder, TaskPlan, TensorFilter};
pub use prepare::PreparedRun;
pub use recipe::{Budget, Recipe, RecipeError, Rule};
pub use recovery::{RecoveryPlan, StageWindows};
pub use run::{Evaluation, Job};
pub use run_dir::{Fingerprint, LayerDone, RunDir, Start, check_folder};
pub use run_status::{RunState, RunStatus, find_runs};
pub use sentences::Sentences;
pub use site_inputs::site_hessian;
pub use states::{CHUNK_TOKENS, States};
