//! A sandbox as clients of E2B see it.

use std::time::SystemTime;

use forkd_engine::{AtEnd, Sandbox};
use forkd_types::{SandboxState, SnapshotTag, limit};
use serde_json::{Map, Value, json};

use super::asked::Asked;
use super::network;
use crate::id;
use crate::record::Record;
use crate::shared::ENVD_VERSION;

/// There is one, and clients ignore it.
const CLIENT_ID: &str = "forkd";

/// RFC 3339 with microseconds, which are what lists are cut by.
pub(super) fn time(time: SystemTime) -> String {
    humantime::format_rfc3339_micros(time).to_string()
}

/// When a sandbox ends. Says the same until somebody changes it. One without an end lives for as
/// long as any may.
pub(super) fn end_of(sandbox: &Sandbox) -> SystemTime {
    sandbox.created_at + sandbox.options.ttl.unwrap_or(limit::LIFETIME_MAX)
}

impl Asked {
    /// What is kept of a sandbox; of one that forkd's own clients made, what can be known.
    pub(super) fn record(&self, sandbox: &Sandbox) -> Record {
        self.shared.records.get(&sandbox.id).unwrap_or_else(|| {
            let snapshot = self.engine.snapshot(&sandbox.snapshot_tag).ok();
            Record {
                template: sandbox.snapshot_tag.shown_to(self.engine.caller().owner()),
                cpus: snapshot.as_ref().map_or(0, |snapshot| snapshot.vcpus),
                memory_mb: snapshot.map_or(0, |snapshot| snapshot.memory.get() >> 20),
                disk_mb: self.disk_mb(&sandbox.snapshot_tag),
                ..Record::default()
            }
        })
    }

    /// How large the disk of a snapshot's sandboxes is.
    pub(super) fn disk_mb(&self, tag: &SnapshotTag) -> u64 {
        // What cannot be known of an image that is gone is not worth a failure.
        self.engine.disk_size(tag).ok().flatten().map_or(0, |bytes| bytes.get() >> 20)
    }

    /// As create, connect and fork answer.
    pub(super) fn handed_out(&self, sandbox: &Sandbox) -> Value {
        let record = self.record(sandbox);
        let mut shown = json!({
            "templateID": record.template,
            "sandboxID": id::shown(&sandbox.id),
            "clientID": CLIENT_ID,
            "envdVersion": ENVD_VERSION,
            "envdAccessToken": self.shared.secret.access_token(&sandbox.id),
            "domain": self.shared.domain.to_string(),
        });
        if !record.allow_public_traffic {
            let token = self.shared.secret.traffic_token(&sandbox.id);
            shown["trafficAccessToken"] = token.into();
        }
        if let Some(alias) = record.alias {
            shown["alias"] = alias.into();
        }
        shown
    }

    /// As lists show it.
    pub(super) fn listed(&self, sandbox: &Sandbox) -> Map<String, Value> {
        listed_with(sandbox, self.record(sandbox))
    }

    /// As it is shown alone.
    pub(super) fn detailed(&self, sandbox: &Sandbox) -> Value {
        let record = self.record(sandbox);
        let allow_internet_access = record.allow_internet_access;
        let auto_resume = record.wakes_for_secs.is_some();
        let is_public = record.allow_public_traffic;
        let mut shown = listed_with(sandbox, record);
        let token = self.shared.secret.access_token(&sandbox.id);
        shown.insert("envdAccessToken".to_owned(), token.into());
        if let Some(allow) = allow_internet_access {
            shown.insert("allowInternetAccess".to_owned(), allow.into());
        }
        if let Some(policy) = &sandbox.options.network {
            shown.insert("network".to_owned(), network::shown(policy, is_public));
        }
        shown.insert("domain".to_owned(), self.shared.domain.to_string().into());
        let on_timeout = match sandbox.options.at_end {
            AtEnd::Remove => "kill",
            AtEnd::Pause => "pause",
        };
        let lifecycle = json!({"autoResume": auto_resume, "onTimeout": on_timeout});
        shown.insert("lifecycle".to_owned(), lifecycle);
        Value::Object(shown)
    }
}

fn listed_with(sandbox: &Sandbox, record: Record) -> Map<String, Value> {
    let state = match sandbox.state {
        SandboxState::Paused => "paused",
        _ => "running",
    };
    let mut shown = Map::new();
    let mut set = |name: &str, value: Value| shown.insert(name.to_owned(), value);
    set("templateID", record.template.into());
    set("sandboxID", id::shown(&sandbox.id).into());
    set("clientID", CLIENT_ID.into());
    set("startedAt", time(sandbox.created_at).into());
    set("endAt", time(end_of(sandbox)).into());
    set("cpuCount", record.cpus.into());
    set("memoryMB", record.memory_mb.into());
    set("diskSizeMB", record.disk_mb.into());
    set("state", state.into());
    set("envdVersion", ENVD_VERSION.into());
    set("metadata", json!(*sandbox.options.metadata));
    if let Some(alias) = record.alias {
        set("alias", alias.into());
    }
    shown
}
