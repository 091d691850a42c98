//! The pause window: from the pause request to the confirmed resume.
//!
//! What happens in it, and nothing else, for a live branch:
//!
//! 1. one byte to QEMU and its reply to `stop`;
//! 2. one byte for `xen-save-devices-state`, with a disk one more for `blockdev-snapshot`, and the
//!    reply to the first: QEMU writes 4 to 18 KiB to tmpfs;
//! 3. with a disk, the reply to the second, which QEMU began while this thread was being woken;
//! 4. one ioctl for each run of pages written since the capture was armed, a few milliseconds
//!    before; where it could not be armed, a scan of the VMM's page tables and one ioctl for each
//!    dirty run;
//! 5. one byte and the reply to `cont`.
//!
//! The device state is saved before the dirty set is closed, because saving may write guest memory.
//! From the first protected page on, the capture's thread serves faults: the VMM's threads may need
//! them to answer `cont`.
//!
//! The guest agent's socket is quiet throughout: what is written there, QEMU puts into guest memory
//! even while the vCPUs stand still, and the child would have it in memory but not in the device
//! state.

use std::path::PathBuf;

use forkd_capture::{Captured, ClosedCapture};
use forkd_netd_protocol::Flow;
use forkd_store::{Chain, LayerWriter};
use forkd_types::{BranchMode, BranchPhase, OverlayId};
use forkd_vmm::Resumed;

use super::context::Context;
use super::prepare::Prepared;
use super::steps::Steps;
use crate::EngineError;
use crate::sandboxes::Machine;

/// What the window leaves.
pub(super) struct AfterWindow {
    pub(super) resumed: Resumed,
    pub(super) capture: Capture,
    pub(super) below: Chain,
    pub(super) sink: LayerWriter,
    pub(super) device_state: PathBuf,
    /// The disk of the snapshot, lowest first.
    pub(super) frozen_overlays: Vec<OverlayId>,
    /// What the snapshot keeps of the source's network.
    pub(super) network: Option<String>,
}

/// How far the capture is when the guest runs again.
pub(super) enum Capture {
    /// Live: pages are protected and still to be copied.
    Running(ClosedCapture),
    /// All pages have been copied in the window.
    Done(Captured),
}

impl Context<'_> {
    pub(super) fn window(
        &self,
        machine: &mut Machine,
        prepared: Prepared,
        steps: &mut Steps<'_>,
    ) -> Result<AfterWindow, EngineError> {
        let Prepared { capture, below, sink, pause } = prepared;
        let device_state = pause.device_state.clone();
        let inside = |machine: &mut Machine| -> Result<(Resumed, Capture, Vec<Flow>), EngineError> {
            let loaded = steps.time(BranchPhase::Prepare, || machine.vm.prepare_pause(pause))?;
            let connections = steps
                .time(BranchPhase::Prepare, || Ok::<_, EngineError>(self.connections_before()))?;
            // Requests to the guest wait from here on; noted writes cost the guest a fault each.
            let quiesce = self.agent.quiesce(self.branches.deadlines.quiesce);
            let _quiet =
                steps.time(BranchPhase::Prepare, || self.branches.runtime.block_on(quiesce))?;
            let armed = steps.time(BranchPhase::Prepare, || capture.arm())?;
            // The last moment at which nothing has been done to the source. No event is told here:
            // who follows them would be woken, and compete with the VMM for a processor.
            self.operation.commit("its source has been paused")?;
            let stopped = steps.time(BranchPhase::Pause, || loaded.stop())?;
            let saved = steps.time(BranchPhase::SaveDeviceState, || stopped.save_device_state())?;
            let frozen = steps.time(BranchPhase::FreezeDisk, || saved.freeze_disk())?;
            let closed = steps.time(BranchPhase::Protect, || armed.close_dirty_set(&frozen))?;
            let capture = match self.mode {
                BranchMode::Live => Capture::Running(closed),
                BranchMode::Diff | BranchMode::Full => {
                    let captured = steps.time(BranchPhase::Sweep, || closed.sweep())?;
                    Capture::Done(captured)
                }
            };
            let resumed = steps.time(BranchPhase::Resume, || frozen.resume())?;
            steps.resumed(machine.vm.as_mut())?;
            Ok((resumed, capture, connections))
        };
        let outcome = inside(machine);
        let frozen_overlays = machine.overlays.clone();
        self.branches.place_overlay(self.handle, machine);
        let (resumed, capture, connections) = outcome?;
        let network = self.network_after(connections)?;
        Ok(AfterWindow { resumed, capture, below, sink, device_state, frozen_overlays, network })
    }
}
