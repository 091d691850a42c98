//! The result of a build: the state after its last step, under a tag of its own.

use forkd_api::Snapshot;
use forkd_client::{Client, ClientError, Dependents};
use forkd_recipe::Key;

use super::machine::Machine;
use crate::console::report::Hinted;

/// A tag, and whether the result of an earlier build has it.
#[derive(Debug)]
pub(super) struct Place<'a> {
    tag: &'a str,
    /// When that result was made.
    earlier: Option<u64>,
}

impl<'a> Place<'a> {
    /// Looks before the first step: a result is known by the step that it builds on, and a build
    /// without the cache removes that one.
    pub(super) async fn look(client: &Client, tag: &'a str) -> Result<Self, ClientError> {
        let found = find(client, tag).await?.filter(builds_on_step);
        Ok(Self { tag, earlier: found.map(|found| found.created_at_unix) })
    }

    /// Gives the state after the step `last` the tag: a branch of a child, so that the snapshot
    /// builds on the step, which therefore stays in the cache. An earlier result makes room.
    pub(super) async fn fill(&self, client: &Client, last: &str) -> anyhow::Result<()> {
        let there = find(client, self.tag).await?;
        if let Some(there) = &there {
            if there.parent_tag.as_deref() == Some(last) {
                return Ok(());
            }
            if !builds_on_step(there) && self.earlier != Some(there.created_at_unix) {
                return Err(self.is_taken().into());
            }
        }
        let machine = Machine::start(client, last, false).await?;
        let named = async {
            if there.is_some() {
                client.delete_snapshot(self.tag, Dependents::Keep).await?;
            }
            machine.branch(self.tag).await
        };
        let named = named.await;
        machine.remove().await?;
        Ok(named?)
    }

    fn is_taken(&self) -> Hinted {
        let tag = self.tag;
        let message = format!("the tag `{tag}` is taken by a snapshot that no build has made");
        let hint = format!("choose another, or remove it: forkd snapshot rm {tag}");
        Hinted::new(message, hint)
    }
}

async fn find(client: &Client, tag: &str) -> Result<Option<Snapshot>, ClientError> {
    match client.snapshot_info(tag).await {
        Ok(info) => Ok(Some(info.snapshot)),
        Err(ClientError::Api(failure)) if failure.code == "snapshot_not_found" => Ok(None),
        Err(error) => Err(error),
    }
}

fn builds_on_step(snapshot: &Snapshot) -> bool {
    snapshot.parent_tag.as_deref().is_some_and(Key::is_tag)
}
