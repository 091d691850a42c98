//! How long a sandbox lives, and whether it runs.

use std::time::{Duration, SystemTime};

use axum::Json;
use axum::extract::{Path, RawQuery};
use axum::http::StatusCode;
use forkd_engine::AtEnd;
use forkd_engine::guest::Usage;
use forkd_types::SandboxState;
use serde::{Deserialize, Serialize};
use utoipa::ToSchema;

use super::asked::{Asked, Body, Said, to_the_end};
use super::create::life_of;
use super::shown::{Detail, end_of, time};
use crate::failure::{Failure, Kind};
use crate::handed_out::HandedOut;
use crate::shared::{Stand, now_unix, stand_of};

/// Between a client's now and ours, on its way here.
const NOW_SECS: i64 = 5;

pub(super) async fn detail(asked: Asked, Path(said): Said) -> Result<Json<Detail>, Failure> {
    let sandbox = asked.sandbox(&said)?;
    Ok(Json(asked.detailed(&sandbox)))
}

pub(super) async fn kill(asked: Asked, Path(said): Said) -> Result<StatusCode, Failure> {
    let id = asked.sandbox(&said)?.id;
    let shared = asked.shared.clone();
    to_the_end(async move {
        asked.engine.remove_sandbox(&id).await?;
        shared.records.remove(&id);
        shared.listening.forget(&id);
        Ok::<_, Failure>(())
    })
    .await?;
    Ok(StatusCode::NO_CONTENT)
}

/// How long a sandbox is to live from now on.
#[derive(Debug, Deserialize, ToSchema)]
#[schema(as = SandboxTimeout)]
pub(super) struct Timeout {
    /// In seconds; what is not positive ends it at once.
    timeout: i64,
}

/// For how much longer a sandbox is needed.
#[derive(Debug, Default, Deserialize, ToSchema)]
#[schema(as = RefreshSandbox)]
pub(super) struct Refresh {
    /// In seconds; 15 by itself.
    duration: Option<i64>,
}

/// How a client comes back to a sandbox.
#[derive(Debug, Default, Deserialize, ToSchema)]
#[schema(as = ConnectSandbox)]
pub(super) struct Connect {
    /// How long it is to live from now on, in seconds; 300 by itself.
    timeout: Option<i64>,
    /// `false` is refused of a paused sandbox: forkd keeps its memory.
    memory: Option<bool>,
}

/// From now on; it may become shorter.
pub(super) async fn set_timeout(
    asked: Asked,
    Path(said): Said,
    Body(body): Body<Timeout>,
) -> Result<StatusCode, Failure> {
    let sandbox = asked.sandbox(&said)?;
    let life = life_of("timeout", body.timeout)?;
    // A paused sandbox has no end; it gets one when it runs again.
    if sandbox.state != SandboxState::Paused {
        asked.engine.set_time_left(&sandbox.id, Some(life))?;
    }
    Ok(StatusCode::NO_CONTENT)
}

/// From now on, and only ever longer.
pub(super) async fn refresh(
    asked: Asked,
    Path(said): Said,
    Body(body): Body<Refresh>,
) -> Result<StatusCode, Failure> {
    let sandbox = asked.sandbox(&said)?;
    asked.extend(&sandbox, life_of("duration", body.duration.unwrap_or(15))?)?;
    Ok(StatusCode::NO_CONTENT)
}

/// A running sandbox lives on for at least so long; a paused one runs again.
pub(super) async fn connect(
    asked: Asked,
    Path(said): Said,
    Body(body): Body<Connect>,
) -> Result<(StatusCode, Json<HandedOut>), Failure> {
    let sandbox = asked.sandbox(&said)?;
    let life = life_of("timeout", body.timeout.unwrap_or(300))?;
    if sandbox.state != SandboxState::Paused {
        let sandbox = asked.extend(&sandbox, life)?;
        return Ok((StatusCode::OK, Json(asked.handed_out(&sandbox))));
    }
    if body.memory == Some(false) {
        return Err(Failure::not_done("memory: false"));
    }
    let (engine, id) = (asked.engine.clone(), sandbox.id);
    let sandbox = to_the_end(async move {
        engine.resume_sandbox(&id).await?;
        engine.set_time_left(&id, Some(life))
    });
    let sandbox = sandbox.await?;
    Ok((StatusCode::CREATED, Json(asked.handed_out(&sandbox))))
}

/// How a client of before comes back to a sandbox.
#[derive(Debug, Default, Deserialize, ToSchema)]
#[serde(rename_all = "camelCase")]
#[schema(as = ResumeSandbox)]
pub(super) struct Resume {
    /// How long it is to live from now on, in seconds; 15 by itself.
    timeout: Option<i64>,
    /// Refused if it is to be another than the sandbox was made with.
    auto_pause: Option<bool>,
    /// `false` is refused of a paused sandbox: forkd keeps its memory.
    memory: Option<bool>,
}

/// As [`connect`], for clients that do not know that yet.
pub(super) async fn resume(
    asked: Asked,
    said: Path<String>,
    Body(body): Body<Resume>,
) -> Result<(StatusCode, Json<HandedOut>), Failure> {
    let pauses = asked.sandbox(&said.0)?.options.at_end == AtEnd::Pause;
    if body.auto_pause.is_some_and(|wanted| wanted != pauses) {
        return Err(Failure::not_done("autoPause of a sandbox that is there"));
    }
    let Resume { timeout, auto_pause: _, memory } = body;
    let body = Connect { timeout: Some(timeout.unwrap_or(15)), memory };
    let (_, sandbox) = connect(asked, said, Body(body)).await?;
    Ok((StatusCode::CREATED, sandbox))
}

impl Asked {
    fn extend(
        &self,
        sandbox: &forkd_engine::Sandbox,
        life: Duration,
    ) -> Result<forkd_engine::Sandbox, Failure> {
        let is_longer = end_of(sandbox) < SystemTime::now() + life;
        match sandbox.options.ttl {
            Some(_) if is_longer => Ok(self.engine.set_time_left(&sandbox.id, Some(life))?),
            _ => Ok(sandbox.clone()),
        }
    }
}

/// How a sandbox is paused.
#[derive(Debug, Default, Deserialize, ToSchema)]
#[serde(rename_all = "camelCase")]
#[schema(as = PauseSandbox)]
pub(super) struct Pause {
    /// `false` is refused: forkd keeps its memory.
    memory: Option<bool>,
    /// Whether to refuse when the guest agent does not answer.
    require_healthy_guest: Option<bool>,
}

/// Its memory stays where it is, and its time stands still.
pub(super) async fn pause(
    asked: Asked,
    Path(said): Said,
    Body(body): Body<Pause>,
) -> Result<StatusCode, Failure> {
    let sandbox = asked.sandbox(&said)?;
    if body.memory == Some(false) {
        return Err(Failure::not_done("memory: false"));
    }
    if sandbox.state == SandboxState::Paused {
        return Err(Failure::new(Kind::Conflict, "the sandbox is paused already"));
    }
    let (engine, id) = (asked.engine.clone(), sandbox.id);
    if body.require_healthy_guest == Some(true) && engine.ping(&id).await.is_err() {
        return Err(Failure::new(Kind::Busy, "the guest agent does not answer"));
    }
    to_the_end(async move {
        engine.pause_sandbox(&id).await?;
        engine.set_time_left(&id, None)
    })
    .await?;
    Ok(StatusCode::NO_CONTENT)
}

/// What programs use at a moment. All sizes are in bytes.
#[derive(Debug, Serialize, ToSchema)]
#[serde(rename_all = "camelCase")]
#[schema(as = Metric)]
pub(super) struct Sample {
    #[schema(format = DateTime, pattern = "Z$")]
    timestamp: String,
    timestamp_unix: u64,
    cpu_count: u32,
    /// Of all processors together, in percent.
    cpu_used_pct: f64,
    mem_used: u64,
    mem_total: u64,
    mem_cache: u64,
    disk_used: u64,
    disk_total: u64,
}

/// What programs use now: one sample, unless the client asks about other times. No history is kept.
pub(super) async fn metrics(
    asked: Asked,
    Path(said): Said,
    RawQuery(query): RawQuery,
) -> Result<Json<Vec<Sample>>, Failure> {
    let sandbox = asked.sandbox(&said)?;
    let span = Span::of(&query.unwrap_or_default())?;
    let now = now_unix();
    // A paused one uses nothing that anybody could measure.
    if !span.has(now) || stand_of(sandbox.state) != Stand::Running {
        return Ok(Json(Vec::new()));
    }
    let usage = asked.engine.guest_usage(&sandbox.id).await?;
    Ok(Json(vec![sample(&usage, SystemTime::now())]))
}

/// The times that a client asks about, in seconds since 1970, both included.
#[derive(Debug, Default, PartialEq, Eq)]
struct Span {
    start: Option<i64>,
    end: Option<i64>,
}

impl Span {
    fn of(query: &str) -> Result<Self, Failure> {
        let mut span = Self::default();
        for (name, value) in form_urlencoded::parse(query.as_bytes()) {
            let place = match name.as_ref() {
                "start" => &mut span.start,
                "end" => &mut span.end,
                _ => continue,
            };
            let secs = value.parse().map_err(|_| Failure::field(&name, "is no number"))?;
            *place = Some(secs);
        }
        match span {
            Span { start: Some(start), end: Some(end) } if start > end => {
                Err(Failure::field("start", "is after the end"))
            }
            span => Ok(span),
        }
    }

    /// Whether they include a moment. A client that asks up to now has asked before it came here.
    fn has(&self, now: i64) -> bool {
        self.start.is_none_or(|start| start <= now)
            && self.end.is_none_or(|end| end + NOW_SECS >= now)
    }
}

/// As clients see what programs use at a moment.
fn sample(usage: &Usage, at: SystemTime) -> Sample {
    Sample {
        timestamp: time(at),
        timestamp_unix: at.duration_since(SystemTime::UNIX_EPOCH).unwrap_or_default().as_secs(),
        cpu_count: usage.cpus,
        cpu_used_pct: f64::from(usage.cpu_permille) / 10.0,
        mem_used: usage.memory_used.get(),
        mem_total: usage.memory.get(),
        mem_cache: usage.memory_cached.get(),
        disk_used: usage.disk_used.get(),
        disk_total: usage.disk.get(),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_sample_of_now_is_told_to_those_who_ask_about_now() {
        for (query, has) in [
            ("", true),
            ("start=1000", true),
            ("start=900&end=1000&x=y", true),
            ("end=998", true),
            ("start=1001", false),
            ("end=900", false),
            ("start=0&end=0", false),
        ] {
            assert_eq!(Span::of(query).unwrap().has(1000), has, "{query}");
        }
        for wrong in ["start=x", "end=1.5", "start=2&end=1"] {
            assert!(Span::of(wrong).is_err(), "{wrong}");
        }
    }
}
