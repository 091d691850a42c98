//! See `forkd_fuzz::oci_documents`.

#![no_main]

libfuzzer_sys::fuzz_target!(|input: &[u8]| forkd_fuzz::oci_documents::check(input));
