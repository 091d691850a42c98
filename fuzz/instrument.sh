#!/bin/sh
# Stands between cargo and rustc (RUSTC_WORKSPACE_WRAPPER) and has our own crates count what they
# execute, which is how libFuzzer finds its way. These are the options that `cargo fuzz` gives.
exec "$@" --cfg fuzzing -Cpasses=sancov-module -Ccodegen-units=1 \
    -Cllvm-args=-sanitizer-coverage-level=4 \
    -Cllvm-args=-sanitizer-coverage-inline-8bit-counters \
    -Cllvm-args=-sanitizer-coverage-pc-table \
    -Cllvm-args=-sanitizer-coverage-trace-compares
