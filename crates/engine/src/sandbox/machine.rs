//! What a sandbox's task owns.

use forkd_capture::{CaptureTarget, WriteProtection};
use forkd_store::SnapshotManifest;
use forkd_types::{ByteCount, LayerId};
use forkd_vmm::{Vm, VmmError};
use tokio::io::unix::AsyncFd;

use crate::EngineError;

/// A VM with what a branch of it needs.
#[derive(Debug)]
pub(crate) struct Machine {
    pub(crate) vm: Vm,
    /// The snapshot that it runs over.
    pub(crate) origin: SnapshotManifest,
    /// All overlays of its disk, lowest first; the last takes the writes.
    pub(crate) overlays: Vec<LayerId>,
    /// Size of the disk, if it has one.
    pub(crate) disk: Option<ByteCount>,
    /// Its memory, made ready by the first branch. Lost when a capture fails; then made again.
    target: Option<CaptureTarget>,
}

impl Machine {
    pub(crate) fn new(
        vm: Vm,
        origin: SnapshotManifest,
        overlays: Vec<LayerId>,
        disk: Option<ByteCount>,
    ) -> Self {
        Self { vm, origin, overlays, disk, target: None }
    }

    /// The VM's memory, ready to be captured; write-protectable if `protect` is asked for.
    pub(crate) fn take_target(&mut self, protect: Protect) -> Result<CaptureTarget, EngineError> {
        let known = self.target.take();
        if let Some(target) = known.filter(|t| protect == Protect::No || t.can_protect()) {
            return Ok(target);
        }
        let protection = match protect {
            Protect::No => WriteProtection::Unavailable,
            Protect::Yes => {
                WriteProtection::Userfaultfd(self.vm.userfaultfd().map_err(live_unavailable)?)
            }
        };
        let ram = self.vm.ram();
        Ok(CaptureTarget::new(ram.pid, ram.address, ram.length, protection)?)
    }

    /// Gives the memory back for the next branch.
    pub(crate) fn put_target(&mut self, target: CaptureTarget) {
        self.target = Some(target);
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
pub(crate) enum Protect {
    Yes,
    No,
}

/// A VMM that is gone is reported as such; anything else is the host's refusal.
fn live_unavailable(error: VmmError) -> EngineError {
    match error {
        VmmError::Gone { .. } => error.into(),
        other => EngineError::LiveUnavailable(other),
    }
}
