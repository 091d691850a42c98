//! Connections that a guest may believe to be open, and that are not: those of the sandbox that its
//! memory was branched from, those of a gateway that has died, and those that this gateway has
//! reset, until the guest is known to have heard of it.
//!
//! For each the guest is sent one byte far outside of the window. A guest that believes in the
//! connection answers with its position, and the stack resets what it does not know. A guest that
//! knows better answers with a reset, and only then the connection is forgotten. So one ends
//! whether it is idle, half closed or incoming, a connection that does exist is not disturbed, and
//! a child that is branched while a reset is on its way gets a reset of its own.
//!
//! The VMM may lose what comes before the vCPUs run, so a probe is repeated until it is answered.

use std::collections::{BTreeSet, HashMap};
use std::net::SocketAddr;
use std::time::{Duration, Instant};

use forkd_netd_protocol::TcpFlow;

use crate::flow::FlowKey;
use crate::limit::STALE_MAX;
use crate::port::Port;
use crate::remembered::Remembered;
use crate::wire;

/// From one probe to the next. A guest that does not answer the last one is left alone.
const PAUSES: [Duration; 9] = [
    Duration::from_millis(20),
    Duration::from_millis(40),
    Duration::from_millis(80),
    Duration::from_millis(160),
    Duration::from_millis(320),
    Duration::from_millis(640),
    Duration::from_secs(2),
    Duration::from_secs(10),
    Duration::from_secs(30),
];

/// The stale connections of one link.
#[derive(Default)]
pub(crate) struct StaleTable {
    probes: HashMap<FlowKey, Probe>,
    timers: BTreeSet<(Instant, FlowKey)>,
}

struct Probe {
    flow: TcpFlow,
    /// Pauses that have passed.
    pauses: usize,
    /// When the present one ends.
    next: Option<Instant>,
}

impl StaleTable {
    /// Probes a connection, also when this process has died and another one takes its place.
    pub(crate) fn add(
        &mut self,
        port: &mut Port,
        remembered: &mut Remembered,
        flow: TcpFlow,
        now: Instant,
    ) {
        let remote = SocketAddr::new(flow.remote, flow.remote_port);
        let key = FlowKey { guest_port: flow.guest_port, remote };
        if self.probes.len() >= STALE_MAX || self.probes.contains_key(&key) {
            return;
        }
        remembered.add(key, &flow);
        port.send(&wire::probe(&flow));
        let probe = Probe { flow, pauses: 0, next: None };
        self.probes.insert(key, probe);
        self.wait(key, now);
    }

    fn wait(&mut self, key: FlowKey, now: Instant) {
        let Some(probe) = self.probes.get_mut(&key) else { return };
        probe.next = PAUSES.get(probe.pauses).map(|pause| now + *pause);
        self.timers.extend(probe.next.map(|next| (next, key)));
    }

    fn unset(&mut self, key: FlowKey, next: Option<Instant>) {
        if let Some(next) = next {
            self.timers.remove(&(next, key));
        }
    }

    /// Whether this connection is stale.
    pub(crate) fn contains(&self, key: FlowKey) -> bool {
        self.probes.contains_key(&key)
    }

    /// The guest has reset this connection or opens it anew: it does not believe in a former one.
    pub(crate) fn forget(&mut self, remembered: &mut Remembered, key: FlowKey) {
        if let Some(probe) = self.probes.remove(&key) {
            self.unset(key, probe.next);
            remembered.remove(key);
        }
    }

    /// The guest has spoken of this connection, and was sent a reset. It is asked soon whether that
    /// has arrived.
    pub(crate) fn answered(&mut self, key: FlowKey, now: Instant) {
        if let Some(probe) = self.probes.get_mut(&key)
            && probe.pauses > 0
        {
            probe.pauses = 0;
            let next = probe.next;
            self.unset(key, next);
            self.wait(key, now);
        }
    }

    /// When the next probe is due.
    pub(crate) fn next_timer(&self) -> Option<Instant> {
        self.timers.first().map(|(at, _)| *at)
    }

    /// Repeats what was not answered, unless earlier frames still wait for the VMM.
    pub(crate) fn expire(&mut self, port: &mut Port, now: Instant) {
        while let Some(&(at, key)) = self.timers.first().filter(|(at, _)| *at <= now) {
            self.timers.remove(&(at, key));
            let Some(probe) = self.probes.get_mut(&key) else { continue };
            if port.is_free() {
                port.send(&wire::probe(&probe.flow));
                probe.pauses += 1;
            }
            self.wait(key, now);
        }
    }

    /// Those that a child of this guest would believe in too.
    pub(crate) fn list(&self) -> impl Iterator<Item = TcpFlow> {
        self.probes.values().map(|probe| probe.flow)
    }
}
