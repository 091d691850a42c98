//! What the capture's thread can be asked for.

use std::sync::Arc;
use std::sync::mpsc::Sender;

use crate::ledger::{CaptureStats, Ledger};
use crate::{CaptureError, CaptureProbe, CapturedPages, Copy};

/// Each command is answered once.
pub(crate) enum Command {
    /// Get ready for this capture.
    Begin { job: Box<Job>, protect: Protect, answer: Sender<Result<(), CaptureError>> },
    /// Sweep the dirty set.
    Sweep { answer: Sender<Result<Swept, CaptureError>> },
}

/// One capture, as the thread knows it.
pub(crate) struct Job {
    pub(crate) ledger: Ledger,
    pub(crate) copy: Copy,
    pub(crate) probe: Arc<dyn CaptureProbe>,
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
