//! Sums over all links, and what is told to those who watch.

use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};

use forkd_netd_protocol::{GatewayUsage, Notice};
use forkd_types::{FlowOutcome, SandboxId};
use tokio::sync::broadcast;

/// Notices that wait for a daemon. One that does not listen misses the oldest; the logs have all.
const NOTICES_KEPT: usize = 1024;

/// What goes through the gateway.
#[derive(Debug)]
pub(crate) struct Totals {
    connections: AtomicU64,
    ended: AtomicU64,
    failed: AtomicU64,
    refused: AtomicU64,
    bytes_out: AtomicU64,
    bytes_in: AtomicU64,
    notices: broadcast::Sender<Notice>,
}

impl Default for Totals {
    fn default() -> Self {
        Self {
            connections: AtomicU64::default(),
            ended: AtomicU64::default(),
            failed: AtomicU64::default(),
            refused: AtomicU64::default(),
            bytes_out: AtomicU64::default(),
            bytes_in: AtomicU64::default(),
            notices: broadcast::Sender::new(NOTICES_KEPT),
        }
    }
}

impl Totals {
    /// Counts a flow that is over, or was not to be.
    pub(crate) fn count(&self, outcome: FlowOutcome) {
        let counter = match outcome {
            FlowOutcome::Ended => &self.ended,
            FlowOutcome::Failed => &self.failed,
            FlowOutcome::Refused => &self.refused,
        };
        counter.fetch_add(1, Ordering::Relaxed);
    }

    /// Counts bytes from and to a guest.
    pub(crate) fn carried(&self, out: u64, into: u64) {
        self.bytes_out.fetch_add(out, Ordering::Relaxed);
        self.bytes_in.fetch_add(into, Ordering::Relaxed);
    }

    /// Tells those who watch, if there are any.
    pub(crate) fn tell_refused(&self, sandbox: &SandboxId, times: u64) {
        self.notices.send(Notice::Refused { sandbox: sandbox.clone(), times }).ok();
    }

    /// What will be told.
    pub(crate) fn notices(&self) -> broadcast::Receiver<Notice> {
        self.notices.subscribe()
    }

    /// All but the links.
    pub(crate) fn usage(&self) -> GatewayUsage {
        let read = |counter: &AtomicU64| counter.load(Ordering::Relaxed);
        GatewayUsage {
            links: 0,
            connections: read(&self.connections),
            ended: read(&self.ended),
            failed: read(&self.failed),
            refused: read(&self.refused),
            bytes_out: read(&self.bytes_out),
            bytes_in: read(&self.bytes_in),
        }
    }
}

/// A connection that counts for as long as this lives.
#[derive(Debug)]
pub(crate) struct OpenConnection(Arc<Totals>);

impl OpenConnection {
    pub(crate) fn new(totals: &Arc<Totals>) -> Self {
        totals.connections.fetch_add(1, Ordering::Relaxed);
        Self(Arc::clone(totals))
    }
}

impl Drop for OpenConnection {
    fn drop(&mut self) {
        self.0.connections.fetch_sub(1, Ordering::Relaxed);
    }
}
