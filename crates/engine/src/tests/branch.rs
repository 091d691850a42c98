//! A branch on a VMM that does not do as it is told, at every edge of every phase.

use std::sync::{Arc, Mutex, PoisonError};
use std::time::Duration;

use forkd_types::{BranchMode, BranchPhase, SandboxState, SnapshotStatus};
use forkd_vmm::RunState;
use forkd_vmm::fake::{Call, Fault};

use super::fixture::{Fixture, PAGE, Wishes, request, tag};
use crate::{BranchProbe, BranchRequest, EngineError, ProbedBranch, Wait};

/// The calls of a pause window, in their order.
const WINDOW: [Call; 4] = [Call::Stop, Call::SaveDeviceState, Call::FreezeDisk, Call::WindowResume];

/// Fails, or panics, right before a phase.
#[derive(Debug, Default)]
struct Saboteur {
    target: Mutex<Option<(BranchPhase, bool)>>,
}

impl Saboteur {
    fn strike(&self, phase: BranchPhase, panic: bool) {
        *self.target.lock().unwrap_or_else(PoisonError::into_inner) = Some((phase, panic));
    }
}

impl BranchProbe for Saboteur {
    fn before(&self, phase: BranchPhase, _: &ProbedBranch<'_>) -> Result<(), EngineError> {
        let mut target = self.target.lock().unwrap_or_else(PoisonError::into_inner);
        let strikes = target.take_if(|(target, _)| *target == phase);
        drop(target);
        match strikes {
            Some((_, true)) => panic!("as the test wants it"),
            Some((_, false)) => Err(EngineError::Internal("sabotage".to_owned())),
            None => Ok(()),
        }
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_branch_holds_the_memory_of_its_moment_in_both_modes_that_copy_in_the_window() {
    let lab = Fixture::new().await;
    let source = lab.child().await;
    for (mode, value) in [(BranchMode::Diff, 1), (BranchMode::Full, 2)] {
        lab.write(&source.id, value);
        let order = BranchRequest { mode, children: 1, ..request(mode.name()) };
        let branch = lab.engine.branch(&source.id, order).await.unwrap();
        lab.write(&source.id, 100);
        let child = branch.children.into_iter().next().unwrap().unwrap();
        assert_eq!(lab.word(&child.id), value, "{mode}");
        assert_eq!(branch.snapshot.status, SnapshotStatus::Ready);
    }
    assert_eq!(lab.word(&source.id), 100);
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn the_window_has_its_four_commands_in_order_and_nothing_else() {
    let lab = Fixture::new().await;
    let source = lab.child().await;
    lab.branch(&source.id, "first").await.unwrap();
    lab.script().take_calls();
    lab.branch(&source.id, "second").await.unwrap();
    let calls = lab.script().take_calls();
    let begin = calls.iter().position(|call| *call == Call::Stop).unwrap();
    assert_eq!(calls[begin..begin + 4], WINDOW, "{calls:?}");
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_refusal_anywhere_in_the_window_fails_the_branch_and_the_source_runs_on() {
    let lab = Fixture::new().await;
    let source = lab.child().await;
    for (n, call) in WINDOW.into_iter().enumerate() {
        let name = format!("refused-{n}");
        lab.script().fault(call, Fault::Refusal);
        let error = lab.branch(&source.id, &name).await.unwrap_err();
        assert!(matches!(error, EngineError::Vmm(_)), "{call:?}: {error}");
        let snapshot = lab.engine.snapshot(&tag(&name)).unwrap();
        assert_eq!(snapshot.status, SnapshotStatus::Failed, "{call:?}");
        assert!(snapshot.error.unwrap().contains("as the script says"));
        lab.until("the source runs", || lab.state(&source.id) == SandboxState::Running).await;
        assert_eq!(lab.driver.run_state(lab.pid(&source.id)), Some(RunState::Running), "{call:?}");
        lab.write(&source.id, 10 + n as u64);
        let order = BranchRequest { children: 1, ..request(&format!("after-{n}")) };
        let branch = lab.engine.branch(&source.id, order).await.unwrap();
        let child = branch.children.into_iter().next().unwrap().unwrap();
        assert_eq!(lab.word(&child.id), 10 + n as u64, "{call:?}");
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_disk_that_its_vmm_does_not_give_up_is_in_no_snapshot_and_keeps_the_source_from_pausing()
{
    let lab = Fixture::new().await;
    let source = lab.child().await;
    let done = Fault::Delay(Duration::ZERO);
    // It is asked before the pause, for what earlier branches have left, and after it.
    for (name, faults) in [("after", vec![done, Fault::Refusal]), ("before", vec![Fault::Refusal])]
    {
        lab.script().take_calls();
        for fault in faults {
            lab.script().fault(Call::CloseFrozenOverlays, fault);
        }
        let error = lab.branch(&source.id, name).await.unwrap_err();
        assert!(matches!(error, EngineError::Vmm(_)), "{name}: {error}");
        assert_eq!(lab.engine.snapshot(&tag(name)).unwrap().status, SnapshotStatus::Failed);
        let paused = lab.script().take_calls().contains(&Call::Stop);
        assert_eq!(paused, name == "after");
        assert_eq!(lab.driver.run_state(lab.pid(&source.id)), Some(RunState::Running), "{name}");
    }
    lab.write(&source.id, 5);
    let order = BranchRequest { children: 1, ..request("then") };
    let branch = lab.engine.branch(&source.id, order).await.unwrap();
    assert_eq!(lab.word(&branch.children.into_iter().next().unwrap().unwrap().id), 5);
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_death_anywhere_in_the_window_is_told_with_its_reason() {
    for call in WINDOW {
        let lab = Fixture::new().await;
        let source = lab.child().await;
        lab.script().fault(call, Fault::Death);
        let error = lab.branch(&source.id, "b").await.unwrap_err();
        assert!(error.to_string().contains("the VMM is gone"), "{call:?}: {error}");
        lab.until("it is dead", || lab.state(&source.id) == SandboxState::Dead).await;
        assert_eq!(lab.engine.snapshot(&tag("b")).unwrap().status, SnapshotStatus::Failed);
        let refusal = lab.branch(&source.id, "c").await.unwrap_err();
        assert!(matches!(refusal, EngineError::SandboxNotRunning { .. }), "{refusal}");
        lab.engine.remove_sandbox(&source.id).await.unwrap();
        lab.assert_nothing_left();
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_source_whose_vmm_is_silent_says_so_and_runs_when_it_answers_again() {
    for call in WINDOW {
        let lab = Fixture::new().await;
        let source = lab.child().await;
        lab.script().fault(call, Fault::Silence);
        let error = lab.branch(&source.id, "b").await.unwrap_err();
        assert!(error.to_string().contains("did not answer"), "{call:?}: {error}");
        let known = || lab.engine.sandbox(&source.id).unwrap();
        lab.until("its silence is known", || known().error.is_some()).await;
        assert_eq!(known().state, SandboxState::Branching, "{call:?}");
        let refusal = lab.branch(&source.id, "c").await.unwrap_err();
        assert!(refusal.to_string().contains("did not answer"), "{call:?}: {refusal}");
        lab.script().speak();
        lab.until("it runs", || known().state == SandboxState::Running).await;
        assert_eq!(known().error, None);
        assert_eq!(lab.driver.run_state(lab.pid(&source.id)), Some(RunState::Running), "{call:?}");
        lab.branch(&source.id, "d").await.unwrap();
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn an_error_or_a_panic_before_any_phase_leaves_a_running_source_and_no_layer() {
    let saboteur = Arc::new(Saboteur::default());
    let probe = Some(Arc::clone(&saboteur) as Arc<dyn BranchProbe>);
    let lab = Fixture::with(Wishes { probe, ..Wishes::default() }).await;
    let source = lab.child().await;
    let before = lab.files();
    let phases = BranchPhase::ALL.into_iter().filter(|phase| *phase != BranchPhase::Publish);
    for (n, phase) in phases.enumerate() {
        for panic in [false, true] {
            let name = format!("b{n}-{panic}");
            saboteur.strike(phase, panic);
            lab.write(&source.id, n as u64);
            let error = lab.branch(&source.id, &name).await.unwrap_err().to_string();
            let wanted = if panic { "panicked" } else { "sabotage" };
            assert!(error.contains(wanted), "{phase}: {error}");
            assert_eq!(lab.engine.snapshot(&tag(&name)).unwrap().status, SnapshotStatus::Failed);
            lab.until("the source runs", || lab.state(&source.id) == SandboxState::Running).await;
            let state = lab.driver.run_state(lab.pid(&source.id));
            assert_eq!(state, Some(RunState::Running), "{phase}");
            assert_eq!(lab.files(), before, "{phase}: a layer is left");
        }
    }
    lab.branch(&source.id, "at-last").await.unwrap();
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_branch_that_is_answered_early_becomes_ready_afterwards() {
    let lab = Fixture::new().await;
    let source = lab.child().await;
    let order = BranchRequest { wait: Wait::UntilResumed, ..request("b") };
    let branch = lab.engine.branch(&source.id, order).await.unwrap();
    assert_eq!(branch.children.len(), 0);
    let ready = lab.engine.wait_ready(&tag("b")).await.unwrap();
    assert_eq!(ready.branched_from, Some(source.id));
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn live_needs_write_protection_and_says_so_before_the_source_is_touched() {
    let lab = Fixture::new().await;
    let source = lab.child().await;
    lab.script().take_calls();
    let order = BranchRequest { mode: BranchMode::Live, ..request("b") };
    let error = lab.engine.branch(&source.id, order).await.unwrap_err();
    assert!(matches!(error, EngineError::LiveUnavailable(_)), "{error}");
    assert!(!lab.script().take_calls().contains(&Call::Stop));
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_slow_vmm_makes_a_slow_branch_and_the_right_one() {
    let lab = Fixture::new().await;
    let source = lab.child().await;
    let delay = Duration::from_millis(20);
    WINDOW.into_iter().for_each(|call| lab.script().fault(call, Fault::Delay(delay)));
    lab.write(&source.id, 5);
    let branch = lab.branch(&source.id, "b").await.unwrap();
    let report = branch.snapshot.branch.unwrap();
    assert!(report.pause >= 4 * delay, "{report:?}");
    for phase in [BranchPhase::Pause, BranchPhase::SaveDeviceState, BranchPhase::Resume] {
        assert!(report.phases.get(phase).unwrap() >= delay, "{phase}");
    }
    let child = lab.engine.fork(&tag("b"), 1).await.unwrap().remove(0);
    assert_eq!(lab.driver.read(lab.pid(&child.id), PAGE), Some(5));
}
