//! Goal: after a reboot, when the hot directory is empty, durable snapshots start children as
//! before, at once and while the other hot copies are made, which is an operation that can be
//! cancelled; one that was not durable says so.
//!
//! Method: the engine is shut down, the hot directory emptied, and another engine opened in the
//! same directories. Breaks when a part has no durable copy, or a child gets memory or disk of
//! another instant.

use std::fs;
use std::sync::Arc;

use forkd_engine::{
    AtShutDown, BranchProbe, EngineError, Operation, OperationKind, OperationState,
};
use forkd_testkit::{Lab, block_on};
use forkd_types::{SnapshotStatus, SnapshotTag, limit};

/// So many that overlays and layers of the source are merged meanwhile.
const BRANCHES: usize = limit::OVERLAYS_BEFORE_FLATTEN + 2;

/// Snapshots of this tag are not made durable.
const FRESH: &str = "fresh";

#[derive(Debug)]
struct NeverDurable;

impl BranchProbe for NeverDurable {
    fn before_publish(&self, tag: &SnapshotTag) -> Result<(), EngineError> {
        match tag.to_string() == FRESH {
            true => Err(EngineError::Internal("not yet".to_owned())),
            false => Ok(()),
        }
    }
}

#[test]
fn durable_snapshots_start_children_after_a_reboot() {
    block_on(async {
        let lab = Lab::with_probe(Arc::new(NeverDurable)).await;
        let source = lab.python().await;
        let mut tags = vec![lab.engine.sandbox(&source.id).unwrap().snapshot_tag];
        for number in 0..BRANCHES {
            source
                .sh(&format!("echo {number} > /tmp/memory; echo {number} > /srv/disk; sync"))
                .await;
            tags.push(source.branch().await.tag);
        }
        for tag in &tags {
            lab.wait_durable(tag).await;
        }
        let fresh: SnapshotTag = FRESH.parse().unwrap();
        source.try_branch_as(&fresh).await.unwrap();
        lab.engine.shut_down(AtShutDown::Remove).await;
        let config = lab.config();
        for directory in ["layers", "vms"] {
            fs::remove_dir_all(config.hot_dir.join(directory)).unwrap();
        }
        let paths = [config.state_dir.as_path(), &config.hot_dir, &config.run_dir];
        let next = Lab::in_directories(paths, |_| {}).await;
        for number in [BRANCHES - 1, 1, 0] {
            let child = next.one(&tags[number + 1]).await;
            let wanted = format!("{number}\n{number}");
            assert_eq!(child.sh("cat /tmp/memory /srv/disk").await, wanted);
            child.remove().await;
        }
        next.engine.wait_checked().await;
        let restored = next.engine.operations().into_iter().find(is_restore).unwrap();
        assert_eq!(restored.state, OperationState::Succeeded, "{restored:?}");
        assert_eq!(restored.step, "check durable copies");
        for snapshot in next.engine.snapshots() {
            let lost = snapshot.tag == fresh;
            let wanted = if lost { SnapshotStatus::Failed } else { SnapshotStatus::Ready };
            assert_eq!(snapshot.status, wanted, "{snapshot:?}");
            let reason = snapshot.error.unwrap_or_default();
            assert_eq!(reason.contains("before it was durable"), lost, "{reason}");
        }
        next.engine.shut_down(AtShutDown::Remove).await;

        // Nobody is obliged to wait for all hot copies, or to have them made.
        fs::remove_dir_all(config.hot_dir.join("layers")).unwrap();
        let last = Lab::in_directories(paths, |_| {}).await;
        let restoring = last.engine.operations().into_iter().find(is_restore).unwrap();
        last.engine.cancel_operation(&restoring.id).unwrap();
        last.engine.wait_checked().await;
        let cancelled = last.engine.operation(&restoring.id).unwrap();
        assert_eq!(cancelled.state, OperationState::Cancelled, "{cancelled:?}");
        let child = last.one(&tags[BRANCHES]).await;
        let newest = BRANCHES - 1;
        assert_eq!(child.sh("cat /tmp/memory /srv/disk").await, format!("{newest}\n{newest}"));
        last.engine.shut_down(AtShutDown::Remove).await;
    });
}

fn is_restore(operation: &Operation) -> bool {
    operation.kind == OperationKind::Restore
}
