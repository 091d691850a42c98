//! A typed client of the daemon's REST interface: one method for each route.
//!
//! Guarantees: an answer that is not a success becomes a [`ClientError`] with the daemon's code and
//! hint; nothing is retried; a connection goes to the named socket or address only, whatever proxy
//! the environment names.
//!
//! Does not do: start daemons, or decide what to do about an error.

mod access;
mod artifact;
mod build;
mod client;
mod error;
mod events;
mod file;
mod foreign;
mod port;
mod private_network;
mod process;
mod sse;
mod target;

pub use access::Access;
pub use artifact::ImportArtifact;
pub use build::BuildStream;
pub use client::{Client, ConsoleLog, Dependents};
pub use error::{ApiFailure, ClientError};
pub use events::{EventFilter, EventStream};
pub use file::{Depth, FileAttributes, FileContent, FileWatch};
pub use foreign::{ForeignClient, Heard};
pub use forkd_api as api;
pub use process::{InputEnd, OutputStream};
pub use reqwest::Upgraded as PortStream;
pub use sse::ServerEvent;
pub use target::Target;
