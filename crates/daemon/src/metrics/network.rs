//! Metrics of the network gateway, which counts for itself. It begins anew when another process
//! takes its place, as any counter does.

use std::sync::atomic::Ordering;

use forkd_engine::GatewayUsage;
use forkd_types::FlowOutcome;
use prometheus_client::encoding::EncodeLabelSet;
use prometheus_client::metrics::counter::Counter;
use prometheus_client::metrics::family::Family;
use prometheus_client::metrics::gauge::Gauge;

use super::book::{Book, number};

#[derive(Debug, Clone, PartialEq, Eq, Hash, EncodeLabelSet)]
struct OutcomeLabel {
    outcome: &'static str,
}

#[derive(Debug, Clone, PartialEq, Eq, Hash, EncodeLabelSet)]
struct DirectionLabel {
    direction: &'static str,
}

/// What the gateway said at the last scrape that it answered.
#[derive(Debug, Clone, Default)]
pub(super) struct Network {
    up: Gauge,
    links: Gauge,
    connections: Gauge,
    flows: Family<OutcomeLabel, Counter>,
    bytes: Family<DirectionLabel, Counter>,
}

impl Network {
    pub(super) fn register(&self, registry: &mut Book) {
        let help = "1 if the network gateway answers";
        registry.register("network_gateway_up", help, self.up.clone());
        let help = "Sandboxes that the network gateway serves";
        registry.register("network_links", help, self.links.clone());
        let help = "TCP connections of sandboxes that are open";
        registry.register("network_connections", help, self.connections.clone());
        let help = "Connections and exchanges of datagrams of sandboxes, by what became of them";
        registry.register("network_flows", help, self.flows.clone());
        let help = "Bytes that sandboxes sent and got";
        registry.bytes("network", help, self.bytes.clone());
    }

    pub(super) fn set(&self, usage: Option<GatewayUsage>) {
        self.up.set(usage.is_some().into());
        let Some(usage) = usage else { return };
        self.links.set(number(usage.links));
        self.connections.set(number(usage.connections));
        for outcome in FlowOutcome::ALL {
            let count = match outcome {
                FlowOutcome::Ended => usage.ended,
                FlowOutcome::Failed => usage.failed,
                FlowOutcome::Refused => usage.refused,
            };
            let label = OutcomeLabel { outcome: outcome.name() };
            self.flows.get_or_create(&label).inner().store(count, Ordering::Relaxed);
        }
        for (direction, bytes) in [("out", usage.bytes_out), ("in", usage.bytes_in)] {
            let label = DirectionLabel { direction };
            self.bytes.get_or_create(&label).inner().store(bytes, Ordering::Relaxed);
        }
    }
}
