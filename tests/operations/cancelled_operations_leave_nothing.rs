//! Goal: an operation that is cancelled leaves what one that fails leaves: no file, no process, a
//! source that runs, no usable snapshot; and one that has come too far says so and goes on.
//! Method: each kind is held at a moment, cancelled there, and looked at from outside.
//! Broken by: a point of no return in the wrong place, work that does not look whether it was
//! cancelled, a half-made file that nobody removes.

use std::sync::Arc;
use std::time::Duration;

use forkd_engine::{
    BranchRequest, EngineError, NoProgress, Operation, OperationKind, OperationState,
    TemplateImage, TemplateRequest, Wait,
};
use forkd_testkit::{Guest, Lab, block_on};
use forkd_types::{
    BranchMode, BranchPhase, ByteCount, MachineSize, OperationId, SnapshotStatus, SnapshotTag,
};

use crate::gate::{Gate, Moment};

/// Longest wait for an operation to end.
const SOON: Duration = Duration::from_secs(120);

#[test]
fn cancelled_operations_leave_nothing() {
    block_on(async {
        let gate = Arc::new(Gate::default());
        let lab = Lab::with_probe(Arc::clone(&gate) as _).await;
        a_template_in_its_warm_up(&lab).await;
        let source = lab.tiny().await;
        a_branch_before_its_pause(&lab, &gate, &source).await;
        a_branch_after_its_pause_goes_on(&lab, &gate, &source).await;
        a_publication_in_the_queue(&lab, &gate, &source).await;
        a_compaction(&lab, &source).await;
        source.remove().await;
        assert_eq!(lab.vmm_count(), 0);
    });
}

fn tag(text: &str) -> SnapshotTag {
    text.parse().unwrap()
}

/// The operation of this kind that works on the snapshot `tag`.
fn operation(lab: &Lab, kind: OperationKind, tag: &SnapshotTag) -> Operation {
    let is_it = |op: &Operation| op.kind == kind && op.snapshot_tag.as_ref() == Some(tag);
    lab.engine.operations().into_iter().rfind(is_it).unwrap()
}

async fn ended(lab: &Lab, id: &OperationId) -> OperationState {
    lab.engine.wait_operation(id, SOON).await.unwrap().state
}

async fn a_template_in_its_warm_up(lab: &Lab) {
    let request = TemplateRequest {
        tag: tag("warm"),
        image: TemplateImage::Named("tiny".to_owned()),
        size: MachineSize::new(ByteCount::from_mib(128), 1).unwrap(),
        cpu: forkd_types::CpuModel::Host,
        warm: vec!["/bin/sleep".to_owned(), "600".to_owned()],
        shared: false,
        private: false,
    };
    let mut events = lab.engine.events(None);
    let begun = lab.engine.begin_template(request, Arc::new(NoProgress)).unwrap();
    let id = begun.snapshot.operation.clone().unwrap();
    while lab.engine.operation(&id).unwrap().step != "run the warm-up" {
        tokio::time::timeout(SOON, events.next()).await.unwrap().unwrap();
    }
    lab.engine.cancel_operation(&id).unwrap();
    let outcome = tokio::time::timeout(SOON, begun.finished()).await.unwrap();
    assert!(matches!(outcome, Err(EngineError::Cancelled { .. })), "{outcome:?}");
    assert_eq!(ended(lab, &id).await, OperationState::Cancelled);
    assert!(lab.engine.snapshot(&tag("warm")).is_err(), "the tag is free");
    assert_eq!((lab.leftovers(), lab.vmm_count()), (vec![], 0));
}

/// Begins a branch that is held at `moment`.
fn begin<'a>(
    lab: &'a Lab,
    gate: &Gate,
    source: &'a Guest<'_>,
    name: &str,
    moment: Moment,
) -> tokio::task::JoinHandle<Result<forkd_engine::Branch, EngineError>> {
    gate.close(&tag(name), moment);
    let request = BranchRequest {
        tag: Some(tag(name)),
        mode: BranchMode::Live,
        children: 0,
        network: None,
        join: None,
        private: false,
        wait: Wait::UntilReady,
    };
    let (engine, id) = (lab.engine.clone(), source.id.clone());
    let branch = tokio::spawn(async move { engine.branch(&id, request).await });
    gate.wait_reached();
    branch
}

async fn a_branch_before_its_pause(lab: &Lab, gate: &Gate, source: &Guest<'_>) {
    let branch = begin(lab, gate, source, "early", Moment::Before(BranchPhase::Prepare));
    let id = operation(lab, OperationKind::Branch, &tag("early")).id;
    assert_eq!(lab.engine.snapshot(&tag("early")).unwrap().operation.as_ref(), Some(&id));
    lab.engine.cancel_operation(&id).unwrap();
    gate.open();
    let outcome = branch.await.unwrap();
    assert!(matches!(outcome, Err(EngineError::Cancelled { .. })), "{outcome:?}");
    assert_eq!(ended(lab, &id).await, OperationState::Cancelled);
    let left = lab.engine.snapshot(&tag("early")).unwrap();
    assert_eq!((left.status, left.operation), (SnapshotStatus::Failed, None));
    assert_eq!(source.sh("echo still here").await, "still here");
    source.try_branch_as(&tag("early")).await.unwrap();
    lab.wait_durable(&tag("early")).await;
    assert_eq!(lab.leftovers(), Vec::<std::path::PathBuf>::new());
}

async fn a_branch_after_its_pause_goes_on(lab: &Lab, gate: &Gate, source: &Guest<'_>) {
    let branch = begin(lab, gate, source, "late", Moment::Before(BranchPhase::Sweep));
    let id = operation(lab, OperationKind::Branch, &tag("late")).id;
    let refusal = lab.engine.cancel_operation(&id).unwrap_err().to_string();
    assert!(refusal.contains("its source has been paused"), "{refusal}");
    gate.open();
    assert_eq!(branch.await.unwrap().unwrap().snapshot.status, SnapshotStatus::Ready);
    assert_eq!(ended(lab, &id).await, OperationState::Succeeded);
    let refusal = lab.engine.cancel_operation(&id).unwrap_err().to_string();
    assert!(refusal.contains("succeeded already"), "{refusal}");
}

async fn a_publication_in_the_queue(lab: &Lab, gate: &Gate, source: &Guest<'_>) {
    let first = begin(lab, gate, source, "first", Moment::Publish);
    first.await.unwrap().unwrap();
    source.try_branch_as(&tag("second")).await.unwrap();
    let [working, waiting] =
        ["first", "second"].map(|name| operation(lab, OperationKind::Publish, &tag(name)).id);
    let refusal = lab.engine.cancel_operation(&working).unwrap_err().to_string();
    assert!(refusal.contains("it is being written"), "{refusal}");
    lab.engine.cancel_operation(&waiting).unwrap();
    assert_eq!(ended(lab, &waiting).await, OperationState::Cancelled);
    gate.open();
    assert_eq!(ended(lab, &working).await, OperationState::Succeeded);
    assert!(lab.engine.snapshot(&tag("first")).unwrap().durable);
    let second = lab.engine.snapshot(&tag("second")).unwrap();
    assert_eq!((second.status, second.durable), (SnapshotStatus::Ready, false));
    lab.one(&tag("second")).await.remove().await;
}

async fn a_compaction(lab: &Lab, source: &Guest<'_>) {
    let made = source.branch().await;
    lab.wait_durable(&made.tag).await;
    let before = lab.leftovers();
    let mut cancelled = 0;
    // Copying may be over before the request to cancel comes: then once more.
    for name in (0..20).map(|number| format!("small-{number}")) {
        let mut events = lab.engine.events(None);
        let begun = lab.engine.begin_compact(&made.tag, &tag(&name)).unwrap();
        let id = begun.snapshot.operation.clone().unwrap();
        while lab.engine.operation(&id).unwrap().step != "merge the memory" {
            tokio::time::timeout(SOON, events.next()).await.unwrap().unwrap();
        }
        if lab.engine.cancel_operation(&id).is_err() {
            begun.finished().await.unwrap();
            lab.wait_durable(&tag(&name)).await;
            continue;
        }
        let outcome = begun.finished().await;
        assert!(matches!(outcome, Err(EngineError::Cancelled { .. })), "{outcome:?}");
        assert_eq!(ended(lab, &id).await, OperationState::Cancelled);
        let left = lab.engine.snapshot(&tag(&name)).unwrap();
        assert_eq!((left.status, left.parent_tag), (SnapshotStatus::Failed, None));
        assert_eq!(lab.leftovers(), before);
        cancelled += 1;
        if cancelled == 2 {
            lab.engine.compact_snapshot(&made.tag, &tag(&name)).await.unwrap();
            return;
        }
    }
    panic!("no compaction could be cancelled in twenty");
}
