//! What is fuzzed. Every function takes any bytes and must not panic.

pub mod checkpoint;
