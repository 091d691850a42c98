//! VMMs that stand by are given away once each, and go with the engine.

use std::cell::Cell;
use std::collections::BTreeSet;
use std::time::Duration;

use forkd_types::{ByteCount, PageIndex, SandboxState, StandbyStatus};
use forkd_vmm::fake::{Call, Fault};

use super::fixture::{Fixture, Wishes, tag};
use crate::fake::IMAGE;
use crate::{AtShutDown, DeletePolicy, EngineError, Limits, StandbyKind, StandbyUsage};

/// An engine that keeps so many VMMs standing by, after its first start.
async fn with_standby(places: usize) -> Fixture {
    let limits = Limits { standby: places, ..Limits::default() };
    let lab = Fixture::with(Wishes { limits, ..Wishes::default() }).await;
    let first = lab.child().await;
    lab.engine.remove_sandbox(&first.id).await.unwrap();
    standing(&lab, places).await;
    lab
}

async fn standing(lab: &Fixture, count: usize) -> BTreeSet<u32> {
    lab.until("they stand by", || lab.engine.standby_pids().len() == count).await;
    lab.engine.standby_pids().into_iter().collect()
}

/// Asks for `t` until nothing else is remembered, and all that stand by are fitted with it.
async fn fitted(lab: &Fixture, places: usize) {
    for _ in 0..4 {
        let child = lab.child().await;
        lab.engine.remove_sandbox(&child.id).await.unwrap();
    }
    lab.until("they are fitted", || lab.engine.standby().fitted == places).await;
    standing(lab, places).await;
}

/// What a start asks of a VMM that has no state yet.
const GIVES_STATE: [Call; 2] = [Call::Map, Call::Load];

#[tokio::test]
async fn children_of_a_snapshot_that_is_asked_for_again_find_vmms_with_its_state() {
    let lab = with_standby(2).await;
    assert_eq!(lab.engine.standby().fitted, 0, "once is no habit");
    fitted(&lab, 2).await;
    let ready = standing(&lab, 2).await;
    lab.script().take_calls();
    let child = lab.child().await;
    let calls = lab.script().take_calls();
    assert!(!calls.iter().any(|call| GIVES_STATE.contains(call)), "{calls:?}");
    assert!(ready.contains(&lab.pid(&child.id)), "{ready:?}");
    let word = lab.driver.read(lab.pid(&child.id), PageIndex::new(0)).unwrap();
    assert_eq!(&word.to_le_bytes()[..6], b"booted", "it has its snapshot's memory");
    lab.write(&child.id, 5);
    let other = lab.child().await;
    assert_ne!(lab.word(&other.id), 5, "each has memory of its own");
    // Each can be branched like any other.
    lab.branch(&child.id, "b").await.unwrap();
    let grandchild = lab.engine.fork(&tag("b"), 1).await.unwrap().remove(0);
    assert_eq!(lab.word(&grandchild.id), 5);
    lab.engine.shut_down(AtShutDown::Remove).await;
    lab.assert_nothing_left();
}

#[tokio::test]
async fn a_vmm_with_the_state_of_one_snapshot_is_given_to_no_child_of_another() {
    let lab = with_standby(2).await;
    let source = lab.child().await;
    lab.write(&source.id, 9);
    lab.branch(&source.id, "b").await.unwrap();
    fitted(&lab, 2).await;
    let with_t = standing(&lab, 2).await;
    let child = lab.engine.fork(&tag("b"), 1).await.unwrap().remove(0);
    assert!(!with_t.contains(&lab.pid(&child.id)), "{with_t:?}");
    assert_eq!(lab.word(&child.id), 9);
    lab.engine.shut_down(AtShutDown::Remove).await;
    lab.assert_nothing_left();
}

#[tokio::test]
async fn a_snapshot_that_vmms_have_the_state_of_is_removed_without_waiting_and_all_of_it_goes() {
    let lab = with_standby(2).await;
    fitted(&lab, 2).await;
    let before = standing(&lab, 2).await;
    assert!(!lab.engine.claimed_by_sandboxes().is_empty(), "they hold its files");
    // They hold nobody up: to the API they are no dependents.
    lab.engine.delete_snapshot(&tag("t"), DeletePolicy::Refuse).await.unwrap();
    lab.until("they end", || before.iter().all(|pid| lab.driver.run_state(*pid).is_none())).await;
    lab.until("its files go", || lab.files().layers.is_empty()).await;
    // Others that fit any snapshot take their places.
    standing(&lab, 2).await;
    assert_eq!(lab.engine.standby().fitted, 0);
    lab.engine.shut_down(AtShutDown::Remove).await;
    lab.assert_nothing_left();
}

#[tokio::test]
async fn a_snapshot_of_the_same_name_is_another() {
    let lab = with_standby(1).await;
    fitted(&lab, 1).await;
    let [old] = standing(&lab, 1).await.into_iter().collect::<Vec<_>>()[..] else { panic!() };
    let source = lab.child().await;
    assert_eq!(lab.pid(&source.id), old);
    lab.until("another is fitted", || lab.engine.standby().fitted == 1).await;
    let [with_old] = standing(&lab, 1).await.into_iter().collect::<Vec<_>>()[..] else { panic!() };
    lab.write(&source.id, 3);
    lab.engine.delete_snapshot(&tag("t"), DeletePolicy::Force).await.unwrap();
    lab.branch(&source.id, "t").await.unwrap();
    let child = lab.child().await;
    assert_ne!(lab.pid(&child.id), with_old);
    assert_eq!(lab.word(&child.id), 3);
    lab.engine.shut_down(AtShutDown::Remove).await;
    lab.assert_nothing_left();
}

#[tokio::test]
async fn a_vmm_that_cannot_be_fitted_is_ended_and_children_start_as_ever() {
    for call in GIVES_STATE {
        for fault in [Fault::Refusal, Fault::Death] {
            let lab = with_standby(1).await;
            lab.script().take_calls();
            // The child that is asked for now is given its state first, and then a VMM ahead.
            lab.script().fault(call, Fault::Delay(Duration::ZERO));
            lab.script().fault(call, fault);
            let child = lab.child().await;
            lab.engine.remove_sandbox(&child.id).await.unwrap();
            let tried = Cell::new(0);
            let is_tried = || {
                let calls = lab.script().take_calls().into_iter();
                tried.set(tried.get() + calls.filter(|made| *made == call).count());
                tried.get() == 2
            };
            lab.until("it is tried", is_tried).await;
            standing(&lab, 1).await;
            assert_eq!(lab.engine.standby().fitted, 0, "{call:?}, and it is not tried for ever");
            let child = lab.child().await;
            assert_eq!(lab.state(&child.id), SandboxState::Running);
            lab.engine.shut_down(AtShutDown::Remove).await;
            lab.assert_nothing_left();
        }
    }
}

#[tokio::test]
async fn a_start_that_fails_on_a_vmm_that_was_fitted_leaves_nothing() {
    let lab = with_standby(1).await;
    fitted(&lab, 1).await;
    lab.script().fault(Call::Resume, Fault::Death);
    let error = lab.engine.fork(&tag("t"), 1).await.unwrap_err();
    assert!(matches!(error, EngineError::Vmm(_)), "{error}");
    assert_eq!(lab.engine.sandboxes(), []);
    lab.engine.shut_down(AtShutDown::Remove).await;
    lab.assert_nothing_left();
}

#[tokio::test]
async fn children_take_the_vmms_that_stand_by_and_others_take_their_places() {
    let lab = with_standby(2).await;
    let ready = standing(&lab, 2).await;
    let children = lab.engine.fork(&tag("t"), 3).await.unwrap();
    let taken: BTreeSet<u32> = children.iter().map(|child| lab.pid(&child.id)).collect();
    assert!(taken.is_superset(&ready) && taken.len() == 3, "{taken:?} of {ready:?}");
    let next = standing(&lab, 2).await;
    assert!(next.is_disjoint(&taken), "{next:?}");
    for child in &children {
        assert_eq!(lab.state(&child.id), SandboxState::Running);
        let booted = lab.driver.read(lab.pid(&child.id), forkd_types::PageIndex::new(0)).unwrap();
        assert_eq!(&booted.to_le_bytes()[..6], b"booted", "it has its snapshot's memory");
        lab.engine.remove_sandbox(&child.id).await.unwrap();
    }
    lab.engine.shut_down(AtShutDown::Remove).await;
    lab.assert_nothing_left();
}

#[tokio::test]
async fn a_vmm_that_died_while_it_stood_by_is_given_to_nobody() {
    let lab = with_standby(1).await;
    let [dead] = standing(&lab, 1).await.into_iter().collect::<Vec<_>>()[..] else { panic!() };
    lab.driver.kill(dead);
    let child = lab.child().await;
    assert_ne!(lab.pid(&child.id), dead);
    lab.engine.remove_sandbox(&child.id).await.unwrap();
    lab.engine.shut_down(AtShutDown::Leave).await;
    lab.assert_nothing_left();
}

#[tokio::test]
async fn a_start_that_fails_on_a_vmm_that_stood_by_leaves_nothing() {
    let limits = Limits { standby: 1, ..Limits::default() };
    let lab = Fixture::with(Wishes { limits, ..Wishes::default() }).await;
    let source = lab.child().await;
    for call in [Call::PutOverlaysBelow, Call::Map, Call::Load, Call::Resume] {
        // Between two branches no snapshot is a habit, so what stands by fits any.
        lab.branch(&source.id, &format!("{call:?}")).await.unwrap();
        standing(&lab, 1).await;
        assert_eq!(lab.engine.standby().fitted, 0);
        lab.script().fault(call, Fault::Death);
        let error = lab.engine.fork(&tag("t"), 1).await.unwrap_err();
        assert!(matches!(error, EngineError::Vmm(_)), "{call:?}: {error}");
        assert_eq!(lab.engine.sandboxes().len(), 1);
    }
    lab.engine.shut_down(AtShutDown::Remove).await;
    lab.assert_nothing_left();
}

#[tokio::test]
async fn vmms_that_cannot_be_started_ahead_are_no_trouble_to_children() {
    let limits = Limits { standby: 3, ..Limits::default() };
    let lab = Fixture::with(Wishes { limits, ..Wishes::default() }).await;
    // The second is the first that would stand by, and it is not tried again before another start.
    lab.script().fault(Call::Start, Fault::Delay(Duration::ZERO));
    lab.script().fault(Call::Start, Fault::Refusal);
    let child = lab.child().await;
    let starts = Cell::new(0);
    let started = || {
        let calls = lab.script().take_calls().into_iter();
        starts.set(starts.get() + calls.filter(|call| *call == Call::Start).count());
        // The template, the child, and one ahead.
        starts.get() == 3
    };
    lab.until("it is tried", started).await;
    // A start that came before that would be forgotten with the failure.
    lab.until("it has failed", || lab.engine.standby().status == StandbyStatus::Failed).await;
    assert_eq!(lab.engine.standby_pids(), [0; 0]);
    lab.engine.remove_sandbox(&child.id).await.unwrap();
    lab.child().await;
    standing(&lab, 3).await;
}

#[tokio::test]
async fn vmms_of_an_engine_that_died_are_ended_by_the_next() {
    let mut lab = with_standby(2).await;
    let left = standing(&lab, 2).await;
    lab.next_engine().await;
    let runs = |pid: &u32| lab.driver.run_state(*pid).is_some();
    lab.until("they end", || !left.iter().any(runs)).await;
}

#[tokio::test]
async fn what_stands_by_is_told_and_why_not_more_does() {
    let off = Fixture::new().await;
    assert_eq!(off.engine.standby().status, StandbyStatus::Off);
    let limits = Limits { standby: 2, ..Limits::default() };
    let lab = Fixture::with(Wishes { limits, ..Wishes::default() }).await;
    assert_eq!(
        lab.engine.standby(),
        StandbyUsage { places: 2, ready: vec![], fitted: 0, status: StandbyStatus::NoDemand }
    );
    let child = lab.child().await;
    lab.until("all stand by", || lab.engine.standby().status == StandbyStatus::Full).await;
    let kind = StandbyKind {
        image: IMAGE.to_owned(),
        memory: ByteCount::from_mib(64),
        vcpus: 1,
        count: 2,
    };
    assert_eq!(lab.engine.standby().ready, [kind]);
    // What cannot be started is not tried again before another start, and the others end.
    lab.script().fault(Call::Start, Fault::Refusal);
    lab.engine.remove_sandbox(&child.id).await.unwrap();
    lab.child().await;
    lab.until("it is told", || lab.engine.standby().status == StandbyStatus::Failed).await;
    lab.until("the other one ends", || lab.engine.standby().ready.is_empty()).await;
    assert_eq!(lab.engine.standby().status, StandbyStatus::Failed);
    lab.child().await;
    lab.until("all stand by again", || lab.engine.standby().status == StandbyStatus::Full).await;
}
