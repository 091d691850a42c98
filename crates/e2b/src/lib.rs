//! E2B's interfaces in front of the engine, so that programs which use E2B's clients run unchanged:
//! the control interface, and in place of E2B's agent in the guest its calls and file addresses.
//!
//! ```text
//! shared   what requests share         control  create, list, end, fork, pause, snapshots
//! target, server  to what one goes     envd     programs and files of one sandbox
//! domain   names of ports              ports    servers in sandboxes
//! interpreter  Python code, and what it shows
//! id       names of sandboxes          connect  framing of calls
//! secret   keys and tokens             failure  errors, in the forms that clients read
//! record   what is kept of each one    signature  addresses of files that need no token
//! subject  what a request is about     pass_on  what the daemon does for us
//! aliases  names that stand for templates  listening  whether a sandbox has an interpreter
//! handed_out  a sandbox as its maker gets it   document  what is said of all routes, for tests
//! ```
//!
//! Guarantees: no token is in a guest or a snapshot because of this; what forkd does not do is
//! refused by its name and not passed over; what a client sends is never held whole, but for
//! messages of bounded length.
//!
//! Does not do: listen, encrypt, know who has which key of the operator's. The daemon does.

mod aliases;
mod connect;
mod control;
#[cfg(test)]
mod document;
mod domain;
mod envd;
mod failure;
#[cfg(feature = "fuzzing")]
pub mod fuzzing;
mod handed_out;
mod id;
mod interpreter;
mod listening;
mod pass_on;
mod ports;
mod record;
mod secret;
mod server;
mod shared;
mod signature;
mod subject;
mod target;
#[cfg(test)]
mod tests;

pub use aliases::Aliases;
pub use domain::{Domain, DomainError};
pub use pass_on::{NotPassed, PassOn, ToPort};
pub use server::{Config, E2b};
pub use shared::FindCaller;
pub use subject::{Part, Subject};
