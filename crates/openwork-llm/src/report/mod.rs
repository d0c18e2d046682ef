//! What a run measured, and pages made of it.

mod chart;
mod compare;
mod facts;
mod heat;
mod html;
mod kinds;
mod record;
mod run;
mod scale;
mod summary;
#[cfg(test)]
mod tests;

pub use html::{is_page, page};
pub use record::{
    Calibration, EvaluationRecord, LayerRecord, LinearRecord, Options, PassRecord, Record,
    RecordError, Totals,
};
pub use summary::summary;
