//! Goal: a VMM that wants more memory than its limit is ended by the kernel, and its sandbox says
//! so with the remedy, as does what was under way: a program, a branch, the start itself. Others
//! are not touched, a branch is not charged to its source, and no cgroup is left.
//! Method: small limits, guests that fill their memory, a branch that is held meanwhile.
//! Broken by: a VMM that enters its group too late or not at all, a group that stays or goes too
//! early, an end that is taken for another, a limit that children shed.

use std::path::{Path, PathBuf};
use std::sync::Arc;

use forkd_engine::{BranchRequest, EngineError, SandboxOptions, Wait};
use forkd_testkit::{Guest, Lab, block_on};
use forkd_types::{BranchMode, BranchPhase, ByteCount, SandboxState, SnapshotTag};

use crate::gate::{Gate, Moment};

const LIMIT: ByteCount = ByteCount::from_mib(96);
/// More than the limit leaves to the guest.
const FILL: &str = "dd if=/dev/zero of=/tmp/fill bs=1M count=90 2>/dev/null";

#[test]
fn memory_limits_end_only_their_own_vmm() {
    block_on(async {
        let gate = Arc::new(Gate::default());
        let lab = Lab::with_probe(Arc::clone(&gate) as _).await;
        let tag = lab.template("tiny", 256).await;
        let other = lab.one(&tag).await;
        a_start(&lab, &tag).await;
        a_branch_is_charged_to_nobody_else(&lab, &tag).await;
        a_program_under_way(&lab, &tag).await;
        a_branch_under_way(&lab, &gate, &tag).await;
        assert_eq!(other.sh(&format!("{FILL} && echo goes on")).await, "goes on");
        other.remove().await;
        assert_eq!(lab.vmm_count(), 0);
    });
}

/// A child of `tag` whose memory is limited.
async fn limited<'a>(lab: &'a Lab, tag: &SnapshotTag, limit: ByteCount) -> Guest<'a> {
    let options = SandboxOptions { memory_limit: Some(limit), ..SandboxOptions::default() };
    let mut started = lab.engine.fork_with(tag, 1, options).await.unwrap();
    Guest::new(lab, started.remove(0).id)
}

/// The cgroup of a sandbox's VMM.
fn group(lab: &Lab, guest: &Guest<'_>) -> PathBuf {
    let pid = lab.engine.sandbox(&guest.id).unwrap().pid.unwrap();
    let groups = std::fs::read_to_string(format!("/proc/{pid}/cgroup")).unwrap();
    let name = |line: &str| line.rsplit_once('/').map(|(_, name)| name.to_owned());
    let ours = groups.lines().filter_map(name).find(|name| name.ends_with(guest.id.as_str()));
    let ours = ours.unwrap_or_else(|| panic!("{} is in no group of its own: {groups}", guest.id));
    let bases = forkd_engine::host::try_limits().unwrap().bases;
    let has_memory = |group: &PathBuf| charged_in(group).is_some();
    bases.iter().map(|base| base.join(&ours)).find(has_memory).unwrap()
}

/// What is charged to a group.
fn charged(group: &Path) -> u64 {
    charged_in(group).unwrap()
}

fn charged_in(group: &Path) -> Option<u64> {
    let files = ["memory.usage_in_bytes", "memory.current"].map(|name| group.join(name));
    let text = files.iter().find_map(|file| std::fs::read_to_string(file).ok())?;
    text.trim().parse().ok()
}

fn is_about_the_limit(text: &str) {
    for words in ["memory limit of 96 MiB", "larger `memory_limit_mib`"] {
        assert!(text.contains(words), "{words}: {text}");
    }
}

/// The sandbox is dead for the right reason, and then gone with its group.
async fn is_dead(lab: &Lab, guest: Guest<'_>, group: &Path) {
    lab.wait_state(&guest.id, SandboxState::Dead).await;
    let sandbox = lab.engine.sandbox(&guest.id).unwrap();
    assert!(sandbox.memory_limit_reached);
    is_about_the_limit(&sandbox.error.unwrap());
    is_about_the_limit(&guest.try_sh("true").await.unwrap_err().to_string());
    lab.wait_until("the group goes with its process", || !group.exists()).await;
    guest.remove().await;
}

async fn a_start(lab: &Lab, tag: &SnapshotTag) {
    let limit = Some(ByteCount::from_mib(4));
    let options = SandboxOptions { memory_limit: limit, ..SandboxOptions::default() };
    let error = lab.engine.fork_with(tag, 1, options).await.unwrap_err();
    assert!(matches!(error, EngineError::MemoryLimitReached(_)), "{error}");
    assert!(error.to_string().contains("memory limit of 4 MiB"), "{error}");
    assert_eq!(lab.engine.sandboxes().len(), 1, "nothing is left of it");
}

async fn a_branch_is_charged_to_nobody_else(lab: &Lab, tag: &SnapshotTag) {
    let limit = ByteCount::from_mib(400);
    let guest = limited(lab, tag, limit).await;
    guest.sh("dd if=/dev/urandom of=/tmp/some bs=1M count=40 2>/dev/null").await;
    guest.branch().await;
    let group = group(lab, &guest);
    let before = charged(&group);
    assert!(before > 40 << 20, "the guest's pages count: {before}");
    guest.sh("dd if=/dev/urandom of=/tmp/some bs=1M count=40 conv=notrunc 2>/dev/null").await;
    let (_, children) = guest.branch_into(1).await;
    let after = charged(&group);
    assert!(after < before + (8 << 20), "40 MiB were captured: {before} -> {after}");
    for child in children {
        let sandbox = lab.engine.sandbox(&child.id).unwrap();
        assert_eq!(sandbox.limits.memory, Some(limit), "limits are inherited");
        assert_eq!(child.sh("wc -c < /tmp/some").await, (40 << 20).to_string());
        child.remove().await;
    }
    lab.engine.roll_back_sandbox(&guest.id, tag).await.unwrap();
    assert!(charged(&self::group(lab, &guest)) < before, "a rollback keeps the limit");
    guest.remove().await;
    assert!(!group.exists());
}

async fn a_program_under_way(lab: &Lab, tag: &SnapshotTag) {
    let guest = limited(lab, tag, LIMIT).await;
    let group = group(lab, &guest);
    let error = guest.try_sh(FILL).await.unwrap_err();
    assert!(matches!(error, EngineError::MemoryLimitReached(_)), "{error}");
    is_about_the_limit(&error.to_string());
    is_dead(lab, guest, &group).await;
}

async fn a_branch_under_way(lab: &Lab, gate: &Gate, tag: &SnapshotTag) {
    let guest = limited(lab, tag, LIMIT).await;
    let group = group(lab, &guest);
    let wanted: SnapshotTag = "wanted".parse().unwrap();
    gate.close(&wanted, Moment::Before(BranchPhase::Prepare));
    let request = BranchRequest {
        tag: Some(wanted.clone()),
        mode: BranchMode::Live,
        children: 0,
        network: None,
        join: None,
        private: false,
        wait: Wait::UntilReady,
    };
    let (engine, id) = (lab.engine.clone(), guest.id.clone());
    let branch = tokio::spawn(async move { engine.branch(&id, request).await });
    tokio::task::block_in_place(|| gate.wait_reached());
    guest.spawn(FILL).await;
    let pid = lab.engine.sandbox(&guest.id).unwrap().pid.unwrap();
    let ended = || {
        let stat = std::fs::read_to_string(format!("/proc/{pid}/stat")).unwrap_or_default();
        stat.rsplit_once(')').is_none_or(|(_, rest)| rest.trim_start().starts_with('Z'))
    };
    lab.wait_until("the VMM is ended", ended).await;
    gate.open();
    let error = branch.await.unwrap().unwrap_err();
    assert!(matches!(error, EngineError::MemoryLimitReached(_)), "{error}");
    let snapshot = lab.engine.snapshot(&wanted).unwrap();
    is_about_the_limit(&snapshot.error.unwrap());
    is_dead(lab, guest, &group).await;
}
