//! What is done at start with what an earlier daemon left: its sandboxes are taken over, its
//! unfinished snapshots marked as failed, files that nothing reaches removed.

use std::fs;
use std::path::Path;
use std::sync::Arc;

use forkd_store::{Registry, SandboxRow, SnapshotRow, StoreError, StoreFiles};
use forkd_types::{LayerId, SandboxState, SnapshotStatus};
use forkd_vmm::qemu;
use rustix::process::{Pid, PidfdFlags, Signal};
use tokio::task::JoinSet;

use crate::engine::Inner;
use crate::identity;
use crate::sandbox::{adopt, mourn};

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
) -> Result<Heritage, StoreError> {
    let mut heritage = Heritage::default();
    for row in registry.sandboxes()? {
        let process = row.process.and_then(|(pid, started)| running(pid, started));
        let handed_out = row.machine.is_some() && row.state != SandboxState::Stopping;
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
    for pid in qemu::processes_in(run_dir) {
        if heritage.living.iter().all(|(_, known)| *known != pid) {
            end_process(pid);
        }
    }
    Ok(heritage)
}

/// Takes the sandboxes over, all at the same time.
pub(crate) async fn adopt_sandboxes(inner: &Arc<Inner>, heritage: Heritage) {
    for row in &heritage.dead {
        mourn(inner, row, "its VMM ended while no daemon ran");
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

/// Marks snapshots as failed whose daemon died while it wrote them.
pub(crate) fn settle_snapshots(registry: &Registry) -> Result<Vec<SnapshotRow>, StoreError> {
    let mut rows = registry.snapshots()?;
    for row in rows.iter_mut().filter(|row| row.status == SnapshotStatus::Writing) {
        row.status = SnapshotStatus::Failed;
        row.error = Some("the daemon ended while it was written".to_owned());
        registry.put_snapshot(row)?;
    }
    Ok(rows)
}

/// Removes files of the store that no snapshot lists and no sandbox holds. Nothing is being made
/// yet.
pub(crate) fn sweep_files(inner: &Inner) {
    let files = &inner.files;
    let (layers, overlays) = inner.reachable();
    let hot = files.hot().join("layers");
    for directory in [hot, files.state().join("layers")] {
        for name in names(&directory) {
            let known = name.split('.').next().and_then(|stem| stem.parse().ok());
            let unfinished = Path::new(&name).extension().is_some_and(|end| end == "new");
            if unfinished || !known.is_some_and(|id: LayerId| layers.contains(&id)) {
                remove_file(&directory.join(name));
            }
        }
    }
    let directory = files.state().join("overlays");
    for name in names(&directory) {
        let known = name.strip_suffix(".qcow2").and_then(|stem| stem.parse::<LayerId>().ok());
        if known.is_some_and(|id| !overlays.contains(&id)) || name.ends_with(".new") {
            remove_file(&directory.join(name));
        }
    }
    let sandboxes = inner.sandboxes();
    let lives = |name: &String| sandboxes.iter().any(|sandbox| sandbox.id().as_str() == name);
    for directory in [files.hot().join("vms"), inner.config.run_dir.clone()] {
        for name in names(&directory).into_iter().filter(|name| !lives(name)) {
            if name.parse::<forkd_types::SandboxId>().is_ok() {
                remove_directory(&directory.join(name));
            }
        }
    }
}

fn names(directory: &Path) -> Vec<String> {
    let entries = fs::read_dir(directory).into_iter().flatten().flatten();
    entries.filter_map(|entry| entry.file_name().into_string().ok()).collect()
}

fn remove_file(path: &Path) {
    tracing::info!(path = %path.display(), "removing a file that belongs to no snapshot");
    if let Err(error) = fs::remove_file(path) {
        tracing::warn!(path = %path.display(), %error, "cannot remove it");
    }
}

fn remove_directory(path: &Path) {
    if let Err(error) = fs::remove_dir_all(path)
        && error.kind() != std::io::ErrorKind::NotFound
    {
        tracing::warn!(path = %path.display(), %error, "cannot remove a directory left behind");
    }
}
