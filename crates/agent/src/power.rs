//! Ending the machine.

use std::time::Duration;

use forkd_protocol::{Reply, code};
use rustix::mount::MountFlags;
use rustix::system::{RebootCommand, reboot};

use crate::active::{Active, Refusal};
use crate::log;
use crate::outbox::Outbox;

/// How long the host gets to read the last reply.
const FAREWELL: Duration = Duration::from_millis(200);

/// How long the machine gets to switch itself off before it is restarted instead, which ends it
/// under a VMM that does not restart.
const SWITCH_OFF: Duration = Duration::from_secs(2);

/// Writes back what is in memory and switches the machine off. Returns only on failure.
pub(crate) fn off(active: &Active, outbox: &Outbox) {
    active.send(&Reply::PoweringOff {}, || {});
    outbox.flush(FAREWELL);
    settle_disk();
    let failure = match reboot(RebootCommand::PowerOff) {
        Ok(()) => "the machine stays on".to_owned(),
        Err(errno) => std::io::Error::from(errno).to_string(),
    };
    log::failure(&format!("power off: {failure}; restarting instead"));
    std::thread::sleep(SWITCH_OFF);
    if let Err(errno) = reboot(RebootCommand::Restart) {
        let message = format!("{failure}; restart: {}", std::io::Error::from(errno));
        active.send(&Refusal::new(code::POWER_OFF_FAILED, message).into_reply(), || {});
    }
}

/// Best effort: programs that still write keep the root file system busy, but all that they wrote
/// until now is on the disk.
fn settle_disk() {
    rustix::fs::sync();
    rustix::mount::mount_remount("/", MountFlags::RDONLY, c"").ok();
}
