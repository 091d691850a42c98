//! See `forkd_fuzz::link_frames`.

#![no_main]

libfuzzer_sys::fuzz_target!(|input: &[u8]| forkd_fuzz::link_frames::check(input));
