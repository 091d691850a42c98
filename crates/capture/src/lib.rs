//! From the memory of a guest to the pages of a layer, while the guest runs.
//!
//! ```text
//! CaptureTarget --prepare--> PreparedCapture          the guest runs
//!               --arm, close_dirty_set--> ClosedCapture   it is paused, at the second step
//!               --sweep--> Captured                   it runs, or is still paused
//! ```
//!
//! Guarantees, for a live capture: what reaches the sink is the content of each dirty page at the
//! instant when [`PreparedCapture::close_dirty_set`] returned, provided that the guest was paused
//! then. A page is write-protected from that instant until its content has been copied; the thread
//! that would write it waits for one copy of at most [`limit::SWEEP_CHUNK_BYTES`]. Whatever fails,
//! and whenever a value of these types is dropped, no protection remains and no thread of the guest
//! waits.
//!
//! Captured pages stay protected afterwards, so that the next capture of the same guest begins with
//! exactly the pages that were written since this one.
//!
//! One thread serves faults and sweeps, so that a page is captured once and nobody waits for a
//! lock. It is started before the first pause, and serves from the instant when the first page is
//! protected: the thread that faults may be the one that the VMM's reply to `cont` depends on.
//!
//! Does not do: know a VMM, decide where pages are stored, pause anything.

mod below;
mod bitmap;
mod error;
mod features;
mod flaw;
mod ledger;
mod pace;
mod sink;
mod sweeper;
mod target;
mod watch;
mod worker;

use forkd_types::limit;

pub use below::{NothingBelow, PagesBelow};
pub use error::CaptureError;
pub use features::HostFeatures;
pub use flaw::Flaw;
pub use ledger::{CaptureStats, CapturedPages};
pub use sink::PageSink;
pub use target::{
    CapturePlan, CaptureTarget, Captured, ClosedCapture, Copy, PreparedCapture, WriteProtection,
};

const _: () = assert!(limit::SWEEP_CHUNK_BYTES >= 4096);
