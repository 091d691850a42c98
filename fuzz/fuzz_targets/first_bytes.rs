//! See `forkd_fuzz::first_bytes`.

#![no_main]

libfuzzer_sys::fuzz_target!(|input: &[u8]| forkd_fuzz::first_bytes::check(input));
