//! The sandbox that a request is for, and what a client means in it.

use std::sync::Arc;
use std::time::Duration;

use axum::http::HeaderMap;
use forkd_engine::guest::{ExecRequest, ProcessView};
use forkd_types::SandboxId;

use super::place::absolute;
use super::said::{Said, Selector};
use crate::failure::{Failure, Kind};
use crate::shared::Shared;

/// Between two signs of life on a silent stream, unless the client says another time.
const KEEPALIVE_DEFAULT_SECS: u64 = 90;

/// For a shell in the guest to say what its home is.
const HOME_DEADLINE: Duration = Duration::from_secs(30);
const PATH_BYTES_MAX: usize = 4096;

/// The sandbox that a request is for.
#[derive(Clone)]
pub(crate) struct At {
    pub(crate) shared: Arc<Shared>,
    pub(crate) id: SandboxId,
}

impl At {
    /// The path that a client means, absolute and without detours.
    pub(super) async fn path(&self, said: &str, user: Option<&str>) -> Result<String, Failure> {
        if said.len() > PATH_BYTES_MAX || said.contains('\0') {
            return Err(Failure::field("path", "is too long or has a zero byte"));
        }
        let home = if said.starts_with('/') { String::new() } else { self.home(user).await? };
        Ok(absolute(said, &home))
    }

    /// The home of a user, by default of the image's own.
    pub(crate) async fn home(&self, user: Option<&str>) -> Result<String, Failure> {
        if let Some(home) = self.shared.homes.get(&self.id, user) {
            return Ok(home);
        }
        let mut request = ExecRequest::new(["/bin/sh", "-c", "printf %s \"$HOME\""]);
        request.user = user.map(str::to_owned);
        request.timeout = HOME_DEADLINE;
        let said = self.shared.engine.exec(&self.id, request).await;
        let home = match said {
            Ok(output) if output.stdout.starts_with(b"/") => {
                String::from_utf8_lossy(&output.stdout).into_owned()
            }
            Ok(_) => "/root".to_owned(),
            Err(error) => match Failure::from(error) {
                // There is no shell to ask.
                failure if failure.kind == Kind::InvalidArgument => "/root".to_owned(),
                failure => return Err(failure),
            },
        };
        self.shared.homes.set(&self.id, user, &home);
        Ok(home)
    }

    /// The program that a client means: of those with one number the one that runs, else the last.
    pub(super) async fn process(&self, selector: &Selector) -> Result<ProcessView, Failure> {
        let all = self.shared.engine.processes(&self.id).await?;
        let is_meant = |view: &&ProcessView| match selector {
            Selector { pid: Some(pid), .. } => view.pid == *pid,
            Selector { tag: Some(tag), .. } => {
                Said::of(view).and_then(|said| said.tag).as_ref() == Some(tag)
            }
            Selector { .. } => false,
        };
        let meant = || all.iter().filter(is_meant);
        let found = meant().rfind(|view| view.end.is_none()).or_else(|| meant().next_back());
        found.cloned().ok_or_else(|| {
            let text = match selector {
                Selector { pid: Some(pid), .. } => format!("process with pid {pid} not found"),
                Selector { tag: Some(_), .. } => "process with this tag not found".to_owned(),
                Selector { .. } => "process: no pid and no tag".to_owned(),
            };
            Failure::new(Kind::NotFound, text)
        })
    }
}

/// How long a call may take, if its client says so.
pub(super) fn timeout_of(headers: &HeaderMap) -> Option<Duration> {
    number(headers, "connect-timeout-ms").map(Duration::from_millis)
}

/// Between two signs of life on a silent stream.
pub(super) fn keepalive_of(headers: &HeaderMap) -> Duration {
    let said = number(headers, "keepalive-ping-interval").filter(|secs| *secs > 0);
    Duration::from_secs(said.unwrap_or(KEEPALIVE_DEFAULT_SECS))
}

/// A number in a header.
fn number(headers: &HeaderMap, name: &str) -> Option<u64> {
    headers.get(name)?.to_str().ok()?.trim().parse().ok()
}
