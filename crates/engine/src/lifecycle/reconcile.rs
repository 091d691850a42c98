//! What is done at start with the sandboxes that an earlier daemon left: they are taken over. What
//! is done with snapshots and files is the store's business, told which of them sandboxes claim.

use std::fs;
use std::path::{Path, PathBuf};
use std::sync::Arc;

use forkd_store::{Living, Registry, SandboxRow, StoreError, StoreFiles, sweep};
use forkd_types::{SandboxId, SandboxState};
use forkd_vmm::Driver;
use rustix::process::Pid;
use tokio::task::JoinSet;

use super::Lifecycle;
use super::adopt::limit_reached;
use crate::describe;
use crate::host::{end_process, running_process};
use crate::network::log_folders;
use crate::sandboxes::{recorded_cgroup, remove_run_directory};

/// The sandboxes of an earlier daemon.
#[derive(Debug, Default)]
pub(crate) struct Inherited {
    /// Handed out, and its VMM runs.
    living: Vec<(SandboxRow, Pid)>,
    /// Handed out, and its VMM is gone.
    dead: Vec<SandboxRow>,
}

impl Inherited {
    /// Looks at the sandboxes of an earlier daemon. Those that had not been handed out are ended
    /// and forgotten, and so are VMMs that the registry does not know.
    pub(crate) fn find(
        registry: &Registry,
        files: &StoreFiles,
        run_dir: &Path,
        driver: &dyn Driver,
    ) -> Result<Self, StoreError> {
        let mut found = Self::default();
        for row in registry.sandboxes()? {
            let process = row.process.and_then(|(pid, started)| running_process(pid, started));
            match (fate(&row), process) {
                (Fate::TakeOver, Some(pid)) => found.living.push((row, pid)),
                (Fate::TakeOver, None) => found.dead.push(row),
                (Fate::ShowDead, process) => {
                    process.into_iter().for_each(end_process);
                    found.dead.push(row);
                }
                (Fate::Forget, process) => {
                    process.into_iter().for_each(end_process);
                    files.remove_vm_directory(&row.id);
                    remove_run_directory(run_dir, &row.id);
                    registry.remove_sandbox(&row.id)?;
                }
            }
        }
        for pid in driver.processes_in(run_dir) {
            if found.living.iter().all(|(_, known)| *known != pid) {
                end_process(pid);
            }
        }
        Ok(found)
    }
}

/// What becomes of a sandbox that an earlier daemon has written down.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Fate {
    /// It was handed out: it goes on if its VMM runs, and is shown as dead if not.
    TakeOver,
    /// Its VM was being replaced: neither the one before nor the one after can be trusted.
    ShowDead,
    /// It had not been handed out, or was being removed.
    Forget,
}

fn fate(row: &SandboxRow) -> Fate {
    match row.state {
        SandboxState::RollingBack => Fate::ShowDead,
        SandboxState::Stopping => Fate::Forget,
        _ if row.machine.is_some() => Fate::TakeOver,
        _ => Fate::Forget,
    }
}

impl Lifecycle {
    /// Takes the sandboxes over, all at the same time.
    pub(crate) async fn take_over_all(self: &Arc<Self>, inherited: Inherited) {
        for row in &inherited.dead {
            let reason = match (row.state, limit_reached(row)) {
                (SandboxState::RollingBack, _) => {
                    "the daemon ended while it was rolled back".into()
                }
                (_, Some(limit)) => limit.to_string(),
                (_, None) => "its VMM ended while no daemon ran".to_owned(),
            };
            self.show_dead(row, &reason);
        }
        let mut adoptions = JoinSet::new();
        for (row, pid) in inherited.living {
            let this = Arc::clone(self);
            adoptions.spawn(async move { this.adopt_or_end(&row, pid).await });
        }
        while let Some(joined) = adoptions.join_next().await {
            if let Err(error) = joined {
                tracing::error!(%error, "taking over a sandbox died");
            }
        }
    }

    async fn adopt_or_end(self: &Arc<Self>, row: &SandboxRow, pid: Pid) {
        match self.adopt(row, pid).await {
            Ok(()) => {
                let pid = pid.as_raw_nonzero();
                tracing::info!(sandbox = %row.id, %pid, "took over a sandbox");
            }
            Err(error) => {
                end_process(pid);
                let reason = describe(&error);
                self.show_dead(row, &format!("it could not be taken over: {reason}"));
            }
        }
    }

    /// Removes what no snapshot lists and no sandbox claims. Nothing is being made yet.
    pub(crate) fn sweep_files(&self) {
        let all = self.sandboxes.all();
        let sandboxes = all.iter().map(|sandbox| sandbox.id().clone()).collect();
        let living = Living { files: self.snapshots.files.claimed(), sandboxes };
        sweep(&self.snapshots.files, &self.snapshots.catalog.list(), &living);
        self.host.confiner.sweep(|| self.cgroups_in_use());
        let run_dir = self.sandboxes.run_directories();
        let logs = log_folders(run_dir);
        let entries = [run_dir, &logs].map(|folder| fs::read_dir(folder).into_iter().flatten());
        for entry in entries.into_iter().flatten().flatten() {
            let id = entry.file_name().to_str().and_then(|name| name.parse::<SandboxId>().ok());
            if let Some(id) = id.filter(|id| !living.sandboxes.contains(id)) {
                remove_run_directory(run_dir, &id);
            }
        }
    }

    /// The cgroups of the VMMs that were taken over.
    fn cgroups_in_use(&self) -> Vec<PathBuf> {
        let rows = self.sandboxes.rows().unwrap_or_else(|error| {
            tracing::error!(%error, "the sandboxes cannot be read again");
            Vec::new()
        });
        let is_there = |row: &SandboxRow| self.sandboxes.get(&row.id).is_ok_and(|it| it.is_there());
        let cgroups = rows.iter().filter(|row| is_there(row)).filter_map(recorded_cgroup);
        cgroups.flat_map(|cgroup| cgroup.paths().map(PathBuf::from).collect::<Vec<_>>()).collect()
    }
}

#[cfg(test)]
mod tests {
    use std::time::SystemTime;

    use super::*;

    #[test]
    fn only_what_was_handed_out_and_stays_is_taken_over() {
        let row = |state, machine: Option<&str>| SandboxRow {
            id: SandboxId::random(),
            snapshot_tag: "t".parse().unwrap(),
            process: None,
            state,
            created_at: SystemTime::now(),
            overlays: Vec::new(),
            options: Default::default(),
            machine: machine.map(str::to_owned),
        };
        for state in SandboxState::ALL {
            let wanted = match state {
                SandboxState::RollingBack => Fate::ShowDead,
                SandboxState::Stopping => Fate::Forget,
                _ => Fate::TakeOver,
            };
            assert_eq!(fate(&row(state, Some("{}"))), wanted, "{state}");
        }
        assert_eq!(fate(&row(SandboxState::Starting, None)), Fate::Forget);
    }
}
