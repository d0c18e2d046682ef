//! Any bytes as the index and the shard of a Hugging Face folder.
#![no_main]

libfuzzer_sys::fuzz_target!(|data: &[u8]| openwork_fuzz::checkpoint::safetensors_folder(data));
