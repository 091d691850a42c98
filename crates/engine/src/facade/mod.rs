//! The facade: what can be asked of forkd, by subject.
//!
//! ```text
//! engine     opening, shutting down      snapshots  templates, snapshots, compaction
//! sandboxes  forks, branches, removal    control    pause, resume, rollback
//! guest      programs, code, files       processes  background processes
//! operations long requests, events       usage      how much there is of everything
//! ports      what listens in sandboxes    secrets    what header rules put in
//! networks   private networks            visible    what exists for the caller
//! artifacts  snapshots as files, keys
//! ```

mod artifacts;
mod control;
mod engine;
mod guest;
mod networks;
mod operations;
mod ports;
mod processes;
mod sandboxes;
mod secrets;
mod snapshots;
mod usage;
mod visible;

pub use engine::Engine;
#[cfg(any(test, feature = "fake"))]
pub(crate) use engine::open_directories;
pub use guest::{OpenFile, RunningCell};
pub use operations::Begun;
pub use snapshots::Dependents;
pub use usage::Usage;
