//! See `forkd_fuzz::manifest`.

#![no_main]

libfuzzer_sys::fuzz_target!(|input: &[u8]| forkd_fuzz::manifest::check(input));
