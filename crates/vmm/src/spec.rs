//! What a VM is made of. Plain data: nothing here is live, so the same specification starts the
//! template, and with other resources its children.

use std::path::{Path, PathBuf};
use std::sync::Arc;

use forkd_launcher::Launcher;
use forkd_types::{Accelerator, ByteCount, CpuModel, Isolation, limit::Deadlines};
use serde::{Deserialize, Serialize};

use crate::VmmCgroup;

/// Programs and libraries that starting a VM needs.
#[derive(Debug, Clone)]
pub struct VmmTools {
    /// QEMU for the accelerator in use.
    pub program: PathBuf,
    /// The preload library.
    pub shim: PathBuf,
    /// Starts VMMs that have a [`Jail`]; without it they are refused.
    pub launcher: Option<Arc<Launcher>>,
    /// What the program can do.
    pub abilities: Abilities,
}

/// What a build of QEMU can do and others cannot. None of it, until somebody has looked.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct Abilities {
    /// It was built with a filter of system calls of its own. Debian's microVM build was not.
    pub own_filter: bool,
    /// It emulates several vCPUs at the same time without harm; see
    /// [`crate::qemu::emulates_in_parallel`].
    pub emulates_in_parallel: bool,
}

/// What the firmware hands control to.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct BootSource {
    /// The kernel image.
    pub kernel: PathBuf,
    /// The initial RAM file system with the guest agent.
    pub initramfs: PathBuf,
    /// The kernel's command line.
    pub command_line: String,
}

/// Where guest RAM lives.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum RamBacking {
    /// In this file, shared: when the VM is gone the file holds its RAM.
    File(PathBuf),
    /// Private to the VMM. The file is a placeholder under whose name the range is found; layers
    /// are mapped over it before the guest runs.
    Layers {
        /// A path for the placeholder; the file is empty and stays so.
        placeholder: PathBuf,
    },
}

impl RamBacking {
    /// The path under which the VMM maps guest RAM at start.
    #[must_use]
    pub fn path(&self) -> &PathBuf {
        match self {
            Self::File(path) | Self::Layers { placeholder: path } => path,
        }
    }
}

/// One qcow2 file of a disk, with the node name that the VMM knows it by.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct DiskOverlay {
    /// The file.
    pub path: PathBuf,
    /// Unique among the VM's block nodes.
    pub node: String,
}

/// What a confined VMM calls the base image of its disk.
pub(crate) const CONFINED_BASE: &str = "/disk/base";
/// Where a confined VMM has the overlays of its disk, each under the name of its file.
pub(crate) const CONFINED_OVERLAYS: &str = "/disk/overlays";

/// Whether `name` is what a confined VMM calls a file of its own disk: one that leads nobody else
/// to another file.
#[must_use]
pub fn is_confined_disk(name: &Path) -> bool {
    let is_overlay =
        || name.parent() == Some(Path::new(CONFINED_OVERLAYS)) && name.file_name().is_some();
    name == Path::new(CONFINED_BASE) || is_overlay()
}

/// The root disk: a read-only base image and qcow2 overlays, of which the last takes the writes.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Disk {
    /// The raw base image.
    pub base: PathBuf,
    /// From the base upwards; never empty in a VM that runs.
    pub overlays: Vec<DiskOverlay>,
}

impl Disk {
    /// A disk with overlays named in order.
    #[must_use]
    pub fn new(base: PathBuf, overlays: impl IntoIterator<Item = PathBuf>) -> Self {
        let named = |(i, path)| DiskOverlay { path, node: format!("overlay{i}") };
        Self { base, overlays: overlays.into_iter().enumerate().map(named).collect() }
    }

    /// The overlay that takes the guest's writes.
    #[must_use]
    pub fn top(&self) -> Option<&DiskOverlay> {
        self.overlays.last()
    }
}

/// How the VM comes to life.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Start {
    /// Power on and boot.
    Boot,
    /// Wait for device state; see [`crate::Vm::load`].
    Load,
}

/// What a VMM is kept from, besides what keeps every process from others.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct Confinement {
    /// It has a share of memory, processors and threads, and no more.
    pub cgroup: Option<VmmCgroup>,
    /// No file that it writes can become larger, if it has a jail.
    pub file_max: Option<ByteCount>,
    /// It has a network namespace of its own, even without a jail.
    pub own_network: bool,
    /// It reaches nothing but its own files.
    pub jail: Option<Jail>,
}

/// A user and a group of a confined program that nobody else has.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct OwnUser {
    /// The user.
    pub user: u32,
    /// The group, where the daemon cannot give files away: they stay its own, and it lends them to
    /// this group. None: the group has the number of the user, and files become that user's.
    pub lent_to: Option<u32>,
}

/// What a VMM sees of the host: a root directory with its own files alone, in namespaces of its
/// own, without capabilities, and with few system calls.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct Jail {
    /// The user that it runs as, which nobody else has. None: that of the daemon, in a user
    /// namespace of its own.
    pub user: Option<u32>,
    /// See [`OwnUser::lent_to`].
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub lent_to: Option<u32>,
    /// A directory of its own with a link to each overlay of its disk, on the file system that the
    /// overlays are on.
    pub overlays: PathBuf,
    /// Where the overlays themselves are.
    pub overlay_store: PathBuf,
    /// A directory of its own where it saves device state.
    pub device_state: PathBuf,
}

impl Jail {
    /// How far it keeps a VMM from the host.
    #[must_use]
    pub fn isolation(&self) -> Isolation {
        if self.user.is_some() { Isolation::Full } else { Isolation::Namespaces }
    }

    /// Who it runs as, if that is not the daemon's user.
    #[must_use]
    pub fn own_user(&self) -> Option<OwnUser> {
        self.user.map(|user| OwnUser { user, lent_to: self.lent_to })
    }
}

/// A VM to be started.
#[derive(Debug, Clone)]
pub struct VmSpec {
    /// What executes the guest.
    pub accelerator: Accelerator,
    /// What the guest sees as its processor.
    pub cpu: CpuModel,
    /// Size of guest RAM.
    pub memory: ByteCount,
    /// Number of virtual CPUs.
    pub vcpus: u32,
    /// Kernel and initramfs. A VM that loads device state has no need of them: they are in its RAM.
    pub boot: BootSource,
    /// Where RAM lives.
    pub ram: RamBacking,
    /// The root disk, if the image has one.
    pub disk: Option<Disk>,
    /// It has a network device, whose frames go over [`crate::Vm::network_link`].
    pub network_device: bool,
    /// A directory of the VM's own, for sockets and logs. Its path must be short: socket paths are
    /// limited to 107 bytes.
    pub directory: PathBuf,
    /// Boot or load.
    pub start: Start,
    /// How long it may take to answer.
    pub deadlines: Deadlines,
    /// What its process is kept from.
    pub confinement: Confinement,
}

impl VmSpec {
    /// The Unix socket of the guest agent's port.
    #[must_use]
    pub fn agent_socket(&self) -> PathBuf {
        self.directory.join("agent.sock")
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_names_of_a_confined_disk_lead_nowhere_else() {
        for name in ["/disk/base", "/disk/overlays/o1.qcow2"] {
            assert!(is_confined_disk(Path::new(name)), "{name}");
        }
        let others =
            ["/disk/overlays", "/disk/overlays/..", "/disk/overlays/../x", "/disk/overlays/a/b"];
        for name in others.into_iter().chain(["disk/base", "overlays/o1.qcow2", "/etc/shadow", ""])
        {
            assert!(!is_confined_disk(Path::new(name)), "{name}");
        }
    }
}
