//! Programs that run as another user.

use std::fs;
use std::io;
use std::os::unix::fs::MetadataExt as _;
use std::os::unix::process::CommandExt as _;
use std::process::Command;

use rustix::process::{Gid, Uid};
use rustix::thread::{set_thread_gid, set_thread_groups, set_thread_uid};

/// Makes the program run as this user, with this group and with no others than `groups` besides.
/// Needs to be the superuser.
pub fn run_as(command: &mut Command, user: u32, group: u32, groups: &[u32]) {
    let groups: Vec<Gid> = groups.iter().map(|group| Gid::from_raw(*group)).collect();
    let (user, group) = (Uid::from_raw(user), Gid::from_raw(group));
    let change = move || -> io::Result<()> {
        set_thread_groups(&groups)?;
        set_thread_gid(group)?;
        Ok(set_thread_uid(user)?)
    };
    // JUSTIFICATION: the standard library sets no groups besides the first.
    // SAFETY: the closure makes three system calls and touches no memory that another thread may
    // have been changing, no lock and no allocator. The new process has one thread.
    unsafe { command.pre_exec(change) };
}

/// Whether a process that has not ended has this user. Those that `/proc` hides from this process
/// are not seen: none that are in a user namespace of this process's user.
#[must_use]
pub fn has_process(user: u32) -> bool {
    let entries = fs::read_dir("/proc").into_iter().flatten().flatten();
    let mut processes = entries.filter(|entry| {
        entry.file_name().as_encoded_bytes().first().is_some_and(u8::is_ascii_digit)
    });
    processes.any(|process| {
        process.metadata().is_ok_and(|found| found.uid() == user)
            && fs::read_to_string(process.path().join("stat")).is_ok_and(|stat| !has_ended(&stat))
    })
}

/// Whether a process is one that only waits to be waited for, by its `stat` (`proc(5)`).
fn has_ended(stat: &str) -> bool {
    // The command's name may contain anything.
    let state = stat.rsplit_once(')').map(|(_, rest)| rest.trim_start());
    state.is_none_or(|state| state.starts_with(['Z', 'X']))
}

#[cfg(test)]
mod tests {
    use rustix::process::{Pid, WaitId, WaitIdOptions, waitid};

    use super::*;

    #[test]
    fn a_user_has_a_process_until_it_has_ended() {
        assert!(has_process(rustix::process::geteuid().as_raw()));
        if !rustix::process::geteuid().is_root() {
            eprintln!("not run: needs root");
            return;
        }
        let user = 1_234_321_000;
        assert!(!has_process(user));
        let mut command = Command::new("sleep");
        run_as(command.arg("1000"), user, user, &[]);
        let mut process = command.spawn().unwrap();
        assert!(has_process(user));
        process.kill().unwrap();
        let pid = Pid::from_raw(process.id().try_into().unwrap());
        // It has ended, and nobody has waited for it.
        let options = WaitIdOptions::EXITED | WaitIdOptions::NOWAIT;
        waitid(WaitId::Pid(pid.unwrap()), options).unwrap();
        assert!(!has_process(user));
        process.wait().unwrap();
    }

    #[test]
    fn what_has_ended_is_told_by_its_state_and_not_by_its_name() {
        assert!(has_ended("7 (qemu) Z 1"));
        assert!(!has_ended("7 (a) Z) S 1"));
        assert!(has_ended(""), "it is gone");
    }

    #[test]
    fn the_program_has_this_user_and_these_groups_alone() {
        if !rustix::process::geteuid().is_root() {
            eprintln!("not run: needs root");
            return;
        }
        let mut command = Command::new("sh");
        run_as(command.args(["-c", "id -u; id -G"]), 1234, 567, &[89]);
        let output = command.output().unwrap();
        assert_eq!(String::from_utf8_lossy(&output.stdout), "1234\n567 89\n");
    }
}
