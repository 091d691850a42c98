//! Mapping views of snapshots: made in the background once a snapshot is ready, or at its first
//! fork after a reboot. What a view is: `store/src/view.rs`.

use std::sync::Arc;

use forkd_store::{MappingPlan, SnapshotRow};
use forkd_types::{LayerId, limit};

use tracing::Instrument as _;

use crate::EngineError;
use crate::branch::describe;
use crate::engine::Inner;
use crate::sandbox::{blocking, damaged_layer};

/// What a child of `row` maps. A chain with more runs than a process may map waits for its view;
/// with fewer, it is mapped as it is and the view made meanwhile.
pub(crate) fn plan(inner: &Arc<Inner>, row: &SnapshotRow) -> Result<MappingPlan, EngineError> {
    let chain = &row.manifest.layers;
    let plan = || inner.files.mapping_plan(chain).map_err(|error| damaged_layer(row, error));
    let first = plan()?;
    if first.runs.len() > limit::RUNS_MAPPED_MAX {
        inner.files.make_view(chain)?;
        return plan();
    }
    if first.wants_view {
        in_background(inner, chain.clone());
    }
    Ok(first)
}

/// Begins to make the view of `chain`.
fn in_background(inner: &Arc<Inner>, chain: Vec<LayerId>) {
    let (tasks, runtime) = (inner.tasks.clone(), inner.runtime.clone());
    let span = tracing::Span::current();
    let inner = Arc::clone(inner);
    let work = async move {
        let Ok(_turn) = inner.viewing.acquire().await else { return };
        let worker = Arc::clone(&inner);
        let made = blocking(move || make(&worker, &chain)).await;
        if let Err(error) = made {
            tracing::error!(%error, "making a mapping view died");
        }
    };
    tasks.spawn_on(work.instrument(span), &runtime);
}

/// Makes the view of `chain`. A failure is no more than a slower start of children.
pub(crate) fn make(inner: &Inner, chain: &[LayerId]) {
    let Some(top) = chain.last() else { return };
    if let Err(error) = inner.files.make_view(chain) {
        tracing::info!(layer = %top, error = describe(&error), "no mapping view was made");
    }
    // The snapshot may have been removed meanwhile, and nobody else would remove the view then.
    if !inner.tops().contains(top) {
        inner.files.remove_view(top);
    }
}
