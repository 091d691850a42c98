//! Which accelerator works here. A `/dev/kvm` that opens proves nothing: there are hosts where it
//! creates VMs on which no Linux guest boots. So a guest is booted on it, once per boot of the
//! host.

use std::fs;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::{Duration, Instant};

use forkd_store::{MachineIdentity, private_directory};
use forkd_types::{Accelerator, ByteCount, CpuModel, Isolation, SandboxId};
use forkd_vmm::{Abilities, Driver, Jail, RamBacking, Start, VmSpec, VmmError, VmmTools, qemu};
use serde::{Deserialize, Serialize};

use super::agent_port::connect_agent;
use super::confine::Confiner;
use super::images::Images;
use super::isolation::{Users, isolated, jail, users_of};
use crate::background::blocking;
use crate::{AcceleratorChoice, EngineConfig, EngineError};

/// RAM of the guest that is booted.
const PROBE_MEMORY: ByteCount = ByteCount::from_mib(128);
const PROBE_VCPUS: u32 = 1;

/// Whether guests run on KVM, and how that is known.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct ProbeVerdict {
    /// A guest booted and its agent answered.
    pub works: bool,
    /// In words.
    pub reason: String,
    /// The boot of the host, kernel and QEMU that this is true for.
    valid_for: String,
}

/// The accelerator, the driver of its VMMs, and what device state made with it is bound to.
pub(crate) struct Chosen {
    pub(crate) accelerator: Accelerator,
    pub(crate) driver: Arc<dyn Driver>,
    pub(crate) identity: MachineIdentity,
    pub(crate) isolation: Isolation,
    pub(crate) users: Users,
}

/// Chooses as configured.
pub(super) async fn choose(config: &EngineConfig) -> Result<Chosen, EngineError> {
    let accelerator = match config.accelerator {
        AcceleratorChoice::Forced(accelerator) => accelerator,
        AcceleratorChoice::Auto | AcceleratorChoice::KvmOnly => {
            let verdict = probe_kvm(config).await;
            tracing::info!(works = verdict.works, reason = %verdict.reason, "KVM");
            match (verdict.works, config.accelerator) {
                (true, _) => Accelerator::Kvm,
                (false, AcceleratorChoice::KvmOnly) => {
                    return Err(EngineError::NoKvm { reason: verdict.reason });
                }
                (false, _) => Accelerator::Tcg,
            }
        }
    };
    let mut tools = tools(config, accelerator);
    let vmm_version = qemu::version(&tools.program)?;
    tools.abilities.emulates_in_parallel = qemu::emulates_in_parallel(&vmm_version);
    let (tools, isolation) = isolated(config, tools, accelerator)?;
    let identity = MachineIdentity {
        vmm_version,
        accelerator: accelerator.name().to_owned(),
        cpu_model: qemu::cpu_model(accelerator, CpuModel::Host).to_owned(),
    };
    let users = users_of(&tools);
    let driver = Arc::new(qemu::Qemu::new(tools));
    Ok(Chosen { accelerator, driver, identity, isolation, users })
}

/// The programs that a VMM is started with.
pub(super) fn tools(config: &EngineConfig, accelerator: Accelerator) -> VmmTools {
    let program = config.qemu.clone().unwrap_or_else(|| qemu::default_program(accelerator));
    let abilities = Abilities::default();
    VmmTools { program, shim: config.shim.clone(), launcher: None, abilities }
}

/// Boots an image on KVM, or repeats what was found since the host booted. Any image does: its root
/// disk is left out, and the agent then serves from the initramfs.
pub async fn probe_kvm(config: &EngineConfig) -> ProbeVerdict {
    let valid_for = validity(config);
    let cache = config.state_dir.join("kvm-probe.json");
    let cached = fs::read(&cache).ok().and_then(|bytes| serde_json::from_slice(&bytes).ok());
    if let Some(verdict) = cached.filter(|verdict: &ProbeVerdict| verdict.valid_for == valid_for) {
        return verdict;
    }
    let verdict = |works, reason: String| ProbeVerdict { works, reason, valid_for };
    if !Path::new("/dev/kvm").exists() {
        return verdict(false, "there is no /dev/kvm".to_owned());
    }
    let Some(image) = Images::of(config).list().into_iter().next_back() else {
        return verdict(false, "there is no image to boot".to_owned());
    };
    let verdict = match boot(config, &image.name).await {
        Ok(took) => verdict(true, format!("a guest answered after {} ms", took.as_millis())),
        Err(error) if is_about_kvm(&error) => {
            verdict(false, format!("/dev/kvm is there, but no guest boots on it: {error}"))
        }
        // Says nothing about KVM, so it is not kept.
        Err(error) => return verdict(false, format!("the probe could not be made: {error}")),
    };
    let kept = serde_json::to_vec(&verdict).map_err(std::io::Error::other);
    if let Err(error) = kept.and_then(|bytes| fs::write(&cache, bytes)) {
        tracing::debug!(%error, "the verdict on KVM is not kept");
    }
    verdict
}

/// Whether a guest failed, and not the way to start it.
fn is_about_kvm(error: &EngineError) -> bool {
    match error {
        EngineError::Guest(_) => true,
        EngineError::Vmm(error) => matches!(**error, VmmError::Gone { .. }),
        _ => false,
    }
}

fn validity(config: &EngineConfig) -> String {
    let read = |path: &str| fs::read_to_string(path).unwrap_or_default().trim().to_owned();
    let program = tools(config, Accelerator::Kvm).program;
    let version = qemu::version(&program).unwrap_or_default();
    format!("{} {version}", read("/proc/sys/kernel/random/boot_id"))
}

async fn boot(config: &EngineConfig, image: &str) -> Result<Duration, EngineError> {
    let image = Images::of(config).find(image)?;
    let directory = config.run_dir.join("kvm-probe");
    let ram = config.hot_dir.join("kvm-probe-ram");
    fs::remove_dir_all(&directory).ok();
    // `doctor` may be the first to need it.
    private_directory(&config.state_dir)?;
    private_directory(&directory)?;
    let kvm = Accelerator::Kvm;
    let (tools, isolation) = isolated(config, tools(config, kvm), kvm)?;
    let files = Jail {
        user: None,
        lent_to: None,
        overlays: directory.join("overlays"),
        overlay_store: directory.clone(),
        device_state: directory.join("state"),
    };
    let confiner = Confiner::open(config, isolation)?;
    let id = SandboxId::random();
    let limits = confiner.limits(None, PROBE_MEMORY, PROBE_VCPUS);
    let jail = jail(isolation, users_of(&tools).of_probe(), files);
    let confinement = confiner.confinement(&id, limits, None, jail);
    let spec = VmSpec {
        accelerator: kvm,
        cpu: CpuModel::Host,
        memory: PROBE_MEMORY,
        vcpus: PROBE_VCPUS,
        boot: image.boot,
        ram: RamBacking::Layers { placeholder: ram.clone() },
        disk: None,
        network_device: false,
        directory: directory.clone(),
        start: Start::Boot,
        deadlines: config.deadlines,
        confinement,
    };
    let driver = qemu::Qemu::new(tools);
    let booted = boot_and_greet(spec, driver, config.kvm_probe_deadline).await;
    for path in [directory, ram] {
        remove(&path);
    }
    booted
}

fn remove(path: &PathBuf) {
    let removed = if path.is_dir() { fs::remove_dir_all(path) } else { fs::remove_file(path) };
    if let Err(error) = removed {
        tracing::debug!(path = %path.display(), %error, "a leftover of the KVM probe");
    }
}

async fn boot_and_greet(
    spec: VmSpec,
    driver: qemu::Qemu,
    deadline: Duration,
) -> Result<Duration, EngineError> {
    let begun = Instant::now();
    let socket = spec.agent_socket();
    let vm = blocking(move || driver.start(spec)).await??;
    let agent = connect_agent(&socket).await?;
    let greeted = agent.hello(deadline).await;
    blocking(move || vm.kill()).await?;
    greeted?;
    Ok(begun.elapsed())
}
