//! What a sandbox's task does with requests, deaths and rollbacks.

use std::time::Duration;

use forkd_types::{SandboxState, SnapshotStatus};
use forkd_vmm::RunState;
use forkd_vmm::fake::{Call, Fault};

use super::fixture::{Fixture, NoRows, tag};
use crate::EngineError;

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_paused_sandbox_takes_no_branch_and_runs_again_when_asked() {
    let lab = Fixture::new().await;
    let id = lab.child().await.id;
    for _ in 0..2 {
        lab.engine.pause_sandbox(&id).await.unwrap();
        assert_eq!(lab.driver.run_state(lab.pid(&id)), Some(RunState::Paused));
        assert_eq!(lab.state(&id), SandboxState::Paused);
    }
    let refusal = lab.branch(&id, "b").await.unwrap_err();
    assert!(matches!(refusal, EngineError::SandboxNotRunning { .. }), "{refusal}");
    let unknown = lab.engine.snapshot(&tag("b")).unwrap_err();
    assert!(matches!(unknown, EngineError::UnknownSnapshot { .. }), "no tag is taken");
    lab.engine.resume_sandbox(&id).await.unwrap();
    assert_eq!(lab.driver.run_state(lab.pid(&id)), Some(RunState::Running));
    lab.branch(&id, "b").await.unwrap();
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_vmm_that_refuses_to_pause_leaves_the_sandbox_as_it_was() {
    let lab = Fixture::new().await;
    let id = lab.child().await.id;
    lab.script().fault(Call::Pause, Fault::Refusal);
    lab.engine.pause_sandbox(&id).await.unwrap_err();
    assert_eq!(lab.state(&id), SandboxState::Running);
    lab.engine.pause_sandbox(&id).await.unwrap();
    lab.script().fault(Call::Resume, Fault::Refusal);
    lab.engine.resume_sandbox(&id).await.unwrap_err();
    assert_eq!(lab.state(&id), SandboxState::Paused);
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_branch_waits_for_the_one_before_it_and_a_removal_for_both() {
    let lab = Fixture::new().await;
    let id = lab.child().await.id;
    lab.script().fault(Call::Stop, Fault::Delay(Duration::from_millis(50)));
    let (first, second, removed) = tokio::join!(
        lab.branch(&id, "first"),
        async {
            lab.until("the first is under way", || lab.state(&id) == SandboxState::Branching).await;
            lab.branch(&id, "second").await
        },
        async {
            let waits = || lab.engine.snapshot(&tag("second")).is_ok();
            lab.until("the second waits", waits).await;
            lab.engine.remove_sandbox(&id).await
        },
    );
    assert!(first.is_ok() && second.is_ok() && removed.is_ok());
    lab.assert_nothing_left();
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_branch_that_waits_while_its_source_dies_fails_though_nobody_waits_for_it() {
    let lab = Fixture::new().await;
    let id = lab.child().await.id;
    lab.script().fault(Call::Stop, Fault::Delay(Duration::from_millis(50)));
    let engine = lab.engine.clone();
    let (source, first) = (id.clone(), super::fixture::request("first"));
    let first = tokio::spawn(async move { engine.branch(&source, first).await });
    lab.until("the first is under way", || lab.state(&id) == SandboxState::Branching).await;
    {
        let second = lab.branch(&id, "second");
        let gone_away = tokio::time::timeout(Duration::from_millis(1), second).await;
        assert!(gone_away.is_err(), "its client has gone away while it waits");
    }
    lab.driver.kill(lab.pid(&id));
    assert!(first.await.unwrap().is_err());
    let failed = || lab.engine.snapshot(&tag("second")).unwrap().status == SnapshotStatus::Failed;
    lab.until("the second has failed", failed).await;
    lab.engine.remove_sandbox(&id).await.unwrap();
    lab.assert_nothing_left();
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_vmm_that_dies_by_itself_is_told_and_its_sandbox_can_be_removed() {
    let lab = Fixture::new().await;
    let id = lab.child().await.id;
    lab.driver.kill(lab.pid(&id));
    lab.until("its death is known", || lab.state(&id) == SandboxState::Dead).await;
    assert!(lab.engine.sandbox(&id).unwrap().error.unwrap().contains("its VMM ended"));
    lab.engine.remove_sandbox(&id).await.unwrap();
    lab.assert_nothing_left();
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_rollback_gives_the_memory_of_the_snapshot_and_drops_what_came_after() {
    let lab = Fixture::new().await;
    let id = lab.child().await.id;
    lab.write(&id, 1);
    lab.branch(&id, "b").await.unwrap();
    lab.write(&id, 2);
    let before = lab.pid(&id);
    lab.engine.roll_back_sandbox(&id, &tag("b")).await.unwrap();
    assert_ne!(lab.pid(&id), before);
    assert_eq!(lab.word(&id), 1);
    assert_eq!((lab.state(&id), lab.driver.living()), (SandboxState::Running, 1));
    lab.branch(&id, "c").await.unwrap();
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_rollback_that_fails_leaves_a_dead_sandbox_without_a_vm() {
    for call in [Call::Start, Call::Map, Call::Load, Call::Resume, Call::ExitWatch] {
        let lab = Fixture::new().await;
        let id = lab.child().await.id;
        lab.script().fault(call, Fault::Refusal);
        lab.engine.roll_back_sandbox(&id, &tag("t")).await.unwrap_err();
        assert_eq!((lab.state(&id), lab.driver.living()), (SandboxState::Dead, 0), "{call:?}");
        assert!(lab.engine.sandbox(&id).unwrap().error.unwrap().contains("rolled back"));
        lab.engine.remove_sandbox(&id).await.unwrap();
        lab.assert_nothing_left();
    }
}

#[tokio::test]
async fn a_rollback_that_cannot_be_written_down_does_not_begin() {
    let lab = Fixture::new().await;
    let id = lab.child().await.id;
    let before = lab.pid(&id);
    {
        let _full = NoRows::begin();
        lab.engine.roll_back_sandbox(&id, &tag("t")).await.unwrap_err();
    }
    assert_eq!((lab.state(&id), lab.pid(&id)), (SandboxState::Running, before));
    assert_eq!(lab.driver.run_state(before), Some(RunState::Running));
    lab.engine.roll_back_sandbox(&id, &tag("t")).await.unwrap();
}

#[tokio::test]
async fn a_rollback_whose_end_cannot_be_written_down_leaves_no_vm() {
    let lab = Fixture::new().await;
    let id = lab.child().await.id;
    {
        let _full = NoRows::after(1);
        lab.engine.roll_back_sandbox(&id, &tag("t")).await.unwrap_err();
    }
    assert_eq!((lab.state(&id), lab.driver.living()), (SandboxState::Dead, 0));
    lab.engine.remove_sandbox(&id).await.unwrap();
    lab.assert_nothing_left();
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_rollback_that_its_engine_did_not_live_to_end_leaves_a_dead_sandbox_without_a_vm() {
    let mut lab = Fixture::new().await;
    let id = lab.child().await.id;
    let before = lab.pid(&id);
    lab.script().fault(Call::Load, Fault::Hang);
    let (engine, rolled) = (lab.engine.clone(), id.clone());
    let rollback = tokio::spawn(async move { engine.roll_back_sandbox(&rolled, &tag("t")).await });
    let replaced = || lab.driver.living() == 1 && lab.driver.run_state(before).is_none();
    lab.until("the VM is replaced", replaced).await;
    lab.next_engine().await;
    assert_eq!(lab.state(&id), SandboxState::Dead);
    assert!(lab.engine.sandbox(&id).unwrap().error.unwrap().contains("rolled back"));
    lab.until("its VM ends", || lab.driver.living() == 0).await;
    lab.script().speak();
    rollback.await.unwrap().unwrap_err();
}
