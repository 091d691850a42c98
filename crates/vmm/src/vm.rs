//! The seam under the engine: what it asks of a VMM, whatever its kind.
//!
//! [`Driver`] controls one kind of VMM: it starts processes and takes them over. [`Vm`] is one such
//! process. The pause window is not here: its steps have an order, so they are types
//! ([`crate::PreparedPause`] and those that follow it).
//!
//! Guarantees, of every implementation: each call ends within the deadlines of its [`VmSpec`]; an
//! error names the VMM, what was asked and what came back; dropping a [`Vm`] ends its process.

use std::fmt;
use std::fs::File;
use std::os::fd::{BorrowedFd, OwnedFd};
use std::path::{Path, PathBuf};
use std::time::Duration;

use forkd_sys::uffd::Userfaultfd;
use forkd_types::ByteCount;
use rustix::process::Pid;

use crate::window_commands::{WindowAccess, WindowCommands};
use crate::{Disk, DiskOverlay, GuestRam, KeptOutput, MappedRun, PausePlan, VmSpec, VmmError};

/// Controls one kind of VMM.
pub trait Driver: fmt::Debug + Send + Sync {
    /// Starts a VMM and waits until it takes commands. With [`crate::Start::Boot`] the guest boots
    /// from then on; with [`crate::Start::Load`] nothing runs.
    ///
    /// # Errors
    /// When a file is missing, the program cannot be started, or it exits or stays silent.
    fn start(&self, spec: VmSpec) -> Result<Box<dyn Vm>, VmmError>;

    /// Takes over the VMM of process `pid`, which runs with `spec` apart from its overlays: those
    /// it is asked for. Guest RAM is at `ram_address` in it. What its earlier owner had begun is
    /// undone: a merge of its disk is cancelled, and its vCPUs are brought into `state`.
    ///
    /// # Errors
    /// When the process is gone, does not answer, or runs a machine that cannot be taken over. The
    /// process is left alone then.
    fn adopt(
        &self,
        spec: VmSpec,
        pid: Pid,
        ram_address: u64,
        state: RunState,
    ) -> Result<Box<dyn Vm>, VmmError>;

    /// The processes of this kind that were started with directories below `run_dir`, whoever
    /// started them.
    fn processes_in(&self, run_dir: &Path) -> Vec<Pid>;
}

/// How far the identity is that waits at the guest agent's port of a child.
///
/// A VMM does not read the port before it lets the vCPUs run, and a busy host may give them a
/// processor first. So none goes before it has: then the port's interrupt comes before the first
/// instruction. It comes to the first vCPU. The others, to which no interrupt comes, go when the
/// guest has taken the identity.
pub struct Greeting<'a> {
    /// The VMM has read it.
    pub is_read: &'a dyn Fn() -> bool,
    /// The guest has answered, or will not.
    pub is_answered: &'a dyn Fn() -> bool,
}

/// Whether vCPUs run.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum RunState {
    /// They run.
    Running,
    /// They stand still.
    Paused,
}

/// One VM: its VMM process and everything that controls it. Dropping it ends the process.
pub trait Vm: fmt::Debug + Send {
    /// What the VM was started from. Its disk has the overlays that are in use.
    fn spec(&self) -> &VmSpec;

    /// The VMM's process id.
    fn pid(&self) -> Pid;

    /// Where guest RAM is.
    fn ram(&self) -> GuestRam;

    /// Opens the page tables of the process that has guest RAM.
    ///
    /// # Errors
    /// When the host does not permit it, or the process has ended.
    fn page_tables(&mut self) -> Result<File, VmmError>;

    /// Creates a userfaultfd over the VMM's address space.
    ///
    /// # Errors
    /// When the host does not permit it, or lacks write protection of shared memory.
    fn userfaultfd(&mut self) -> Result<Userfaultfd, VmmError>;

    /// The far end of the network device, if the VM has one: a datagram socket on which each
    /// datagram is one Ethernet frame. It is the same each time, and lives as long as the VMM. What
    /// nobody reads fills a buffer, and then the guest's device waits.
    ///
    /// # Errors
    /// When the VMM is gone, or does not give it.
    fn network_link(&mut self) -> Result<Option<OwnedFd>, VmmError>;

    /// Puts the frozen overlays at `paths`, the lowest first, below the blank one of a VM that was
    /// started with [`crate::Start::Load`] and with that one alone.
    ///
    /// # Errors
    /// When the VMM cannot open a file, or has no disk. The VM is of no use then.
    fn put_overlays_below(&mut self, paths: Vec<PathBuf>) -> Result<(), VmmError>;

    /// Gives a VM started with [`crate::Start::Load`] its memory.
    ///
    /// # Errors
    /// When a layer cannot be mapped. The VM is of no use then.
    fn map(&mut self, runs: &[MappedRun<'_>]) -> Result<(), VmmError>;

    /// Gives a VM that has its memory the device state that belongs to it. It does not run yet.
    ///
    /// # Errors
    /// When the VMM refuses the device state (another version, another device list). The VM is of
    /// no use then.
    fn load(&mut self, device_state: &File) -> Result<(), VmmError>;

    /// Lets the vCPUs run.
    ///
    /// # Errors
    /// When the VMM refuses or does not answer.
    fn resume(&mut self) -> Result<(), VmmError>;

    /// Lets the vCPUs of a VM that was loaded run for the first time, each when `greeting` says
    /// so. Gives whether it was so; what has not come true after
    /// [`forkd_types::limit::VCPUS_HELD_MAX`] is waited for no longer, and the vCPUs run all
    /// the same.
    ///
    /// # Errors
    /// When the VMM refuses or does not answer, or cannot hold the vCPUs.
    fn resume_when(&mut self, greeting: &Greeting<'_>) -> Result<bool, VmmError>;

    /// Stops the vCPUs until [`Vm::resume`].
    ///
    /// # Errors
    /// When the VMM refuses or does not answer.
    fn pause(&mut self) -> Result<(), VmmError>;

    /// Makes a blank overlay known to the VMM, for [`PausePlan::overlay`]. The guest runs on.
    ///
    /// # Errors
    /// When the VMM cannot open the file.
    fn add_overlay(&mut self, path: PathBuf) -> Result<DiskOverlay, VmmError>;

    /// Forgets an overlay that was added and is not in use.
    ///
    /// # Errors
    /// When the VMM refuses or does not answer.
    fn remove_overlay(&mut self, overlay: &DiskOverlay) -> Result<(), VmmError>;

    /// Lets the VMM close the overlays below its top one for writing, and makes sure that nobody
    /// has them open so. Those that this has succeeded for are not looked at again. The guest
    /// runs on.
    ///
    /// # Errors
    /// [`VmmError::StillWritten`]; when the VMM refuses or does not answer. The disk is as before.
    fn close_frozen_overlays(&mut self) -> Result<(), VmmError>;

    /// Fills the blank overlay at `path` with what the frozen overlays hold and puts it in their
    /// place. The guest runs on. Returns whether there was anything to do.
    ///
    /// # Errors
    /// When the VMM refuses or does not finish; the disk is as before then, and `path` not in use.
    fn flatten_disk(&mut self, path: PathBuf) -> Result<bool, VmmError>;

    /// From now on no file that a confined VMM writes can become larger, up to what it was started
    /// with ([`crate::Confinement::file_max`]). Does nothing to one that is not confined.
    ///
    /// # Errors
    /// When the system does not permit it.
    fn limit_files(&mut self, most: ByteCount) -> Result<(), VmmError>;

    /// Whether every command was answered and the vCPUs are where they were told to be.
    fn is_in_sync(&self) -> bool;

    /// Waits for the replies that a silent VMM owes, finds out what became of its disk, and makes
    /// the guest run. Does nothing where [`Vm::is_in_sync`].
    ///
    /// # Errors
    /// When a reply does not come within `deadline`: it is still owed then. When the VMM refuses to
    /// run the guest.
    fn resync(&mut self, deadline: Duration) -> Result<(), VmmError>;

    /// Loads the commands of the pause window, so that the next pause with the same plan has
    /// nothing to load. They stay loaded until then. The guest runs on.
    ///
    /// # Errors
    /// When the VMM is gone, or still silent.
    fn load_pause(&mut self, plan: PausePlan) -> Result<(), VmmError>;

    /// The commands of the pause window, which its types alone can ask for.
    fn window(&mut self, access: WindowAccess) -> &mut dyn WindowCommands;

    /// Becomes readable when the VMM exits.
    fn exit_fd(&self) -> BorrowedFd<'_>;

    /// Whether the VMM has exited.
    fn has_exited(&self) -> bool;

    /// The exit of the VMM as an error, if it has exited or exits at once.
    fn exit_error(&mut self, during: &str) -> Option<VmmError>;

    /// The memory limit that the kernel has killed the VMM for, if so.
    fn memory_limit_reached(&self) -> Option<ByteCount>;

    /// How the VMM exited and what it wrote last.
    fn last_words(&mut self) -> String;

    /// What is kept of the guest's console, up to now.
    ///
    /// # Errors
    /// When the file with it cannot be read.
    fn console(&self) -> Result<KeptOutput, VmmError>;

    /// Kills the VMM. The guest gets no notice: its disk is an overlay that is thrown away or
    /// frozen, so there is nothing to shut down cleanly.
    fn kill(self: Box<Self>);

    /// Lets the VM live on without this process: nothing controls it until it is adopted.
    fn release(self: Box<Self>);
}

impl dyn Vm + '_ {
    /// The overlay that takes the guest's writes.
    #[must_use]
    pub fn top_overlay(&self) -> Option<&DiskOverlay> {
        self.spec().disk.as_ref().and_then(Disk::top)
    }
}
