//! The daemon as a process: where it works, how it is found, started and ended.

pub(crate) mod connect;
pub(crate) mod paths;
pub(crate) mod process;
pub(crate) mod settings;
