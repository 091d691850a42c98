//! Goal: a VMM that is killed, at any moment of a branch, gives that branch a clear error and its
//! sandbox the state `dead`; other sandboxes run on, and the snapshot is not usable.
//!
//! Method: the VMM is killed by its id as each phase begins, and the phase goes on at once: what it
//! asks of the VMM and what the kernel does to it happen at the same time. A phase that needs an
//! answer of the VMM must fail. Breaks when a wait has no end, or a half snapshot is ready.

use std::sync::{Arc, Mutex};
use std::time::Instant;

use forkd_engine::{BranchProbe, EngineError, ProbedBranch};
use forkd_testkit::{Lab, SOON, block_on};
use forkd_types::{BranchMode, BranchPhase, SandboxState, SnapshotStatus, SnapshotTag};
use rustix::process::{Pid, Signal, kill_process};

/// Kills a VMM as a phase of its branch begins.
#[derive(Debug, Default)]
struct Killer(Mutex<Option<(BranchPhase, Pid)>>);

impl Killer {
    fn strike(&self, phase: BranchPhase) {
        if let Some((_, vmm)) = self.0.lock().unwrap().take_if(|(at, _)| *at == phase) {
            kill_process(vmm, Signal::KILL).unwrap();
        }
    }
}

impl BranchProbe for Killer {
    fn before(&self, phase: BranchPhase, _: &ProbedBranch<'_>) -> Result<(), EngineError> {
        self.strike(phase);
        Ok(())
    }

    fn before_publish(&self, _: &SnapshotTag) -> Result<(), EngineError> {
        self.strike(BranchPhase::Publish);
        Ok(())
    }
}

#[test]
fn killing_a_vmm_during_its_branch_ends_that_branch_only() {
    block_on(async {
        let killer = Arc::new(Killer::default());
        let lab = Lab::with_probe(Arc::clone(&killer) as Arc<dyn BranchProbe>).await;
        let bystander = lab.tiny().await;
        for phase in BranchPhase::ALL {
            let source = lab.tiny().await;
            source.sh("dd if=/dev/urandom of=/tmp/dirt bs=1M count=8 2>/dev/null").await;
            let pid = lab.engine.sandbox(&source.id).unwrap().pid.unwrap();
            let vmm = i32::try_from(pid).ok().and_then(Pid::from_raw).unwrap();
            *killer.0.lock().unwrap() = Some((phase, vmm));
            let begun = Instant::now();
            let branched = source.try_branch(BranchMode::Live).await;
            assert!(begun.elapsed() < SOON, "before {phase}: took {:?}", begun.elapsed());
            assert!(branched.is_err() || phase > BranchPhase::Resume, "before {phase}: ready");
            let all = lab.engine.snapshots();
            let made = all.iter().rfind(|s| s.branched_from.as_ref() == Some(&source.id)).unwrap();
            match branched {
                Ok(_) => assert_eq!(made.status, SnapshotStatus::Ready, "before {phase}"),
                Err(error) => {
                    assert_eq!(made.status, SnapshotStatus::Failed, "before {phase}: {error}");
                    assert!(made.error.is_some(), "before {phase}: {error}");
                }
            }
            lab.wait_state(&source.id, SandboxState::Dead).await;
            assert!(killer.0.lock().unwrap().is_none(), "before {phase}: not killed");
            let error = source.try_sh("true").await.unwrap_err().to_string();
            assert!(error.contains("dead"), "{error}");
            assert_eq!(bystander.sh("echo alive").await, "alive");
            source.remove().await;
        }
    });
}
