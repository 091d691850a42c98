//! Processes of the guest: start them, signal their groups, and reap whatever ends.
//!
//! One thread reaps. It looks for an ended process without taking it, then takes it under the
//! table's lock; a process is started and entered under the same lock. So no end is delivered
//! before its watcher is known, and no process id is signalled after it was given back.

use std::collections::HashMap;
use std::io;
use std::os::unix::process::CommandExt;
use std::process::Command;
use std::sync::{Arc, Condvar, Mutex, PoisonError};
use std::time::Duration;

use rustix::process::{
    Pid, Signal, WaitId, WaitIdOptions, WaitOptions, kill_process_group, wait, waitid,
};

use crate::sync::lock;
use crate::threads;

/// How a process ended.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct Exit {
    /// Exit code, or 128 + signal.
    pub(crate) code: i32,
    /// The signal that ended it.
    pub(crate) signal: Option<i32>,
}

type Watcher = Box<dyn FnOnce(Exit) + Send>;

/// The processes that we started and that have not ended.
#[derive(Default)]
pub(crate) struct Processes {
    watchers: Mutex<HashMap<i32, Watcher>>,
    started: Condvar,
}

impl Processes {
    /// An empty table with a running reaper.
    pub(crate) fn start() -> io::Result<Arc<Self>> {
        let processes = Arc::new(Self::default());
        let reaper = Arc::clone(&processes);
        threads::start("reaper", 64 * 1024, move || reaper.reap())?;
        Ok(processes)
    }

    /// Starts a program as the leader of a process group of its own. `watcher` runs on the reaper's
    /// thread when it has ended, and must not wait.
    pub(crate) fn spawn(
        &self,
        command: &mut Command,
        watcher: impl FnOnce(Exit) + Send + 'static,
    ) -> io::Result<i32> {
        self.launch(command.process_group(0), watcher)
    }

    /// As [`Processes::spawn`], as the leader of a session whose terminal is its standard input.
    pub(crate) fn spawn_on_terminal(
        &self,
        command: &mut Command,
        watcher: impl FnOnce(Exit) + Send + 'static,
    ) -> io::Result<i32> {
        forkd_sys::terminal::lead_session(command);
        self.launch(command, watcher)
    }

    fn launch(
        &self,
        command: &mut Command,
        watcher: impl FnOnce(Exit) + Send + 'static,
    ) -> io::Result<i32> {
        let mut watchers = lock(&self.watchers);
        let child = command.spawn()?;
        let pid = i32::try_from(child.id()).map_err(|_| io::ErrorKind::InvalidData)?;
        watchers.insert(pid, Box::new(watcher));
        self.started.notify_all();
        Ok(pid)
    }

    /// Sends a signal to the group of a process that has not ended. False when it has, or when
    /// there is no such signal.
    pub(crate) fn signal_group(&self, pid: i32, signal: i32) -> bool {
        let watchers = lock(&self.watchers);
        let (Some(group), Some(signal)) = (Pid::from_raw(pid), Signal::from_named_raw(signal))
        else {
            return false;
        };
        watchers.contains_key(&pid) && kill_process_group(group, signal).is_ok()
    }

    fn reap(&self) {
        loop {
            let look = WaitIdOptions::EXITED | WaitIdOptions::NOWAIT;
            match waitid(WaitId::All, look) {
                Ok(_) => self.take_ended(),
                Err(rustix::io::Errno::CHILD) => self.wait_for_start(),
                Err(_) => {}
            }
        }
    }

    fn take_ended(&self) {
        let mut ended = Vec::new();
        let mut watchers = lock(&self.watchers);
        while let Ok(Some((pid, status))) = wait(WaitOptions::NOHANG) {
            let signal = status.terminating_signal();
            let code = status.exit_status().or(signal.map(|signal| 128 + signal)).unwrap_or(255);
            // Orphans have no watcher; they are just reaped.
            if let Some(watcher) = watchers.remove(&pid.as_raw_nonzero().get()) {
                ended.push((watcher, Exit { code, signal }));
            }
        }
        drop(watchers);
        for (watcher, exit) in ended {
            watcher(exit);
        }
    }

    /// There is no child, hence no descendant whose orphans could become ours.
    fn wait_for_start(&self) {
        let watchers = lock(&self.watchers);
        if watchers.is_empty() {
            drop(self.started.wait(watchers).unwrap_or_else(PoisonError::into_inner));
        } else {
            drop(watchers);
            std::thread::sleep(Duration::from_millis(10));
        }
    }
}
