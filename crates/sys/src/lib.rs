//! Safe wrappers of the Linux calls that branching needs and that no well-kept crate offers:
//! userfaultfd write protection on shared memory, `PAGEMAP_SCAN`, reading another process's memory;
//! and what only a new process can do for itself.
//!
//! Guarantees: the public interface is safe; each unsafe block says why it is needed and why it is
//! sound; structures passed to the kernel are checked for size at compile time.
//!
//! Does not do: policy. Nothing here knows what a VM, a layer or a branch is.
//!
//! Everything that `rustix` offers is used from there instead.

pub mod clone;
pub mod confine;
pub mod file;
pub mod mapping;
pub mod packet;
pub mod pagemap;
pub mod random;
pub mod remote;
pub mod schedule;
#[cfg(feature = "seccomp")]
pub mod seccomp;
pub mod shim_wire;
pub mod socket;
pub mod terminal;
pub mod tsc;
pub mod uffd;
pub mod user;
pub mod user_namespace;
