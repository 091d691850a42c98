"""Measures forkd, and writes the results from what was measured.

    python -m forkd_bench run [TABLE...]     measures; raw rows go to bench/data
    python -m forkd_bench results            writes docs/results.md and its plots from bench/data

Guarantees: a figure in a generated table comes from a committed file of raw rows; writing the
results again changes nothing. Does not do: measure by itself. `forkd bench` does that.
"""
