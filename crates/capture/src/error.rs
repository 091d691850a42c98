//! Why a capture was given up.

use std::io;
use std::time::Duration;

use forkd_sys::uffd::UffdError;

/// A capture failed. The guest's memory is unprotected again.
#[derive(Debug, thiserror::Error)]
pub enum CaptureError {
    /// The VMM's memory could not be read; most often because it is gone.
    #[error("read guest memory at {address:#x}")]
    Read {
        /// Address in the VMM.
        address: u64,
        /// The system's word.
        #[source]
        source: io::Error,
    },
    /// The dirty set could not be determined.
    #[error("scan the guest's page tables")]
    Scan(#[source] io::Error),
    /// Protection could not be set or cleared, or faults not be read.
    #[error(transparent)]
    Protect(#[from] UffdError),
    /// The layer could not be written.
    #[error("write captured pages")]
    Sink(#[source] io::Error),
    /// The thread could not be started.
    #[error("start the capture thread")]
    Thread(#[source] io::Error),
    /// Whoever wanted it went away.
    #[error("the capture was given up")]
    Abandoned,
    /// The thread died; a defect of forkd.
    #[error("the capture thread died")]
    Died,
    /// It took too long.
    #[error("the capture did not end within {0:?}")]
    Deadline(Duration),
}
