//! Options that several verbs have, and the words that people write in them.

mod daemon;
pub(crate) mod e2b;
mod global;
pub(crate) mod image_program;
mod network;
pub(crate) mod place;
pub(crate) mod program;
mod words;

pub(crate) use daemon::{Maxima, Places};
pub(crate) use e2b::E2b;
pub(crate) use global::Global;
pub(crate) use network::Network;
pub(crate) use words::{branch_mode, cpu_model, key_value, one_of};
