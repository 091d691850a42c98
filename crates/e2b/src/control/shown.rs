//! A sandbox as clients of E2B see it.

use std::collections::BTreeMap;
use std::time::SystemTime;

use forkd_engine::{AtEnd, Sandbox};
use forkd_types::{SandboxState, SnapshotTag, limit};
use serde::Serialize;
use utoipa::ToSchema;

use super::asked::Asked;
use super::network::{self, NetworkShown};
use crate::handed_out::HandedOut;
use crate::id;
use crate::record::Record;
use crate::shared::ENVD_VERSION;

/// There is one, and clients ignore it.
const CLIENT_ID: &str = "forkd";

/// Whether a sandbox runs.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, ToSchema)]
#[serde(rename_all = "snake_case")]
#[schema(as = SandboxState)]
pub(super) enum State {
    Running,
    Paused,
}

/// A sandbox in a list.
#[derive(Debug, Serialize, ToSchema)]
#[serde(rename_all = "camelCase")]
#[schema(as = ListedSandbox)]
pub(super) struct Listed {
    /// What it was started from.
    #[serde(rename = "templateID")]
    template_id: String,
    /// Its name.
    #[serde(rename = "sandboxID")]
    #[schema(pattern = "^[a-z0-9]+$")]
    sandbox_id: String,
    /// Always the same.
    #[serde(rename = "clientID")]
    client_id: &'static str,
    /// When it was made.
    #[schema(format = DateTime, pattern = "Z$")]
    started_at: String,
    /// When it ends, unless somebody changes that.
    #[schema(format = DateTime, pattern = "Z$")]
    end_at: String,
    cpu_count: u32,
    #[serde(rename = "memoryMB")]
    memory_mb: u64,
    #[serde(rename = "diskSizeMB")]
    disk_size_mb: u64,
    state: State,
    /// Clients decide by it what they may ask.
    #[schema(pattern = r"^\d+\.\d+\.\d+$")]
    envd_version: &'static str,
    /// Its maker's words.
    metadata: BTreeMap<String, String>,
    /// The name that the client gave for the template, where it stands for another.
    #[serde(skip_serializing_if = "Option::is_none")]
    #[schema(nullable = false)]
    alias: Option<String>,
}

/// A sandbox alone.
#[derive(Debug, Serialize, ToSchema)]
#[serde(rename_all = "camelCase")]
#[schema(as = SandboxDetail)]
pub(super) struct Detail {
    #[serde(flatten)]
    listed: Listed,
    /// Opens its programs and files.
    envd_access_token: String,
    /// Each of its ports has a name below it.
    domain: String,
    /// What its maker has said of it.
    #[serde(skip_serializing_if = "Option::is_none")]
    #[schema(nullable = false)]
    allow_internet_access: Option<bool>,
    /// What it may reach, where somebody has said it.
    #[serde(skip_serializing_if = "Option::is_none")]
    #[schema(nullable = false)]
    network: Option<NetworkShown>,
    lifecycle: Lifecycle,
}

/// What becomes of a sandbox by itself.
#[derive(Debug, Serialize, ToSchema)]
#[serde(rename_all = "camelCase")]
struct Lifecycle {
    /// Whether a request to one of its ports wakes it.
    auto_resume: bool,
    on_timeout: OnTimeout,
}

/// What becomes of a sandbox at its end.
#[derive(Debug, Serialize, ToSchema)]
#[serde(rename_all = "snake_case")]
enum OnTimeout {
    Kill,
    Pause,
}

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
    pub(super) fn handed_out(&self, sandbox: &Sandbox) -> HandedOut {
        let record = self.record(sandbox);
        let traffic_token = || self.shared.secret.traffic_token(&sandbox.id);
        HandedOut {
            template_id: record.template,
            sandbox_id: id::shown(&sandbox.id),
            client_id: CLIENT_ID,
            envd_version: ENVD_VERSION,
            envd_access_token: self.shared.secret.access_token(&sandbox.id),
            domain: self.shared.domain.to_string(),
            traffic_access_token: (!record.allow_public_traffic).then(traffic_token),
            alias: record.alias,
        }
    }

    /// As lists show it.
    pub(super) fn listed(&self, sandbox: &Sandbox) -> Listed {
        listed_with(sandbox, self.record(sandbox))
    }

    /// As it is shown alone.
    pub(super) fn detailed(&self, sandbox: &Sandbox) -> Detail {
        let record = self.record(sandbox);
        let is_public = record.allow_public_traffic;
        let policy = sandbox.options.network.as_ref();
        Detail {
            envd_access_token: self.shared.secret.access_token(&sandbox.id),
            domain: self.shared.domain.to_string(),
            allow_internet_access: record.allow_internet_access,
            network: policy.map(|policy| network::shown(policy, is_public)),
            lifecycle: Lifecycle {
                auto_resume: record.wakes_for_secs.is_some(),
                on_timeout: match sandbox.options.at_end {
                    AtEnd::Remove => OnTimeout::Kill,
                    AtEnd::Pause => OnTimeout::Pause,
                },
            },
            listed: listed_with(sandbox, record),
        }
    }
}

fn listed_with(sandbox: &Sandbox, record: Record) -> Listed {
    Listed {
        template_id: record.template,
        sandbox_id: id::shown(&sandbox.id),
        client_id: CLIENT_ID,
        started_at: time(sandbox.created_at),
        end_at: time(end_of(sandbox)),
        cpu_count: record.cpus,
        memory_mb: record.memory_mb,
        disk_size_mb: record.disk_mb,
        state: match sandbox.state {
            SandboxState::Paused => State::Paused,
            _ => State::Running,
        },
        envd_version: ENVD_VERSION,
        metadata: sandbox.options.metadata.as_ref().clone(),
        alias: record.alias,
    }
}
