//! The thread that serves write faults and sweeps, as others see it.
//!
//! It lives as long as the memory is watched: between two captures too, because a page that stays
//! protected tells, by the fault of its next write, that it is dirty again.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::mpsc::{Receiver, RecvTimeoutError, Sender, channel};
use std::thread::JoinHandle;
use std::time::Duration;

use forkd_types::limit;
use rustix::event::{EventfdFlags, eventfd};
use rustix::fd::OwnedFd;

use crate::CaptureError;
use crate::command::{Command, Job, Protect, Swept};
use crate::source::Source;
use crate::sweeper::Sweeper;
use crate::watch::SharedWatch;

/// Handle of the thread. Dropping it makes the thread give up, lift all protection, and end.
pub(crate) struct Worker {
    /// Closed: give up.
    commands: Option<Sender<Command>>,
    watch: SharedWatch,
    wakeup: Arc<OwnedFd>,
    abandoned: Arc<AtomicBool>,
    thread: Option<JoinHandle<Result<(), CaptureError>>>,
}

impl std::fmt::Debug for Worker {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str("Worker")
    }
}

impl Worker {
    pub(crate) fn start(source: Source) -> Result<Self, CaptureError> {
        let wakeup = eventfd(0, EventfdFlags::CLOEXEC | EventfdFlags::NONBLOCK)
            .map_err(|errno| CaptureError::Thread(errno.into()))?;
        let wakeup = Arc::new(wakeup);
        let abandoned = Arc::new(AtomicBool::new(false));
        let watch = SharedWatch::new(source.pages());
        let (commands, received) = channel();
        let sweeper = Sweeper::new(source, watch.clone(), Arc::clone(&abandoned));
        let awaited = Arc::clone(&wakeup);
        let thread = std::thread::Builder::new()
            .name("forkd-capture".to_owned())
            .spawn(move || sweeper.run(&awaited, &received))
            .map_err(CaptureError::Thread)?;
        Ok(Self { commands: Some(commands), watch, wakeup, abandoned, thread: Some(thread) })
    }

    /// What the thread and its users share.
    pub(crate) fn watch(&self) -> &SharedWatch {
        &self.watch
    }

    /// Whether the thread serves.
    pub(crate) fn is_alive(&self) -> bool {
        self.thread.as_ref().is_some_and(|thread| !thread.is_finished())
    }

    /// Gets the thread ready for a capture, and protects.
    pub(crate) fn begin(&mut self, job: Job, protect: Protect) -> Result<(), CaptureError> {
        let (answer, result) = channel();
        self.send(Command::Begin { job: Box::new(job), protect, answer });
        self.await_answer(&result, limit::SWEEP_DEADLINE)
    }

    /// Sweeps the wanted pages.
    pub(crate) fn sweep(&mut self) -> Result<Swept, CaptureError> {
        let (answer, result) = channel();
        self.send(Command::Sweep { answer });
        self.await_answer(&result, limit::SWEEP_DEADLINE)
    }

    fn send(&self, command: Command) {
        if let Some(commands) = &self.commands {
            // A thread that has ended drops the command and with it the way of the answer.
            commands.send(command).ok();
        }
        self.wake();
    }

    fn await_answer<T>(
        &mut self,
        result: &Receiver<Result<T, CaptureError>>,
        deadline: Duration,
    ) -> Result<T, CaptureError> {
        match result.recv_timeout(deadline) {
            Ok(result) => result,
            Err(RecvTimeoutError::Timeout) => Err(CaptureError::Deadline(deadline)),
            Err(RecvTimeoutError::Disconnected) => Err(self.why_it_ended()),
        }
    }

    /// Why the thread has ended unasked: while it served a fault, for one.
    fn why_it_ended(&mut self) -> CaptureError {
        match self.thread.take().map(JoinHandle::join) {
            Some(Ok(Err(error))) => error,
            _ => CaptureError::Died,
        }
    }

    fn wake(&self) {
        // Fails only when the counter is at its maximum: then the thread wakes anyway.
        rustix::io::write(&self.wakeup, &1u64.to_ne_bytes()).ok();
    }
}

impl Drop for Worker {
    fn drop(&mut self) {
        self.abandoned.store(true, Ordering::Relaxed);
        self.commands = None;
        self.wake();
        if let Some(thread) = self.thread.take()
            && thread.join().is_err()
        {
            tracing::error!("the capture thread panicked");
        }
    }
}
