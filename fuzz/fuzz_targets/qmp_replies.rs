//! See `forkd_fuzz::qmp_replies`.

#![no_main]

libfuzzer_sys::fuzz_target!(|input: &[u8]| forkd_fuzz::qmp_replies::check(input));
