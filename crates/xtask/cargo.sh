#!/bin/sh
# Runs cargo with a Rust that is new enough; without one it says how to get it.
need=$(sed -n 's/^rust-version = "\(.*\)"/\1/p' Cargo.toml)
have=$(rustc --version 2>/dev/null | cut -d' ' -f2)
command -v cargo >/dev/null || have=
oldest=$(printf '%s\n' "$need" "$have" | sort -V | head -n 1)
if [ -n "$have" ] && [ "$oldest" = "$need" ]; then
    exec cargo "$@"
fi
[ -n "$have" ] && found="Rust $have" || found="none"
echo "forkd needs Rust $need or newer; found $found in PATH." >&2
if command -v rustup >/dev/null; then
    echo "Installing it with rustup, beside what is there." >&2
    rustup toolchain install "$need" --component clippy,rustfmt || exit
    RUSTUP_TOOLCHAIN=$need exec rustup run "$need" cargo "$@"
fi
packaged=$(apt-cache policy rustup 2>/dev/null | sed -n 's/^  Candidate: *\([0-9].*\)/\1/p')
if [ -n "$packaged" ]; then
    [ "$(id -u)" = 0 ] && sudo="" || sudo="sudo "
    echo "Run: ${sudo}apt-get install -y rustup && rustup default stable" >&2
else
    echo "Install rustup as https://rustup.rs says, then run: rustup default stable" >&2
fi
exit 1
