//! A process, and what of ours is joined to it.

use std::sync::{Arc, Mutex};

use forkd_client::Client;

/// A process to join.
#[derive(Debug, Clone)]
pub(crate) struct Joined {
    pub(crate) client: Client,
    pub(crate) sandbox: String,
    pub(crate) process: String,
    /// Offset of the first byte of output that is wanted; the oldest that is kept when absent.
    pub(crate) from: Option<u64>,
    pub(crate) input: Input,
    pub(crate) sink: Sink,
}

/// Where the process's output goes.
#[derive(Debug, Clone, Default)]
pub(crate) enum Sink {
    /// To our standard output and error, as it comes.
    #[default]
    Streams,
    /// Into memory.
    Memory(Arc<Mutex<Collected>>),
}

/// What a process has written.
#[derive(Debug, Default)]
pub(crate) struct Collected {
    pub(crate) stdout: Vec<u8>,
    pub(crate) stderr: Vec<u8>,
}

/// Where the process's input comes from.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Input {
    /// Nowhere.
    None,
    /// Our standard input, byte by byte to its end.
    Stream,
    /// The keys of our terminal, which is in raw mode meanwhile and tells its size.
    Keys,
}
