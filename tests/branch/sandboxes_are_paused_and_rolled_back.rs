//! Goal: a paused sandbox stands still, says so, and goes on at the right time; one that is rolled
//! back has the memory and the disk of the snapshot, keeps its id, and works like any other
//! afterwards.
//!
//! Method: a guest is paused for longer than its clock may advance; then its files are changed and
//! put back. Breaks when a pause does not hold, when something of the old VM stays, or when the new
//! one is not that of the snapshot.

use std::path::PathBuf;
use std::time::{Duration, Instant, SystemTime};

use forkd_engine::{AtShutDown, DeletePolicy};
use forkd_testkit::{Guest, Lab, block_on};
use forkd_types::SandboxState;

const PAUSE: Duration = Duration::from_secs(3);
/// The resolution of `/proc/uptime`, in seconds.
const UPTIME_UNIT: f64 = 0.01;

async fn uptime(guest: &Guest<'_>) -> f64 {
    guest.sh("cut -d' ' -f1 /proc/uptime").await.parse().unwrap()
}

#[test]
fn a_paused_sandbox_stands_still_refuses_by_name_and_goes_on() {
    block_on(async {
        let lab = Lab::new().await;
        let guest = lab.tiny().await;
        let begun = Instant::now();
        let before = uptime(&guest).await;
        let paused = lab.engine.pause_sandbox(&guest.id).await.unwrap();
        assert_eq!(paused.state, SandboxState::Paused);
        let paused = Instant::now();
        lab.engine.pause_sandbox(&guest.id).await.unwrap();
        let error = guest.try_sh("true").await.unwrap_err().to_string();
        assert!(error.contains("is paused"), "{error}");
        let error = guest.try_branch_as(&"t".parse().unwrap()).await.unwrap_err().to_string();
        assert!(error.contains("is paused"), "{error}");
        tokio::time::sleep(PAUSE).await;
        let stood_still = paused.elapsed();
        let now = SystemTime::now().duration_since(SystemTime::UNIX_EPOCH).unwrap().as_secs();
        let resumed = lab.engine.resume_sandbox(&guest.id).await.unwrap();
        assert_eq!(resumed.state, SandboxState::Running);
        let time: u64 = guest.sh("date +%s").await.parse().unwrap();
        assert!(time >= now, "its wall clock is {} s behind", now - time);
        let ran = uptime(&guest).await - before;
        let most = (begun.elapsed() - stood_still).as_secs_f64() + UPTIME_UNIT;
        assert!(ran <= most, "its clock went on for {ran} s, and ran for {most} s");
        guest.branch().await;
    });
}

#[test]
fn a_paused_sandbox_stays_paused_when_another_daemon_takes_it_over() {
    block_on(async {
        let lab = Lab::new().await;
        let guest = lab.tiny().await;
        guest.sh("echo kept > /tmp/kept").await;
        lab.engine.pause_sandbox(&guest.id).await.unwrap();
        lab.engine.shut_down(AtShutDown::Leave).await;
        let config = lab.config().clone();
        let paths = [config.state_dir.as_path(), &config.hot_dir, &config.run_dir];
        let next = Lab::in_directories(paths, |_| {}).await;
        let guest = Guest::new(&next, guest.id);
        assert_eq!(next.engine.sandbox(&guest.id).unwrap().state, SandboxState::Paused);
        next.engine.resume_sandbox(&guest.id).await.unwrap();
        assert_eq!(guest.sh("cat /tmp/kept").await, "kept");
        next.engine.shut_down(AtShutDown::Remove).await;
    });
}

#[test]
fn a_sandbox_that_is_rolled_back_has_memory_and_disk_of_the_snapshot_and_its_own_id() {
    block_on(async {
        let lab = Lab::new().await;
        let guest = lab.python().await;
        guest.sh("echo then > /tmp/memory; mkdir -p /srv; echo then > /srv/disk; sync").await;
        let then = guest.branch().await.tag;
        let first = lab.engine.sandbox(&guest.id).unwrap();
        for paused in [false, true] {
            guest.sh("echo now > /tmp/memory; echo now > /srv/disk; sync").await;
            guest.branch().await;
            if paused {
                lab.engine.pause_sandbox(&guest.id).await.unwrap();
            }
            let rolled = lab.engine.roll_back_sandbox(&guest.id, &then).await.unwrap();
            assert_eq!((&rolled.id, &rolled.snapshot_tag), (&guest.id, &then));
            assert_eq!(rolled.state, SandboxState::Running);
            assert_ne!(rolled.pid, first.pid);
            let content = "cat /tmp/memory /srv/disk";
            assert_eq!(guest.sh(content).await, "then\nthen");
            let (_, children) = guest.branch_into(1).await;
            assert_eq!(children[0].sh(content).await, "then\nthen");
            children[0].clone().remove().await;
        }
        assert_eq!(lab.vmm_count(), 1);
        let error = lab.engine.delete_snapshot(&then, DeletePolicy::Refuse).await.unwrap_err();
        assert!(error.to_string().contains(guest.id.as_str()), "{error}");
        let other = lab.template("tiny", 128).await;
        let error = lab.engine.roll_back_sandbox(&guest.id, &other).await.unwrap_err();
        assert!(error.to_string().contains("snapshot_tag"), "{error}");
        assert_eq!(guest.sh("cat /srv/disk").await, "then", "nothing was done");
        guest.remove().await;
        for snapshot in lab.engine.snapshots() {
            lab.wait_durable(&snapshot.tag).await;
        }
        assert_eq!(lab.leftovers(), Vec::<PathBuf>::new());
    });
}
