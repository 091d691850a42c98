//! `forkd stop`: end the daemon.

use std::time::Duration;

use anyhow::{Context as _, bail};
use rustix::event::{PollFd, PollFlags, Timespec, poll};
use rustix::process::{PidfdFlags, Signal, pidfd_open, pidfd_send_signal};
use serde_json::json;

use crate::args::Global;
use crate::report::{self, Hinted};
use crate::{connect, output};

/// For all sandboxes to be removed and snapshots to be made durable.
const STOP_DEADLINE: Duration = Duration::from_secs(120);

/// Stop the daemon; all sandboxes are removed, durable snapshots stay
#[derive(Debug, clap::Args)]
#[command(after_help = "Example:\n  forkd stop")]
pub(crate) struct Options {}

pub(crate) async fn run(global: &Global) -> anyhow::Result<()> {
    let Some(socket) = connect::socket_of(global)? else {
        let hint = "give --socket, or nothing for your own daemon";
        return Err(Hinted::usage("a daemon cannot be stopped by its URL", hint).into());
    };
    let stopped = match connect::listener_of(&socket)? {
        None => false,
        Some(pid) => {
            tokio::task::spawn_blocking(move || terminate(pid)).await??;
            true
        }
    };
    if global.json {
        return output::json(&json!({ "stopped": stopped }));
    }
    report::note(if stopped { "stopped" } else { "no daemon runs" });
    Ok(())
}

/// Asks the process to end and waits until it has. The descriptor names this very process, so its
/// number cannot come to mean another one meanwhile.
pub(crate) fn terminate(pid: rustix::process::Pid) -> anyhow::Result<()> {
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
    fn a_process_that_is_told_to_end_is_waited_for() {
        let mut child = std::process::Command::new("sleep").arg("60").spawn().unwrap();
        terminate(rustix::process::Pid::from_child(&child)).unwrap();
        assert!(child.try_wait().unwrap().is_some(), "it has ended already");
    }
}
