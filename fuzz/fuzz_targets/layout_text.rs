//! Layout text through every operation.
#![no_main]

libfuzzer_sys::fuzz_target!(|data: &[u8]| openwork_fuzz::layout_text(data));
