//! The host: what executes guests, what VMMs are kept from, images, processes; and, for `doctor`,
//! what this host permits.
//!
//! ```text
//! accelerator  KVM or emulation, tried out      confine   cgroups and namespaces
//! pulled_images  what users name by a reference
//! agent_port   the way to a guest agent
//! images       what templates boot from         image_check  whether it is what was built
//! identity     who a sandbox and a process is
//! checks       each ability tried for `doctor`  vmm_memory  what VMMs really use
//! isolation    users and launchers of VMMs      disk_tool   reads disks of guests
//! ```

mod accelerator;
mod agent_port;
mod checks;
mod confine;
mod disk_tool;
mod identity;
mod image;
mod image_check;
mod images;
mod isolation;
mod memory;
mod processor;
mod pulled_images;
mod state;
mod vmm_memory;

#[cfg(any(test, feature = "fake"))]
pub(crate) use accelerator::Chosen;
pub use accelerator::{ProbeVerdict, probe_kvm};
pub(crate) use agent_port::connect_agent;
pub use checks::{
    CgroupSupport, NotIsolated, Reached, WriteProtection, images, missing_commands, qemu,
    try_isolation, try_limits, try_network, try_page_scan, try_write_protection,
};
pub(crate) use confine::{disk_max, file_max};
pub(crate) use disk_tool::DiskTool;
pub(crate) use identity::{
    end_process, for_child, process_number, process_started, running_process,
};
pub(crate) use image::Image;
pub(crate) use images::Images;
#[cfg(test)]
pub(crate) use isolation::OF_NO_SANDBOX;
pub(crate) use isolation::Users;
pub(crate) use memory::is_short_of_memory;
pub use memory::{MEMORY_COMFORTABLE, available_memory};
pub(crate) use state::{ArtifactMachines, Host};
pub(crate) use vmm_memory::VmmMemories;
pub use vmm_memory::VmmMemory;
