//! What is done at start with the sandboxes that an earlier daemon left: they are taken over. What
//! is done with snapshots and files is the store's business, told which of them sandboxes hold.

use std::fs;
use std::path::{Path, PathBuf};
use std::sync::Arc;

use forkd_store::{Living, Registry, SandboxRow, StoreError, StoreFiles, sweep};
use forkd_types::{SandboxId, SandboxState};
use forkd_vmm::Driver;
use rustix::process::{Pid, PidfdFlags, Signal};
use tokio::task::JoinSet;

use crate::engine::Inner;
use crate::identity;
use crate::sandbox::{adopt, limit_reached, mourn, recorded_limit};

/// The sandboxes of an earlier daemon.
#[derive(Debug, Default)]
pub(crate) struct Heritage {
    /// Handed out, and its VMM runs.
    living: Vec<(SandboxRow, Pid)>,
    /// Handed out, and its VMM is gone.
    dead: Vec<SandboxRow>,
}

/// Looks at the sandboxes of an earlier daemon. Those that had not been handed out are ended and
/// forgotten, and so are VMMs that the registry does not know.
pub(crate) fn take_stock(
    registry: &Registry,
    files: &StoreFiles,
    run_dir: &Path,
    driver: &dyn Driver,
) -> Result<Heritage, StoreError> {
    let mut heritage = Heritage::default();
    for row in registry.sandboxes()? {
        let process = row.process.and_then(|(pid, started)| running(pid, started));
        let handed_out = row.machine.is_some() && row.state != SandboxState::Stopping;
        if row.state == SandboxState::RollingBack {
            process.into_iter().for_each(end_process);
            heritage.dead.push(row);
            continue;
        }
        match process {
            Some(pid) if handed_out => heritage.living.push((row, pid)),
            None if handed_out => heritage.dead.push(row),
            _ => {
                if let Some(pid) = process {
                    end_process(pid);
                }
                files.remove_vm_directory(&row.id);
                remove_directory(&run_dir.join(row.id.as_str()));
                registry.remove_sandbox(&row.id)?;
            }
        }
    }
    for pid in driver.processes_in(run_dir) {
        if heritage.living.iter().all(|(_, known)| *known != pid) {
            end_process(pid);
        }
    }
    Ok(heritage)
}

/// Takes the sandboxes over, all at the same time.
pub(crate) async fn adopt_sandboxes(inner: &Arc<Inner>, heritage: Heritage) {
    for row in &heritage.dead {
        let reason = match (row.state, limit_reached(row)) {
            (SandboxState::RollingBack, _) => "the daemon ended while it was rolled back".into(),
            (_, Some(limit)) => limit.to_string(),
            (_, None) => "its VMM ended while no daemon ran".to_owned(),
        };
        mourn(inner, row, &reason);
    }
    let mut adoptions = JoinSet::new();
    for (row, pid) in heritage.living {
        let inner = Arc::clone(inner);
        adoptions.spawn(async move {
            match adopt(&inner, &row, pid).await {
                Ok(()) => {
                    let pid = pid.as_raw_nonzero();
                    tracing::info!(sandbox = %row.id, %pid, "took over a sandbox");
                }
                Err(error) => {
                    end_process(pid);
                    let reason = crate::branch::describe(&error);
                    mourn(&inner, &row, &format!("it could not be taken over: {reason}"));
                }
            }
        });
    }
    while let Some(joined) = adoptions.join_next().await {
        if let Err(error) = joined {
            tracing::error!(%error, "taking over a sandbox died");
        }
    }
}

/// The process `pid`, if it is still the one that was `started` then.
fn running(pid: u32, started: u64) -> Option<Pid> {
    let pid = Pid::from_raw(i32::try_from(pid).ok()?)?;
    (identity::process_started(pid) == Some(started) && !identity::is_zombie(pid)).then_some(pid)
}

/// Ends a VMM that nobody will use.
fn end_process(pid: Pid) {
    tracing::info!(pid = pid.as_raw_nonzero(), "ending a VM left behind");
    let ended = rustix::process::pidfd_open(pid, PidfdFlags::empty())
        .and_then(|process| rustix::process::pidfd_send_signal(&process, Signal::KILL));
    if let Err(error) = ended {
        tracing::warn!(pid = pid.as_raw_nonzero(), %error, "cannot end a VM left behind");
    }
}

/// Removes what no snapshot lists and no sandbox holds. Nothing is being made yet.
pub(crate) fn sweep_files(inner: &Inner) {
    let files = inner.held_by_sandboxes();
    let sandboxes = inner.sandboxes().iter().map(|sandbox| sandbox.id().clone()).collect();
    let living = Living { files, sandboxes };
    sweep(&inner.files, &inner.catalog.list(), &living);
    inner.confiner.sweep(|| groups_in_use(inner));
    for entry in fs::read_dir(&inner.config.run_dir).into_iter().flatten().flatten() {
        let id = entry.file_name().to_str().and_then(|name| name.parse::<SandboxId>().ok());
        if id.is_some_and(|id| !living.sandboxes.contains(&id)) {
            remove_directory(&entry.path());
        }
    }
}

/// The cgroups of the VMMs that were taken over.
fn groups_in_use(inner: &Inner) -> Vec<PathBuf> {
    let rows = inner.registry.sandboxes().unwrap_or_else(|error| {
        tracing::error!(%error, "the sandboxes cannot be read again");
        Vec::new()
    });
    let is_there = |row: &SandboxRow| inner.handle(&row.id).is_ok_and(|it| it.is_there());
    let limits = rows.iter().filter(|row| is_there(row)).filter_map(recorded_limit);
    limits.map(|limit| limit.cgroup).collect()
}

fn remove_directory(path: &Path) {
    if let Err(error) = fs::remove_dir_all(path)
        && error.kind() != std::io::ErrorKind::NotFound
    {
        tracing::warn!(path = %path.display(), %error, "cannot remove a directory left behind");
    }
}
