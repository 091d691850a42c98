//! See `forkd_fuzz::e2b_envelopes`.

#![no_main]

libfuzzer_sys::fuzz_target!(|input: &[u8]| forkd_fuzz::e2b_envelopes::check(input));
