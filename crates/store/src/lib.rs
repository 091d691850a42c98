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
//!   fails (or, through a mapping, kills the writer), so space is checked before.
//! * In the state directory `rename` is atomic, and what was written before `fsync` of a file and
//!   of its directory is there after a crash. Disk caches honour flushes.
//!
//! # What is promised
//!
//! * A sealed layer never changes. Its index carries a checksum of itself, the durable copy also
//!   one of the pages; a copy that does not match is refused by name.
//! * A snapshot exists when its row does; the row is written last, so files without a row are
//!   leftovers, and a row without its files is damage.
//! * A durable snapshot can be used after a reboot.
//!
//! Does not do: know VMs or guests, start children, decide what to delete.

mod chain;
mod error;
mod files;
mod flatten;
mod index;
mod layer;
mod overlay;
mod publish;
mod registry;
mod space;
mod view;

pub use chain::{Chain, ChainPages, ResolvedRun, resolve};
pub use error::StoreError;
pub use files::StoreFiles;
pub use flatten::{flatten, stored_union};
pub use index::{LayerIndex, LayerKind};
pub use layer::{Layer, LayerWriter};
pub use registry::{
    MachineIdentity, Registry, SandboxOptionsRow, SandboxRow, SnapshotFigures, SnapshotManifest,
    SnapshotRow,
};
pub use space::{allocated_bytes, free_bytes};
pub use view::{MappingPlan, PlannedRun};
