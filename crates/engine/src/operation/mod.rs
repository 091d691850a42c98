//! Operations: long requests with a name, a state and a step, that can be waited for and cancelled.
//!
//! `table` knows all of them and gives the work of each what it tells its steps with; `description`
//! is what callers get to know; `watcher` is for work on other threads.
//!
//! Guarantees: an operation that has begun ends, also when its work dies; one that was cancelled
//! has left nothing behind when it says so; the number of ended ones that are kept is bounded.
//!
//! Does not do: the work.

mod description;
mod table;
mod watcher;

#[cfg(test)]
pub(crate) use description::example;
pub use description::{Operation, Progress};
pub use forkd_types::{OperationKind, OperationState};
pub(crate) use table::{Operations, Running, Subject};
pub(crate) use watcher::Watcher;
