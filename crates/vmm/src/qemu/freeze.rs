//! Taking frozen overlays away from the VMM that has written them, while its guest runs.
//!
//! `blockdev-snapshot` ends the writes to an overlay, but the VMM keeps the descriptor that it
//! wrote with. So afterwards the file becomes the daemon's, which lets nobody open it for writing
//! again, the VMM is told to close what it has, and the kernel is asked whether it did: copies of
//! the descriptor and mappings count too.
//!
//! Guarantees: an overlay that this has succeeded for is never written again by a confined VMM,
//! whoever takes that over. Where the file system cannot tell who writes, the VMM's word is taken.
//!
//! Does not do: anything in the pause window.

use std::path::Path;
use std::time::{Duration, Instant};

use forkd_sys::file::{has_writers, open_regular};
use qapi::qmp;

use super::args;
use super::jail::{self, Names};
use super::vm::QemuVm;
use crate::{DiskOverlay, VmmError};

/// A process that is being started has copies of this process's descriptors until it runs its
/// program, which a busy host may put off.
const CLOSED_WITHIN: Duration = Duration::from_secs(5);
/// How often the kernel is asked meanwhile.
const POLL_INTERVAL: Duration = Duration::from_millis(2);

impl QemuVm {
    /// Closes all frozen overlays for writing that are not known to be.
    pub(super) fn close_frozen(&mut self) -> Result<(), VmmError> {
        let disk = self.spec.disk.as_ref();
        let frozen = disk.and_then(|disk| disk.overlays.split_last()).map(|(_, frozen)| frozen);
        let mut below = args::BASE_NODE.to_owned();
        for overlay in frozen.unwrap_or_default().to_vec() {
            if !self.closed.contains(&overlay.node) {
                self.close_for_writing(&overlay, &below)?;
                self.closed.insert(overlay.node.clone());
            }
            below = overlay.node;
        }
        Ok(())
    }

    fn close_for_writing(&mut self, overlay: &DiskOverlay, below: &str) -> Result<(), VmmError> {
        if self.spec.confinement.jail.is_some() {
            jail::freeze(&overlay.path)?;
        }
        let seen = Names::of(&self.spec).overlay(overlay);
        let options = args::frozen_options(&seen, below).map_err(|error| VmmError::Refused {
            command: "blockdev-reopen",
            description: error.to_string(),
        })?;
        let reopen = qmp::blockdev_reopen { options: options.into() };
        let reopened = self.monitors.general.execute(&reopen, self.spec.deadlines.reply);
        match reopened {
            Ok(_) => {}
            // With its end it has closed everything, so the snapshot need not die with it.
            Err(error) if self.process.is_its_end(&error) => {
                tracing::debug!(%error, "the VMM ended before it closed a disk overlay");
            }
            Err(error) => return Err(error),
        }
        require_closed(&overlay.path)
    }
}

/// Fails if somebody can write the file still.
fn require_closed(path: &Path) -> Result<(), VmmError> {
    let failed = |source| VmmError::file("look who writes", path, source);
    let file = open_regular(path).map_err(failed)?;
    let until = Instant::now() + CLOSED_WITHIN;
    while has_writers(&file).map_err(failed)? == Some(true) {
        if Instant::now() > until {
            return Err(VmmError::StillWritten { path: path.to_owned() });
        }
        std::thread::sleep(POLL_INTERVAL);
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use std::fs::{self, OpenOptions};

    use super::*;

    #[test]
    fn a_file_that_somebody_keeps_open_for_writing_is_not_closed() {
        let directory = tempfile::tempdir().unwrap();
        let path = directory.path().join("o.qcow2");
        fs::write(&path, "x").unwrap();
        let kept = OpenOptions::new().write(true).open(&path).unwrap();
        let error = require_closed(&path).unwrap_err();
        assert!(matches!(error, VmmError::StillWritten { .. }), "{error}");
        // One that is closed a little later is.
        let closing = std::thread::spawn(move || {
            std::thread::sleep(POLL_INTERVAL);
            drop(kept);
        });
        require_closed(&path).unwrap();
        closing.join().unwrap();
    }
}
