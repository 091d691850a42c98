//! From captured pages to a usable snapshot.

use std::path::Path;

use forkd_capture::CapturedPages;
use forkd_store::{Chain, LayerWriter};
use forkd_types::{BranchMode, OverlayId, SnapshotStatus, limit};

use super::context::Context;
use crate::snapshots::to_figures;
use crate::{BranchReport, EngineError};

impl Context<'_> {
    /// Makes the layer immutable and gives it the device state. Returns the snapshot's chain.
    pub(super) fn seal_layer(
        &self,
        below: &Chain,
        sink: LayerWriter,
        pages: CapturedPages,
        device_state: &Path,
    ) -> Result<Chain, EngineError> {
        let chain = if self.mode == BranchMode::Full {
            Chain::new(&self.branches.snapshots.files, vec![sink.seal_base()?])?
        } else {
            self.bounded(below.extended(sink, pages.stored, pages.zero)?)?
        };
        let kept = self.keep_device_state(&chain, device_state);
        if kept.is_err() {
            self.remove_top(&chain);
        }
        kept.map(|()| chain)
    }

    fn keep_device_state(&self, chain: &Chain, path: &Path) -> Result<(), EngineError> {
        let ids = chain.ids();
        let Some(top) = ids.last() else { return Ok(()) };
        Ok(self.branches.snapshots.files.keep_device_state(path, top)?)
    }

    fn remove_top(&self, chain: &Chain) {
        if let Some(top) = chain.ids().last() {
            self.branches.snapshots.files.remove_layer(top);
        }
    }

    /// A chain that is too deep becomes one layer. How ragged it is does not matter: what a child
    /// maps is bounded by the chain's mapping view.
    fn bounded(&self, chain: Chain) -> Result<Chain, EngineError> {
        if chain.depth() <= limit::CHAIN_DEPTH_MAX {
            return Ok(chain);
        }
        tracing::info!(depth = chain.depth(), "flattening a chain");
        let flat = chain.flattened();
        self.remove_top(&chain);
        Ok(flat?)
    }

    /// Makes the snapshot visible as ready: its row is the last thing that is written.
    pub(super) fn seal_snapshot(
        &self,
        chain: &Chain,
        overlays: Vec<OverlayId>,
        network: Option<String>,
        report: &BranchReport,
    ) -> Result<(), EngineError> {
        let ids = chain.ids();
        let sum = ids
            .last()
            .map(|top| self.branches.snapshots.files.checksum_device_state(top))
            .transpose();
        let sum = sum.inspect_err(|_| self.remove_top(chain))?;
        let sealed =
            self.branches.snapshots.catalog.enter(self.tag, SnapshotStatus::Ready, |row| {
                row.manifest.layers = ids;
                row.manifest.device_state = sum;
                row.manifest.overlays = overlays;
                row.network = network;
                row.figures = Some(to_figures(report));
            });
        if sealed.is_err() {
            self.remove_top(chain);
        }
        sealed.map(drop)
    }
}
