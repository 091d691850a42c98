//! See `forkd_fuzz::dns_messages`.

#![no_main]

libfuzzer_sys::fuzz_target!(|input: &[u8]| forkd_fuzz::dns_messages::check(input));
