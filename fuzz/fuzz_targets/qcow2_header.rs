//! See `forkd_fuzz::qcow2_header`.

#![no_main]

libfuzzer_sys::fuzz_target!(|input: &[u8]| forkd_fuzz::qcow2_header::check(input));
