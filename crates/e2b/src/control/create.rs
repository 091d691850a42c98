//! Making a sandbox.

use std::collections::BTreeMap;
use std::sync::Arc;
use std::time::Duration;

use axum::Json;
use axum::http::{HeaderMap, StatusCode, Uri};
use forkd_engine::{AtEnd, Sandbox, SandboxOptions};
use forkd_types::limit;
use serde::Deserialize;
use serde_json::Value;
use utoipa::ToSchema;

use super::asked::{Asked, HashedBody, to_the_end, without_build};
use super::network::{NetworkWish, policy_of};
use super::repeat::RepeatKey;
use crate::failure::{Failure, Kind};
use crate::handed_out::HandedOut;
use crate::record::Record;

/// Time to live when the client says none.
const TIMEOUT_DEFAULT_SECS: i64 = 300;
/// The same on the old route.
const TIMEOUT_OLD_SECS: i64 = 15;
/// A start counts no time of the sandbox's life; it may not take longer than this, though.
const START_PATIENCE: Duration = Duration::from_secs(600);
/// Bytes of all variables of a sandbox.
const ENV_BYTES_MAX: usize = 64 << 10;

/// A wish for a sandbox.
#[derive(Debug, Deserialize, ToSchema)]
#[serde(rename_all = "camelCase")]
pub(super) struct NewSandbox {
    /// What to start from: a name that stands for a snapshot, or the id of one.
    #[serde(rename = "templateID")]
    template_id: String,
    /// How long it lives, in seconds; by itself 300, and 15 on the route without `/v2`.
    timeout: Option<i64>,
    /// What lists find it by.
    metadata: Option<BTreeMap<String, String>>,
    /// What its programs find in their environment.
    env_vars: Option<BTreeMap<String, String>>,
    /// Whether it reaches the network outside; `true` is what the daemon does by itself.
    #[serde(rename = "allow_internet_access")]
    allow_internet_access: Option<bool>,
    /// Whether it pauses at its end and is not removed.
    auto_pause: Option<bool>,
    /// `false` is refused: forkd keeps its memory.
    auto_pause_memory: Option<bool>,
    auto_resume: Option<AutoResume>,
    network: Option<NetworkWish>,
    /// forkd does not do this: it is refused.
    iam: Option<Value>,
    /// Servers of MCP. The client itself starts the template's `mcp-gateway` with them.
    #[expect(dead_code, reason = "said so that a wrong one is refused")]
    mcp: Option<BTreeMap<String, Value>>,
    /// forkd does not do this: more than an empty list is refused.
    volume_mounts: Option<Vec<Value>>,
}

/// Whether a paused sandbox wakes by itself.
#[derive(Debug, Deserialize, ToSchema)]
struct AutoResume {
    /// Whether a request to one of its ports wakes it.
    #[serde(default)]
    enabled: bool,
}

/// A time to live that a client says.
pub(super) fn life_of(field: &str, secs: i64) -> Result<Duration, Failure> {
    let life = Duration::from_secs(u64::try_from(secs).unwrap_or(0));
    if life > limit::LIFETIME_MAX {
        let most = limit::LIFETIME_MAX.as_secs();
        return Err(Failure::field(field, &format!("must be at most {most} seconds")));
    }
    Ok(life)
}

impl NewSandbox {
    /// Refuses what forkd does not do.
    fn check(&self) -> Result<(), Failure> {
        let given = |value: &Option<Value>| value.as_ref().is_some_and(|value| !value.is_null());
        let refused = [
            ("autoPauseMemory: false", self.auto_pause_memory == Some(false)),
            ("iam", given(&self.iam)),
            ("volumeMounts", self.volume_mounts.as_ref().is_some_and(|all| !all.is_empty())),
        ];
        if let Some((name, _)) = refused.iter().find(|(_, is_asked_for)| *is_asked_for) {
            return Err(Failure::not_done(name));
        }
        let metadata = self.metadata.iter().flatten();
        if metadata.clone().count() > limit::METADATA_ENTRIES_MAX {
            let problem = format!("has more than {} entries", limit::METADATA_ENTRIES_MAX);
            return Err(Failure::field("metadata", &problem));
        }
        let most = limit::METADATA_ENTRY_BYTES_MAX;
        if metadata.clone().any(|(key, value)| key.len() + value.len() > most) {
            return Err(Failure::field(
                "metadata",
                &format!("an entry has more than {most} bytes"),
            ));
        }
        let env = self.env_vars.iter().flatten();
        if env.clone().any(|(name, _)| name.is_empty() || name.contains(['=', '\0'])) {
            return Err(Failure::field("envVars", "a name is empty or has `=` in it"));
        }
        if env.map(|(name, value)| name.len() + value.len()).sum::<usize>() > ENV_BYTES_MAX {
            let problem = format!("all together have more than {ENV_BYTES_MAX} bytes");
            return Err(Failure::field("envVars", &problem));
        }
        Ok(())
    }
}

pub(super) async fn create(
    asked: Asked,
    uri: Uri,
    headers: HeaderMap,
    HashedBody(body, digest): HashedBody<NewSandbox>,
) -> Result<(StatusCode, Json<HandedOut>), Failure> {
    let key = RepeatKey::of(&headers, asked.engine.caller().owner())?;
    let shared = Arc::clone(&asked.shared);
    let make = make(asked, uri, body);
    // Also if the client goes away meanwhile: it may ask again with the same key.
    let made = to_the_end(async move {
        match key {
            Some(key) => shared.repeats.once(key, digest, make).await,
            None => make.await,
        }
    });
    Ok((StatusCode::CREATED, Json(made.await?)))
}

/// Makes a sandbox; what a client is told of it.
async fn make(asked: Asked, uri: Uri, body: NewSandbox) -> Result<HandedOut, Failure> {
    body.check()?;
    let is_old = !uri.path().starts_with("/v2/");
    let default = if is_old { TIMEOUT_OLD_SECS } else { TIMEOUT_DEFAULT_SECS };
    let secs = body.timeout.unwrap_or(default);
    if secs < 1 {
        return Err(Failure::field("timeout", "must be at least 1"));
    }
    let life = life_of("timeout", secs)?;
    let network = policy_of(body.allow_internet_access, body.network.as_ref())?;
    let wakes = body.auto_resume.as_ref().is_some_and(|wish| wish.enabled);
    let tag = asked.template(&body.template_id)?;
    let snapshot = asked.engine.snapshot(&tag)?;
    let name = without_build(&body.template_id);
    let record = Record {
        env: body.env_vars.unwrap_or_default(),
        alias: asked.is_alias(name).then(|| name.to_owned()),
        template: tag.shown_to(asked.engine.caller().owner()),
        cpus: snapshot.vcpus,
        memory_mb: snapshot.memory.get() >> 20,
        disk_mb: asked.disk_mb(&tag),
        allow_internet_access: body.allow_internet_access,
        allow_public_traffic: body.network.as_ref().is_none_or(NetworkWish::is_public),
        wakes_for_secs: wakes.then_some(life.as_secs()),
    };
    let options = SandboxOptions {
        metadata: Arc::new(body.metadata.unwrap_or_default()),
        network,
        at_end: if body.auto_pause == Some(true) { AtEnd::Pause } else { AtEnd::Remove },
        ..SandboxOptions::default()
    };
    let sandbox = asked.start(&tag, options, life, &record).await?;
    Ok(asked.handed_out(&sandbox))
}

impl Asked {
    /// Starts a sandbox that lives for `life` from the moment on at which it is handed out.
    pub(super) async fn start(
        &self,
        tag: &forkd_types::SnapshotTag,
        options: SandboxOptions,
        life: Duration,
        record: &Record,
    ) -> Result<Sandbox, Failure> {
        let options = SandboxOptions { ttl: Some(life + START_PATIENCE), ..options };
        let started = self.engine.fork_with(tag, 1, options).await?;
        let none = || Failure::new(Kind::Internal, "no sandbox was started");
        let sandbox = started.into_iter().next().ok_or_else(none)?;
        let kept = self.shared.records.set(&sandbox.id, record);
        let settled = kept.map_err(|error| {
            Failure::new(Kind::Internal, format!("write down a sandbox: {error}"))
        });
        let settled =
            settled.and_then(|()| Ok(self.engine.set_time_left(&sandbox.id, Some(life))?));
        if settled.is_err() {
            // What cannot be handed out must not stay.
            self.shared.records.remove(&sandbox.id);
            self.engine.remove_sandbox(&sandbox.id).await?;
        }
        settled
    }
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    fn checked(extra: Value) -> Result<(), Failure> {
        let mut body = json!({"templateID": "base"});
        body.as_object_mut().unwrap().extend(extra.as_object().unwrap().clone());
        serde_json::from_value::<NewSandbox>(body).unwrap().check()
    }

    #[test]
    fn what_forkd_does_not_do_is_refused_by_its_name() {
        for (field, value) in [
            ("autoPauseMemory", json!(false)),
            ("iam", json!({"tokens": {}})),
            ("volumeMounts", json!([{"name": "v", "path": "/v"}])),
        ] {
            let failure = checked(json!({field: value})).unwrap_err();
            assert!(failure.to_string().starts_with(field), "{failure}");
        }
    }

    #[test]
    fn what_clients_send_by_themselves_is_no_wish() {
        let sent = json!({
            "autoPause": true, "autoPauseMemory": true, "autoResume": {"enabled": true},
            "mcp": null, "iam": null, "volumeMounts": [], "metadata": {}, "envVars": {},
            "unknown": 1,
        });
        checked(sent).unwrap();
    }

    #[test]
    fn servers_of_mcp_are_the_clients_to_start() {
        checked(json!({"mcp": {"time": {"zone": "UTC"}}})).unwrap();
        let wrong = json!({"templateID": "base", "mcp": "time"});
        assert!(serde_json::from_value::<NewSandbox>(wrong).is_err());
    }

    #[test]
    fn what_is_too_much_is_refused_before_a_sandbox_is_started() {
        let many: BTreeMap<String, String> =
            (0..40).map(|n| (n.to_string(), String::new())).collect();
        assert!(checked(json!({"metadata": many})).is_err());
        assert!(checked(json!({"metadata": {"a": "x".repeat(2000)}})).is_err());
        assert!(checked(json!({"envVars": {"A": "x".repeat(70_000)}})).is_err());
        assert!(checked(json!({"envVars": {"A=B": ""}})).is_err());
    }
}
