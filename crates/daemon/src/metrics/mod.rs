//! Counters, gauges and histograms for Prometheus, in base units. What each means:
//! `docs/metrics.md`.
//!
//! Branches, starts and operations are counted as the engine's events tell of them, so it does not
//! matter who asked for them and whether anybody waited.

mod book;
mod network;

use std::fmt;
use std::sync::{Arc, Mutex, PoisonError};
use std::time::Duration;

use forkd_api::ErrorCode;
use forkd_engine::{
    BranchReport, Change, EventReader, Next, Operation, OperationChange, OperationState, Sandbox,
    SandboxChange, SnapshotChange, StandbyKind, StandbyUsage, Usage, VmmMemory,
};
use forkd_types::{BranchMode, BranchPhase, ByteCount, StandbyStatus, TimeHistogram};
use prometheus_client::collector::Collector;
use prometheus_client::encoding::{DescriptorEncoder, EncodeLabelSet, NoLabelSet, text};
use prometheus_client::metrics::MetricType;
use prometheus_client::metrics::counter::Counter;
use prometheus_client::metrics::family::Family;
use prometheus_client::metrics::gauge::Gauge;
use prometheus_client::metrics::histogram::{Histogram, exponential_buckets};
use prometheus_client::registry::Unit;

use self::book::{Book, number};

/// The media type of [`Metrics::encode`].
pub(crate) const CONTENT_TYPE: &str = "application/openmetrics-text; version=1.0.0; charset=utf-8";

#[derive(Debug, Clone, PartialEq, Eq, Hash, EncodeLabelSet)]
struct StateLabel {
    state: &'static str,
}

#[derive(Debug, Clone, PartialEq, Eq, Hash, EncodeLabelSet)]
struct StatusLabel {
    status: &'static str,
}

/// What VMMs stand by for.
#[derive(Debug, Clone, PartialEq, Eq, Hash, EncodeLabelSet)]
struct StandbyLabel {
    image: String,
    mem_size_mib: u64,
    vcpus: u32,
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
struct KindLabel {
    kind: &'static str,
}

#[derive(Debug, Clone, PartialEq, Eq, Hash, EncodeLabelSet)]
struct BranchLabel {
    mode: &'static str,
    result: &'static str,
}

#[derive(Debug, Clone, PartialEq, Eq, Hash, EncodeLabelSet)]
struct EndLabel {
    kind: &'static str,
    result: &'static str,
}

#[derive(Debug, Clone, PartialEq, Eq, Hash, EncodeLabelSet)]
struct CodeLabel {
    code: &'static str,
}

#[derive(Debug, Clone, PartialEq, Eq, Hash, EncodeLabelSet)]
struct RequestLabel {
    method: String,
    route: String,
    status: u16,
}

/// Metrics that are what they are at the moment of the scrape.
#[derive(Debug, Clone, Default)]
struct Gauges {
    sandboxes: Family<StateLabel, Gauge>,
    snapshots: Family<StateLabel, Gauge>,
    operations: Family<KindLabel, Gauge>,
    standby: Family<StandbyLabel, Gauge>,
    standby_fitted: Gauge,
    standby_places: Gauge,
    standby_status: Family<StatusLabel, Gauge>,
    hot: Gauge,
    durable: Gauge,
    memory: Family<KindLabel, Gauge>,
    memory_unread: Gauge,
}

/// Metrics of branches, from the figures of their snapshots.
#[derive(Debug, Clone)]
struct Branches {
    ended: Family<BranchLabel, Counter>,
    pause: Family<ModeLabel, Histogram>,
    phases: Family<PhaseLabel, Histogram>,
    ready: Family<ModeLabel, Histogram>,
    dirty: Counter,
    stored: Counter,
    faults: Counter,
}

/// All metrics of the daemon.
pub(crate) struct Metrics {
    book: Book,
    gauges: Gauges,
    network: network::Network,
    branches: Branches,
    fork: Histogram,
    start_phases: Family<PhaseLabel, Histogram>,
    memory_limits_reached: Counter,
    operations: Family<EndLabel, Counter>,
    requests: Family<RequestLabel, Counter>,
    errors: Family<CodeLabel, Counter>,
    events_missed: Counter,
    fault_service: FaultService,
}

/// 0.125 ms to 65 s.
fn time_histogram() -> Histogram {
    Histogram::new(exponential_buckets(0.000_125, 2.0, 20))
}

/// Without prefix and unit.
const FAULT_SERVICE: &str = "fault_service";

impl Gauges {
    fn register(&self, registry: &mut Book) {
        registry.register("sandboxes", "Sandboxes by state", self.sandboxes.clone());
        registry.register("snapshots", "Snapshots by status", self.snapshots.clone());
        let help = "VMMs that stand by for sandboxes to come";
        registry.register("standby_vmms", help, self.standby.clone());
        let help = "VMMs that may stand by";
        registry.register("standby_places", help, self.standby_places.clone());
        let help = "VMMs that stand by and have the state of a snapshot already";
        registry.register("standby_fitted", help, self.standby_fitted.clone());
        let help = "1 for what is true of VMMs that stand by";
        registry.register("standby_status", help, self.standby_status.clone());
        let help = "Operations under way by kind";
        registry.register("operations_running", help, self.operations.clone());
        let help = "Bytes that hot layers and device states occupy";
        registry.bytes("hot", help, self.hot.clone());
        let help = "Bytes that durable files and overlays occupy";
        registry.bytes("durable", help, self.durable.clone());
        let help = "Memory of all VMMs: their own, shared, in swap";
        registry.bytes("vmm_memory", help, self.memory.clone());
        let help = "VMMs whose memory is not in forkd_vmm_memory_bytes, for want of time";
        registry.register("vmm_memory_unread", help, self.memory_unread.clone());
    }

    fn set(&self, usage: &Usage) {
        for (state, count) in &usage.sandboxes {
            self.sandboxes.get_or_create(&StateLabel { state }).set(number(*count as u64));
        }
        for (state, count) in &usage.snapshots {
            self.snapshots.get_or_create(&StateLabel { state }).set(number(*count as u64));
        }
        for (kind, count) in &usage.operations {
            self.operations.get_or_create(&KindLabel { kind }).set(number(*count as u64));
        }
        self.set_standby(&usage.standby);
        self.hot.set(number(usage.hot.get()));
        self.durable.set(number(usage.durable.get()));
        let VmmMemory { private, shared, swapped, unread } = usage.vmm_memory;
        let memory = |kind, bytes: ByteCount| {
            self.memory.get_or_create(&KindLabel { kind }).set(number(bytes.get()));
        };
        memory("private", private);
        memory("shared", shared);
        memory("swapped", swapped);
        self.memory_unread.set(number(unread as u64));
    }

    fn set_standby(&self, usage: &StandbyUsage) {
        // No sample stays of what stands by no more.
        self.standby.clear();
        for StandbyKind { image, memory, vcpus, count } in &usage.ready {
            let (image, mem_size_mib) = (image.clone(), memory.get() >> 20);
            let label = StandbyLabel { image, mem_size_mib, vcpus: *vcpus };
            self.standby.get_or_create(&label).set(number(*count as u64));
        }
        self.standby_places.set(number(usage.places as u64));
        self.standby_fitted.set(number(usage.fitted as u64));
        for status in StandbyStatus::ALL {
            let label = StatusLabel { status: status.name() };
            self.standby_status.get_or_create(&label).set((status == usage.status).into());
        }
    }
}

impl Branches {
    fn new() -> Self {
        Self {
            ended: Family::default(),
            pause: Family::new_with_constructor(time_histogram),
            phases: Family::new_with_constructor(time_histogram),
            ready: Family::new_with_constructor(time_histogram),
            dirty: Counter::default(),
            stored: Counter::default(),
            faults: Counter::default(),
        }
    }

    fn register(&self, registry: &mut Book) {
        let help = "Branches that ended, by mode and result: ready, failed or cancelled";
        registry.register("branches", help, self.ended.clone());
        let help = "Pause window of a branch, from the request to the confirmed resume";
        registry.seconds("branch_pause", help, self.pause.clone());
        let help = "Time of a branch by phase";
        registry.seconds("branch_phase", help, self.phases.clone());
        let help = "From the request for a branch to the usable snapshot";
        registry.seconds("branch_ready", help, self.ready.clone());
        let help = "Bytes of dirty pages found by branches";
        registry.bytes("branch_dirty", help, self.dirty.clone());
        let help = "Bytes of pages stored by branches";
        registry.bytes("branch_stored", help, self.stored.clone());
        let help = "Write faults of guests served during captures";
        registry.register("branch_faults", help, self.faults.clone());
    }

    fn ready(&self, report: &BranchReport) {
        let mode = ModeLabel { mode: report.mode.name() };
        self.pause.get_or_create(&mode).observe(report.pause.as_secs_f64());
        self.ready.get_or_create(&mode).observe(report.ready.as_secs_f64());
        for (phase, took) in report.phases.iter() {
            self.phase(phase, took);
        }
        self.dirty.inc_by(report.dirty.get());
        self.stored.inc_by(report.stored.get());
        self.faults.inc_by(report.faults);
    }

    fn phase(&self, phase: BranchPhase, took: Duration) {
        let phase = PhaseLabel { phase: phase.name() };
        self.phases.get_or_create(&phase).observe(took.as_secs_f64());
    }
}

impl Metrics {
    pub(crate) fn new() -> Self {
        let mut metrics = Self {
            book: Book::new(),
            gauges: Gauges::default(),
            network: network::Network::default(),
            branches: Branches::new(),
            fork: time_histogram(),
            start_phases: Family::new_with_constructor(time_histogram),
            memory_limits_reached: Counter::default(),
            operations: Family::default(),
            requests: Family::default(),
            errors: Family::default(),
            events_missed: Counter::default(),
            fault_service: FaultService::default(),
        };
        let registry = &mut metrics.book;
        metrics.gauges.register(registry);
        metrics.network.register(registry);
        metrics.branches.register(registry);
        let help = "From the request for a sandbox until it was ready for use";
        registry.seconds("fork", help, metrics.fork.clone());
        let help = "Time of a start by phase";
        registry.seconds("start_phase", help, metrics.start_phases.clone());
        let help = "Sandboxes that are dead because they reached their memory limit";
        registry.register("memory_limits_reached", help, metrics.memory_limits_reached.clone());
        let help = "Operations that ended, by kind and result";
        registry.register("operations", help, metrics.operations.clone());
        registry.register("requests", "Requests answered", metrics.requests.clone());
        registry.register("errors", "Answers that are errors, by code", metrics.errors.clone());
        let help = "Events that these metrics do not count, because too many came at once";
        registry.register("metrics_events_missed", help, metrics.events_missed.clone());
        registry.collected_seconds(FAULT_SERVICE, metrics.fault_service.clone());
        metrics
    }

    /// Counts an answered request. `route` is the pattern and not the path, whose ids would make
    /// one time series each.
    pub(crate) fn answered(
        &self,
        method: &str,
        route: &str,
        status: u16,
        error: Option<ErrorCode>,
    ) {
        let label = RequestLabel { method: method.to_owned(), route: route.to_owned(), status };
        self.requests.get_or_create(&label).inc();
        if let Some(code) = error {
            self.errors.get_or_create(&CodeLabel { code: code.name() }).inc();
        }
    }

    /// Counts a branch that ended.
    pub(crate) fn branch_ended(&self, mode: BranchMode, result: BranchResult) {
        let label = BranchLabel { mode: mode.name(), result: result.name() };
        self.branches.ended.get_or_create(&label).inc();
    }

    fn count(&self, change: &Change) {
        match change {
            Change::Sandbox(SandboxChange::Started, sandbox) => self.started(sandbox),
            Change::Sandbox(SandboxChange::Dead, sandbox) if sandbox.memory_limit_reached => {
                self.memory_limits_reached.inc();
            }
            Change::Snapshot(SnapshotChange::Ready, snapshot) => {
                if let Some(report) = &snapshot.branch {
                    self.branches.ready(report);
                }
            }
            Change::Snapshot(SnapshotChange::Durable, snapshot) => {
                let report = snapshot.branch.as_ref();
                let took = report.and_then(|report| report.phases.get(BranchPhase::Publish));
                if let Some(took) = took {
                    self.branches.phase(BranchPhase::Publish, took);
                }
            }
            Change::Operation(OperationChange::Ended, operation) => self.ended(operation),
            Change::Sandbox(..) | Change::Snapshot(..) | Change::Operation(..) => {}
        }
    }

    fn started(&self, sandbox: &Sandbox) {
        if let Some(took) = sandbox.started_in {
            self.fork.observe(took.as_secs_f64());
        }
        for (phase, took) in sandbox.start_phases.iter() {
            let phase = PhaseLabel { phase: phase.name() };
            self.start_phases.get_or_create(&phase).observe(took.as_secs_f64());
        }
    }

    fn ended(&self, operation: &Operation) {
        debug_assert!(operation.state != OperationState::Running);
        let label = EndLabel { kind: operation.kind.name(), result: operation.state.name() };
        self.operations.get_or_create(&label).inc();
    }

    /// Counts what happens, until the engine ends.
    pub(crate) async fn follow(&self, mut events: EventReader) {
        while let Some(next) = events.next().await {
            match next {
                Next::Event(change) => self.count(&change),
                Next::Lost { events } => {
                    self.events_missed.inc_by(events.unwrap_or_default());
                }
            }
        }
    }

    /// The text for Prometheus, with `usage` as of now.
    pub(crate) fn encode(&self, usage: &Usage) -> Result<String, fmt::Error> {
        self.gauges.set(usage);
        self.network.set(usage.network);
        self.fault_service.set(usage.fault_service);
        let mut buffer = String::new();
        text::encode(&mut buffer, &self.book.registry)?;
        Ok(buffer)
    }
}

/// How a branch ended.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum BranchResult {
    /// It gave a snapshot.
    Ready,
    /// It did not.
    Failed,
    /// Somebody cancelled it.
    Cancelled,
}

impl BranchResult {
    const fn name(self) -> &'static str {
        match self {
            Self::Ready => "ready",
            Self::Failed => "failed",
            Self::Cancelled => "cancelled",
        }
    }
}

/// A histogram that the engine keeps: it has bounds of its own.
#[derive(Debug, Clone, Default)]
struct FaultService(Arc<Mutex<TimeHistogram>>);

impl FaultService {
    fn set(&self, histogram: TimeHistogram) {
        *self.0.lock().unwrap_or_else(PoisonError::into_inner) = histogram;
    }
}

impl Collector for FaultService {
    fn encode(&self, mut encoder: DescriptorEncoder<'_>) -> Result<(), fmt::Error> {
        let histogram = *self.0.lock().unwrap_or_else(PoisonError::into_inner);
        let bound =
            |bound: Option<Duration>| bound.map_or(f64::INFINITY, |bound| bound.as_secs_f64());
        let buckets: Vec<(f64, u64)> =
            histogram.buckets().map(|(upper, count)| (bound(upper), count)).collect();
        let help = "From reading a write fault of a guest to its release";
        let (unit, kind) = (Unit::Seconds, MetricType::Histogram);
        let mut metric = encoder.encode_descriptor(FAULT_SERVICE, help, Some(&unit), kind)?;
        let (sum, count) = (histogram.sum().as_secs_f64(), histogram.count());
        metric.encode_histogram::<NoLabelSet>(sum, count, &buckets, None)
    }
}

#[cfg(test)]
mod tests {
    use std::collections::BTreeSet;

    use super::*;
    use forkd_engine::GatewayUsage;
    use forkd_types::PhaseTimes;

    /// The figures of a branch as the engine tells of them.
    fn branched(metrics: &Metrics) {
        let mut phases = PhaseTimes::default();
        phases.record(BranchPhase::Protect, Duration::from_micros(300));
        let report = BranchReport {
            phases,
            pause: Duration::from_millis(2),
            ready: Duration::from_millis(5),
            dirty: ByteCount::new(8192),
            stored: ByteCount::new(4096),
            faults: 3,
            ..BranchReport::default()
        };
        metrics.branches.ready(&report);
        metrics.branch_ended(BranchMode::Live, BranchResult::Ready);
        metrics.branch_ended(BranchMode::Full, BranchResult::Cancelled);
    }

    #[test]
    fn what_happens_appears_under_its_name_and_labels() {
        let metrics = Metrics::new();
        branched(&metrics);
        metrics.answered("GET", "/v1/sandboxes/{id}", 404, Some(ErrorCode::SandboxNotFound));
        let mut fault_service = TimeHistogram::default();
        fault_service.record(Duration::from_micros(3));
        fault_service.record(Duration::from_secs(2));
        let mut usage = Usage { fault_service, ..Usage::default() };
        usage.sandboxes.insert("running", 3);
        usage.network =
            Some(GatewayUsage { links: 2, refused: 9, bytes_in: 70, ..GatewayUsage::default() });
        usage.vmm_memory.private = ByteCount::new(4096);
        let kind = |image: &str, count| {
            let memory = ByteCount::from_mib(512);
            StandbyKind { image: image.to_owned(), memory, vcpus: 2, count }
        };
        usage.standby.ready = vec![kind("old", 1)];
        metrics.encode(&usage).unwrap();
        let ready = vec![kind("python", 3)];
        let status = StandbyStatus::Busy;
        usage.standby = StandbyUsage { places: 4, ready, fitted: 2, status };
        let text = metrics.encode(&usage).unwrap();
        assert!(!text.contains("image=\"old\""), "{text}");
        for line in [
            "forkd_standby_vmms{image=\"python\",mem_size_mib=\"512\",vcpus=\"2\"} 3",
            "forkd_standby_places 4",
            "forkd_standby_fitted 2",
            "forkd_network_gateway_up 1",
            "forkd_network_links 2",
            "forkd_network_flows_total{outcome=\"refused\"} 9",
            "forkd_network_bytes_total{direction=\"in\"} 70",
            "forkd_standby_status{status=\"busy\"} 1",
            "forkd_standby_status{status=\"full\"} 0",
            "forkd_branch_pause_seconds_count{mode=\"live\"} 1",
            "forkd_branch_ready_seconds_sum{mode=\"live\"} 0.005",
            "forkd_branch_phase_seconds_count{phase=\"protect\"} 1",
            "forkd_branches_total{mode=\"full\",result=\"cancelled\"} 1",
            "forkd_branch_dirty_bytes_total 8192",
            "forkd_branch_stored_bytes_total 4096",
            "forkd_branch_faults_total 3",
            "forkd_fault_service_seconds_bucket{le=\"0.000004\"} 1",
            "forkd_fault_service_seconds_bucket{le=\"+Inf\"} 2",
            "forkd_fault_service_seconds_count 2",
            "forkd_sandboxes{state=\"running\"} 3",
            "forkd_vmm_memory_bytes{kind=\"private\"} 4096",
            "forkd_errors_total{code=\"sandbox_not_found\"} 1",
            "forkd_requests_total{method=\"GET\",route=\"/v1/sandboxes/{id}\",status=\"404\"} 1",
        ] {
            assert!(text.lines().any(|l| l == line), "{line} is missing in:\n{text}");
        }
    }

    /// The names in the first column of the tables of `docs/metrics.md`.
    fn documented() -> BTreeSet<String> {
        let path = std::path::Path::new(env!("CARGO_MANIFEST_DIR")).join("../../docs/metrics.md");
        let text = std::fs::read_to_string(path).unwrap();
        let rows = text.lines().filter_map(|line| line.strip_prefix("| `forkd_"));
        rows.map(|row| format!("forkd_{}", row.split(['`', '{']).next().unwrap())).collect()
    }

    #[test]
    fn every_metric_is_in_the_document_and_every_metric_of_the_document_is_there() {
        let known: BTreeSet<String> = Metrics::new().book.names.into_iter().collect();
        assert_eq!(known, documented());
    }

    #[test]
    fn the_names_that_are_noted_are_those_of_the_text() {
        let metrics = Metrics::new();
        branched(&metrics);
        let text = metrics.encode(&Usage::default()).unwrap();
        let described = text.lines().filter_map(|line| line.strip_prefix("# TYPE "));
        // A counter's samples end in `_total`, its description does not.
        for line in described {
            let name = match line.split_once(' ').unwrap() {
                (name, "counter") => format!("{name}_total"),
                (name, _) => name.to_owned(),
            };
            assert!(metrics.book.names.contains(&name), "{name}");
        }
    }
}
