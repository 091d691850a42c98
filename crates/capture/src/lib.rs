//! From the memory of a guest to the pages of a layer, while the guest runs.
//!
//! ```text
//! CaptureTarget --prepare--> PreparedCapture --arm--> ArmedCapture    the guest runs
//!               --close_dirty_set--> ClosedCapture                    it is stopped
//!               --sweep--> Captured                                   it runs, or is still stopped
//! ```
//!
//! Guarantees, for a live capture: what reaches the sink is the content of each dirty page at the
//! instant when [`ArmedCapture::close_dirty_set`] returned. A page is write-protected from that instant until its content has been copied; the thread
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
//!
//! # The order of the steps
//!
//! Each step consumes the state before it, and closing the dirty set asks for a [`GuestStopped`]:
//!
//! ```
//! # use forkd_capture::*;
//! # use forkd_types::GuestStopped;
//! fn capture(prepared: PreparedCapture, vm: &impl GuestStopped) -> Result<Captured, CaptureError> {
//!     prepared.arm()?.close_dirty_set(vm)?.sweep()
//! }
//! ```
//!
//! So these do not compile. To protect before the pause, with a VM that gives no such proof:
//!
//! ```compile_fail,E0277
//! # use forkd_capture::*;
//! # use forkd_types::GuestStopped;
//! fn capture<Running>(prepared: PreparedCapture, vm: &Running) -> Result<Captured, CaptureError> {
//!     prepared.arm()?.close_dirty_set(vm)?.sweep()
//! }
//! ```
//!
//! To close before arming:
//!
//! ```compile_fail,E0599
//! # use forkd_capture::*;
//! # use forkd_types::GuestStopped;
//! fn capture(prepared: PreparedCapture, vm: &impl GuestStopped) -> Result<Captured, CaptureError> {
//!     prepared.close_dirty_set(vm)?.sweep()
//! }
//! ```
//!
//! To sweep before closing:
//!
//! ```compile_fail,E0599
//! # use forkd_capture::*;
//! # use forkd_types::GuestStopped;
//! fn capture(prepared: PreparedCapture, vm: &impl GuestStopped) -> Result<Captured, CaptureError> {
//!     prepared.arm()?.sweep()
//! }
//! ```
//!
//! To arm twice:
//!
//! ```compile_fail,E0382
//! # use forkd_capture::*;
//! # use forkd_types::GuestStopped;
//! fn capture(prepared: PreparedCapture, vm: &impl GuestStopped) -> Result<Captured, CaptureError> {
//!     prepared.arm()?;
//!     prepared.arm()?.close_dirty_set(vm)?.sweep()
//! }
//! ```
//!
//! [`GuestStopped`]: forkd_types::GuestStopped

mod below;
mod bitmap;
mod command;
mod error;
mod features;
mod ledger;
mod pace;
mod plan;
mod probe;
mod run;
mod sink;
mod source;
mod sweeper;
mod target;
mod watch;
mod worker;

use forkd_types::limit;

pub use below::{NothingBelow, PagesBelow};
pub use error::CaptureError;
pub use features::HostFeatures;
pub use ledger::{CaptureStats, CapturedPages};
pub use plan::{CapturePlan, Copy};
pub use probe::{CaptureProbe, NoProbe, Release};
pub use sink::PageSink;
pub use target::{
    ArmedCapture, CaptureTarget, Captured, ClosedCapture, PreparedCapture, WriteProtection,
};

const _: () = assert!(limit::SWEEP_CHUNK_BYTES >= 4096);
