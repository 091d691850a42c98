//! `forkd stop`: end the daemon.

use std::time::Duration;

use anyhow::{Context as _, bail};
use forkd_client::Client;
use rustix::event::{PollFd, PollFlags, Timespec, poll};
use rustix::process::{PidfdFlags, Signal, pidfd_open, pidfd_send_signal};
use serde_json::json;

use crate::args::Global;
use crate::report::{self, Hinted};
use crate::{connect, output};

/// For sandboxes to be let go and snapshots to be made durable.
const STOP_DEADLINE: Duration = Duration::from_secs(120);

/// Stop the daemon; sandboxes run on, and the next daemon takes them over
#[derive(Debug, clap::Args)]
#[command(after_help = "Examples:\n  forkd stop\n  forkd stop --stop-sandboxes")]
pub(crate) struct Options {
    /// Remove all sandboxes first
    #[arg(long)]
    stop_sandboxes: bool,
}

pub(crate) async fn run(global: &Global, options: Options) -> anyhow::Result<()> {
    let Some(socket) = connect::socket_of(global)? else {
        let hint = "give --socket, or nothing for your own daemon";
        return Err(Hinted::usage("a daemon cannot be stopped by its URL", hint).into());
    };
    let running = connect::running_client(global).await?;
    let mut left = 0;
    for sandbox in sandboxes(running.as_ref()).await? {
        match (&running, options.stop_sandboxes) {
            (Some(client), true) => client.delete_sandbox(&sandbox).await?,
            _ => left += 1,
        }
    }
    let stopped = match connect::listener_of(&socket)? {
        None => false,
        Some(pid) => {
            tokio::task::spawn_blocking(move || terminate(pid)).await??;
            true
        }
    };
    if global.json {
        return output::json(&json!({ "stopped": stopped, "sandboxes_left": left }));
    }
    report::remark(if stopped { "stopped" } else { "no daemon runs" });
    if left > 0 {
        report::remark(&format!(
            "{left} sandboxes run on; the next daemon takes them over (or: `--stop-sandboxes`)"
        ));
    }
    Ok(())
}

async fn sandboxes(client: Option<&Client>) -> anyhow::Result<Vec<String>> {
    let Some(client) = client else { return Ok(Vec::new()) };
    Ok(client.sandboxes().await?.into_iter().map(|sandbox| sandbox.id).collect())
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
