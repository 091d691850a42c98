//! What can be made while the guest runs: space, the new disk overlay, the layer to write to, the
//! capture's thread, the loaded commands.

use std::fs::File;
use std::io;
use std::path::PathBuf;

use forkd_capture::{CaptureMode, PageSink, PreparedCapture};
use forkd_store::{LayerWriter, stored_union};
use forkd_types::{BranchMode, ByteCount, LayerId, PageIndex, limit};
use forkd_vmm::DiskOverlay;

use super::Context;
use crate::EngineError;
use crate::sandbox::{Machine, Protect};

/// Everything that the pause window needs.
pub(super) struct Prepared {
    pub(super) capture: PreparedCapture,
    pub(super) sink: LayerWriter,
    pub(super) overlay: Option<NewOverlay>,
    pub(super) device_state: PathBuf,
}

/// The overlay that the source goes on in.
pub(super) struct NewOverlay {
    pub(super) id: LayerId,
    pub(super) node: DiskOverlay,
}

/// A layer's file as the place for captured pages.
struct LayerSink(File);

impl PageSink for LayerSink {
    fn write(&mut self, start: PageIndex, data: &[u8]) -> io::Result<()> {
        LayerWriter::write_pages(&self.0, start, data)
    }
}

impl Context<'_> {
    pub(super) fn prepare(&self, machine: &mut Machine) -> Result<Prepared, EngineError> {
        if machine.overlays.len() >= limit::CHAIN_DEPTH_MAX {
            return Err(EngineError::ChainTooDeep { id: self.handle.id().clone() });
        }
        let protect = if self.mode == BranchMode::Live { Protect::Yes } else { Protect::No };
        let mut target = machine.take_target(protect)?;
        let dirty = target.dirty_bytes()?;
        let (mode, expected) = self.capture_mode(machine, dirty)?;
        let sink = LayerWriter::create(&self.inner.files, machine.origin.memory, expected)?;
        let file = sink.file().map_err(|error| EngineError::Internal(error.to_string()))?;
        let capture = target.prepare(mode, Box::new(LayerSink(file)))?;
        let overlay = match machine.disk {
            None => None,
            Some(bytes) => {
                let id = self.inner.files.create_overlay(bytes)?;
                match machine.vm.add_overlay(self.inner.files.overlay(&id)) {
                    Ok(node) => Some(NewOverlay { id, node }),
                    Err(error) => {
                        self.inner.files.remove_overlay(&id);
                        return Err(error.into());
                    }
                }
            }
        };
        let device_state = self.inner.files.vm_directory(self.handle.id()).join("device-state");
        Ok(Prepared { capture, sink, overlay, device_state })
    }

    /// Which pages, and how many bytes they may be. Pages dirtied until the pause come on top; the
    /// reserve is for them.
    fn capture_mode(
        &self,
        machine: &Machine,
        dirty: ByteCount,
    ) -> Result<(CaptureMode, ByteCount), EngineError> {
        match self.mode {
            BranchMode::Live => Ok((CaptureMode::Live, dirty)),
            BranchMode::Diff => Ok((CaptureMode::Paused { also: Vec::new() }, dirty)),
            BranchMode::Full => {
                let layers = self.inner.open_chain(&machine.origin.layers)?;
                let also = stored_union(&layers.iter().collect::<Vec<_>>());
                let below: ByteCount = also.iter().map(|run| run.bytes()).sum();
                Ok((CaptureMode::Paused { also }, dirty + below))
            }
        }
    }
}
