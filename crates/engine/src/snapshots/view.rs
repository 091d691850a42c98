//! Mapping views of snapshots: made in the background once a snapshot is ready, or at its first
//! fork after a reboot. What a view is: `store/src/view.rs`.

use std::sync::Arc;

use forkd_store::{MappingPlan, SnapshotRow};
use forkd_types::{LayerId, limit};
use tracing::Instrument as _;

use super::Snapshots;
use super::parts::damaged;
use crate::background::blocking;
use crate::{EngineError, describe};

impl Snapshots {
    /// What a child of `row` maps. A chain with more runs than a process may map waits for its
    /// view; with fewer, it is mapped as it is and the view made meanwhile.
    pub(crate) fn mapping_plan(
        self: &Arc<Self>,
        row: &SnapshotRow,
    ) -> Result<MappingPlan, EngineError> {
        let chain = &row.manifest.layers;
        let plan = || {
            let plan = self.files.with_room(|| self.files.mapping_plan(chain));
            plan.map_err(|error| damaged(row, error))
        };
        let first = plan()?;
        self.keep_budget_in_background();
        if first.runs.len() > limit::RUNS_MAPPED_MAX {
            self.files.with_room(|| self.files.make_view(chain))?;
            return plan();
        }
        if first.wants_view {
            self.make_view_in_background(chain.clone());
        }
        Ok(first)
    }

    fn make_view_in_background(self: &Arc<Self>, chain: Vec<LayerId>) {
        let span = tracing::Span::current();
        let snapshots = Arc::clone(self);
        let work = async move {
            let Ok(_turn) = snapshots.viewing.acquire().await else { return };
            let worker = Arc::clone(&snapshots);
            if let Err(error) = blocking(move || worker.make_view(&chain)).await {
                tracing::error!(%error, "making a mapping view died");
            }
        };
        self.background.spawn(work.instrument(span));
    }

    /// Makes the view of `chain`. A failure is no more than a slower start of children.
    pub(super) fn make_view(&self, chain: &[LayerId]) {
        let Some(top) = chain.last() else { return };
        if let Err(error) = self.files.make_view(chain) {
            tracing::info!(layer = %top, error = describe(&error), "no mapping view was made");
        }
        // The snapshot may have been removed meanwhile, and nobody else would remove the view then.
        if !self.files.tops().contains(top) {
            self.files.remove_view(top);
        }
    }
}
