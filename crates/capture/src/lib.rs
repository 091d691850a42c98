//! From the memory of a guest to the pages of a layer, while the guest runs.
//!
//! ```text
//! CaptureTarget --prepare--> PreparedCapture --close_dirty_set--> ClosedCapture --sweep-->
//! Captured (guest runs)               (guest is paused)                (guest runs, or is still
//! paused)
//! ```
//!
//! Guarantees, for a live capture: what reaches the sink is the content of each dirty page at the
//! instant when [`PreparedCapture::close_dirty_set`] returned, provided that the guest was paused
//! then. A page is write-protected from that instant until its content has been copied; the thread
//! that would write it waits for one copy of at most [`limit::SWEEP_CHUNK_BYTES`]. Whatever fails,
//! and whenever a value of these types is dropped, no protection remains and no thread of the guest
//! waits.
//!
//! One thread serves faults and sweeps, so that a page is captured once and nobody waits for a
//! lock. It is started before the pause, and serves from the instant when the first page is
//! protected: the thread that faults may be the one that the VMM's reply to `cont` depends on.
//!
//! Does not do: know a VMM, decide where pages are stored, pause anything.

mod bitmap;
mod error;
mod flaw;
mod ledger;
mod sink;
mod target;
mod worker;

use forkd_types::limit;

pub use error::CaptureError;
pub use flaw::Flaw;
pub use ledger::{CaptureStats, CapturedPages};
pub use sink::PageSink;
pub use target::{
    CaptureMode, CaptureTarget, Captured, ClosedCapture, PreparedCapture, WriteProtection,
};

const _: () = assert!(limit::SWEEP_CHUNK_BYTES >= 4096);
