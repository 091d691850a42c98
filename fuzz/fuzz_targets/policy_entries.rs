//! See `forkd_fuzz::policy_entries`.

#![no_main]

libfuzzer_sys::fuzz_target!(|input: &[u8]| forkd_fuzz::policy_entries::check(input));
