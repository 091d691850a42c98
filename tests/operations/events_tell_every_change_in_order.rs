//! Goal: who follows the events knows every sandbox, snapshot and operation as the engine does.
//! Method: a whole session is read as events, from two readers, one of which goes away and resumes;
//! what they tell of each thing is compared with the life that it had.
//! Broken by: a change that is not told, told twice or in the wrong order; a reader that loses or
//! repeats events.

use std::collections::BTreeMap;
use std::time::Duration;

use forkd_engine::{Change, DeletePolicy, EventReader, Next, Operation, OperationState};
use forkd_testkit::{Lab, block_on};
use forkd_types::SandboxState;

#[test]
fn events_tell_every_change_in_order() {
    block_on(async {
        let lab = Lab::new().await;
        let mut steady = lab.engine.events(None);
        let mut absent = lab.engine.events(None);
        let template = lab.template("tiny", 128).await;
        lab.wait_durable(&template).await;
        let mut seen = read(&lab, &mut absent).await;
        let last = absent.last();
        drop(absent);
        let source = lab.one(&template).await;
        let id = source.id.clone();
        let branched = source.branch().await.tag;
        lab.wait_durable(&branched).await;
        lab.wait_state(&id, SandboxState::Running).await;
        let killed = lab.one(&template).await;
        lab.kill(lab.engine.sandbox(&killed.id).unwrap().pid.unwrap());
        lab.wait_state(&killed.id, SandboxState::Dead).await;
        source.remove().await;
        lab.engine.delete_snapshot(&branched, DeletePolicy::Refuse).await.unwrap();

        seen.extend(read(&lab, &mut lab.engine.events(Some(last))).await);
        let all = read(&lab, &mut steady).await;
        assert_eq!(seen, all, "a reader that resumes has lost or repeated something");
        let life = |of: &str| all.get(of).cloned().unwrap_or_default();
        let snapshot = ["snapshot.writing", "snapshot.ready", "snapshot.durable"];
        assert_eq!(life(&template.to_string()), snapshot);
        let removed = [snapshot.as_slice(), &["snapshot.removed"]].concat();
        assert_eq!(life(&branched.to_string()), removed);
        let states = ["sandbox.state"; 3];
        let whole = [["sandbox.started"].as_slice(), &states, &["sandbox.removed"]].concat();
        assert_eq!(life(id.as_str()), whole, "branching, running, stopping");
        assert_eq!(life(killed.id.as_str()), ["sandbox.started", "sandbox.dead"]);
        for operation in lab.engine.operations() {
            let events = life(operation.id.as_str());
            assert_eq!(events.first(), Some(&"operation.started"), "{operation:?}");
            assert_eq!(events.last(), Some(&"operation.ended"), "{operation:?}");
        }
        assert_eq!(lab.engine.operations().len(), 4, "two snapshots, each made and published");
    });
}

/// The names of all events up to the end of every operation, by what they are about.
async fn read(lab: &Lab, reader: &mut EventReader) -> BTreeMap<String, Vec<&'static str>> {
    let mut names: BTreeMap<String, Vec<&'static str>> = BTreeMap::new();
    let running = |operation: &Operation| operation.state == OperationState::Running;
    lab.wait_until("operations end", || !lab.engine.operations().iter().any(running)).await;
    // What has happened is told without waiting.
    while let Ok(next) = tokio::time::timeout(Duration::ZERO, reader.next()).await {
        let Some(Next::Event(change)) = next else { panic!("{next:?}") };
        let about = match &*change {
            Change::Sandbox(_, sandbox) => sandbox.id.to_string(),
            Change::Snapshot(_, snapshot) => snapshot.tag.to_string(),
            Change::Operation(_, operation) => operation.id.to_string(),
        };
        names.entry(about).or_default().push(change.name());
    }
    names
}
