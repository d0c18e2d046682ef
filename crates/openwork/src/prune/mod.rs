//! Pruning methods and their measure.

pub mod measure;
