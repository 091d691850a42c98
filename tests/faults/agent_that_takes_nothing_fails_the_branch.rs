//! Goal: a branch whose source's guest agent does not even take the bytes that were sent to it
//! fails before the pause, with that reason; the source runs, nothing is left, and once the agent
//! is back the next branch works.
//!
//! Method: the agent is stopped and sent more than the guest's kernel and the socket hold. Breaks
//! when a branch waits for the agent without end, or does not wait and tears what is on the way.

use std::time::Duration;

use forkd_engine::guest::EvalRequest;
use forkd_testkit::{Lab, block_on};
use forkd_types::SandboxState;
use tokio::task::JoinHandle;

use crate::scene::{ALONE, AgentSwitch, FREEZER};

/// The guest's kernel takes 4 MiB before it takes no more, and as much may wait in the engine: so
/// there are waves of requests, with time for each to get into the guest.
const WAVES: usize = 3;
const REQUESTS: usize = 25;
const REQUEST_BYTES: usize = 100 << 10;

#[test]
fn a_branch_of_a_guest_whose_agent_takes_nothing_fails_before_the_pause() {
    block_on(async {
        let _alone = ALONE.lock().await;
        let lab = Lab::new().await;
        let source = lab.python().await;
        source.sh("echo kept > /tmp/kept").await;
        source.sh(FREEZER).await;
        let agent = AgentSwitch::of(&lab, &source);
        agent.kill("8").await;
        let padding = "x".repeat(REQUEST_BYTES);
        let mut evals = Vec::new();
        for _ in 0..WAVES {
            evals.extend((0..REQUESTS).map(|_| {
                let (engine, id) = (lab.engine.clone(), source.id.clone());
                let (code, timeout) = (format!("'{padding}'"), Duration::from_secs(30));
                let request = EvalRequest { code, timeout };
                tokio::spawn(async move { engine.eval(&id, request).await })
            }));
            tokio::time::sleep(Duration::from_millis(400)).await;
        }
        let error = source.try_branch_as(&"stuck".parse().unwrap()).await.unwrap_err().to_string();
        assert!(error.contains("quiesce"), "{error}");
        assert!(!evals.iter().any(JoinHandle::is_finished), "it waited until the agent was back");
        lab.wait_state(&source.id, SandboxState::Running).await;
        agent.wait_alive().await;
        for eval in evals {
            eval.await.unwrap().unwrap();
        }
        let (_, children) = source.branch_into(1).await;
        assert_eq!(children[0].sh("cat /tmp/kept").await, "kept");
        children[0].clone().remove().await;
        source.remove().await;
        assert_eq!(lab.leftovers(), Vec::<std::path::PathBuf>::new());
    });
}
