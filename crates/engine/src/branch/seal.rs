//! From captured pages to a usable snapshot.

use std::path::Path;

use forkd_capture::CapturedPages;
use forkd_store::{Layer, LayerWriter, StoreError, flatten, resolve};
use forkd_types::{BranchMode, LayerId, SnapshotStatus, limit};

use super::Context;
use crate::catalog::to_figures;
use crate::sandbox::Machine;
use crate::{BranchReport, EngineError};

impl Context<'_> {
    /// Makes the layer immutable and gives it the device state. Returns the snapshot's layers, base
    /// first.
    pub(super) fn seal_layer(
        &self,
        machine: &Machine,
        sink: LayerWriter,
        pages: CapturedPages,
        device_state: &Path,
    ) -> Result<Vec<LayerId>, EngineError> {
        let mut layers = machine.origin.layers.clone();
        let sealed = if self.mode == BranchMode::Full {
            layers.clear();
            sink.seal_base()?
        } else {
            sink.seal_delta(pages.stored, pages.zero)?
        };
        layers.push(sealed.index.id.clone());
        let layers = self.bounded(layers, &sealed)?;
        if let Some(top) = layers.last() {
            let target = self.inner.files.hot_device_state(top);
            std::fs::rename(device_state, &target).map_err(|source| StoreError::File {
                what: "keep",
                path: target,
                source,
            })?;
        }
        Ok(layers)
    }

    /// A child maps every run of its chain: one that is too deep or too ragged becomes one layer.
    fn bounded(&self, layers: Vec<LayerId>, top: &Layer) -> Result<Vec<LayerId>, EngineError> {
        let chain = self.inner.open_chain(&layers)?;
        let indexes: Vec<_> = chain.iter().map(|layer| &layer.index).collect();
        let runs = resolve(&indexes)?.len();
        if chain.len() <= limit::CHAIN_DEPTH_MAX && runs <= limit::RUNS_MAPPED_MAX {
            return Ok(layers);
        }
        tracing::info!(depth = chain.len(), runs, "flattening a chain");
        let flat = flatten(&self.inner.files, &chain.iter().collect::<Vec<_>>())?;
        self.inner.files.remove_layer(&top.index.id);
        Ok(vec![flat.index.id])
    }

    /// Makes the snapshot visible as ready: its row is the last thing that is written.
    pub(super) fn seal_snapshot(
        &self,
        layers: Vec<LayerId>,
        overlays: Vec<LayerId>,
        report: &BranchReport,
    ) -> Result<(), EngineError> {
        let sealed = self.inner.catalog.update(&self.inner.registry, self.tag, |row| {
            row.manifest.layers.clone_from(&layers);
            row.manifest.overlays = overlays;
            row.figures = Some(to_figures(report));
            row.status = SnapshotStatus::Ready;
        });
        if let (Err(_), Some(top)) = (&sealed, layers.last()) {
            self.inner.files.remove_layer(top);
        }
        sealed.map(drop)
    }
}
