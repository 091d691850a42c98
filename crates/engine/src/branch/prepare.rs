//! What can be made while the guest runs: space, the new disk overlay, the layer to write to, the
//! capture's thread, the loaded commands.

use std::fs::File;
use std::io;
use std::sync::Arc;

use forkd_capture::{CapturePlan, Copy, NoProbe, PageSink, PagesBelow, PreparedCapture};
use forkd_store::{Chain, ChainPages, LayerWriter};
use forkd_types::{BranchMode, ByteCount, PageIndex, PageRun, limit};
use forkd_vmm::PausePlan;

use super::context::Context;
use super::device_state::device_state;
use super::probe::Probe;
use crate::EngineError;
use crate::sandboxes::{Machine, Protection, WatchedMemory};

/// Everything that the pause window needs.
pub(super) struct Prepared {
    pub(super) capture: PreparedCapture,
    /// What the new layer is a difference to.
    pub(super) below: Chain,
    pub(super) sink: LayerWriter,
    pub(super) pause: PausePlan,
}

/// A layer's file as the place for captured pages.
struct LayerSink(File);

impl PageSink for LayerSink {
    fn write(&mut self, start: PageIndex, data: &[u8]) -> io::Result<()> {
        LayerWriter::write_pages(&self.0, start, data)
    }
}

/// An open chain as what captured pages are compared with.
struct ChainBelow(ChainPages);

impl PagesBelow for ChainBelow {
    fn compare(&mut self, start: PageIndex, data: &[u8], same: &mut Vec<bool>) -> io::Result<()> {
        self.0.compare(start, data, same)
    }
}

impl Context<'_> {
    pub(super) fn prepare(
        &self,
        machine: &mut Machine,
        probe: Option<Probe<'_>>,
    ) -> Result<Prepared, EngineError> {
        if machine.overlays.len() >= limit::CHAIN_DEPTH_MAX {
            return Err(EngineError::ChainTooDeep { id: self.handle.id().clone() });
        }
        self.branches.require_disk_quota(self.handle, machine)?;
        // One that an earlier branch has frozen, or a merge has made, and that could not be closed.
        machine.vm.close_frozen_overlays()?;
        let snapshots = &self.branches.snapshots;
        let protection = match self.mode {
            BranchMode::Live => Protection::Required,
            BranchMode::Diff | BranchMode::Full => Protection::IfPossible,
        };
        let WatchedMemory { mut target, below } =
            machine.take_memory(snapshots, self.branches.features, protection)?;
        let dirty = target.dirty_bytes()?;
        let (also, expected) = self.pages_besides(&below, dirty);
        let files = &snapshots.files;
        let create = || LayerWriter::create(files, machine.origin.memory, expected);
        let sink = files.with_room(create)?;
        let file = sink.file().map_err(|error| EngineError::Internal(error.to_string()))?;
        let mut capture = CapturePlan {
            copy: match self.mode {
                BranchMode::Live => Copy::AfterResume,
                BranchMode::Diff | BranchMode::Full => Copy::BeforeResume,
            },
            also,
            sink: Box::new(LayerSink(file)),
            below: Box::new(ChainBelow(below.pages())),
            probe: Arc::new(NoProbe),
        };
        let mut pause = PausePlan {
            device_state: device_state(files, self.handle.id()),
            overlay: self.branches.next_overlay(self.handle, machine)?,
        };
        if let Some((probe, branch)) = probe {
            probe.change_plans(&branch, &mut capture, &mut pause);
        }
        Ok(Prepared { capture: target.prepare(capture), below, sink, pause })
    }

    /// Which pages besides the dirty ones, and how many bytes all of them may be. Pages dirtied
    /// until the pause come on top; the reserve is for them.
    fn pages_besides(&self, below: &Chain, dirty: ByteCount) -> (Vec<PageRun>, ByteCount) {
        match self.mode {
            BranchMode::Live | BranchMode::Diff => (Vec::new(), dirty),
            BranchMode::Full => {
                let also = below.stored();
                let below: ByteCount = also.iter().map(|run| run.bytes()).sum();
                (also, dirty + below)
            }
        }
    }
}
