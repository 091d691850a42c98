//! See `forkd_fuzz::api_bodies`.

#![no_main]

libfuzzer_sys::fuzz_target!(|input: &[u8]| forkd_fuzz::api_bodies::check(input));
