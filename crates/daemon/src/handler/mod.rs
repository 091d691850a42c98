//! The handlers: one function for each route. Each checks its request, calls the engine once and
//! converts the answer.

pub(crate) mod artifacts;
pub(crate) mod branch;
pub(crate) mod command;
pub(crate) mod daemon;
pub(crate) mod events;
pub(crate) mod files;
pub(crate) mod hub;
pub(crate) mod network;
pub(crate) mod operations;
pub(crate) mod ports;
pub(crate) mod private_networks;
pub(crate) mod processes;
pub(crate) mod sandboxes;
pub(crate) mod secrets;
pub(crate) mod snapshots;
mod sse;

mod build;
