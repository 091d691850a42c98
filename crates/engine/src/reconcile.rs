//! What is done at start with what an earlier daemon left: its VMs are ended, its unfinished
//! snapshots marked as failed, files that nothing reaches removed.

use std::collections::BTreeSet;
use std::fs;
use std::path::Path;

use forkd_store::{Registry, SandboxRow, SnapshotRow, StoreError, StoreFiles};
use forkd_types::{LayerId, SnapshotStatus};
use rustix::process::{Pid, PidfdFlags, Signal};

use crate::identity;

/// Ends the VMs of an earlier daemon and forgets its sandboxes.
pub(crate) fn reap_sandboxes(
    registry: &Registry,
    files: &StoreFiles,
    run_dir: &Path,
) -> Result<(), StoreError> {
    for row in registry.sandboxes()? {
        if let Some((pid, started)) = row.process {
            end_process(&row, pid, started);
        }
        files.remove_vm_directory(&row.id);
        remove_directory(&run_dir.join(row.id.as_str()));
        registry.remove_sandbox(&row.id)?;
    }
    Ok(())
}

fn end_process(row: &SandboxRow, pid: u32, started: u64) {
    let Some(pid) = i32::try_from(pid).ok().and_then(Pid::from_raw) else { return };
    // The descriptor first: from then on the number cannot come to mean another process.
    let Ok(process) = rustix::process::pidfd_open(pid, PidfdFlags::empty()) else { return };
    if identity::process_started(pid) != Some(started) {
        return;
    }
    tracing::info!(sandbox = %row.id, pid = pid.as_raw_nonzero(), "ending a VM left behind");
    if let Err(error) = rustix::process::pidfd_send_signal(&process, Signal::KILL) {
        tracing::warn!(sandbox = %row.id, %error, "cannot end a VM left behind");
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

/// Removes files of the store that no snapshot lists. No sandbox lives yet.
pub(crate) fn sweep_files(files: &StoreFiles, rows: &[SnapshotRow]) {
    let layers: BTreeSet<&LayerId> = rows.iter().flat_map(|row| &row.manifest.layers).collect();
    let overlays: BTreeSet<&LayerId> = rows.iter().flat_map(|row| &row.manifest.overlays).collect();
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
    for name in names(&files.hot().join("vms")) {
        remove_directory(&files.hot().join("vms").join(name));
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
