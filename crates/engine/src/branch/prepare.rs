//! What can be made while the guest runs: space, the new disk overlay, the layer to write to, the
//! capture's thread, the loaded commands.

use std::fs::File;
use std::io;
use std::path::PathBuf;

use forkd_capture::{CapturePlan, Copy, PageSink, PagesBelow, PreparedCapture};
use forkd_store::{Chain, ChainPages, LayerWriter};
use forkd_types::{BranchMode, ByteCount, PageIndex, PageRun, limit};
use forkd_vmm::DiskOverlay;

use super::Context;
use super::stand_by::next_overlay;
use crate::EngineError;
use crate::sandbox::{Machine, Protection, WatchedMemory};

/// Everything that the pause window needs.
pub(super) struct Prepared {
    pub(super) capture: PreparedCapture,
    /// What the new layer is a difference to.
    pub(super) below: Chain,
    pub(super) sink: LayerWriter,
    /// The overlay that the source goes on in.
    pub(super) overlay: Option<DiskOverlay>,
    pub(super) device_state: PathBuf,
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
    pub(super) fn prepare(&self, machine: &mut Machine) -> Result<Prepared, EngineError> {
        if machine.overlays.len() >= limit::CHAIN_DEPTH_MAX {
            return Err(EngineError::ChainTooDeep { id: self.handle.id().clone() });
        }
        let protection = match self.mode {
            BranchMode::Live => Protection::Required,
            BranchMode::Diff | BranchMode::Full => Protection::IfPossible,
        };
        let WatchedMemory { mut target, below } = machine.take_memory(self.inner, protection)?;
        let dirty = target.dirty_bytes()?;
        let (also, expected) = self.pages_besides(&below, dirty);
        let files = &self.inner.files;
        let create = || LayerWriter::create(files, machine.origin.memory, expected);
        let sink = self.inner.with_room(create)?;
        let file = sink.file().map_err(|error| EngineError::Internal(error.to_string()))?;
        let capture = target.prepare(CapturePlan {
            copy: match self.mode {
                BranchMode::Live => Copy::AfterResume,
                BranchMode::Diff | BranchMode::Full => Copy::BeforeResume,
            },
            also,
            sink: Box::new(LayerSink(file)),
            below: Box::new(ChainBelow(below.pages())),
            flaw: self.flaw(),
        })?;
        let overlay = next_overlay(self.inner, self.handle, machine)?;
        let device_state = super::settle::device_state(self.inner, self.handle.id());
        Ok(Prepared { capture, below, sink, overlay, device_state })
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
