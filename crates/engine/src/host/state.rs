//! What starting a VM needs of the host.

use std::sync::Arc;

use forkd_store::{MachineIdentity, SnapshotRow};
use forkd_types::limit::{self, Deadlines};
use forkd_vmm::{Accelerator, Driver};
use tokio::sync::Semaphore;

use super::accelerator::Chosen;
use super::confine::Confiner;
use super::images::Images;
use crate::{EngineConfig, EngineError};

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
            starting: Semaphore::new(limit::CHILDREN_STARTING_MAX),
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
