//! The thread that serves write faults and sweeps, as others see it.
//!
//! It lives as long as the memory is watched: between two captures too, because a page that stays
//! protected tells, by the fault of its next write, that it is dirty again.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::mpsc::{Receiver, RecvTimeoutError, Sender, channel};
use std::thread::JoinHandle;
use std::time::Duration;

use forkd_sys::remote::RemoteMemory;
use forkd_sys::uffd::Userfaultfd;
use forkd_types::{PAGE_BYTES, PageCount, limit};
use rustix::event::{EventfdFlags, eventfd};
use rustix::fd::OwnedFd;

use crate::ledger::CaptureStats;
use crate::sweeper::{Job, Sweeper};
use crate::watch::SharedWatch;
use crate::{CaptureError, CapturedPages};

/// What the thread captures from.
#[derive(Clone)]
pub(crate) struct Source {
    pub(crate) memory: RemoteMemory,
    /// Where guest RAM begins in that memory.
    pub(crate) address: u64,
    /// Bytes of guest RAM.
    pub(crate) length: u64,
    /// Absent where pages cannot be protected.
    pub(crate) uffd: Option<Arc<Userfaultfd>>,
}

impl Source {
    pub(crate) fn pages(&self) -> PageCount {
        PageCount::new(self.length / PAGE_BYTES)
    }
}

/// What the thread can be asked for. Each order is answered once.
pub(crate) enum Order {
    /// Get ready for this capture. Protect what has been opened; with `everything`, all of guest
    /// RAM.
    Begin { job: Box<Job>, protect: Protect, answer: Sender<Result<(), CaptureError>> },
    /// Sweep what is wanted.
    Sweep { answer: Sender<Result<Swept, CaptureError>> },
}

/// Which pages a capture protects before the pause.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Protect {
    /// None: the pause window will.
    Nothing,
    /// All of guest RAM.
    Everything,
    /// Those that have been opened since the last capture.
    Opened,
}

/// What a sweep leaves.
pub(crate) struct Swept {
    pub(crate) pages: CapturedPages,
    pub(crate) stats: CaptureStats,
}

/// Handle of the thread. Dropping it makes the thread give up, lift all protection, and end.
pub(crate) struct Worker {
    /// Closed: give up.
    orders: Option<Sender<Order>>,
    watch: SharedWatch,
    bell: Arc<OwnedFd>,
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
        let bell = eventfd(0, EventfdFlags::CLOEXEC | EventfdFlags::NONBLOCK)
            .map_err(|errno| CaptureError::Thread(errno.into()))?;
        let bell = Arc::new(bell);
        let abandoned = Arc::new(AtomicBool::new(false));
        let watch = SharedWatch::new(source.pages());
        let (orders, inbox) = channel();
        let sweeper = Sweeper::new(source, watch.clone(), Arc::clone(&abandoned));
        let heard = Arc::clone(&bell);
        let thread = std::thread::Builder::new()
            .name("forkd-capture".to_owned())
            .spawn(move || sweeper.run(&heard, &inbox))
            .map_err(CaptureError::Thread)?;
        Ok(Self { orders: Some(orders), watch, bell, abandoned, thread: Some(thread) })
    }

    /// What the thread and its users share.
    pub(crate) fn watch(&self) -> &SharedWatch {
        &self.watch
    }

    /// Whether the thread serves.
    pub(crate) fn is_alive(&self) -> bool {
        self.thread.as_ref().is_some_and(|thread| !thread.is_finished())
    }

    /// Gets the thread ready for a capture; see [`Order::Begin`].
    pub(crate) fn begin(&mut self, job: Job, protect: Protect) -> Result<(), CaptureError> {
        let (answer, result) = channel();
        self.order(Order::Begin { job: Box::new(job), protect, answer });
        self.await_answer(&result, limit::SWEEP_DEADLINE)
    }

    /// Sweeps the wanted pages.
    pub(crate) fn sweep(&mut self) -> Result<Swept, CaptureError> {
        let (answer, result) = channel();
        self.order(Order::Sweep { answer });
        self.await_answer(&result, limit::SWEEP_DEADLINE)
    }

    fn order(&self, order: Order) {
        if let Some(orders) = &self.orders {
            // A thread that has ended drops the order and with it the way of the answer.
            orders.send(order).ok();
        }
        self.ring();
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

    fn ring(&self) {
        // Fails only when the counter is at its maximum: then it rings already.
        rustix::io::write(&self.bell, &1u64.to_ne_bytes()).ok();
    }
}

impl Drop for Worker {
    fn drop(&mut self) {
        self.abandoned.store(true, Ordering::Relaxed);
        self.orders = None;
        self.ring();
        if let Some(thread) = self.thread.take()
            && thread.join().is_err()
        {
            tracing::error!("the capture thread panicked");
        }
    }
}
