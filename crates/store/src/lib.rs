//! Everything that outlives a VM: memory layers, disk overlays, device state, and the registry of
//! snapshots and sandboxes.
//!
//! # Two copies
//!
//! A layer's *hot* copy is a sparse file in the hot directory (tmpfs), where children map it. Its
//! *durable* copy is written to the state directory in the background. A snapshot is `ready` when
//! its hot copy is sealed and `durable` when the other is on disk too.
//!
//! # What is assumed of the file systems
//!
//! * The hot directory is tmpfs: its content is gone after a reboot, and a write beyond its size
//!   fails (or, through a mapping, kills the writer), so space is promised before.
//! * In the state directory, `fsync` of a file brings all of its content to the disk, and `fsync`
//!   of a directory the names in it; disk caches honour flushes. `rename` is atomic. Nothing is
//!   assumed of what was not flushed: it may be there, or in part, or not.
//! * SQLite in WAL mode is durable after a checkpoint, and what was committed later is lost from
//!   the end.
//! * One process at a time uses a store; the daemon holds a lock.
//! * A disk may lose or change what it has stored. That is found by checksums, not prevented.
//! * A VMM that was taken over may write anything into an overlay that it had open for writing.
//!
//! # What is promised
//!
//! * A sealed layer never changes, and neither does a frozen overlay.
//! * A snapshot exists when its row does. Its parts are written first: each durable file is written
//!   under another name, flushed, renamed, and its directory flushed; then the row. The row is
//!   removed first, and that is flushed; then the files. So files without a row are leftovers, and
//!   a row without its files is damage.
//! * When a snapshot is `durable`, a crash of the host loses nothing of it.
//! * Killed at any moment, with or without the power lost, the next process finds each snapshot
//!   absent, `failed` with the reason, or complete ([`recover`]), and leaves no file that belongs
//!   to nobody ([`sweep`]). `tests/crash` shows it.
//! * Device state, overlays of durable snapshots, durable pages and indexes have checksums. What
//!   this process has not written itself is compared before it is used, once; indexes, device state
//!   and lengths always. A part that does not fit is made anew from its other copy, or refused by
//!   name.
//! * No space is an error of one operation, which leaves nothing behind.
//!
//! Does not do: know VMs or guests, start children, decide what to delete.

mod chain;
mod checksum;
mod disk;
mod error;
mod evict;
mod failpoint;
mod file_set;
mod files;
mod flatten;
mod index;
mod known;
mod layer;
mod manifest;
mod overlay;
mod part;
mod private;
mod publish;
mod qcow2;
mod recover;
mod registry;
mod resolve;
mod space;
mod view;

pub use chain::{Chain, ChainPages};
pub use checksum::FileChecksum;
pub use disk::{remove_unfinished, write_private_file};
pub use error::StoreError;
pub use evict::HotUsage;
pub use failpoint::Failpoint;
#[cfg(feature = "failpoints")]
pub use failpoint::watch_failpoints;
pub use file_set::FileSet;
pub use files::StoreFiles;
pub use flatten::{flatten, stored_union};
pub use index::{LayerIndex, LayerKind};
pub use layer::{Layer, LayerWriter};
pub use manifest::{KnownContents, MachineIdentity, SnapshotManifest};
pub use overlay::{CopyOverlay, OverlayCopy, OverlayWriter, PlainQemuImg};
pub use private::private_directory;
pub use qcow2::{Qcow2Error, Qcow2Header};
pub use recover::{Living, recover, sweep};
pub use registry::{
    InheritedLimits, Registry, SandboxOptionsRow, SandboxRow, SnapshotFigures, SnapshotRow,
};
pub use resolve::{ResolvedRun, resolve};
pub use space::{allocated_bytes, free_bytes};
pub use view::{MappingPlan, PageSource, PlannedRun};
