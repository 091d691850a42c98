//! What the life of sandboxes needs.

use std::sync::Arc;

use crate::background::Background;
use crate::branch::Branches;
use crate::host::Host;
use crate::network::Networks;
use crate::sandboxes::{Sandboxes, Standby};
use crate::snapshots::Snapshots;

/// Starts, runs and ends sandboxes.
#[derive(Debug)]
pub(crate) struct Lifecycle {
    pub(crate) host: Host,
    pub(crate) networks: Arc<Networks>,
    pub(crate) snapshots: Arc<Snapshots>,
    pub(crate) sandboxes: Arc<Sandboxes>,
    pub(crate) branches: Arc<Branches>,
    pub(crate) standby: Standby,
    pub(crate) background: Background,
}
