//! Who a sandbox is, and which process runs it.

use std::fs;

use forkd_types::SandboxId;
use rustix::process::{Pid, PidfdFlags, Signal};

use crate::guest::{GuestError, Identity};

/// The identity that a child takes when it is forked: nothing of it comes from the snapshot.
pub(crate) fn for_child(id: &SandboxId) -> Result<Identity, GuestError> {
    let mut machine_id = [0u8; 16];
    getrandom::fill(&mut machine_id)
        .map_err(|error| GuestError::Entropy { reason: error.to_string() })?;
    Ok(Identity {
        instance_id: id.to_string(),
        hostname: id.to_string(),
        machine_id: hex::encode(machine_id),
    })
}

/// The number of a process, as it is written down and shown.
pub(crate) fn process_number(pid: Pid) -> Option<u32> {
    u32::try_from(pid.as_raw_nonzero().get()).ok()
}

/// When process `pid` started, in clock ticks since boot (`proc(5)`, field 22 of `stat`). With the
/// number it names a process for good.
pub(crate) fn process_started(pid: Pid) -> Option<u64> {
    let stat = fs::read_to_string(format!("/proc/{}/stat", pid.as_raw_nonzero())).ok()?;
    // The command's name may contain anything; what follows it begins after the last parenthesis.
    let (_, after_name) = stat.rsplit_once(')')?;
    after_name.split_ascii_whitespace().nth(19)?.parse().ok()
}

/// Whether process `pid` has ended and waits to be waited for.
fn is_zombie(pid: Pid) -> bool {
    let stat = fs::read_to_string(format!("/proc/{}/stat", pid.as_raw_nonzero()));
    stat.ok()
        .and_then(|stat| Some(stat.rsplit_once(')')?.1.trim_start().starts_with('Z')))
        .unwrap_or(true)
}

/// The process `pid`, if it is still the one that was `started` then.
pub(crate) fn running_process(pid: u32, started: u64) -> Option<Pid> {
    let pid = Pid::from_raw(i32::try_from(pid).ok()?)?;
    (process_started(pid) == Some(started) && !is_zombie(pid)).then_some(pid)
}

/// Ends a VMM that nobody will use.
pub(crate) fn end_process(pid: Pid) {
    tracing::info!(pid = pid.as_raw_nonzero(), "ending a VM left behind");
    let ended = rustix::process::pidfd_open(pid, PidfdFlags::empty())
        .and_then(|process| rustix::process::pidfd_send_signal(&process, Signal::KILL));
    if let Err(error) = ended {
        tracing::warn!(pid = pid.as_raw_nonzero(), %error, "cannot end a VM left behind");
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn two_children_never_share_an_identity() {
        let [a, b] = [(); 2].map(|()| for_child(&SandboxId::random()).unwrap());
        assert!(a.machine_id != b.machine_id && a.hostname != b.hostname);
        assert_eq!(a.machine_id.len(), 32);
    }

    #[test]
    fn the_start_time_of_this_process_is_known_and_that_of_none_is_not() {
        assert!(process_started(rustix::process::getpid()).is_some_and(|ticks| ticks > 0));
        assert_eq!(process_started(Pid::from_raw(i32::MAX).unwrap()), None);
    }
}
