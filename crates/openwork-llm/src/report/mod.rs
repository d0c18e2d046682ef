//! What a run measured, and pages made of it.

mod record;

pub use record::{
    Calibration, EvaluationRecord, LayerRecord, LinearRecord, Options, PassRecord, Record,
    RecordError, Totals,
};
