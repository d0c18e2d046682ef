//! Records of runs, and the report page made from them.

mod chart;
mod compare;
mod facts;
mod frontier;
mod groups;
mod heat;
mod html;
mod projections;
mod record;
mod recovery;
mod run;
mod scale;
mod summary;
mod tasks;
#[cfg(test)]
mod tests;

pub use frontier::frontier_page;
pub use groups::warnings;
pub use html::{is_page, page};
pub(crate) use record::distinct;
pub use record::{
    Calibration, EvaluationRecord, EvaluationText, LayerRecord, LayerRecovery, LinearRecord,
    ModelSize, Options, PassRecord, Record, RecordError, RecoveryRecord, SimilarityRecord,
    SizeChange, TaskRecord, Totals, mean,
};
pub use summary::summary;
