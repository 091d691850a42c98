//! Taking over a VM that another daemon has started and lost.
//!
//! Nothing is believed that the lost daemon wrote down and the VMM can tell: which overlays its
//! disk has, whether it runs, whether a job is under way. What the lost daemon had begun is undone:
//! a paused guest runs again, an overlay that was not yet on the disk is forgotten, a merge of
//! overlays is cancelled. Its connections are gone, and with them the loaded commands and the write
//! protection of guest RAM.

use std::collections::BTreeMap;
use std::path::PathBuf;
use std::sync::Arc;
use std::time::{Duration, Instant};

use forkd_launcher::Launcher;
use qapi::qmp;
use rustix::process::Pid;

use super::process::{self, Process};
use super::vm::{Monitors, QemuVm};
use super::{args, flatten, jail};
use crate::{Disk, DiskOverlay, GuestRam, RunState, ShimClient, Vm, VmSpec, VmmError};

/// How often a cancelled job is asked about.
const POLL_INTERVAL: Duration = Duration::from_millis(5);

impl QemuVm {
    /// Takes over the VM of process `pid`. Where its guest RAM is must be known: the name by which
    /// it was found is covered by layers since.
    pub(super) fn adopt(
        mut spec: VmSpec,
        pid: Pid,
        ram_address: u64,
        state: RunState,
        launcher: Option<Arc<Launcher>>,
    ) -> Result<Self, VmmError> {
        let process = Process::adopt(pid, &spec)?;
        let deadline = spec.deadlines.reply;
        let ram = GuestRam { pid, address: ram_address, length: spec.memory };
        let connected = Monitors::connect(&spec.directory, deadline).and_then(|monitors| {
            let shim = ShimClient::connect(&process::shim_socket(&spec.directory), deadline)?;
            Ok((monitors, shim))
        });
        let (monitors, shim) = match connected {
            Ok(connected) => connected,
            Err(error) => return Err(process.abandon("while it was taken over", error)),
        };
        spec.start = crate::Start::Load;
        let mut vm = Self::new(process, monitors, shim, ram, spec, launcher);
        match vm.undo_and_learn(state) {
            Ok(()) => Ok(vm),
            Err(error) => {
                let Self { process, .. } = vm;
                Err(process.abandon("while it was taken over", error))
            }
        }
    }

    fn undo_and_learn(&mut self, wanted: RunState) -> Result<(), VmmError> {
        let deadline = self.spec.deadlines.reply;
        self.cancel_jobs(deadline)?;
        if let Some(disk) = &self.spec.disk {
            let base = disk.base.clone();
            let (disk, strays) = self.disk_in_use(base)?;
            self.spec.disk = Some(disk);
            // Nobody knows which of them its earlier owner has seen closed for writing.
            self.closed.clear();
            // The newest first, because it may use an older one.
            for stray in strays.iter().rev() {
                self.drop_overlay(stray);
            }
        }
        let status = self.monitors.general.execute(&qmp::query_status {}, deadline)?;
        match (status.status, wanted) {
            (qmp::RunState::running, RunState::Running)
            | (qmp::RunState::paused, RunState::Paused) => Ok(()),
            (qmp::RunState::running, RunState::Paused) => self.pause(),
            (qmp::RunState::paused, RunState::Running) => {
                self.monitors.general.execute(&qmp::cont {}, deadline).map(drop)
            }
            (other, _) => Err(VmmError::Refused {
                command: "adopt",
                description: format!("its machine is in the state {other:?}"),
            }),
        }
    }

    fn cancel_jobs(&mut self, deadline: Duration) -> Result<(), VmmError> {
        let until = Instant::now() + deadline;
        loop {
            let jobs = self.monitors.general.execute(&qmp::query_jobs {}, deadline)?;
            let Some(job) = jobs.into_iter().find(|job| job.id == flatten::JOB) else {
                return Ok(());
            };
            if Instant::now() > until {
                return Err(VmmError::Silent { command: "job-cancel", deadline });
            }
            let id = job.id;
            let general = &mut self.monitors.general;
            let answer = if job.status == qmp::JobStatus::concluded {
                general.execute(&qmp::job_dismiss { id }, deadline).map(drop)
            } else {
                general.execute(&qmp::job_cancel { id }, deadline).map(drop)
            };
            match answer {
                // It may have ended by itself meanwhile.
                Ok(()) | Err(VmmError::Refused { .. }) => std::thread::sleep(POLL_INTERVAL),
                Err(error) => return Err(error),
            }
        }
    }

    /// The file of an overlay that the VMM says it has open.
    fn overlay_file(&self, name: &str) -> Result<PathBuf, VmmError> {
        let path = file_of(name)?;
        let Some(jail) = &self.spec.confinement.jail else { return Ok(path) };
        jail::host_overlay(&path, jail).ok_or_else(|| VmmError::Refused {
            command: "query-block",
            description: format!("its disk has a file that it was not given: {name}"),
        })
    }

    /// The disk as the VMM has it, over the image `base`, and overlays that it has open beside it.
    fn disk_in_use(&mut self, base: PathBuf) -> Result<(Disk, Vec<DiskOverlay>), VmmError> {
        let deadline = self.spec.deadlines.reply;
        let flat = qmp::query_named_block_nodes { flat: Some(true) };
        let nodes = self.monitors.general.execute(&flat, deadline)?;
        let mut open: BTreeMap<PathBuf, usize> = BTreeMap::new();
        for node in nodes {
            let number = node.node_name.as_deref().and_then(args::overlay_number);
            let Some(number) = number else { continue };
            self.overlays_made = self.overlays_made.max(number + 1);
            open.insert(self.overlay_file(&node.image.base.filename)?, number);
        }
        let disks = self.monitors.general.execute(&qmp::query_block {}, deadline)?;
        let mut image = disks.into_iter().find_map(|disk| disk.inserted).map(|disk| disk.image);
        let mut overlays = Vec::new();
        while let Some(now) = image {
            let path = self.overlay_file(&now.base.filename).unwrap_or_default();
            if let Some(number) = open.remove(&path) {
                overlays.push(DiskOverlay { path, node: args::overlay_node(number) });
            }
            image = now.backing_image.map(|below| *below);
        }
        overlays.reverse();
        if overlays.is_empty() {
            return Err(VmmError::Refused {
                command: "adopt",
                description: "its disk has no overlay".to_owned(),
            });
        }
        let mut strays: Vec<_> = open.into_iter().map(|(path, number)| (number, path)).collect();
        strays.sort();
        let strays = strays
            .into_iter()
            .map(|(number, path)| DiskOverlay { path, node: args::overlay_node(number) });
        Ok((Disk { base, overlays }, strays.collect()))
    }
}

/// The file behind a name that QEMU gives to an image: a path, or `json:` with the options of the
/// image where a path would not say all.
fn file_of(name: &str) -> Result<PathBuf, VmmError> {
    let Some(options) = name.strip_prefix("json:") else { return Ok(name.into()) };
    let file = serde_json::from_str::<serde_json::Value>(options).ok().and_then(|options| {
        let file = options.get("file").unwrap_or(&options);
        Some(PathBuf::from(file.get("filename")?.as_str()?))
    });
    file.ok_or_else(|| VmmError::Refused {
        command: "query-block",
        description: format!("an image of unknown form: {name}"),
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_image_is_known_by_its_path_or_by_its_options() {
        assert_eq!(file_of("/a/b.qcow2").unwrap(), PathBuf::from("/a/b.qcow2"));
        let options = r#"json:{"driver":"qcow2","file":{"driver":"file","filename":"/a/c"}}"#;
        assert_eq!(file_of(options).unwrap(), PathBuf::from("/a/c"));
        let raw = r#"json:{"driver":"file","filename":"/a/d"}"#;
        assert_eq!(file_of(raw).unwrap(), PathBuf::from("/a/d"));
        for bad in ["json:", "json:{}", r#"json:{"file":7}"#] {
            assert!(file_of(bad).is_err(), "{bad}");
        }
    }
}
