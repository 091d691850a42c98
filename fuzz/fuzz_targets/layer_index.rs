//! See `forkd_fuzz::layer_index`.

#![no_main]

libfuzzer_sys::fuzz_target!(|input: &[u8]| forkd_fuzz::layer_index::check(input));
