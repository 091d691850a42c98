//! The host: what executes guests, what VMMs are kept from, images, processes; and, for `doctor`,
//! what this host permits.
//!
//! ```text
//! accelerator  KVM or emulation, tried out      confine   cgroups and namespaces
//! agent_port   the way to a guest agent
//! images       what templates boot from         identity  who a sandbox and a process is
//! checks       each ability tried for `doctor`  vmm_memory  what VMMs really use
//! ```

mod accelerator;
mod agent_port;
mod checks;
mod confine;
mod identity;
mod images;
mod isolation;
mod state;
mod vmm_memory;

#[cfg(any(test, feature = "fake"))]
pub(crate) use accelerator::Chosen;
pub use accelerator::{ProbeVerdict, probe_kvm};
pub(crate) use agent_port::connect_agent;
pub use checks::{
    WriteProtection, images, missing_commands, qemu, try_limit, try_network, try_page_scan,
    try_write_protection,
};
pub(crate) use identity::{
    end_process, for_child, process_number, process_started, running_process,
};
pub(crate) use images::{Image, Images};
pub(crate) use isolation::vmm_user;
pub(crate) use state::Host;
pub(crate) use vmm_memory::VmmMemories;
pub use vmm_memory::VmmMemory;
