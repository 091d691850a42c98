//! What the overlays of one sandbox may take on the host.
//!
//! A disk of 1 MiB is enough for quotas of hundreds: the least that is ever allowed is large.

use forkd_types::{ByteCount, SandboxId, SandboxState};
use forkd_vmm::fake::{Call, Fault};

use super::fixture::{Fixture, Wishes, tag};
use crate::{AtShutDown, EngineError};

const DISK: ByteCount = ByteCount::from_mib(1);
/// As much as one overlay may have, nearly.
const MUCH: ByteCount = ByteCount::from_mib(64);

async fn lab() -> Fixture {
    Fixture::with(Wishes { disk: Some(DISK), ..Wishes::default() }).await
}

async fn write_and_branch(lab: &Fixture, id: &SandboxId, name: &str) -> Result<(), EngineError> {
    lab.driver.write_disk(lab.pid(id), ByteCount::from_mib(60)).unwrap();
    branch(lab, id, name).await
}

/// A branch, and what is done after it.
async fn branch(lab: &Fixture, id: &SandboxId, name: &str) -> Result<(), EngineError> {
    lab.branch(id, name).await?;
    lab.until("it runs", || lab.state(id) == SandboxState::Running).await;
    Ok(())
}

/// Whether the overlay that takes the writes can take so much.
fn may_write(lab: &Fixture, id: &SandboxId, bytes: ByteCount) -> bool {
    lab.driver.file_max(lab.pid(id)).is_some_and(|most| most > bytes)
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_guest_that_writes_its_disk_again_and_again_is_branched_as_often_as_it_likes() {
    let lab = lab().await;
    let id = lab.child().await.id;
    lab.script().take_calls();
    for n in 0..8 {
        write_and_branch(&lab, &id, &format!("b{n}")).await.unwrap();
        assert!(may_write(&lab, &id, MUCH), "after branch {n}");
    }
    let calls = lab.script().take_calls();
    let merges = calls.iter().filter(|call| **call == Call::FlattenDisk).count();
    assert!((2..=4).contains(&merges), "not at every branch: {merges}");
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_sandbox_whose_overlays_take_what_they_may_is_not_branched_and_runs_on() {
    let lab = lab().await;
    let id = lab.child().await.id;
    // They cannot be merged, neither after the third branch nor for the fourth.
    (0..2).for_each(|_| lab.script().fault(Call::FlattenDisk, Fault::Refusal));
    for name in ["b0", "b1", "b2"] {
        assert!(may_write(&lab, &id, MUCH), "before {name}");
        write_and_branch(&lab, &id, name).await.unwrap();
    }
    assert!(!may_write(&lab, &id, MUCH), "14 MiB are left, and device state needs room");
    lab.script().take_calls();
    let error = write_and_branch(&lab, &id, "b3").await.unwrap_err();
    let EngineError::DiskQuotaReached { most, in_use, .. } = &error else { panic!("{error}") };
    assert!(in_use > most, "{error}");
    for words in [most.to_string(), in_use.to_string(), "fork its latest snapshot".to_owned()] {
        assert!(error.to_string().contains(&words), "{words}: {error}");
    }
    assert!(!lab.script().take_calls().contains(&Call::Stop), "the source is not touched");
    lab.until("it runs", || lab.state(&id) == SandboxState::Running).await;
    // As the error says: what a child inherits is not its own.
    let child = lab.engine.fork(&tag("b2"), 1).await.unwrap().remove(0).id;
    write_and_branch(&lab, &child, "of-the-child").await.unwrap();
    // And if they can be merged, that is enough.
    branch(&lab, &id, "merged").await.unwrap();
    assert!(may_write(&lab, &id, MUCH));
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn what_is_left_is_limited_anew_by_the_next_engine() {
    let mut lab = lab().await;
    let id = lab.child().await.id;
    lab.script().fault(Call::FlattenDisk, Fault::Refusal);
    for name in ["b0", "b1", "b2"] {
        write_and_branch(&lab, &id, name).await.unwrap();
    }
    lab.engine.shut_down(AtShutDown::Leave).await;
    lab.script().take_calls();
    lab.next_engine().await;
    assert!(lab.script().take_calls().contains(&Call::LimitFiles));
    assert!(!may_write(&lab, &id, MUCH));
}
