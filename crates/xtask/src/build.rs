//! `build`: the programs that a user runs, in release form, and the static programs for guests.

use std::fs;
use std::path::PathBuf;

use anyhow::{Context, bail};

use crate::command::run_visible;
use crate::workspace::{AGENT_TARGET, Workspace};

/// Builds `forkd`, the preload library, the launcher, the guest agent and the meter.
pub(crate) fn run(workspace: &Workspace) -> anyhow::Result<()> {
    let mut cargo = workspace.cargo();
    let packages = ["-p", "forkd-cli", "-p", "forkd-shim", "-p", "forkd-launcher"];
    cargo.args(["build", "--release", "--locked"]).args(packages);
    run_visible(&mut cargo).context("build forkd")?;
    all_for_guests(workspace)
}

/// Builds the programs for guests only.
pub(crate) fn all_for_guests(workspace: &Workspace) -> anyhow::Result<()> {
    agent(workspace)?;
    for_guests(workspace, "forkd-meter")?;
    witness(workspace)?;
    Ok(())
}

/// Builds the guest agent.
pub(crate) fn agent(workspace: &Workspace) -> anyhow::Result<PathBuf> {
    for_guests(workspace, "forkd-agent")
}

/// Builds the program that shows torn branches.
pub(crate) fn witness(workspace: &Workspace) -> anyhow::Result<PathBuf> {
    for_guests(workspace, "forkd-witness")
}

/// Builds the preload library for tests of isolation.
pub(crate) fn probe_shim(workspace: &Workspace) -> anyhow::Result<()> {
    let mut cargo = workspace.cargo();
    cargo
        .args(["build", "--quiet", "--locked", "-p", "forkd-shim", "--features", "probe"])
        .arg("--target-dir")
        .arg(workspace.probe_target());
    run_visible(&mut cargo).context("build the preload library for tests")
}

/// Builds a program for guests and checks that it needs no library there.
fn for_guests(workspace: &Workspace, package: &str) -> anyhow::Result<PathBuf> {
    let mut cargo = workspace.cargo();
    cargo
        .args(["build", "--quiet", "--locked", "-p", package, "--profile", "agent"])
        .args(["--target", AGENT_TARGET])
        // A folder of its own: other flags would rebuild everything in the shared one.
        .env("CARGO_TARGET_DIR", workspace.target.join("agent"))
        .env("RUSTFLAGS", "-C target-feature=+crt-static")
        .env_remove("CARGO_ENCODED_RUSTFLAGS");
    run_visible(&mut cargo).with_context(|| format!("build {package}"))?;
    let path = workspace.for_guests(package);
    let bytes = fs::read(&path).with_context(|| format!("read {}", path.display()))?;
    if !is_static_elf(&bytes) {
        bail!("{} is not a static program; it could not run in every image", path.display());
    }
    Ok(path)
}

/// Whether the bytes are a 64-bit little-endian ELF program without an interpreter, that is, one
/// that runs without any file beside it.
pub(crate) fn is_static_elf(bytes: &[u8]) -> bool {
    const PT_INTERP: u32 = 3;
    if bytes.get(..6) != Some(b"\x7fELF\x02\x01") {
        return false;
    }
    let (Some(table), Some(entry_size), Some(entry_count)) =
        (number(bytes, 0x20, 8), number(bytes, 0x36, 2), number(bytes, 0x38, 2))
    else {
        return false;
    };
    let mut kinds = (0..entry_count).map(|index| {
        let offset = table.checked_add(index.checked_mul(entry_size)?)?;
        number(bytes, offset, 4)
    });
    entry_count > 0 && kinds.all(|kind| kind.is_some_and(|kind| kind != u64::from(PT_INTERP)))
}

/// A little-endian number of `size` bytes (at most 8) at `offset`.
fn number(bytes: &[u8], offset: u64, size: usize) -> Option<u64> {
    let offset = usize::try_from(offset).ok()?;
    let field = bytes.get(offset..offset.checked_add(size)?)?;
    Some(field.iter().rev().fold(0, |sum, byte| sum << 8 | u64::from(*byte)))
}

#[cfg(test)]
mod tests {
    use super::*;

    /// An ELF header with one program header of the given kind.
    fn elf(kind: u32) -> Vec<u8> {
        let mut bytes = vec![0; 0x40 + 56];
        bytes[..6].copy_from_slice(b"\x7fELF\x02\x01");
        bytes[0x20] = 0x40;
        bytes[0x36] = 56;
        bytes[0x38] = 1;
        bytes[0x40..0x44].copy_from_slice(&kind.to_le_bytes());
        bytes
    }

    #[test]
    fn a_program_without_interpreter_is_static() {
        assert!(is_static_elf(&elf(1)));
    }

    #[test]
    fn a_program_with_interpreter_a_cut_one_and_other_files_are_not_static() {
        assert!(!is_static_elf(&elf(3)));
        assert!(!is_static_elf(&elf(1)[..0x42]));
        assert!(!is_static_elf(b"#!/bin/sh\n"));
        assert!(!is_static_elf(b""));
    }

    #[test]
    fn this_test_program_is_recognised_as_dynamic() {
        let bytes = fs::read(std::env::current_exe().unwrap()).unwrap();
        assert!(!is_static_elf(&bytes));
    }
}
