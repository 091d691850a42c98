//! What a sandbox's task owns.

use std::sync::Arc;

use forkd_capture::{CaptureTarget, HostFeatures, WriteProtection};
use forkd_store::{Chain, FileSet, SnapshotManifest};
use forkd_types::{ByteCount, OverlayId};
use forkd_vmm::{DiskOverlay, Vm, VmmError};
use tokio::io::unix::AsyncFd;

use crate::EngineError;
use crate::snapshots::Snapshots;

/// A VM with what a branch of it needs.
#[derive(Debug)]
pub(crate) struct Machine {
    pub(crate) vm: Box<dyn Vm>,
    /// The snapshot that it runs over.
    pub(crate) origin: SnapshotManifest,
    /// All overlays of its disk, lowest first; the last takes the writes.
    pub(crate) overlays: Vec<OverlayId>,
    /// Size of the disk, if it has one.
    pub(crate) disk: Option<ByteCount>,
    /// Its memory, made ready by the first branch. Lost when a branch fails; then made again.
    memory: Option<WatchedMemory>,
    /// An overlay made for the next branch, or for one of which it is not known yet whether the
    /// overlay takes the writes.
    pub(crate) standby: Option<StandbyOverlay>,
    /// An overlay that the VMM is being given, and may name from now on.
    pub(crate) expected: Option<OverlayId>,
    /// What its overlays have of overlays of its snapshot that were merged into them.
    pub(crate) inherited: ByteCount,
}

/// An overlay that is open in the VMM, on top of the disk or not.
#[derive(Debug)]
pub(crate) struct StandbyOverlay {
    pub(crate) id: OverlayId,
    pub(crate) node: DiskOverlay,
}

/// A VM's memory with what the last branch of it left.
#[derive(Debug)]
pub(crate) struct WatchedMemory {
    pub(crate) target: CaptureTarget,
    /// What the pages that the target calls clean hold: the chain of the last branch.
    pub(crate) below: Chain,
}

impl Machine {
    pub(crate) fn new(
        vm: Box<dyn Vm>,
        origin: SnapshotManifest,
        overlays: Vec<OverlayId>,
        disk: Option<ByteCount>,
    ) -> Self {
        let (standby, expected, inherited) = (None, None, ByteCount::ZERO);
        Self { vm, origin, overlays, disk, memory: None, standby, expected, inherited }
    }

    /// Whether an overlay of its disk is one of its snapshot.
    pub(crate) fn inherits(&self, overlay: &OverlayId) -> bool {
        self.origin.overlays.contains(overlay)
    }

    /// The VM's memory, ready to be captured.
    pub(crate) fn take_memory(
        &mut self,
        snapshots: &Snapshots,
        features: HostFeatures,
        protection: Protection,
    ) -> Result<WatchedMemory, EngineError> {
        let known = self.memory.take().filter(|memory| {
            let fits = protection == Protection::IfPossible || memory.target.can_protect();
            fits && memory.target.is_alive()
        });
        if let Some(memory) = known {
            return Ok(memory);
        }
        let write_protection = match (features.write_protect, protection) {
            (true, Protection::Required) => {
                WriteProtection::Userfaultfd(self.vm.userfaultfd().map_err(live_unavailable)?)
            }
            (true, Protection::IfPossible) => self
                .vm
                .userfaultfd()
                .map_or(WriteProtection::Unavailable, WriteProtection::Userfaultfd),
            (false, Protection::Required) => {
                let why = "write protection is switched off in forkd's configuration";
                let why = Box::<dyn std::error::Error + Send + Sync>::from(why);
                return Err(EngineError::LiveUnavailable(why.into()));
            }
            (false, Protection::IfPossible) => WriteProtection::Unavailable,
        };
        let (ram, page_tables) = (self.vm.ram(), self.vm.page_tables()?);
        let target = CaptureTarget::new(
            ram.pid,
            page_tables,
            ram.address,
            ram.length,
            write_protection,
            features,
        )?;
        let below = Chain::new(&snapshots.files, snapshots.open_chain(&self.origin.layers)?)?;
        Ok(WatchedMemory { target, below })
    }

    /// Gives the memory back for the next branch.
    pub(crate) fn put_memory(&mut self, memory: WatchedMemory) {
        self.memory = Some(memory);
    }

    /// What the next branch builds on, if one has been taken.
    pub(crate) fn memory_mut(&mut self) -> Option<&mut WatchedMemory> {
        self.memory.as_mut()
    }

    /// Files that must not be removed: layers that the VMM maps and those that the next branch
    /// builds on, overlays of the disk and the one that stands by.
    pub(crate) fn files(&self) -> FileSet {
        let below = self.memory.as_ref().map(|memory| memory.below.ids()).unwrap_or_default();
        let layers = self.origin.layers.iter().cloned().chain(below);
        let standby = self.standby.as_ref().map(|standby| standby.id.clone());
        FileSet::new(layers, self.overlays.iter().cloned().chain(standby))
    }

    /// Lets the VM live on without this process.
    pub(crate) fn release(self) {
        let Self { vm, memory, .. } = self;
        // Ends the capture's thread, and with it the protection of guest RAM.
        drop(memory);
        vm.release();
    }

    /// The error for a VMM that ends because of its memory limit, if it does.
    pub(crate) fn reached_limit(mut self) -> Option<EngineError> {
        match self.vm.exit_error("while its guest took its identity") {
            Some(error @ VmmError::MemoryLimitReached { .. }) => Some(error.into()),
            _ => None,
        }
    }

    /// A descriptor that becomes readable when the VMM ends.
    pub(crate) fn exit_watch(&self) -> Result<AsyncFd<std::os::fd::OwnedFd>, EngineError> {
        let internal = |error: std::io::Error| EngineError::Internal(error.to_string());
        let fd = self.vm.exit_fd().try_clone_to_owned().map_err(internal)?;
        #[expect(deprecated, reason = "unsound only for types that can change their descriptor")]
        AsyncFd::with_interest(fd, tokio::io::Interest::READABLE).map_err(internal)
    }
}

/// Whether a capture needs write protection.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Protection {
    Required,
    /// It saves looking at pages that the last branch has captured.
    IfPossible,
}

/// A VMM that is gone or silent is reported as such; anything else is the host's refusal.
fn live_unavailable(error: VmmError) -> EngineError {
    match error {
        VmmError::Gone { .. } | VmmError::MemoryLimitReached { .. } | VmmError::Silent { .. } => {
            error.into()
        }
        other => EngineError::LiveUnavailable(Arc::new(other)),
    }
}
