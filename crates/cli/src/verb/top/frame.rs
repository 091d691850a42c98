//! What one look at the daemon gives, and the pauses of branches so far.

use std::collections::{BTreeMap, VecDeque};

use forkd_api::{Sandbox, Snapshot, Version};
use forkd_client::{Client, ClientError};
use serde_json::{Value, json};

use crate::samples::Samples;
use crate::standby;

/// Pauses that are kept of each source, and of all together.
const PAUSES_KEPT: usize = 60;

/// Sources whose pauses are kept; those that branched last.
const SOURCES_KEPT: usize = 1024;

/// One look.
#[derive(Debug, Clone)]
pub(super) struct Frame {
    pub(super) version: Version,
    pub(super) sandboxes: Vec<Sandbox>,
    pub(super) samples: Samples,
}

impl Frame {
    pub(super) async fn look(client: &Client) -> Result<Self, ClientError> {
        Ok(Self {
            version: client.version().await?,
            sandboxes: client.sandboxes().await?,
            samples: Samples::parse(&client.metrics().await?),
        })
    }

    pub(super) fn count(&self, metric: &str, label: Option<(&str, &str)>) -> u64 {
        self.samples.count(metric, label)
    }

    pub(super) fn memory(&self, kind: &str) -> u64 {
        self.count("forkd_vmm_memory_bytes", Some(("kind", kind)))
    }

    /// What the live view shows, for programs.
    pub(super) fn as_json(&self, pauses: &Pauses) -> Value {
        let states = |metric: &str, label: &str| -> BTreeMap<String, u64> {
            let found = self.samples.iter().filter(|sample| sample.name == metric);
            let values = found.filter_map(|sample| sample.labels.get(label));
            values.map(|value| (value.clone(), self.count(metric, Some((label, value))))).collect()
        };
        json!({
            "daemon": self.version,
            "sandboxes": self.sandboxes,
            "snapshots_by_status": states("forkd_snapshots", "state"),
            "operations_running": states("forkd_operations_running", "kind"),
            "branches_by_result": states("forkd_branches_total", "result"),
            "memory": {
                "private_bytes": self.memory("private"),
                "shared_bytes": self.memory("shared"),
                "swapped_bytes": self.memory("swapped"),
                "hot_bytes": self.count("forkd_hot_bytes", None),
                "durable_bytes": self.count("forkd_durable_bytes", None),
            },
            "network": {
                "connections": self.count("forkd_network_connections", None),
                "flows_by_outcome": states("forkd_network_flows_total", "outcome"),
                "bytes_by_direction": states("forkd_network_bytes_total", "direction"),
            },
            "standby": standby::as_json(&self.samples),
            "pauses_ms": pauses.all.iter().collect::<Vec<_>>(),
        })
    }
}

/// How long sources stood still for their branches, in milliseconds, oldest first.
#[derive(Debug, Clone, Default, PartialEq)]
pub(super) struct Pauses {
    pub(super) all: VecDeque<f64>,
    by_source: BTreeMap<String, VecDeque<f64>>,
    /// The sources, the one that branched last at the end.
    order: VecDeque<String>,
}

impl Pauses {
    /// Those of snapshots that are there.
    pub(super) fn of(snapshots: &[Snapshot]) -> Self {
        let mut sorted: Vec<&Snapshot> = snapshots.iter().collect();
        sorted.sort_by_key(|snapshot| snapshot.created_at_unix);
        let mut pauses = Self::default();
        sorted.into_iter().for_each(|snapshot| pauses.add(snapshot));
        pauses
    }

    pub(super) fn add(&mut self, snapshot: &Snapshot) {
        let (Some(source), Some(ms)) = (&snapshot.branched_from, snapshot.pause_ms) else { return };
        push(&mut self.all, ms);
        push(self.by_source.entry(source.clone()).or_default(), ms);
        self.order.retain(|known| known != source);
        self.order.push_back(source.clone());
        if self.order.len() > SOURCES_KEPT
            && let Some(oldest) = self.order.pop_front()
        {
            self.by_source.remove(&oldest);
        }
    }

    /// Those of one source.
    pub(super) fn of_source(&self, source: &str) -> Vec<f64> {
        self.by_source.get(source).into_iter().flatten().copied().collect()
    }
}

fn push(pauses: &mut VecDeque<f64>, ms: f64) {
    pauses.push_back(ms);
    if pauses.len() > PAUSES_KEPT {
        pauses.pop_front();
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn branch(source: &str, pause_ms: f64, at: u64) -> Snapshot {
        Snapshot {
            branched_from: Some(source.into()),
            pause_ms: Some(pause_ms),
            created_at_unix: at,
            ..Snapshot::default()
        }
    }

    #[test]
    fn pauses_are_kept_in_order_by_source_and_bounded() {
        let listed = [branch("a", 2.0, 9), branch("b", 1.0, 3), Snapshot::default()];
        let mut pauses = Pauses::of(&listed);
        assert_eq!(pauses.all, [1.0, 2.0]);
        pauses.add(&branch("a", 3.0, 1));
        assert_eq!(pauses.of_source("a"), [2.0, 3.0]);
        assert!(pauses.of_source("c").is_empty());
        for _ in 0..100 {
            pauses.add(&branch("a", 1.0, 0));
        }
        assert_eq!((pauses.all.len(), pauses.of_source("a").len()), (60, 60));
        for number in 0..2000 {
            pauses.add(&branch(&number.to_string(), 1.0, 0));
        }
        assert_eq!((pauses.by_source.len(), pauses.order.len()), (1024, 1024));
        assert!(pauses.of_source("a").is_empty() && pauses.of_source("1999").len() == 1);
    }
}
