//! The registry, with what all metrics have in common.

use prometheus_client::collector::Collector;
use prometheus_client::metrics::MetricType;
use prometheus_client::registry::{Metric, Registry, Unit};

/// What comes before the name of every metric.
const PREFIX: &str = "forkd";

/// A registry whose metrics have their unit in their name.
pub(super) struct Book {
    pub(super) registry: Registry,
    /// As they appear in the text; a family without a sample does not.
    #[cfg(test)]
    pub(super) names: Vec<String>,
}

impl Book {
    pub(super) fn new() -> Self {
        Self {
            registry: Registry::with_prefix(PREFIX),
            #[cfg(test)]
            names: Vec::new(),
        }
    }

    pub(super) fn register(&mut self, name: &str, help: &str, metric: impl Metric) {
        self.note(name, "", metric.metric_type());
        self.registry.register(name, help, metric);
    }

    pub(super) fn seconds(&mut self, name: &str, help: &str, metric: impl Metric) {
        self.note(name, "_seconds", metric.metric_type());
        self.registry.register_with_unit(name, help, Unit::Seconds, metric);
    }

    pub(super) fn bytes(&mut self, name: &str, help: &str, metric: impl Metric) {
        self.note(name, "_bytes", metric.metric_type());
        self.registry.register_with_unit(name, help, Unit::Bytes, metric);
    }

    /// A histogram of seconds that is kept elsewhere.
    pub(super) fn collected_seconds(&mut self, name: &str, collector: impl Collector) {
        self.note(name, "_seconds", MetricType::Histogram);
        self.registry.register_collector(Box::new(collector));
    }

    #[cfg(test)]
    fn note(&mut self, name: &str, unit: &str, kind: MetricType) {
        let end = if matches!(kind, MetricType::Counter) { "_total" } else { "" };
        self.names.push(format!("{PREFIX}_{name}{unit}{end}"));
    }

    #[cfg(not(test))]
    #[expect(clippy::unused_self, reason = "only a test wants to know")]
    const fn note(&self, _: &str, _: &str, _: MetricType) {}
}

/// As a gauge takes it.
pub(super) fn number(count: u64) -> i64 {
    i64::try_from(count).unwrap_or(i64::MAX)
}
