//! What happens to a VM in the pause window, as single commands. Their order is the business of
//! the types in `pause_window`.

use std::path::PathBuf;
use std::time::Duration;

use crate::{DiskOverlay, VmmError};

/// What will be done while the VM is paused.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct PausePlan {
    /// Where the device state goes. The VMM writes it: it should be on tmpfs.
    pub device_state: PathBuf,
    /// The overlay that takes the guest's writes from then on; see [`crate::Vm::add_overlay`]. None
    /// for a VM without disk.
    pub overlay: Option<DiskOverlay>,
}

/// Proof that the types of the pause window ask. Nobody outside this crate can make one.
#[derive(Debug)]
pub struct WindowAccess(());

impl WindowAccess {
    /// For the types of the pause window alone.
    pub(crate) const fn grant() -> Self {
        Self(())
    }
}

/// The commands of the pause window, loaded by [`crate::Vm::load_pause`], each given at most once
/// in a window, in the order of the types that give them.
pub trait WindowCommands {
    /// Stops the vCPUs and drains the disks.
    ///
    /// # Errors
    /// When the VMM refuses or does not answer.
    fn stop(&mut self) -> Result<(), VmmError>;

    /// Writes everything that is not RAM to the planned file.
    ///
    /// # Errors
    /// When the VMM refuses (no space for the file) or does not answer.
    fn save_device_state(&mut self) -> Result<(), VmmError>;

    /// Puts the planned overlay on top of the disk; the one below never changes again. Does nothing
    /// where none is planned.
    ///
    /// # Errors
    /// When the VMM refuses: the disk is as before then. When it does not answer: which overlay is
    /// on top is known after [`crate::Vm::resync`].
    fn freeze_disk(&mut self) -> Result<(), VmmError>;

    /// Lets the vCPUs run. Gives the time for which they stood still, as the VMM says.
    ///
    /// # Errors
    /// When the VMM refuses or does not answer.
    fn resume(&mut self) -> Result<Option<Duration>, VmmError>;

    /// The window was left early: lets the vCPUs run, unless the VMM owes a reply.
    fn resume_early(&mut self);

    /// Takes back what is loaded and was not used.
    fn unload(&mut self);

    /// Kills the VMM.
    fn kill(&mut self);
}
