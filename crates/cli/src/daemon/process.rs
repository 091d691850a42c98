//! The process of a daemon: which one it is, and its end.

use std::path::Path;
use std::time::Duration;

use anyhow::{Context as _, bail};
use rustix::event::{PollFd, PollFlags, Timespec, poll};
use rustix::process::{Pid, PidfdFlags, Signal, pidfd_open, pidfd_send_signal};

/// For sandboxes to be let go and snapshots to be made durable.
const STOP_DEADLINE: Duration = Duration::from_secs(120);

/// The process that listens on the daemon's socket.
pub(crate) fn listener_of(socket: &Path) -> anyhow::Result<Option<Pid>> {
    let stream = match std::os::unix::net::UnixStream::connect(socket) {
        Ok(stream) => stream,
        Err(error)
            if matches!(
                error.kind(),
                std::io::ErrorKind::NotFound | std::io::ErrorKind::ConnectionRefused
            ) =>
        {
            return Ok(None);
        }
        Err(error) => {
            return Err(error).with_context(|| format!("connect to `{}`", socket.display()));
        }
    };
    let credentials = rustix::net::sockopt::socket_peercred(&stream)
        .context("ask who listens on the daemon's socket")?;
    Ok(Some(credentials.pid))
}

/// Asks the process to end and waits until it has. The descriptor names this very process, so its
/// number cannot come to mean another one meanwhile.
pub(crate) fn terminate(pid: Pid) -> anyhow::Result<()> {
    let process = pidfd_open(pid, PidfdFlags::empty()).context("open the daemon's process")?;
    pidfd_send_signal(&process, Signal::TERM).context("signal the daemon")?;
    let deadline = Timespec::try_from(STOP_DEADLINE)?;
    let mut watched = [PollFd::new(&process, PollFlags::IN)];
    let ended = rustix::io::retry_on_intr(|| poll(&mut watched, Some(&deadline)))
        .context("wait for the daemon")?;
    if ended == 0 {
        bail!("the daemon (process {}) did not end within {STOP_DEADLINE:?}", pid.as_raw_nonzero());
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_socket_tells_who_listens_on_it() {
        let directory = tempfile::tempdir().unwrap();
        let path = directory.path().join("s");
        assert_eq!(listener_of(&path).unwrap(), None);
        let listener = std::os::unix::net::UnixListener::bind(&path).unwrap();
        assert_eq!(listener_of(&path).unwrap(), Some(rustix::process::getpid()));
        drop(listener);
        assert_eq!(listener_of(&path).unwrap(), None, "a stale socket has no listener");
    }

    #[test]
    fn a_process_that_is_told_to_end_is_waited_for() {
        let mut child = std::process::Command::new("sleep").arg("60").spawn().unwrap();
        terminate(rustix::process::Pid::from_child(&child)).unwrap();
        assert!(child.try_wait().unwrap().is_some(), "it has ended already");
    }
}
