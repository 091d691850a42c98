//! How long a sandbox lives, and whether it runs.

use std::time::{Duration, SystemTime};

use axum::Json;
use axum::extract::Path;
use axum::http::StatusCode;
use forkd_types::SandboxState;
use serde::Deserialize;
use serde_json::{Value, json};

use super::asked::{Asked, Body, Said, to_the_end};
use super::create::life_of;
use super::shown::end_of;
use crate::failure::{Failure, Kind};

pub(super) async fn detail(asked: Asked, Path(said): Said) -> Result<Json<Value>, Failure> {
    let sandbox = asked.sandbox(&said)?;
    Ok(Json(asked.detailed(&sandbox)))
}

pub(super) async fn kill(asked: Asked, Path(said): Said) -> Result<StatusCode, Failure> {
    let id = asked.sandbox(&said)?.id;
    let shared = asked.shared.clone();
    to_the_end(async move {
        asked.engine.remove_sandbox(&id).await?;
        shared.records.remove(&id);
        shared.watchers.forget(&id);
        Ok::<_, Failure>(())
    })
    .await?;
    Ok(StatusCode::NO_CONTENT)
}

#[derive(Debug, Default, Deserialize)]
#[serde(default)]
pub(super) struct Timeout {
    timeout: Option<i64>,
    duration: Option<i64>,
    memory: Option<bool>,
}

/// From now on; it may become shorter.
pub(super) async fn set_timeout(
    asked: Asked,
    Path(said): Said,
    Body(body): Body<Timeout>,
) -> Result<StatusCode, Failure> {
    let sandbox = asked.sandbox(&said)?;
    let secs = body.timeout.ok_or_else(|| Failure::field("timeout", "is missing"))?;
    let life = life_of("timeout", secs)?;
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
    Body(body): Body<Timeout>,
) -> Result<StatusCode, Failure> {
    let sandbox = asked.sandbox(&said)?;
    asked.extend(&sandbox, life_of("duration", body.duration.unwrap_or(15))?)?;
    Ok(StatusCode::NO_CONTENT)
}

/// A running sandbox lives on for at least so long; a paused one runs again.
pub(super) async fn connect(
    asked: Asked,
    Path(said): Said,
    Body(body): Body<Timeout>,
) -> Result<(StatusCode, Json<Value>), Failure> {
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

#[derive(Debug, Default, Deserialize)]
#[serde(default, rename_all = "camelCase")]
pub(super) struct Pause {
    memory: Option<bool>,
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

/// None are taken.
pub(super) async fn metrics(asked: Asked, Path(said): Said) -> Result<Json<Value>, Failure> {
    asked.sandbox(&said)?;
    Ok(Json(json!([])))
}
