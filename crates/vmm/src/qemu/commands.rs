//! Whether a QEMU has what is asked of it, tried without a guest.

use std::collections::BTreeSet;
use std::os::unix::net::UnixStream;
use std::process::{Command, Stdio};

use command_fds::{CommandFdExt, FdMapping};
use forkd_types::{Accelerator, CpuModel, limit};
use qapi::qmp;

use super::args::{MACHINE, cpu_model};
use super::monitor::Monitor;
use crate::{VmmError, VmmTools};

/// Every command that a VM is controlled with.
const NEEDED: [&str; 19] = [
    "block-stream",
    "blockdev-add",
    "blockdev-del",
    "blockdev-reopen",
    "blockdev-snapshot",
    "change-backing-file",
    "cont",
    "getfd",
    "job-cancel",
    "job-dismiss",
    "migrate-incoming",
    "qmp_capabilities",
    "query-block",
    "query-cpus-fast",
    "query-jobs",
    "query-named-block-nodes",
    "query-status",
    "stop",
    "xen-save-devices-state",
];

/// The number that the machine knows its monitor's connection by.
const MONITOR: i32 = 3;

/// Starts the VMM's machine under emulation, without a guest and with the preload library, and
/// gives the commands that it lacks.
///
/// # Errors
/// When the program does not start, does not know the machine, or does not answer; and when the
/// library cannot be loaded.
pub fn missing_commands(tools: &VmmTools) -> Result<Vec<&'static str>, VmmError> {
    let name = tools.program.display().to_string();
    let failed = |source| VmmError::Spawn { program: name.clone(), source };
    // Connected before the machine starts: there is nothing to wait for but its greeting.
    let (ours, machines) = UnixStream::pair().map_err(failed)?;
    let monitor = FdMapping { parent_fd: machines.into(), child_fd: MONITOR };
    let mut command = Command::new(&tools.program);
    command
        .args([
            "-machine",
            MACHINE,
            "-accel",
            "tcg",
            "-cpu",
            cpu_model(Accelerator::Tcg, CpuModel::Host),
        ])
        .args(["-object", "memory-backend-ram,id=ram,size=16M", "-m", "16M"])
        .args(["-nodefaults", "-no-user-config", "-display", "none", "-S"])
        .args(["-chardev", &format!("socket,id=monitor,fd={MONITOR}")])
        .args(["-mon", "chardev=monitor,mode=control"])
        .env("LD_PRELOAD", &tools.shim)
        .stdin(Stdio::null())
        .stdout(Stdio::null())
        .stderr(Stdio::piped())
        .fd_mappings(vec![monitor])
        .map_err(|error| failed(std::io::Error::other(error)))?;
    let mut child = command.spawn().map_err(failed)?;
    // It holds the machine's end too.
    drop(command);
    let asked = ask(ours);
    // It may have ended by itself.
    child.kill().ok();
    let words = child.wait_with_output().map(|output| output.stderr).unwrap_or_default();
    let words = String::from_utf8_lossy(&words).trim().to_owned();
    // What the dynamic linker says of a library that it cannot load; the program runs without it.
    if let Some(line) = words.lines().find(|line| line.contains("LD_PRELOAD")) {
        let source = std::io::Error::other(line.to_owned());
        return Err(VmmError::file("load", &tools.shim, source));
    }
    match asked {
        Ok(known) => Ok(NEEDED.into_iter().filter(|name| !known.contains(*name)).collect()),
        Err(error) if words.is_empty() => Err(error),
        Err(_) => {
            let last_words = words.lines().last().unwrap_or_default().escape_debug().to_string();
            Err(VmmError::Gone { during: "before it was asked".to_owned(), last_words })
        }
    }
}

/// The commands that a VMM says it knows.
fn ask(connection: UnixStream) -> Result<BTreeSet<String>, VmmError> {
    let deadline = limit::VMM_START_DEADLINE;
    let mut monitor = Monitor::greet(connection, deadline)?;
    let known = monitor.execute(&qmp::query_commands {}, deadline)?;
    Ok(known.into_iter().map(|command| command.name).collect())
}

#[cfg(test)]
mod tests {
    use std::path::Path;

    use super::*;

    /// All commands that this crate's sources name, tests aside.
    fn used(directory: &Path, found: &mut BTreeSet<String>) {
        for entry in std::fs::read_dir(directory).unwrap().map(Result::unwrap) {
            if entry.path().is_dir() {
                used(&entry.path(), found);
                continue;
            }
            let text = std::fs::read_to_string(entry.path()).unwrap();
            let text = text.split("#[cfg(test)]").next().unwrap_or_default();
            for part in text.split("qmp::").skip(1) {
                let end = part.find(|c: char| !c.is_ascii_lowercase() && c != '_');
                let (name, rest) = part.split_at(end.unwrap_or(part.len()));
                if name.contains('_') || rest.starts_with(" {") {
                    found.insert(name.replace('_', "-"));
                }
            }
        }
    }

    #[test]
    fn every_command_that_is_used_is_asked_for() {
        let mut found = BTreeSet::new();
        used(&Path::new(env!("CARGO_MANIFEST_DIR")).join("src"), &mut found);
        found.remove("query-commands");
        let needed: BTreeSet<String> =
            NEEDED.into_iter().map(|name| name.replace('_', "-")).collect();
        assert_eq!(found, needed);
    }

    #[test]
    fn a_program_that_is_no_vmm_is_told_from_one_that_lacks_commands() {
        let tools = |program: &str| VmmTools {
            program: program.into(),
            shim: "/dev/null".into(),
            launcher: None,
            abilities: crate::Abilities::default(),
        };
        for program in ["/nonexistent/qemu", "true"] {
            let error = missing_commands(&tools(program)).unwrap_err();
            assert!(!error.to_string().is_empty());
        }
    }
}
