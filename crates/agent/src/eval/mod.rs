//! Python for the host: persistent interpreters, in each one piece of code at a time.
//!
//! ```text
//! contexts     which interpreters there are       interpreter  the process, and its socket
//! service      the thread that owns one of them   driver.py    what runs in it
//! notebook.py  code that only IPython knows       charts.py    the data behind figures and tables
//! ```
//!
//! A thread of its own owns an interpreter. It is started with the first piece of code; its state
//! lives in guest memory and so in every child. Output between two pieces of code is discarded. The
//! first piece of code after a renewal finds random generators that were seeded anew.

mod contexts;
mod interpreter;
mod service;
mod wake;

pub(crate) use contexts::Contexts;
pub(crate) use interpreter::Cell;
pub(crate) use service::Job;
