//! What starting a VM needs of the host.

use std::sync::Arc;

use forkd_store::{MachineIdentity, SnapshotRow, StoreFiles};
use forkd_types::limit::{self, Deadlines};
use forkd_types::{Isolation, SandboxId};
use forkd_vmm::{Accelerator, Confinement, Driver, Jail};
use tokio::sync::Semaphore;

use super::accelerator::Chosen;
use super::confine::Confiner;
use super::images::Images;
use super::isolation::vmm_user;
use crate::{EngineConfig, EngineError, SandboxOptions};

/// The host that VMs run on.
#[derive(Debug)]
pub(crate) struct Host {
    pub(crate) accelerator: Accelerator,
    pub(crate) driver: Arc<dyn Driver>,
    /// What device state made here is bound to.
    pub(crate) machine: MachineIdentity,
    pub(crate) images: Images,
    pub(crate) deadlines: Deadlines,
    pub(crate) confiner: Confiner,
    /// How far new VMMs are kept from this host.
    pub(crate) isolation: Isolation,
    /// Bounds how many children load at the same time.
    pub(crate) starting: Semaphore,
}

impl Host {
    /// Finds out what there is.
    pub(crate) async fn open(config: &EngineConfig) -> Result<Self, EngineError> {
        Self::with(config, super::accelerator::choose(config).await?)
    }

    /// The host with this driver.
    pub(crate) fn with(config: &EngineConfig, chosen: Chosen) -> Result<Self, EngineError> {
        Ok(Self {
            accelerator: chosen.accelerator,
            driver: chosen.driver,
            machine: chosen.identity,
            images: Images::new(config.image_dir.clone()),
            deadlines: config.deadlines,
            confiner: Confiner::open(&config.state_dir)?,
            isolation: chosen.isolation,
            starting: Semaphore::new(limit::CHILDREN_STARTING_MAX),
        })
    }

    /// What the VMM of a new sandbox is kept from.
    pub(crate) fn confinement_of(
        &self,
        id: &SandboxId,
        options: &SandboxOptions,
        files: &StoreFiles,
    ) -> Result<Confinement, EngineError> {
        let confinement = self.confiner.of(id, options)?;
        Ok(Confinement { jail: self.jail_of(id, files), ..confinement })
    }

    /// What a new VMM is confined to, if it is.
    pub(crate) fn jail_of(&self, id: &SandboxId, files: &StoreFiles) -> Option<Jail> {
        let user = match self.isolation {
            Isolation::None => return None,
            Isolation::Namespaces => None,
            Isolation::Full => Some(vmm_user(id)),
        };
        Some(Jail {
            user,
            overlays: files.overlay_links(id),
            overlay_store: files.overlays(),
            device_state: files.vm_directory(id),
        })
    }

    /// Device state fits only the machine that it was saved on.
    pub(crate) fn require_compatible(&self, row: &SnapshotRow) -> Result<(), EngineError> {
        if row.manifest.machine == self.machine {
            return Ok(());
        }
        Err(EngineError::Incompatible {
            tag: row.tag.clone(),
            made_with: row.manifest.machine.to_string(),
            running: self.machine.to_string(),
        })
    }
}
