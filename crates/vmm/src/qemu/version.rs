//! Which QEMU is there.

use std::path::{Path, PathBuf};
use std::process::Command;

use crate::VmmError;
use forkd_types::Accelerator;

/// The distribution's program for `accelerator`: with KVM the build that holds nothing but the
/// microvm machine (2.9 MiB of private memory), otherwise the full one, which alone emulates.
#[must_use]
pub fn default_program(accelerator: Accelerator) -> PathBuf {
    let slim = (accelerator == Accelerator::Kvm).then(|| in_path("qemu-system-x86_64-microvm"));
    let full = "qemu-system-x86_64";
    slim.flatten().or_else(|| in_path(full)).unwrap_or_else(|| full.into())
}

/// Where a shell finds the program.
pub(super) fn in_path(name: &str) -> Option<PathBuf> {
    let path = std::env::var_os("PATH").unwrap_or_default();
    std::env::split_paths(&path)
        .filter(|directory| directory.is_absolute())
        .map(|directory| directory.join(name))
        .find(|program| program.is_file())
}

/// The version that `program` states, such as `7.2.22`. Device state is bound to it.
///
/// # Errors
/// When the program cannot be run or does not look like QEMU.
pub fn version(program: &Path) -> Result<String, VmmError> {
    let name = program.display().to_string();
    let output = Command::new(program)
        .arg("--version")
        .output()
        .map_err(|source| VmmError::Spawn { program: name.clone(), source })?;
    let text = String::from_utf8_lossy(&output.stdout);
    parse(&text).ok_or_else(|| VmmError::Spawn {
        program: name,
        source: std::io::Error::other("it does not say that it is QEMU"),
    })
}

fn parse(text: &str) -> Option<String> {
    let rest = text.strip_prefix("QEMU emulator version ")?;
    let version = rest.split([' ', '\n', '(']).next()?;
    version.starts_with(|c: char| c.is_ascii_digit()).then(|| version.to_owned())
}

/// Whether a QEMU of this version may emulate several vCPUs of one guest at the same time.
///
/// Before 8.1 it could keep a translation of code that another vCPU had just changed: it put the
/// page under watch only after it had read the code (QEMU's commit deba78709ae8). A Linux guest
/// then runs into a breakpoint that is long gone, for ever and with interrupts off. Programs that
/// write code themselves are exposed to it too.
#[must_use]
pub fn emulates_in_parallel(version: &str) -> bool {
    let mut numbers = version.split('.').map(|part| part.parse::<u32>().unwrap_or(0));
    let major = numbers.next().unwrap_or(0);
    (major, numbers.next().unwrap_or(0)) >= (8, 1)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_version_is_read_from_both_distributions_and_nothing_else() {
        let debian12 = "QEMU emulator version 7.2.22 (Debian 1:7.2+dfsg-7+deb12u18+b3)\nCopyright";
        assert_eq!(parse(debian12).as_deref(), Some("7.2.22"));
        assert_eq!(parse("QEMU emulator version 10.0.2\n").as_deref(), Some("10.0.2"));
        assert_eq!(parse("bash 5.2"), None);
    }

    #[test]
    fn only_versions_that_watch_code_before_they_translate_it_emulate_in_parallel() {
        for sound in ["8.1.0", "8.2.1", "10.0.2", "11.0.50"] {
            assert!(emulates_in_parallel(sound), "{sound}");
        }
        for unsound in ["7.2.22", "8.0.5", "5.1", "", "unknown"] {
            assert!(!emulates_in_parallel(unsound), "{unsound}");
        }
    }
}
