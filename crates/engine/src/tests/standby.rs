//! VMMs that stand by are given away once each, and go with the engine.

use std::cell::Cell;
use std::collections::BTreeSet;
use std::time::Duration;

use forkd_types::{ByteCount, SandboxState, StandbyStatus};
use forkd_vmm::fake::{Call, Fault};

use super::fixture::{Fixture, Wishes, tag};
use crate::fake::IMAGE;
use crate::{AtShutDown, EngineError, Limits, StandbyKind, StandbyUsage};

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
    let lab = with_standby(1).await;
    for call in [Call::PutOverlaysBelow, Call::Map, Call::Load, Call::Resume] {
        standing(&lab, 1).await;
        lab.script().fault(call, Fault::Death);
        let error = lab.engine.fork(&tag("t"), 1).await.unwrap_err();
        assert!(matches!(error, EngineError::Vmm(_)), "{call:?}: {error}");
        assert_eq!(lab.engine.sandboxes(), []);
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
        StandbyUsage { places: 2, ready: vec![], status: StandbyStatus::NoDemand }
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
