//! See `forkd_fuzz::oci_archives`.

#![no_main]

libfuzzer_sys::fuzz_target!(|input: &[u8]| forkd_fuzz::oci_archives::check(input));
