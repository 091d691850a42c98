//! A branch: an immutable snapshot of a running sandbox, with the shortest pause.
//!
//! ```text
//! prepare -> [pause -> save device state -> freeze disk -> protect -> resume]   (pause window)
//!         -> sweep -> seal -> publish
//! ```
//!
//! `prepare` makes everything that can be made while the guest runs; `window` is the pause window
//! and nothing else; `seal` makes the snapshot usable; `publish` makes it durable, in the
//! background. Afterwards `resync` deals with a VMM that was silent, `flatten` keeps the source's
//! memory and disk shallow, `quota` bounds what its disk takes, and `stand_by` makes ahead what the
//! next branch needs. `run` is their order.
//!
//! The three modes are one pipeline: `full` and `diff` copy the pages before the guest resumes,
//! `live` after; `full` takes the pages of the layers below as well.

mod connections;
mod context;
mod device_state;
mod flatten;
mod overlay;
mod prepare;
mod probe;
mod quota;
mod resync;
mod run;
mod seal;
mod stand_by;
mod state;
mod steps;
mod window;

pub(crate) use device_state::remove_device_state;
pub use probe::{BranchProbe, ProbedBranch};
pub(crate) use state::Branches;
