//! What the programs of a guest use of their machine, as its kernel counts it.

use std::time::Duration;

use forkd_protocol::{Reply, Request};
use forkd_types::ByteCount;

use super::{GuestAgent, GuestError};

/// What programs use. All of it comes from the guest.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Usage {
    /// Processors.
    pub cpus: u32,
    /// Of the time of all processors, in thousandths, over a stretch that has just ended.
    pub cpu_permille: u32,
    /// Memory.
    pub memory: ByteCount,
    /// What programs could not have of it.
    pub memory_used: ByteCount,
    /// What files have of it that could be read again.
    pub memory_cached: ByteCount,
    /// The root file system; 0 if it is none of a size.
    pub disk: ByteCount,
    /// What is taken of it.
    pub disk_used: ByteCount,
}

impl GuestAgent {
    /// Asks what programs use. Takes a fraction of a second if nobody has asked for a while.
    ///
    /// # Errors
    /// See [`GuestError`].
    pub async fn usage(&self, within: Duration) -> Result<Usage, GuestError> {
        const WHAT: &str = "usage";
        match self.ask(WHAT, Request::AskUsage {}, within).await? {
            Reply::Usage {
                cpus,
                cpu_permille,
                memory,
                memory_used,
                memory_cached,
                disk,
                disk_used,
            } => Ok(Usage {
                cpus,
                cpu_permille: cpu_permille.min(1000),
                memory: ByteCount::new(memory),
                memory_used: ByteCount::new(memory_used),
                memory_cached: ByteCount::new(memory_cached),
                disk: ByteCount::new(disk),
                disk_used: ByteCount::new(disk_used),
            }),
            _ => Err(GuestError::unexpected(WHAT, "reply")),
        }
    }
}
