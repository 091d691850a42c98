//! Programs that run as another user.

use std::io;
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

#[cfg(test)]
mod tests {
    use super::*;

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
