//! What a later engine finds of the sandboxes of an earlier one.

use forkd_types::{ByteCount, SandboxState};
use forkd_vmm::RunState;
use forkd_vmm::fake::{Call, Fault};

use super::fixture::{Fixture, PAGE, Wishes, tag};
use crate::AtShutDown;

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn sandboxes_that_are_left_run_on_under_the_next_engine() {
    let mut lab = Fixture::new().await;
    let (running, paused) = (lab.child().await, lab.child().await);
    lab.write(&running.id, 3);
    lab.engine.pause_sandbox(&paused.id).await.unwrap();
    let pid = lab.pid(&running.id);
    lab.engine.shut_down(AtShutDown::Leave).await;
    assert_eq!(lab.driver.living(), 2);
    lab.next_engine().await;
    assert_eq!((lab.pid(&running.id), lab.word(&running.id)), (pid, 3));
    assert_eq!(lab.state(&running.id), SandboxState::Running);
    assert_eq!(lab.state(&paused.id), SandboxState::Paused);
    assert_eq!(lab.driver.run_state(lab.pid(&paused.id)), Some(RunState::Paused));
    lab.branch(&running.id, "b").await.unwrap();
    let child = lab.engine.fork(&tag("b"), 1).await.unwrap().remove(0);
    assert_eq!(lab.driver.read(lab.pid(&child.id), PAGE), Some(3));
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn files_of_a_sandbox_that_outlives_its_snapshot_stay_over_a_change_of_engines() {
    let mut lab = Fixture::new().await;
    let source = lab.child().await;
    lab.write(&source.id, 9);
    lab.branch(&source.id, "b").await.unwrap();
    let child = lab.engine.fork(&tag("b"), 1).await.unwrap().remove(0);
    lab.engine.delete_snapshot(&tag("b"), crate::DeletePolicy::Force).await.unwrap();
    let files = lab.files();
    lab.engine.shut_down(AtShutDown::Leave).await;
    lab.next_engine().await;
    assert_eq!(lab.files(), files);
    lab.branch(&child.id, "c").await.unwrap();
    let grandchild = lab.engine.fork(&tag("c"), 1).await.unwrap().remove(0);
    assert_eq!(lab.word(&grandchild.id), 9);
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_vmm_that_died_or_cannot_be_taken_over_is_shown_dead_with_the_reason() {
    let mut lab = Fixture::new().await;
    let (died, refused, well) = (lab.child().await, lab.child().await, lab.child().await);
    let pid = lab.pid(&died.id);
    lab.engine.shut_down(AtShutDown::Leave).await;
    lab.driver.kill(pid);
    lab.script().fault(Call::Adopt, Fault::Refusal);
    lab.next_engine().await;
    let error = |id| lab.engine.sandbox(id).unwrap().error;
    assert!(error(&died.id).unwrap().contains("while no daemon ran"));
    let states = [&refused.id, &well.id].map(|id| lab.state(id));
    let dead = states.iter().filter(|state| **state == SandboxState::Dead).count();
    assert_eq!(dead, 1, "one of the two was refused");
    // It was killed, and is gone a moment later.
    lab.until("its process ends", || lab.driver.living() == 1).await;
    for id in [&died.id, &refused.id, &well.id] {
        lab.engine.remove_sandbox(id).await.unwrap();
    }
    lab.assert_nothing_left();
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_removal_at_the_end_leaves_nothing_for_the_next_engine() {
    let mut lab = Fixture::new().await;
    lab.child().await;
    lab.engine.shut_down(AtShutDown::Remove).await;
    lab.next_engine().await;
    lab.assert_nothing_left();
    lab.child().await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_vmm_that_names_disk_overlays_that_it_was_not_given_is_dead_and_not_taken_over() {
    let disk = Some(ByteCount::from_mib(1));
    let mut lab = Fixture::with(Wishes { disk, ..Wishes::default() }).await;
    let mut sandboxes = Vec::new();
    for name in ["foreign", "turned", "fewer", "honest"] {
        let sandbox = lab.child().await;
        // Then its disk has three overlays, and one stands by.
        lab.branch(&sandbox.id, name).await.unwrap();
        sandboxes.push(sandbox);
    }
    let [foreign, turned, fewer, honest] =
        [0, 1, 2, 3].map(|n: usize| (sandboxes[n].id.clone(), lab.pid(&sandboxes[n].id)));
    lab.engine.shut_down(AtShutDown::Leave).await;
    let mut of_another = Vec::new();
    lab.driver.change_disk(honest.1, |overlays| of_another.clone_from(overlays));
    assert_eq!(of_another.len(), 3, "{of_another:?}");
    lab.driver.change_disk(foreign.1, |overlays| overlays[1] = of_another.remove(1));
    lab.driver.change_disk(turned.1, |overlays| overlays.swap(1, 2));
    lab.driver.change_disk(fewer.1, |overlays| drop(overlays.remove(1)));
    lab.next_engine().await;
    for (id, _) in [&foreign, &turned, &fewer] {
        assert_eq!(lab.state(id), SandboxState::Dead);
        let error = lab.engine.sandbox(id).unwrap().error.unwrap();
        assert!(error.contains("names disk overlays that it was not given"), "{error}");
    }
    assert_eq!((lab.state(&honest.0), lab.pid(&honest.0)), (SandboxState::Running, honest.1));
    lab.until("the others are ended", || lab.driver.living() == 1).await;
    lab.branch(&honest.0, "again").await.unwrap();
}
