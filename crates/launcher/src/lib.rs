//! Starts programs that handle what a guest controls, so that one that was taken over reaches
//! nothing: neither files of the host, nor other processes, nor a network.
//!
//! ```text
//! daemon --Launcher--> launcher process --clone--> VMM
//!                      one thread, small           namespaces, empty root, uid of its own,
//!                                                  no capabilities, no new privileges
//! ```
//!
//! The launcher is a process of its own, started ahead of need: it is small, so that it is cloned
//! in less time than the daemon is, and it has one thread, so that what runs between the clone and
//! the program may be ordinary code. A VMM's parent is the daemon nevertheless.
//!
//! Where the daemon is an ordinary user, the launcher is in a user namespace that this user owns.
//! If the host has set ids aside for the user, they are mapped there, once for each launcher, and
//! programs have users of their own as with root.
//!
//! Guarantees: every step of [`Step`] is taken, in its order, or the program is not started and
//! the error names the step; the program has exactly the descriptors of its [`Job`]; a launcher
//! ends with its daemon, and its programs do not.
//!
//! Does not do: decide who gets which files; filter system calls, which the VMM's preload library
//! does once the program is loaded.

mod client;
mod error;
mod job;
mod libraries;
mod root;
pub mod server;
mod standing;
mod steps;
mod subordinate;
mod without;

pub use client::{Launcher, LauncherConfig};
pub use error::LaunchError;
pub use job::{Access, Bind, Descriptor, Ids, Job, Mounted, OwnIds, Place, Setup, Step};
pub use libraries::{LibrariesError, needed_by};
pub use subordinate::{IdRange, NoSubordinateIds, SUBORDINATE_IDS_MIN, SubordinateIds};
