//! Goal: a daemon never holds more than it is allowed to, a refused request changes nothing, and a
//! sandbox whose time is over is removed as if somebody had removed it.
//! Method: an engine with small limits; one sandbox more and one less, a branch with children that
//! have no place, sandboxes with a short life that are used and not used.
//! Broken by: a place that is not given back or taken too late, an exec that does not count as use.

use std::time::{Duration, Instant, SystemTime};

use forkd_engine::{BranchRequest, EngineError, Limits, Sandbox, SandboxOptions, Wait};
use forkd_testkit::{Guest, Lab, SOON, block_on};
use forkd_types::{BranchMode, ByteCount, SandboxState, SnapshotTag};

#[test]
fn limits_and_leases_hold() {
    block_on(async {
        let lab = Lab::with_config(&Lab::hot_directory(), |config| {
            let guest_memory = Some(ByteCount::from_mib(2 * 128));
            config.limits = Limits { sandboxes: 3, guest_memory, branches: 1, ..Limits::default() };
        })
        .await;
        let tag = lab.template("tiny", 128).await;
        limits(&lab, &tag).await;
        leases(&lab, &tag).await;
        assert_eq!(lab.vmm_count(), 0);
        lab.wait_durable(&tag).await;
        assert_eq!(lab.leftovers(), Vec::<std::path::PathBuf>::new());
    });
}

fn refused_by<T: std::fmt::Debug>(result: Result<T, EngineError>) -> &'static str {
    match result {
        Err(EngineError::LimitReached { limit, .. }) => limit,
        other => panic!("{other:?}"),
    }
}

async fn limits(lab: &Lab, tag: &SnapshotTag) {
    let source = lab.one(tag).await;
    assert_eq!(refused_by(lab.engine.fork(tag, 3).await), "max_sandboxes");
    assert_eq!(refused_by(lab.engine.fork(tag, 2).await), "max_guest_memory_mib");
    let wanted: SnapshotTag = "wanted".parse().unwrap();
    let request = |children| BranchRequest {
        tag: Some(wanted.clone()),
        mode: BranchMode::Live,
        children,
        network: None,
        join: None,
        private: false,
        wait: Wait::UntilReady,
    };
    assert_eq!(refused_by(lab.engine.branch(&source.id, request(2)).await), "max_guest_memory_mib");
    assert!(lab.engine.snapshot(&wanted).is_err(), "refused before anything is done");
    let branched = lab.engine.branch(&source.id, request(1)).await.unwrap();
    let child = branched.children.into_iter().next().unwrap().unwrap();
    assert_eq!(refused_by(lab.engine.fork(tag, 1).await), "max_guest_memory_mib");
    // A dead one needs no memory, but is one.
    lab.kill(child.pid.unwrap());
    lab.wait_state(&child.id, SandboxState::Dead).await;
    let third = lab.one(tag).await;
    assert_eq!(refused_by(lab.engine.fork(tag, 1).await), "max_sandboxes");
    for guest in [source, third, Guest::new(lab, child.id)] {
        guest.remove().await;
    }
    lab.engine.delete_snapshot(&wanted, forkd_engine::DeletePolicy::Refuse).await.unwrap();
}

async fn start(lab: &Lab, tag: &SnapshotTag, ttl: Option<u64>, idle: Option<u64>) -> Sandbox {
    let options = SandboxOptions {
        ttl: ttl.map(Duration::from_secs),
        idle_timeout: idle.map(Duration::from_secs),
        ..SandboxOptions::default()
    };
    lab.engine.fork_with(tag, 1, options).await.unwrap().remove(0)
}

async fn wait_gone(lab: &Lab, sandbox: &Sandbox) {
    let begun = Instant::now();
    while lab.engine.sandbox(&sandbox.id).is_ok() {
        assert!(begun.elapsed() < SOON, "{} lives on", sandbox.id);
        tokio::time::sleep(Duration::from_millis(20)).await;
    }
}

async fn leases(lab: &Lab, tag: &SnapshotTag) {
    let begun = SystemTime::now();
    let short = start(lab, tag, Some(3), None).await;
    let expires = short.expires_at.unwrap() - Duration::from_secs(3);
    assert!((begun..=SystemTime::now()).contains(&expires), "{:?}", short.expires_at);
    let used = start(lab, tag, None, Some(2)).await;
    // Longer than the idle timeout.
    let guest = Guest::new(lab, used.id.clone());
    guest.sh("sleep 4").await;
    assert!(lab.engine.sandbox(&used.id).is_ok(), "a sandbox in use was removed");
    wait_gone(lab, &short).await;
    wait_gone(lab, &used).await;
    assert_eq!(lab.engine.sandboxes(), Vec::new());
}
