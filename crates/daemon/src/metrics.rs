//! Counters and histograms for Prometheus. Names end in base units.

use std::fmt;
use std::time::Duration;

use forkd_engine::{BranchReport, Usage};
use prometheus_client::encoding::{EncodeLabelSet, text};
use prometheus_client::metrics::counter::Counter;
use prometheus_client::metrics::family::Family;
use prometheus_client::metrics::gauge::Gauge;
use prometheus_client::metrics::histogram::{Histogram, exponential_buckets};
use prometheus_client::registry::Registry;

/// The media type of [`Metrics::encode`].
pub(crate) const CONTENT_TYPE: &str = "application/openmetrics-text; version=1.0.0; charset=utf-8";

#[derive(Debug, Clone, PartialEq, Eq, Hash, EncodeLabelSet)]
struct StateLabel {
    state: &'static str,
}

#[derive(Debug, Clone, PartialEq, Eq, Hash, EncodeLabelSet)]
struct ModeLabel {
    mode: &'static str,
}

#[derive(Debug, Clone, PartialEq, Eq, Hash, EncodeLabelSet)]
struct PhaseLabel {
    phase: &'static str,
}

#[derive(Debug, Clone, PartialEq, Eq, Hash, EncodeLabelSet)]
struct RequestLabel {
    method: String,
    route: String,
    status: u16,
}

/// All metrics of the daemon.
pub(crate) struct Metrics {
    registry: Registry,
    sandboxes: Family<StateLabel, Gauge>,
    snapshots: Family<StateLabel, Gauge>,
    hot_bytes: Gauge,
    branches_failed: Counter,
    pause: Family<ModeLabel, Histogram>,
    phases: Family<PhaseLabel, Histogram>,
    dirty_bytes: Counter,
    faults: Counter,
    requests: Family<RequestLabel, Counter>,
}

/// 0.125 ms to 65 s.
fn time_histogram() -> Histogram {
    Histogram::new(exponential_buckets(0.000_125, 2.0, 20))
}

impl Metrics {
    pub(crate) fn new() -> Self {
        let mut metrics = Self {
            registry: Registry::with_prefix("forkd"),
            sandboxes: Family::default(),
            snapshots: Family::default(),
            hot_bytes: Gauge::default(),
            branches_failed: Counter::default(),
            pause: Family::new_with_constructor(time_histogram),
            phases: Family::new_with_constructor(time_histogram),
            dirty_bytes: Counter::default(),
            faults: Counter::default(),
            requests: Family::default(),
        };
        let registry = &mut metrics.registry;
        registry.register("sandboxes", "Sandboxes by state", metrics.sandboxes.clone());
        registry.register("snapshots", "Snapshots by status", metrics.snapshots.clone());
        let help = "Bytes in the hot directory";
        registry.register("hot_bytes", help, metrics.hot_bytes.clone());
        let help = "Branches that gave no snapshot";
        registry.register("branches_failed", help, metrics.branches_failed.clone());
        let help = "Pause window of a branch, from the request to the confirmed resume";
        registry.register("branch_pause_seconds", help, metrics.pause.clone());
        let help = "Time of a branch by phase";
        registry.register("branch_phase_seconds", help, metrics.phases.clone());
        let help = "Bytes of dirty pages found by branches";
        registry.register("branch_dirty_bytes", help, metrics.dirty_bytes.clone());
        let help = "Write faults served during captures";
        registry.register("branch_faults", help, metrics.faults.clone());
        registry.register("requests", "Requests answered", metrics.requests.clone());
        metrics
    }

    /// Counts a branch that succeeded.
    pub(crate) fn branched(&self, report: &BranchReport) {
        let mode = ModeLabel { mode: report.mode.name() };
        self.pause.get_or_create(&mode).observe(report.pause.as_secs_f64());
        for (phase, took) in report.phases.iter() {
            let phase = PhaseLabel { phase: phase.name() };
            self.phases.get_or_create(&phase).observe(Duration::as_secs_f64(&took));
        }
        self.dirty_bytes.inc_by(report.dirty.get());
        self.faults.inc_by(report.faults);
    }

    /// Counts a branch that failed.
    pub(crate) fn branch_failed(&self) {
        self.branches_failed.inc();
    }

    /// Counts an answered request. `route` is the pattern and not the path, whose ids would make
    /// one time series each.
    pub(crate) fn answered(&self, method: &str, route: &str, status: u16) {
        let label = RequestLabel { method: method.to_owned(), route: route.to_owned(), status };
        self.requests.get_or_create(&label).inc();
    }

    /// The text for Prometheus, with `usage` as of now.
    pub(crate) fn encode(&self, usage: &Usage) -> Result<String, fmt::Error> {
        let gauge = |count: usize| i64::try_from(count).unwrap_or(i64::MAX);
        self.sandboxes.clear();
        for (state, count) in &usage.sandboxes {
            self.sandboxes.get_or_create(&StateLabel { state }).set(gauge(*count));
        }
        self.snapshots.clear();
        for (state, count) in &usage.snapshots {
            self.snapshots.get_or_create(&StateLabel { state }).set(gauge(*count));
        }
        self.hot_bytes.set(i64::try_from(usage.hot.get()).unwrap_or(i64::MAX));
        let mut buffer = String::new();
        text::encode(&mut buffer, &self.registry)?;
        Ok(buffer)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use forkd_types::{BranchPhase, PhaseTimes};

    #[test]
    fn a_branch_appears_with_its_mode_and_phases() {
        let metrics = Metrics::new();
        let mut phases = PhaseTimes::default();
        phases.record(BranchPhase::Protect, Duration::from_micros(300));
        let report =
            BranchReport { phases, pause: Duration::from_millis(2), ..BranchReport::default() };
        metrics.branched(&report);
        metrics.answered("GET", "/v1/sandboxes/{id}", 404);
        let mut usage = Usage::default();
        usage.sandboxes.insert("running", 3);
        let text = metrics.encode(&usage).unwrap();
        for line in [
            "forkd_branch_pause_seconds_count{mode=\"live\"} 1",
            "forkd_branch_phase_seconds_count{phase=\"protect\"} 1",
            "forkd_sandboxes{state=\"running\"} 3",
            "forkd_requests_total{method=\"GET\",route=\"/v1/sandboxes/{id}\",status=\"404\"} 1",
        ] {
            assert!(text.lines().any(|l| l == line), "{line} is missing in:\n{text}");
        }
        let text = metrics.encode(&Usage::default()).unwrap();
        assert!(!text.contains("forkd_sandboxes{"), "a state that nothing has is not repeated");
    }
}
