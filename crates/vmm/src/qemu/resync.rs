//! After a VMM was silent: finding out what became of the commands that it was given.
//!
//! A command whose reply did not come in time may still be executed, later, and commands of
//! different monitors in any order. So nothing is sent after it until the replies that are owed
//! have come. Then it is known which disk overlay takes the writes, and the guest is made to run.

use std::time::Duration;

use qapi::qmp;

use super::vm::QemuVm;
use crate::{Vm, VmmError};

impl QemuVm {
    pub(super) fn resync_within(&mut self, deadline: Duration) -> Result<(), VmmError> {
        if self.is_in_sync() {
            return Ok(());
        }
        let done = self.try_resync(deadline);
        done.map_err(|error| self.process.explain("after it was silent", error))
    }

    fn try_resync(&mut self, deadline: Duration) -> Result<(), VmmError> {
        let frozen = self.monitors.freeze.collect_replies(deadline)?;
        if let Some(overlay) = self.unconfirmed.freezing.take()
            && frozen == Some(true)
        {
            self.overlay_is_on_top(overlay);
        }
        self.loaded = None;
        for monitor in self.monitors.all_mut() {
            monitor.collect_replies(deadline)?;
            monitor.unload(deadline)?;
        }
        if self.unconfirmed.stopped {
            let general = &mut self.monitors.general;
            if !general.execute(&qmp::query_status {}, deadline)?.running {
                general.execute(&qmp::cont {}, deadline)?;
            }
            self.unconfirmed.stopped = false;
        }
        while let Some(overlay) = self.unconfirmed.strays.pop() {
            self.drop_overlay(&overlay);
            self.monitors.general.collect_replies(deadline)?;
        }
        Ok(())
    }
}
