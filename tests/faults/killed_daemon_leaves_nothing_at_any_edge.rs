//! Goal: a daemon that is killed at any edge of a branch leaves nothing that the next one does not
//! clean up: the source is ended, the snapshot failed (or ready, if it was), templates are usable.
//!
//! Method: this test program starts itself as another process, whose engine takes a branch and
//! kills itself with SIGKILL at the edge. An engine is then opened in the same directories. Breaks
//! when a process, a file or a row survives without an owner.

use std::path::{Path, PathBuf};
use std::process::Command;
use std::sync::Arc;
use std::time::{Duration, Instant};

use forkd_engine::{BranchProbe, EngineError, ProbedBranch};
use forkd_testkit::{Lab, block_on};
use forkd_types::{BranchPhase, SnapshotStatus, SnapshotTag};
use rustix::process::{Signal, getpid, kill_process};

use crate::scene::ALONE;

/// The directories of the lab, colon-separated, and the edge.
const DIRECTORIES: &str = "FORKD_FAULT_DIRECTORIES";
const EDGE: &str = "FORKD_FAULT_EDGE";
const DAEMON: &str = "killed_daemon_leaves_nothing_at_any_edge::the_daemon_that_kills_itself";
const TAG: &str = "interrupted";

#[derive(Debug)]
struct SelfKiller(BranchPhase);

impl SelfKiller {
    fn reach(&self, phase: BranchPhase) {
        if phase == self.0 {
            kill_process(getpid(), Signal::KILL).unwrap();
            std::thread::sleep(Duration::from_secs(60));
        }
    }
}

impl BranchProbe for SelfKiller {
    fn before(&self, phase: BranchPhase, _: &ProbedBranch<'_>) -> Result<(), EngineError> {
        self.reach(phase);
        Ok(())
    }

    fn before_publish(&self, _: &SnapshotTag) -> Result<(), EngineError> {
        self.reach(BranchPhase::Publish);
        Ok(())
    }
}

#[test]
#[ignore = "a process of the other test: it kills itself"]
fn the_daemon_that_kills_itself() {
    let directories = std::env::var(DIRECTORIES).expect("it is started by the other test");
    let edge = std::env::var(EDGE).unwrap();
    let phase = BranchPhase::ALL.into_iter().find(|phase| phase.name() == edge).unwrap();
    block_on(async {
        let mut paths = directories.split(':').map(Path::new);
        let paths = [(); 3].map(|()| paths.next().unwrap());
        let lab = Lab::in_directories(paths, Some(Arc::new(SelfKiller(phase)))).await;
        let source = lab.one(&"python-256".parse().unwrap()).await;
        source.sh("dd if=/dev/urandom of=/tmp/dirt bs=1M count=8 2>/dev/null; sync").await;
        let branched = source.try_branch_as(&TAG.parse().unwrap()).await;
        tokio::time::sleep(Duration::from_secs(30)).await;
        panic!("not killed: {branched:?}");
    });
}

fn start_and_lose_daemon(lab: &Lab, phase: BranchPhase) {
    let config = lab.config();
    let paths = [&config.state_dir, &config.hot_dir, &config.run_dir];
    let paths = paths.map(|path| path.to_str().unwrap()).join(":");
    let output = Command::new(std::env::current_exe().unwrap())
        .args(["--exact", DAEMON, "--ignored", "--nocapture"])
        .env(DIRECTORIES, paths)
        .env(EDGE, phase.name())
        .output()
        .unwrap();
    let killed = std::os::unix::process::ExitStatusExt::signal(&output.status) == Some(9);
    assert!(killed, "{phase}: {output:?}");
}

#[test]
fn the_next_daemon_cleans_up_after_one_that_was_killed_at_any_edge() {
    block_on(async {
        let _alone = ALONE.lock().await;
        let lab = Lab::new().await;
        let template = lab.template("python", 256).await;
        lab.wait_durable(&template).await;
        lab.engine.shut_down().await;
        let config = lab.config().clone();
        let paths = [config.state_dir.as_path(), &config.hot_dir, &config.run_dir];
        for phase in BranchPhase::ALL {
            start_and_lose_daemon(&lab, phase);
            assert_eq!(lab.vmm_count(), 1, "{phase}: a VM outlives its daemon");
            let next = Lab::in_directories(paths, None).await;
            check(&next, phase).await;
            next.engine.shut_down().await;
            assert_eq!(next.leftovers(), Vec::<PathBuf>::new(), "{phase}: at the end");
        }
    });
}

async fn check(lab: &Lab, phase: BranchPhase) {
    assert_eq!(lab.engine.sandboxes(), [], "{phase}");
    let begun = Instant::now();
    while lab.vmm_count() > 0 {
        assert!(begun.elapsed() < Duration::from_secs(10), "{phase}: the VM was not ended");
        tokio::time::sleep(Duration::from_millis(5)).await;
    }
    assert_eq!(lab.leftovers(), Vec::<PathBuf>::new(), "{phase}");
    let tag: SnapshotTag = TAG.parse().unwrap();
    let snapshot = lab.engine.snapshot(&tag).unwrap();
    if phase == BranchPhase::Publish {
        assert_eq!(snapshot.status, SnapshotStatus::Ready, "{phase}");
        let child = lab.one(&tag).await;
        assert_eq!(child.sh("wc -c < /tmp/dirt").await, "8388608");
        child.remove().await;
        lab.engine.delete_snapshot(&tag, forkd_engine::DeletePolicy::Refuse).await.unwrap();
    } else {
        assert_eq!(snapshot.status, SnapshotStatus::Failed, "{phase}");
        assert!(snapshot.error.unwrap().contains("the daemon ended"), "{phase}");
    }
    let source = lab.one(&"python-256".parse().unwrap()).await;
    source.sh("echo here > /tmp/memory; echo there > /srv/disk; sync").await;
    let (next, children) = source.branch_into(1).await;
    assert_eq!(children[0].sh("cat /tmp/memory /srv/disk").await, "here\nthere", "{phase}");
    for guest in [children[0].clone(), source] {
        guest.remove().await;
    }
    lab.engine.delete_snapshot(&next, forkd_engine::DeletePolicy::Refuse).await.unwrap();
}
