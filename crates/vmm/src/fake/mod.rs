//! A scripted VMM, for tests of what is above this crate: no QEMU, no guest kernel, milliseconds.
//!
//! What is real: each VM has a process (one that only waits), so process ids, exits, kills and
//! zombies are the kernel's; its RAM is a private mapping of this process, so that a capture finds
//! and copies dirty pages as ever; its overlays and device state are files. What is not: nothing
//! executes in it, and a test writes its RAM by hand. Whoever connects to the agent's port is
//! served by the function that the driver was given.
//!
//! Every call can be made to fail, die, fall silent or take long, by a [`Script`].
//!
//! Guarantees: no process outlives the test, whichever way that ends.

mod driver;
mod machine;
mod script;
mod vm;

pub use driver::FakeDriver;
pub use script::{Call, Fault, Script};
