//! What starting a VM needs of the host.

use std::sync::Arc;

use forkd_artifact::Machine;
use forkd_store::{MachineIdentity, SnapshotRow, StoreFiles};
use forkd_types::limit::{self, Deadlines};
use forkd_types::{Accelerator, ByteCount, CpuModel, Isolation, SandboxId};
use forkd_vmm::{CgroupLimits, Confinement, Driver, Jail, qemu};
use tokio::sync::Semaphore;

use super::accelerator::Chosen;
use super::confine::Confiner;
use super::disk_tool::DiskTool;
use super::images::Images;
use super::isolation::{Users, jail};
use super::processor;
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
    pub(crate) confiner: Arc<Confiner>,
    pub(crate) disk_tool: Arc<DiskTool>,
    /// How far new VMMs are kept from this host.
    pub(crate) isolation: Isolation,
    /// Who they run as.
    pub(crate) users: Users,
    /// Bounds how many children load at the same time.
    pub(crate) starting: Semaphore,
}

/// This host as artifacts see it, for each processor that a guest may see.
pub(crate) struct ArtifactMachines(Vec<Machine>);

impl ArtifactMachines {
    /// For guests whose processor is, in QEMU's words, `cpu_model`.
    pub(crate) fn of(&self, cpu_model: &str) -> &Machine {
        let known = self.0.iter().find(|machine| machine.vmm.cpu_model == cpu_model);
        // Then it fits none, and is compared with what most have.
        known.unwrap_or(&self.0[0])
    }
}

impl Host {
    /// Finds out what there is.
    pub(crate) async fn open(config: &EngineConfig) -> Result<Self, EngineError> {
        Self::with(config, super::accelerator::choose(config).await?)
    }

    /// The host with this driver.
    pub(crate) fn with(config: &EngineConfig, chosen: Chosen) -> Result<Self, EngineError> {
        let confiner = Arc::new(Confiner::open(config, chosen.isolation)?);
        let disk_tool = DiskTool::new(config, chosen.isolation, Arc::clone(&confiner));
        Ok(Self {
            accelerator: chosen.accelerator,
            driver: chosen.driver,
            machine: chosen.identity,
            images: Images::of(config),
            deadlines: config.deadlines,
            confiner,
            disk_tool: Arc::new(disk_tool),
            isolation: chosen.isolation,
            users: chosen.users,
            starting: Semaphore::new(limit::CHILDREN_STARTING_MAX),
        })
    }

    /// What a new VMM is kept from, whose guest has a disk of so many bytes. It may be given a
    /// network namespace besides.
    pub(crate) fn confinement_of(
        &self,
        id: &SandboxId,
        limits: CgroupLimits,
        disk: Option<ByteCount>,
        files: &StoreFiles,
    ) -> Confinement {
        self.confiner.confinement(id, limits, disk, self.jail_of(id, files))
    }

    fn jail_of(&self, id: &SandboxId, files: &StoreFiles) -> Option<Jail> {
        let all = Jail {
            user: None,
            lent_to: None,
            overlays: files.overlay_links(id),
            overlay_store: files.overlays(),
            device_state: files.vm_directory(id),
        };
        jail(self.isolation, self.users.of_vmm(id), all)
    }

    /// What device state of a guest with this processor is bound to here.
    pub(crate) fn machine_with(&self, cpu: CpuModel) -> MachineIdentity {
        match cpu {
            // As it was found when the host was opened.
            CpuModel::Host => self.machine.clone(),
            CpuModel::V2 | CpuModel::V3 => MachineIdentity {
                cpu_model: qemu::cpu_model(self.accelerator, cpu).to_owned(),
                ..self.machine.clone()
            },
        }
    }

    /// What an artifact of this host needs of another, and the reverse.
    pub(crate) fn artifact_machine(&self, cpu: CpuModel) -> Machine {
        Machine {
            vmm: self.machine_with(cpu),
            machine_type: qemu::MACHINE.to_owned(),
            host_cpu: match (self.accelerator, cpu) {
                // An emulated processor is the same everywhere.
                (Accelerator::Tcg, _) => None,
                (Accelerator::Kvm, CpuModel::Host) => processor::describe(),
                // QEMU gives every guest on KVM the vendor of its host.
                (Accelerator::Kvm, CpuModel::V2 | CpuModel::V3) => processor::vendor(),
            },
            network_device: true,
            gateway_certificate: None,
        }
    }

    /// The same for each processor that a guest may see.
    pub(crate) fn artifact_machines(&self) -> ArtifactMachines {
        ArtifactMachines(CpuModel::ALL.iter().map(|cpu| self.artifact_machine(*cpu)).collect())
    }

    /// Device state fits only the machine that it was saved on.
    pub(crate) fn require_compatible(&self, row: &SnapshotRow) -> Result<(), EngineError> {
        let cpu = qemu::cpu_model_of(&row.manifest.machine.cpu_model);
        let here = self.machine_with(cpu);
        if row.manifest.machine == here {
            return Ok(());
        }
        Err(EngineError::Incompatible {
            tag: row.tag.clone(),
            made_with: row.manifest.machine.to_string(),
            running: here.to_string(),
        })
    }
}
