//! Snapshots: who needs them, what goes with them, what becomes of their files.

use std::time::Duration;

use forkd_types::{Owner, SnapshotStatus};
use forkd_vmm::fake::{Call, Fault};

use super::fixture::{Fixture, request, tag, template};
use crate::{DeletePolicy, EngineError, NoProgress};

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_snapshot_that_others_build_on_is_kept_unless_they_go_too() {
    let lab = Fixture::new().await;
    let source = lab.child().await;
    lab.branch(&source.id, "b").await.unwrap();
    let dependents = lab.engine.dependents(&tag("t"));
    assert_eq!((dependents.snapshots, dependents.sandboxes), (vec![tag("b")], vec![source.id]));
    let refusal = lab.engine.delete_snapshot(&tag("t"), DeletePolicy::Refuse).await.unwrap_err();
    assert!(matches!(refusal, EngineError::SnapshotInUse { .. }), "{refusal}");
    lab.engine.delete_snapshot(&tag("t"), DeletePolicy::Cascade).await.unwrap();
    assert_eq!(lab.engine.snapshots().len(), 0);
    lab.assert_nothing_left();
    lab.until("no layer is left", || lab.files().is_empty()).await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_snapshot_that_goes_with_its_dependents_leaves_no_child_that_was_being_started() {
    let lab = Fixture::new().await;
    let source = lab.child().await;
    for round in 0..64 {
        lab.branch(&source.id, "b").await.unwrap();
        let engine = lab.engine.clone();
        let children = tokio::spawn(async move { engine.fork(&tag("b"), 3).await });
        // At many moments of the starts.
        tokio::time::sleep(Duration::from_micros(20 * round)).await;
        lab.engine.delete_snapshot(&tag("b"), DeletePolicy::Cascade).await.unwrap();
        // Refused, or started and removed.
        drop(children.await.unwrap());
        let left = lab.engine.sandboxes().into_iter().map(|it| it.id);
        assert!(left.eq([source.id.clone()]), "round {round}");
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_snapshot_made_later_under_a_tag_that_was_freed_has_no_earlier_dependents() {
    let lab = Fixture::new().await;
    let source = lab.child().await;
    lab.write(&source.id, 1);
    lab.branch(&source.id, "b").await.unwrap();
    let child = lab.engine.fork(&tag("b"), 1).await.unwrap().remove(0);
    lab.engine.delete_snapshot(&tag("b"), DeletePolicy::Force).await.unwrap();
    lab.write(&source.id, 2);
    lab.branch(&source.id, "b").await.unwrap();
    assert_eq!(lab.engine.dependents(&tag("b")).names(&Owner::default()), Vec::<String>::new());
    lab.engine.delete_snapshot(&tag("b"), DeletePolicy::Refuse).await.unwrap();
    assert_eq!(lab.word(&child.id), 1, "it keeps what it was started from");
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn layers_go_with_the_last_one_that_needs_them() {
    let lab = Fixture::new().await;
    let template_only = lab.files();
    let source = lab.child().await;
    lab.write(&source.id, 1);
    lab.branch(&source.id, "b").await.unwrap();
    let child = lab.engine.fork(&tag("b"), 1).await.unwrap().remove(0);
    lab.engine.delete_snapshot(&tag("b"), DeletePolicy::Force).await.unwrap();
    assert_ne!(lab.files(), template_only, "the child and the source's next branch need it");
    lab.engine.remove_sandbox(&source.id).await.unwrap();
    assert_ne!(lab.files(), template_only, "the child needs it");
    lab.engine.remove_sandbox(&child.id).await.unwrap();
    lab.until("it is gone", || lab.files() == template_only).await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_failed_tag_is_free_and_a_taken_one_is_not() {
    let lab = Fixture::new().await;
    let source = lab.child().await;
    let taken = lab.branch(&source.id, "t").await.unwrap_err();
    assert!(matches!(taken, EngineError::TagTaken { .. }), "{taken}");
    lab.script().fault(Call::Stop, Fault::Refusal);
    lab.branch(&source.id, "b").await.unwrap_err();
    assert_eq!(lab.engine.snapshot(&tag("b")).unwrap().status, SnapshotStatus::Failed);
    lab.branch(&source.id, "b").await.unwrap();
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_template_that_fails_at_any_call_frees_its_tag_and_leaves_nothing() {
    let lab = Fixture::new().await;
    let before = lab.files();
    for call in [Call::Start, Call::LoadPause, Call::Stop, Call::SaveDeviceState] {
        for fault in [Fault::Refusal, Fault::Death] {
            lab.script().fault(call, fault);
            let progress = std::sync::Arc::new(NoProgress);
            let built = lab.engine.build_template(template("u"), progress).await;
            assert!(built.is_err(), "{call:?} {fault:?}");
            assert!(lab.engine.snapshot(&tag("u")).is_err());
            assert_eq!(lab.files(), before, "{call:?} {fault:?}");
            lab.assert_nothing_left();
        }
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_compacted_snapshot_has_one_layer_and_no_parent() {
    let lab = Fixture::new().await;
    let source = lab.child().await;
    lab.write(&source.id, 4);
    lab.engine.branch(&source.id, request("b")).await.unwrap();
    let compact = lab.engine.compact_snapshot(&tag("b"), &tag("c")).await.unwrap();
    assert_eq!((compact.chain_depth, compact.parent_tag), (1, None));
    lab.engine.delete_snapshot(&tag("t"), DeletePolicy::Cascade).await.unwrap();
    let child = lab.engine.fork(&tag("c"), 1).await.unwrap().remove(0);
    assert_eq!(lab.word(&child.id), 4);
}
