//! What this program says and shows, and what comes from the terminal that it runs on.

pub(crate) mod manner;
pub(crate) mod output;
pub(crate) mod progress;
pub(crate) mod report;
pub(crate) mod signals;
pub(crate) mod terminal;
