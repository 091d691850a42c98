//! See `forkd_fuzz::artifact`.

#![no_main]

libfuzzer_sys::fuzz_target!(|input: &[u8]| forkd_fuzz::artifact::check(input));
