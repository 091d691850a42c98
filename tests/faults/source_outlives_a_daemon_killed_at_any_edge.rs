//! Goal: when a daemon is killed at any edge of a branch, the next one takes the source over: it
//! runs, with the right memory and disk, and its next branch is right. The snapshot is failed (or
//! ready, if it was), and nothing is left without an owner.
//!
//! Method: this test program starts itself as another process, whose engine takes two branches and
//! kills itself with SIGKILL at an edge of the second: an overlay and loaded commands stand by
//! then. The second test has it kill the gateway first. An engine is opened in the same
//! directories. The source has an idle connection: it goes on with the gateway, and ends with a
//! reset without it. Breaks when a guest stays paused, a page stays protected, a process, a file or
//! a row survives without an owner, or nobody tells the guest that a connection has ended.

use std::path::{Path, PathBuf};
use std::process::Command;
use std::sync::Arc;
use std::time::Duration;

use forkd_engine::{AtShutDown, BranchProbe, EngineError, ProbedBranch};
use forkd_testkit::{Guest, Lab, block_on, gateway_in};
use forkd_types::network::NetworkLeave;
use forkd_types::{BranchPhase, SandboxState, SnapshotStatus, SnapshotTag};
use rustix::process::{Signal, getpid, kill_process};

use crate::connections;
use crate::scene::ALONE;

/// The directories of the lab, colon-separated, the edge, whether the gateway is killed too, and
/// the port of the host that the source is connected to.
const DIRECTORIES: &str = "FORKD_FAULT_DIRECTORIES";
const EDGE: &str = "FORKD_FAULT_EDGE";
const GATEWAY_TOO: &str = "FORKD_FAULT_GATEWAY_TOO";
const PORT: &str = "FORKD_FAULT_PORT";
const DAEMON: &str = "source_outlives_a_daemon_killed_at_any_edge::the_daemon_that_kills_itself";
const FIRST_TAG: &str = "first";
const TAG: &str = "interrupted";

#[derive(Debug)]
struct SelfKiller {
    at: BranchPhase,
    /// The run directory of the gateway that is killed first.
    gateway_in: Option<PathBuf>,
}

impl SelfKiller {
    fn reach(&self, phase: BranchPhase, tag: &SnapshotTag) {
        if phase == self.at && tag.to_string() == TAG {
            if let Some(run_dir) = &self.gateway_in {
                kill_process(gateway_in(run_dir).expect("a gateway"), Signal::KILL).unwrap();
            }
            kill_process(getpid(), Signal::KILL).unwrap();
            std::thread::sleep(Duration::from_secs(60));
        }
    }
}

impl BranchProbe for SelfKiller {
    fn before(&self, phase: BranchPhase, branch: &ProbedBranch<'_>) -> Result<(), EngineError> {
        self.reach(phase, branch.tag);
        Ok(())
    }

    fn before_publish(&self, tag: &SnapshotTag) -> Result<(), EngineError> {
        self.reach(BranchPhase::Publish, tag);
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
        let gateway_in = std::env::var_os(GATEWAY_TOO).map(|_| paths[2].to_owned());
        let killer = SelfKiller { at: phase, gateway_in };
        let lab = Lab::in_directories(paths, |config| {
            config.probe = Some(Arc::new(killer));
            config.network = NetworkLeave::Any;
        });
        let lab = lab.await;
        let source = lab.one(&"python-256".parse().unwrap()).await;
        connections::allow(&lab, &source, std::env::var(PORT).unwrap().parse().unwrap()).await;
        source.eval("idle = dial()").await;
        source
            .sh("dd if=/dev/zero of=/tmp/dirt bs=1M count=8 2>/dev/null; \
                 echo here > /tmp/memory; echo there > /srv/disk; sync")
            .await;
        let first = source.try_branch_as(&FIRST_TAG.parse().unwrap()).await;
        first.expect("the first branch is taken");
        lab.wait_durable(&FIRST_TAG.parse().unwrap()).await;
        let branched = source.try_branch_as(&TAG.parse().unwrap()).await;
        tokio::time::sleep(Duration::from_secs(30)).await;
        panic!("not killed: {branched:?}");
    });
}

/// Who is killed.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Victims {
    Daemon,
    DaemonAndGateway,
}

fn start_and_lose_daemon(lab: &Lab, phase: BranchPhase, victims: Victims) {
    let config = lab.config();
    let paths = [&config.state_dir, &config.hot_dir, &config.run_dir];
    let paths = paths.map(|path| path.to_str().unwrap()).join(":");
    let mut daemon = Command::new(std::env::current_exe().unwrap());
    daemon.args(["--exact", DAEMON, "--ignored", "--nocapture"]);
    daemon.env(DIRECTORIES, paths).env(EDGE, phase.name());
    daemon.env(PORT, connections::serve().to_string());
    if victims == Victims::DaemonAndGateway {
        daemon.env(GATEWAY_TOO, "yes");
    }
    let output = daemon.output().unwrap();
    let killed = std::os::unix::process::ExitStatusExt::signal(&output.status) == Some(9);
    assert!(killed, "{phase}: {output:?}");
}

fn kill_at(phases: &[BranchPhase], victims: Victims) {
    block_on(async {
        let _alone = ALONE.lock().await;
        let lab = Lab::new().await;
        let template = lab.template("python", 256).await;
        lab.wait_durable(&template).await;
        lab.engine.shut_down(AtShutDown::Remove).await;
        let config = lab.config().clone();
        let paths = [config.state_dir.as_path(), &config.hot_dir, &config.run_dir];
        for &phase in phases {
            start_and_lose_daemon(&lab, phase, victims);
            assert_eq!(lab.vmm_count(), 1, "{phase}: a VM outlives its daemon");
            let next = Lab::in_directories(paths, |config| config.network = NetworkLeave::Any);
            let next = next.await;
            check(&next, phase, victims).await;
            next.engine.shut_down(AtShutDown::Remove).await;
            assert_eq!(next.leftovers(), Vec::<PathBuf>::new(), "{phase}: at the end");
        }
    });
}

#[test]
fn the_next_daemon_takes_the_source_over_from_one_that_was_killed_at_any_edge() {
    kill_at(&BranchPhase::ALL, Victims::Daemon);
}

#[test]
fn the_next_daemon_takes_the_source_over_when_its_gateway_was_killed_too() {
    use BranchPhase::{Pause, Prepare, Resume, Seal};
    // The gateway holds nothing yet; it holds frames while the guest runs; while the guest stands
    // still and its disk is cut; it has let go.
    kill_at(&[Prepare, Pause, Resume, Seal], Victims::DaemonAndGateway);
}

async fn check(lab: &Lab, phase: BranchPhase, victims: Victims) {
    let sandboxes = lab.engine.sandboxes();
    assert_eq!(sandboxes.len(), 1, "{phase}");
    assert_eq!(sandboxes[0].state, SandboxState::Running, "{phase}: {sandboxes:?}");
    assert_eq!(lab.vmm_count(), 1, "{phase}");
    assert_eq!(lab.leftovers(), Vec::<PathBuf>::new(), "{phase}");
    let tag: SnapshotTag = TAG.parse().unwrap();
    let snapshot = lab.engine.snapshot(&tag).unwrap();
    if phase == BranchPhase::Publish {
        assert_eq!(snapshot.status, SnapshotStatus::Ready, "{phase}");
        check_content(&lab.one(&tag).await, phase).await;
    } else {
        assert_eq!(snapshot.status, SnapshotStatus::Failed, "{phase}");
        assert!(snapshot.error.unwrap().contains("the daemon ended"), "{phase}");
    }
    let source = Guest::new(lab, sandboxes[0].id.clone());
    check_content(&source, phase).await;
    match victims {
        Victims::Daemon => assert_eq!(source.eval("echoes(idle)").await, "b'hi'", "{phase}"),
        Victims::DaemonAndGateway => {
            assert_eq!(source.eval("ends(idle)").await, "'ECONNRESET'", "{phase}");
        }
    }
    connections::wait_until_they_work(&source, phase.name()).await;
    // Onto memory that was protected, and onto the overlay that was on top.
    source.sh("dd if=/dev/urandom of=/srv/more bs=1M count=4 2>/dev/null; sync").await;
    let digest = source.sh("md5sum < /srv/more").await;
    let (next, children) = source.branch_into(1).await;
    check_content(&children[0], phase).await;
    connections::wait_until_they_work(&children[0], phase.name()).await;
    assert_eq!(children[0].sh("md5sum < /srv/more").await, digest, "{phase}");
    for sandbox in lab.engine.sandboxes() {
        Guest::new(lab, sandbox.id).remove().await;
    }
    for tag in [&next, &tag, &FIRST_TAG.parse().unwrap()] {
        lab.engine.delete_snapshot(tag, forkd_engine::DeletePolicy::Refuse).await.unwrap();
    }
}

async fn check_content(guest: &Guest<'_>, phase: BranchPhase) {
    let content = guest.sh("cat /tmp/memory /srv/disk; wc -c < /tmp/dirt").await;
    assert_eq!(content, "here\nthere\n8388608", "{phase}");
}
