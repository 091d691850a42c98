//! The facade: what can be asked of forkd, by subject.
//!
//! ```text
//! engine     opening, shutting down      snapshots  templates, snapshots, compaction
//! sandboxes  forks, branches, removal    control    pause, resume, rollback
//! guest      programs, code, files       processes  background processes
//! operations long requests, events       usage      how much there is of everything
//! ```

mod control;
mod engine;
mod guest;
mod operations;
mod processes;
mod sandboxes;
mod snapshots;
mod usage;

pub use engine::Engine;
#[cfg(test)]
pub(crate) use engine::open_directories;
pub use operations::Begun;
pub use snapshots::Dependents;
pub use usage::Usage;
