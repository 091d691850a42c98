//! The sandbox of a build: what is run in it, and its branches.

use anyhow::Context as _;
use forkd_api::{BranchRequest, CreateProcess, CreateSandboxes, ExecAnswer, ExecRequest};
use forkd_client::{Client, ClientError};
use forkd_recipe::{Command, Settings};
use forkd_types::SnapshotStatus;

use super::cache;
use super::failure::ProgramFailed;
use crate::start;

/// The longest that a program may run, in seconds.
const RUN_SECS: u64 = 4 * 3600;

/// A sandbox that nobody uses for so long belongs to a build that is gone.
const IDLE_SECS: u64 = 1800;

/// As who files change hands.
pub(super) const SUPERUSER: &str = "0";

/// The sandbox in which steps are run.
#[derive(Debug)]
pub(super) struct Machine {
    pub(super) client: Client,
    pub(super) id: String,
}

impl Machine {
    /// Starts one from the snapshot after the last step that is done.
    pub(super) async fn start(client: &Client, tag: &str, is_kept: bool) -> anyhow::Result<Self> {
        let mut body = CreateSandboxes::new(tag, 1);
        body.idle_timeout_secs = (!is_kept).then_some(IDLE_SECS);
        body.metadata = [("forkd-build".to_owned(), tag.to_owned())].into();
        let sandbox = start::one(client, &body).await?;
        Ok(Self { client: client.clone(), id: sandbox.id })
    }

    /// A program with the settings of its step.
    pub(super) fn exec(&self, command: &Command, settings: &Settings) -> ExecRequest {
        let mut body = ExecRequest::new(command.args());
        body.timeout_secs = RUN_SECS;
        body.env = settings.env.clone();
        body.cwd = settings.workdir.clone();
        body.user = settings.user.clone();
        body
    }

    /// The same for one that goes on.
    pub(super) fn process(&self, command: &Command, settings: &Settings) -> CreateProcess {
        let mut body = CreateProcess::new(command.args());
        body.env = settings.env.clone();
        body.cwd = settings.workdir.clone();
        body.user = settings.user.clone();
        body
    }

    /// Keeps the state under a tag. Somebody who builds the same may have done so: then theirs is
    /// as good.
    pub(super) async fn branch_step(&self, tag: &str) -> anyhow::Result<()> {
        match self.branch(tag).await {
            Err(ClientError::Api(failure)) if failure.code == "tag_taken" => {}
            branched => return Ok(branched?),
        }
        if self.client.snapshot_info(tag).await?.snapshot.status != SnapshotStatus::Failed {
            return start::prepare(&self.client, tag).await;
        }
        cache::remove(&self.client, tag).await?;
        Ok(self.branch(tag).await?)
    }

    /// Takes a live branch and starts nothing from it.
    pub(super) async fn branch(&self, tag: &str) -> Result<(), ClientError> {
        let body = BranchRequest { tag: Some(tag.to_owned()), ..BranchRequest::default() };
        self.client.branch(&self.id, &body).await.map(drop)
    }

    /// Removes the sandbox.
    pub(super) async fn remove(&self) -> anyhow::Result<()> {
        match self.client.delete_sandbox(&self.id).await {
            Err(ClientError::Api(failure)) if failure.code == "sandbox_not_found" => Ok(()),
            removed => removed.with_context(|| format!("remove {}", self.id)),
        }
    }
}

/// The end of a program that must succeed; else what it wrote, and how it ended.
pub(super) fn succeeded(answer: &ExecAnswer) -> anyhow::Result<()> {
    if answer.exit_code == 0 && !answer.timed_out {
        return Ok(());
    }
    let how = match answer.timed_out {
        true => "its time was up".to_owned(),
        false => format!("exit code {}", answer.exit_code),
    };
    let exit_code = (!answer.timed_out).then_some(answer.exit_code);
    let wrote = format!("{}{}", answer.stdout, answer.stderr);
    Err(ProgramFailed::new(&how, exit_code, wrote).into())
}
