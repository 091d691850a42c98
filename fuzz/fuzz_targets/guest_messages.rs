//! See `forkd_fuzz::guest_messages`.

#![no_main]

libfuzzer_sys::fuzz_target!(|input: &[u8]| forkd_fuzz::guest_messages::check(input));
