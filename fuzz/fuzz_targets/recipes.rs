//! See `forkd_fuzz::recipes`.

#![no_main]

libfuzzer_sys::fuzz_target!(|input: &[u8]| forkd_fuzz::recipes::check(input));
