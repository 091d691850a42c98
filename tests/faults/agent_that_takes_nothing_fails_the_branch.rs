//! Goal: a branch whose source's guest agent does not even take the bytes that were sent to it
//! fails before the pause, with that reason; the source runs, nothing is left, and once the agent
//! is back the next branch works.
//!
//! Method: the agent is stopped and sent requests until no more are taken, and again if a branch
//! shows that the guest's kernel had room left. Breaks when a branch waits for the agent without
//! end, or does not wait and tears what is on the way.

use std::time::Duration;

use forkd_engine::EngineError;
use forkd_engine::guest::{EvalOutput, EvalRequest};
use forkd_testkit::{Guest, Lab, block_on};
use forkd_types::{BranchMode, SandboxState};
use tokio::task::JoinHandle;

use crate::scene::{ALONE, AgentSwitch, FREEZER};

/// The guest's kernel takes 4 MiB before it takes no more, and as much may wait in the engine.
const REQUEST_BYTES: usize = 100 << 10;
/// By the guest's clock: much longer than it takes to fill both.
const STOPPED_SECONDS: &str = "15";
const PATIENCE: Duration = Duration::from_secs(300);

/// How many requests are sent before it is looked which of them were taken.
const REQUESTS: usize = 10;

type Eval = JoinHandle<Result<EvalOutput, EngineError>>;

/// Sends requests until the engine takes no more; those that it took.
async fn fill(lab: &Lab, source: &Guest<'_>) -> Vec<Eval> {
    let mut taken = Vec::new();
    loop {
        let send = || {
            let (engine, id) = (lab.engine.clone(), source.id.clone());
            let code = format!("'{}'", "x".repeat(REQUEST_BYTES));
            let request = EvalRequest { code, timeout: PATIENCE };
            tokio::spawn(async move { engine.eval(&id, request).await })
        };
        let mut sent: Vec<Eval> = (0..REQUESTS).map(|_| send()).collect();
        tokio::time::sleep(Duration::from_millis(50)).await;
        taken_only(&mut sent).await;
        if sent.is_empty() {
            return taken;
        }
        taken.extend(sent);
    }
}

/// Drops those that were refused; none is answered while the agent stands still.
async fn taken_only(evals: &mut Vec<Eval>) {
    for eval in evals.extract_if(.., |eval| eval.is_finished()) {
        let error = eval.await.unwrap().expect_err("the agent stands still");
        assert!(error.to_string().contains("does not read"), "{error}");
    }
}

#[test]
fn a_branch_of_a_guest_whose_agent_takes_nothing_fails_before_the_pause() {
    block_on(async {
        let _alone = ALONE.lock().await;
        let lab = Lab::new().await;
        let source = lab.python().await;
        source.sh("echo kept > /tmp/kept").await;
        source.sh(FREEZER).await;
        let agent = AgentSwitch::of(&lab, &source);
        agent.kill(STOPPED_SECONDS).await;
        let mut evals = Vec::new();
        let error = loop {
            evals.extend(fill(&lab, &source).await);
            // What the guest's kernel still had room for is on its way no more.
            if let Err(error) = source.try_branch(BranchMode::Live).await {
                break error.to_string();
            }
        };
        assert!(error.contains("quiesce"), "{error}");
        // The branch has not waited until the agent was back.
        taken_only(&mut evals).await;
        lab.wait_state(&source.id, SandboxState::Running).await;
        agent.wait_alive().await;
        for eval in evals {
            eval.await.unwrap().unwrap();
        }
        let (tag, children) = source.branch_into(1).await;
        assert_eq!(children[0].sh("cat /tmp/kept").await, "kept");
        children[0].clone().remove().await;
        source.remove().await;
        // Until then a part of it is on its way to the disk.
        lab.wait_durable(&tag).await;
        assert_eq!(lab.leftovers(), Vec::<std::path::PathBuf>::new());
    });
}
