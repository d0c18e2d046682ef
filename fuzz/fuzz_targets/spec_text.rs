//! Spec text: read, print, bind, walk.
#![no_main]

libfuzzer_sys::fuzz_target!(|data: &[u8]| openwork_fuzz::spec_text(data));
