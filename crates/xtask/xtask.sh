#!/bin/sh
# Builds xtask and runs it, with a Rust that is new enough; without one it says how to get it.
#
# Cargo builds a crate once more when a build wants other features of it. So this names the whole
# workspace with what its tests need (there are no examples), as the build of the tests does.
program=${CARGO_TARGET_DIR:-target}/debug/xtask
build="build --quiet --locked --workspace --examples --bin xtask"
need=$(sed -n 's/^rust-version = "\(.*\)"/\1/p' Cargo.toml)
have=$(rustc --version 2>/dev/null | cut -d' ' -f2)
command -v cargo >/dev/null || have=
oldest=$(printf '%s\n' "$need" "$have" | sort -V | head -n 1)
if [ -n "$have" ] && [ "$oldest" = "$need" ]; then
    cargo $build && exec "$program" "$@"
    exit 1
fi
[ -n "$have" ] && found="Rust $have" || found="none"
echo "forkd needs Rust $need or newer; found $found in PATH." >&2
if command -v rustup >/dev/null; then
    echo "Installing it with rustup, beside what is there." >&2
    rustup toolchain install "$need" --component clippy,rustfmt || exit
    export RUSTUP_TOOLCHAIN="$need"
    rustup run "$need" cargo $build && exec rustup run "$need" "$program" "$@"
    exit 1
fi
packaged=$(apt-cache policy rustup 2>/dev/null | sed -n 's/^  Candidate: *\([0-9].*\)/\1/p')
if [ -n "$packaged" ]; then
    [ "$(id -u)" = 0 ] && sudo="" || sudo="sudo "
    echo "Run: ${sudo}apt-get install -y rustup && rustup default stable" >&2
else
    echo "Install rustup as https://rustup.rs says, then run: rustup default stable" >&2
fi
exit 1
