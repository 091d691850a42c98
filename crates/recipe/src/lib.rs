//! What a build does: its steps, how they are written down, and which of them are done already.
//!
//! Guarantees: no I/O. The same recipe over the same files has the same keys; any change of a step
//! changes its key and all later ones. A recipe that is not understood is refused with its line and
//! a remedy: nothing is left out in silence.
//!
//! Does not do: read files, or run anything.

mod context;
mod dockerfile;
mod forkd_toml;
mod ignore;
mod key;
mod problem;
mod settings;
mod step;

pub use context::{ContextEntry, EntryKind, Placed, place};
pub use dockerfile::{Arguments, StartFrom, parse as parse_dockerfile};
pub use forkd_toml::parse as parse_forkd_toml;
pub use ignore::Ignore;
pub use key::{CopiedFile, Key, Origin};
pub use problem::Problem;
pub use settings::Settings;
pub use step::{Base, Check, Command, Copy, Ready, Recipe, Run, Start, Step, StepAt};
