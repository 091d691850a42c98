//! A start that fails leaves nothing, wherever it fails.

use std::sync::atomic::Ordering;
use std::time::Duration;

use forkd_types::{ByteCount, SandboxState, StartPhase};
use forkd_vmm::fake::{Call, Fault};

use super::fixture::{Fixture, NoRows, Wishes, tag};
use crate::{EngineError, Limits};

#[tokio::test]
async fn a_child_has_the_memory_of_its_template_and_runs() {
    let lab = Fixture::new().await;
    let child = lab.child().await;
    assert_eq!(lab.state(&child.id), SandboxState::Running);
    let phases: Vec<_> = child.start_phases.iter().collect();
    assert!(phases.iter().map(|(phase, _)| *phase).eq(StartPhase::ALL), "{phases:?}");
    assert_eq!(child.started_in, Some(phases.iter().map(|(_, took)| *took).sum::<Duration>()));
    let booted = lab.driver.read(lab.pid(&child.id), forkd_types::PageIndex::new(0)).unwrap();
    assert_eq!(&booted.to_le_bytes()[..6], b"booted");
    lab.engine.remove_sandbox(&child.id).await.unwrap();
    lab.assert_nothing_left();
}

#[tokio::test]
async fn a_vmm_that_refuses_or_dies_at_any_call_of_a_start_leaves_nothing() {
    let lab = Fixture::new().await;
    for call in [Call::Start, Call::Map, Call::Load, Call::Resume] {
        for fault in [Fault::Refusal, Fault::Death] {
            lab.script().fault(call, fault);
            let error = lab.engine.fork(&tag("t"), 1).await.unwrap_err();
            assert!(matches!(error, EngineError::Vmm(_)), "{call:?} {fault:?}: {error}");
            lab.assert_nothing_left();
        }
    }
    lab.child().await;
}

#[tokio::test]
async fn a_child_whose_vm_cannot_be_watched_leaves_nothing() {
    let lab = Fixture::new().await;
    lab.script().fault(Call::ExitWatch, Fault::Refusal);
    lab.engine.fork(&tag("t"), 1).await.unwrap_err();
    lab.assert_nothing_left();
    lab.child().await;
}

#[tokio::test]
async fn a_child_that_cannot_be_written_down_leaves_nothing() {
    let lab = Fixture::new().await;
    {
        let _full = NoRows::begin();
        let error = lab.engine.fork(&tag("t"), 1).await.unwrap_err();
        assert!(matches!(error, EngineError::Store(_)), "{error}");
        lab.assert_nothing_left();
    }
    lab.child().await;
}

#[tokio::test]
async fn a_guest_that_does_not_confirm_its_own_identity_is_never_seen() {
    let lab = Fixture::new().await;
    for wrong in [&lab.guests.hang_up, &lab.guests.confuse_identities] {
        wrong.store(true, Ordering::Relaxed);
        let error = lab.engine.fork(&tag("t"), 1).await.unwrap_err();
        assert!(matches!(error, EngineError::RenewalNotConfirmed { .. }), "{error}");
        lab.assert_nothing_left();
        wrong.store(false, Ordering::Relaxed);
    }
}

#[tokio::test]
async fn of_several_children_all_are_started_or_none() {
    let lab = Fixture::new().await;
    lab.script().fault(Call::Load, Fault::Refusal);
    lab.engine.fork(&tag("t"), 3).await.unwrap_err();
    lab.assert_nothing_left();
    assert_eq!(lab.engine.fork(&tag("t"), 3).await.unwrap().len(), 3);
}

#[tokio::test]
async fn places_come_back_from_failed_starts_and_with_removed_sandboxes() {
    let memory = Some(ByteCount::from_mib(128));
    let limits = Limits { sandboxes: 2, guest_memory: memory, ..Limits::default() };
    let lab = Fixture::with(Wishes { limits, ..Wishes::default() }).await;
    for _ in 0..3 {
        lab.script().fault(Call::Load, Fault::Death);
        lab.engine.fork(&tag("t"), 2).await.unwrap_err();
    }
    let both = lab.engine.fork(&tag("t"), 2).await.unwrap();
    let refusal = lab.engine.fork(&tag("t"), 1).await.unwrap_err();
    assert!(matches!(refusal, EngineError::LimitReached { .. }), "{refusal}");
    lab.engine.remove_sandbox(&both[0].id).await.unwrap();
    lab.child().await;
}

#[tokio::test]
async fn a_sandbox_whose_time_is_over_is_removed() {
    let lab = Fixture::new().await;
    let ttl = Some(Duration::from_millis(1));
    let options = crate::SandboxOptions { ttl, ..Default::default() };
    lab.engine.fork_with(&tag("t"), 1, options).await.unwrap();
    lab.until("it is removed", || lab.engine.sandboxes().is_empty()).await;
    lab.until("its VM is gone", || lab.driver.living() == 0).await;
}

#[tokio::test]
async fn the_time_that_is_left_can_be_shortened_while_nothing_else_happens() {
    let lab = Fixture::new().await;
    let ttl = Some(Duration::from_secs(3600));
    let options = crate::SandboxOptions { ttl, ..Default::default() };
    let sandbox = lab.engine.fork_with(&tag("t"), 1, options).await.unwrap().remove(0);
    let without = lab.engine.set_time_left(&sandbox.id, None).unwrap();
    assert_eq!(without.expires_at, None);
    lab.engine.set_time_left(&sandbox.id, Some(Duration::from_millis(1))).unwrap();
    lab.until("it is removed", || lab.engine.sandboxes().is_empty()).await;
}
