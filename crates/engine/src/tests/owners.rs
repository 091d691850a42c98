//! What belongs to whom: goal, that for each caller only what is its own exists, and what admins
//! share. Fails when a way to a sandbox, snapshot, operation or event leads past the question
//! whose it is.

use std::sync::Arc;

use forkd_types::{ByteCount, Owner, SnapshotTag};

use super::fixture::{Fixture, Wishes, request, tag, template};
use crate::events::Next;
use crate::{
    AtShutDown, Caller, DeletePolicy, Engine, EngineError, Limits, NoProgress, OwnerLimits, Role,
    TemplateRequest,
};

fn user(lab: &Fixture, name: &str) -> Engine {
    lab.engine.seen_by(Caller::new(owner(name), Role::User))
}

fn owner(name: &str) -> Owner {
    name.parse().unwrap()
}

async fn build(engine: &Engine, name: &str, shared: bool) -> Result<SnapshotTag, EngineError> {
    let request = TemplateRequest { shared, ..template(name) };
    Ok(engine.build_template(request, Arc::new(NoProgress)).await?.tag)
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn what_an_owner_makes_exists_for_that_owner_and_for_admins_also_under_the_next_engine() {
    let mut lab = Fixture::new().await;
    let ann = user(&lab, "ann");
    let t = build(&ann, "ann/t", false).await.unwrap();
    let box_of_ann = ann.fork(&t, 1).await.unwrap().remove(0);
    assert_eq!(box_of_ann.options.owner, owner("ann"));
    let branch = ann.branch(&box_of_ann.id, request("ann/b")).await.unwrap().snapshot;
    lab.engine.shut_down(AtShutDown::Leave).await;
    lab.next_engine().await;
    let (ann, bob) = (user(&lab, "ann"), user(&lab, "bob"));
    for engine in [&ann, &lab.engine] {
        assert_eq!(engine.sandbox(&box_of_ann.id).unwrap().options.owner, owner("ann"));
        assert_eq!(engine.snapshot(&branch.tag).unwrap().tag, branch.tag);
        assert_eq!(engine.sandboxes().len(), 1);
    }
    assert_eq!((ann.snapshots().len(), lab.engine.snapshots().len()), (2, 3));
    assert!(bob.sandboxes().is_empty() && bob.snapshots().is_empty());
    let refused = [
        bob.sandbox(&box_of_ann.id).unwrap_err(),
        bob.remove_sandbox(&box_of_ann.id).await.unwrap_err(),
        bob.branch(&box_of_ann.id, request("bob/x")).await.unwrap_err(),
        bob.ping(&box_of_ann.id).await.unwrap_err(),
        bob.roll_back_sandbox(&box_of_ann.id, &t).await.unwrap_err(),
    ];
    for error in refused {
        assert!(matches!(error, EngineError::UnknownSandbox { .. }), "{error}");
    }
    let refused = [
        bob.snapshot(&t).unwrap_err(),
        bob.fork(&t, 1).await.unwrap_err(),
        bob.compact_snapshot(&t, &tag("bob/c")).await.unwrap_err(),
        bob.delete_snapshot(&t, DeletePolicy::Force).await.unwrap_err(),
        bob.wait_ready(&t).await.unwrap_err(),
        // As the daemon's own, which it is not.
        bob.snapshot(&tag("t")).unwrap_err(),
    ];
    for error in refused {
        assert!(matches!(error, EngineError::UnknownSnapshot { .. }), "{error}");
    }
    lab.engine.remove_sandbox(&box_of_ann.id).await.unwrap();
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_tag_that_another_owner_has_is_free_and_nobody_makes_snapshots_for_others() {
    let lab = Fixture::new().await;
    let (ann, bob) = (user(&lab, "ann"), user(&lab, "bob"));
    build(&ann, "ann/t", false).await.unwrap();
    build(&bob, "bob/t", false).await.unwrap();
    let taken = build(&ann, "ann/t", false).await.unwrap_err();
    assert!(matches!(taken, EngineError::TagTaken { .. }), "{taken}");
    for known_or_not in ["bob/t", "bob/u", "t"] {
        let refused = build(&ann, known_or_not, false).await.unwrap_err();
        assert!(matches!(refused, EngineError::BadRequest { field: "tag", .. }), "{refused}");
    }
    bob.delete_snapshot(&tag("bob/t"), DeletePolicy::Refuse).await.unwrap();
    assert!(ann.snapshot(&tag("ann/t")).is_ok());
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_shared_snapshot_can_be_started_from_by_all_and_changed_by_its_owner_alone() {
    let mut lab = Fixture::new().await;
    let ann = user(&lab, "ann");
    let refused = build(&ann, "ann/s", true).await.unwrap_err();
    assert!(matches!(refused, EngineError::AdminOnly { .. }), "{refused}");
    let s = build(&lab.engine, "s", true).await.unwrap();
    lab.engine.shut_down(AtShutDown::Remove).await;
    lab.next_engine().await;
    let (ann, bob) = (user(&lab, "ann"), user(&lab, "bob"));
    assert_eq!(ann.snapshots().len(), 1, "the fixture's template is not shared");
    let child = ann.fork(&s, 1).await.unwrap().remove(0);
    let branch = ann.branch(&child.id, request("ann/b")).await.unwrap().snapshot;
    assert!(!branch.shared && bob.snapshot(&branch.tag).is_err());
    let refused = ann.delete_snapshot(&s, DeletePolicy::Force).await.unwrap_err();
    assert!(matches!(refused, EngineError::NotYours { .. }), "{refused}");
    assert!(bob.dependents(&s).names(&owner("bob")).is_empty());
    let known = lab.engine.dependents(&s).names(&Owner::default());
    assert_eq!(known, ["ann/b".to_owned(), child.id.to_string()]);
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn what_others_built_on_a_snapshot_outlives_it_and_is_not_named() {
    let lab = Fixture::new().await;
    let ann = user(&lab, "ann");
    let t = build(&ann, "ann/t", false).await.unwrap();
    let of_admin = lab.engine.fork(&t, 1).await.unwrap().remove(0);
    assert!(ann.sandbox(&of_admin.id).is_err(), "who asks for a child is its owner");
    ann.delete_snapshot(&t, DeletePolicy::Cascade).await.unwrap();
    assert!(ann.snapshot(&t).is_err());
    lab.branch(&of_admin.id, "b").await.unwrap();
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn events_and_operations_of_others_are_left_out() {
    let lab = Fixture::new().await;
    let (ann, bob) = (user(&lab, "ann"), user(&lab, "bob"));
    let (mut of_ann, mut of_bob) = (ann.events(None), bob.events(None));
    let t = build(&ann, "ann/t", false).await.unwrap();
    let child = ann.fork(&t, 1).await.unwrap().remove(0);
    ann.remove_sandbox(&child.id).await.unwrap();
    let operation = ann.operations().swap_remove(0);
    assert_eq!(operation.owner, owner("ann"));
    assert!(bob.operations().is_empty());
    for refused in [bob.operation(&operation.id), bob.cancel_operation(&operation.id)] {
        assert!(matches!(refused, Err(EngineError::UnknownOperation { .. })), "{refused:?}");
    }
    let waited = bob.wait_operation(&operation.id, std::time::Duration::ZERO).await;
    assert!(matches!(waited, Err(EngineError::UnknownOperation { .. })), "{waited:?}");
    lab.engine.shut_down(AtShutDown::Leave).await;
    assert!(of_bob.next().await.is_none(), "nothing happened that exists for bob");
    let mut names = Vec::new();
    while let Some(Next::Event(change)) = of_ann.next().await {
        names.push(change.name());
    }
    for name in ["snapshot.ready", "sandbox.started", "sandbox.removed", "operation.ended"] {
        assert!(names.contains(&name), "{name}: {names:?}");
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn what_snapshots_occupy_is_bounded_for_each_owner_and_comes_back_with_their_removal() {
    // As much as one template may become: a second one fits only when the first occupies nothing.
    let disk = Some(ByteCount::from_mib(64));
    let each_owner = OwnerLimits { disk, sandboxes: Some(1), ..OwnerLimits::default() };
    let limits = Limits { each_owner, ..Limits::default() };
    let lab = Fixture::with(Wishes { limits, ..Wishes::default() }).await;
    let (ann, bob) = (user(&lab, "ann"), user(&lab, "bob"));
    let t = build(&ann, "ann/t", false).await.unwrap();
    let refused = build(&ann, "ann/u", false).await.unwrap_err().to_string();
    for figure in ["`owner_max_disk_mib`", "of 64.0 MiB", "64.0 MiB more"] {
        assert!(refused.contains(figure), "{figure}: {refused}");
    }
    assert!(ann.snapshot(&tag("ann/u")).is_err(), "nothing is left of it");
    build(&bob, "bob/u", false).await.unwrap();
    let child = ann.fork(&t, 1).await.unwrap().remove(0);
    let refused = ann.branch(&child.id, request("ann/b")).await.unwrap_err();
    assert!(matches!(refused, EngineError::LimitReached { .. }), "{refused}");
    let refused = ann.fork(&t, 1).await.unwrap_err().to_string();
    assert!(refused.contains("`owner_max_sandboxes`"), "{refused}");
    ann.delete_snapshot(&t, DeletePolicy::Cascade).await.unwrap();
    build(&ann, "ann/u", false).await.unwrap();
}
