//! Requests of the studio: answer anything.
#![no_main]

libfuzzer_sys::fuzz_target!(|data: &[u8]| openwork_fuzz::studio_request(data));
