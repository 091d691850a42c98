//! Forks: one branch of a running sandbox, and children of it that live as long as is said.

use std::sync::Arc;
use std::time::Duration;

use axum::Json;
use axum::extract::Path;
use axum::http::StatusCode;
use forkd_engine::{BranchRequest, DeletePolicy, EngineError, Sandbox, SandboxOptions, Wait};
use forkd_types::{BranchMode, OperationId, SandboxState, SnapshotTag, TagName};
use serde::{Deserialize, Serialize};
use utoipa::ToSchema;

use super::asked::{Asked, Body, Said, to_the_end};
use super::create::life_of;
use crate::failure::{ErrorBody, Failure, Kind};
use crate::handed_out::HandedOut;
use crate::record::Record;

/// What E2B's documents say.
const FORKS_MAX: u32 = 100;
/// Before the random part of the tag of a snapshot that only forks need.
pub(super) const FORK_TAG: &str = "e2b-fork-";

/// A wish for forks.
#[derive(Debug, Default, Deserialize, ToSchema)]
#[schema(as = NewForks)]
pub(super) struct Fork {
    /// How long they live, in seconds; 15 by itself.
    timeout: Option<i64>,
    /// How many; one by itself.
    count: Option<u32>,
}

/// What became of one fork.
#[derive(Debug, Serialize, ToSchema)]
#[serde(rename_all = "snake_case")]
pub(super) enum ForkResult {
    Sandbox(HandedOut),
    Error(ErrorBody),
}

pub(super) async fn fork(
    asked: Asked,
    Path(said): Said,
    Body(body): Body<Fork>,
) -> Result<(StatusCode, Json<Vec<ForkResult>>), Failure> {
    let source = asked.sandbox(&said)?;
    let count = body.count.unwrap_or(1);
    if !(1..=FORKS_MAX).contains(&count) {
        return Err(Failure::field("count", &format!("must be 1 to {FORKS_MAX}")));
    }
    let secs = body.timeout.unwrap_or(15);
    if secs < 1 {
        return Err(Failure::field("timeout", "must be at least 1"));
    }
    let life = life_of("timeout", secs)?;
    let forks = to_the_end(async move { asked.fork(source, count, life).await }).await?;
    Ok((StatusCode::CREATED, Json(forks)))
}

/// A tag that nobody has.
pub(super) fn random_tag(prefix: &str) -> Result<TagName, Failure> {
    let id = OperationId::random();
    let digits = id.as_str().trim_start_matches("op-");
    let wrong = |error: forkd_types::TagError| Failure::new(Kind::Internal, error.to_string());
    format!("{prefix}{digits}").parse().map_err(wrong)
}

impl Asked {
    /// A snapshot of a sandbox that runs.
    pub(super) async fn branch(&self, source: &Sandbox, tag: SnapshotTag) -> Result<(), Failure> {
        if source.state == SandboxState::Paused {
            return Err(Failure::new(Kind::Conflict, "the sandbox is paused"));
        }
        let request = |mode| BranchRequest {
            tag: Some(tag.clone()),
            mode,
            children: 0,
            network: None,
            join: None,
            private: false,
            wait: Wait::UntilReady,
        };
        match self.engine.branch(&source.id, request(BranchMode::default())).await {
            // Such a host pauses the source for longer: E2B's clients cannot choose.
            Err(EngineError::LiveUnavailable(_)) => {
                self.engine.delete_snapshot(&tag, DeletePolicy::Force).await.ok();
                self.engine.branch(&source.id, request(BranchMode::Diff)).await?;
            }
            branched => drop(branched?),
        }
        Ok(())
    }

    async fn fork(
        self,
        source: Sandbox,
        count: u32,
        life: Duration,
    ) -> Result<Vec<ForkResult>, Failure> {
        let tag = random_tag(FORK_TAG)?.said_by(self.engine.caller().owner());
        self.branch(&source, tag.clone()).await?;
        let asked = Arc::new(self);
        let record = Arc::new(asked.record(&source));
        let starts = (0..count).map(|_| {
            let (asked, record) = (Arc::clone(&asked), Arc::clone(&record));
            let (tag, source) = (tag.clone(), source.clone());
            tokio::spawn(async move { asked.start_fork(&tag, &source, life, &record).await })
        });
        let starts: Vec<_> = starts.collect();
        let mut forks = Vec::with_capacity(starts.len());
        for start in starts {
            let died = |error| Failure::new(Kind::Internal, format!("a task died: {error}"));
            forks.push(match start.await.map_err(died).and_then(|started| started) {
                Ok(sandbox) => ForkResult::Sandbox(asked.handed_out(&sandbox)),
                Err(failure) => ForkResult::Error(failure.body()),
            });
        }
        // Its layers stay for as long as a fork lives.
        let removed = asked.engine.delete_snapshot(&tag, DeletePolicy::Force).await;
        if let Err(error) = removed {
            tracing::warn!(%tag, %error, "the snapshot of a fork is left");
        }
        Ok(forks)
    }

    async fn start_fork(
        &self,
        tag: &SnapshotTag,
        source: &Sandbox,
        life: Duration,
        record: &Record,
    ) -> Result<Sandbox, Failure> {
        let options = SandboxOptions {
            metadata: Arc::clone(&source.options.metadata),
            network: source.options.network.clone(),
            at_end: source.options.at_end,
            ..SandboxOptions::default()
        };
        let fork = self.start(tag, options, life, record).await?;
        self.shared.listening.forked(&source.id, &fork.id);
        Ok(fork)
    }
}
