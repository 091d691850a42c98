//! What system tests share: an engine on directories of its own, templates that are built once for
//! a test program, and short words for what a test does to a sandbox.
//!
//! The images, the shim and QEMU must be there; `make test` sees to that and says where they are
//! through `FORKD_IMAGE_DIR` and `FORKD_SHIM`. A test that lacks them fails; it does not pass.
//!
//! A registry is the one thing that is not the real one: it misbehaves as a test wants.
//!
//! Does not do: mock anything else.

#![expect(clippy::missing_panics_doc, reason = "a test fails by panicking")]

pub mod audit;
mod contract;
pub mod e2b_methods;
mod environment;
mod gateway;
mod guard;
mod inspect;
mod leftovers;
mod mutation;
mod reference;
mod registry;
mod sandbox;
mod small_tmpfs;
mod witness;

pub use contract::ContractProxy;
pub use environment::{Lab, block_on, template_file};
pub use gateway::gateway_in;
pub use inspect::SOON;
pub use mutation::Mutation;
pub use reference::{Comparison, ReferenceProbe};
pub use registry::{Asked, Fault, Registry};
pub use sandbox::{Guest, Output};
pub use small_tmpfs::{KeptFull, SmallTmpfs};
pub use witness::{Verdict, WitnessPages};
