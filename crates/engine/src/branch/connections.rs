//! The connections that a guest has at the branch point.
//!
//! They are the source's and go on there. A child has them in its memory too, so the gateway must
//! know which they are and reset them. They are asked for before the pause and after it: what the
//! guest believes at the branch point is among both. One too many costs a child nothing.

use forkd_netd_protocol::Flow;

use super::context::Context;
use crate::EngineError;
use crate::network::InheritedNetwork;

impl Context<'_> {
    /// Asks for them before the pause. The gateway is quiet from then on.
    pub(super) fn connections_before(&self) -> Vec<Flow> {
        if self.handle.link().is_none() {
            return Vec::new();
        }
        self.branches.runtime.block_on(self.branches.networks.hold(self.handle.id()))
    }

    /// Asks for them when the guest runs again, and gives what the snapshot keeps.
    pub(super) fn network_after(&self, before: Vec<Flow>) -> Result<Option<String>, EngineError> {
        if self.handle.link().is_none() {
            return Ok(None);
        }
        let release = self.branches.networks.release(self.handle.id());
        let mut flows = before;
        for flow in self.branches.runtime.block_on(release) {
            if !flows.contains(&flow) {
                flows.push(flow);
            }
        }
        let policy = self.handle.sandbox().options.network;
        let source = Some(self.handle.id().clone());
        InheritedNetwork { policy, source, flows }.text().map(Some)
    }
}
