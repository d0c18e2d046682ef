//! Any bytes as a GGUF file.
#![no_main]

libfuzzer_sys::fuzz_target!(|data: &[u8]| openwork_fuzz::checkpoint::gguf_file(data));
