//! Builds: the steps of a recipe in a sandbox, each branched live at its end.
//!
//! Every step is asked for with requests that any client may make. So what an owner may do, and
//! how much, is decided where it always is, and a step in the cache is a snapshot of its owner's:
//! nobody else can see it or start from it.
//!
//! Guarantees: a build that fails or is interrupted leaves the steps that it finished, which are
//! correct, and no sandbox unless that is asked for.

mod base;
mod built;
mod cache;
mod context;
mod copy;
mod events;
mod failure;
mod file;
mod machine;
mod plan;
mod result;
mod run;
mod start;
mod step;

pub(crate) use cache::{Bounds, prune};
pub(crate) use events::{Audience, print_built, print_failed};
pub(crate) use file::{Source, read};
pub(crate) use run::{Order, build};
