//! Any bytes as a safetensors file with packed tensors.
#![no_main]

libfuzzer_sys::fuzz_target!(|data: &[u8]| openwork_fuzz::checkpoint::packed_file(data));
