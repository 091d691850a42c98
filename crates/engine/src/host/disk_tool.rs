//! How disks that guests have written are read on this host: as far from it as VMMs are.

use std::io;
use std::path::PathBuf;
use std::sync::{Arc, Mutex, PoisonError};

use forkd_store::{CopyOverlay, OverlayCopy, PlainQemuImg};
use forkd_types::{ByteCount, Isolation, SandboxId, limit};
use forkd_vmm::qemu::{ConfinedImg, ImgDisks};
use forkd_vmm::{CgroupLimits, VmmError};

use super::confine::Confiner;
use super::isolation::Users;
use crate::{EngineConfig, describe};

/// What `qemu-img` may use: it keeps a few MiB of tables of each disk.
const LIMITS: CgroupLimits = CgroupLimits {
    memory: Some(ByteCount::from_mib(512)),
    millicpus: Some(2000),
    threads: Some(limit::VMM_THREADS_MAX),
};

/// Runs `qemu-img`.
#[derive(Debug)]
pub(crate) struct DiskTool {
    isolation: Isolation,
    launcher: PathBuf,
    shim: PathBuf,
    root: PathBuf,
    confiner: Arc<Confiner>,
    /// Started when it is needed first.
    started: Mutex<Option<ConfinedImg>>,
}

impl DiskTool {
    /// For a daemon whose VMMs are isolated so.
    pub(super) fn new(
        config: &EngineConfig,
        isolation: Isolation,
        confiner: Arc<Confiner>,
    ) -> Self {
        Self {
            isolation,
            launcher: config.launcher.clone(),
            shim: config.shim.clone(),
            root: config.run_dir.join("root"),
            confiner,
            started: Mutex::default(),
        }
    }

    /// What copies overlays of disks of so many bytes.
    pub(crate) fn copier(&self, disk: ByteCount) -> Copier<'_> {
        Copier { tool: self, disk }
    }
}

/// Copies overlays of one size.
pub(crate) struct Copier<'a> {
    tool: &'a DiskTool,
    disk: ByteCount,
}

impl CopyOverlay for Copier<'_> {
    fn copy(&self, copy: &OverlayCopy<'_>) -> io::Result<()> {
        if self.tool.isolation == Isolation::None {
            return PlainQemuImg.copy(copy);
        }
        let failed = |error: VmmError| io::Error::other(describe(&error));
        let confiner = &self.tool.confiner;
        let mut started = self.tool.started.lock().unwrap_or_else(PoisonError::into_inner);
        let tool = match started.take() {
            Some(tool) => tool,
            None => {
                let DiskTool { launcher, shim, root, .. } = self.tool;
                ConfinedImg::start(launcher.clone(), shim, root.clone()).map_err(failed)?
            }
        };
        let tool = started.insert(tool);
        let seen = ImgDisks::as_seen();
        let seen = OverlayCopy { base: seen.base, from: seen.from, to: seen.to };
        let disks = ImgDisks { base: copy.base, from: copy.from, to: copy.to };
        let cgroup = confiner.cgroup(&SandboxId::random(), LIMITS);
        let file_max = confiner.file_max(Some(self.disk));
        let user = |ids| Users::of(ids).of_tools();
        tool.run(&disks, seen.arguments(), user, cgroup.as_ref(), file_max)
    }
}
