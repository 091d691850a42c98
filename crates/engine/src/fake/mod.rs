//! An engine on scripted VMs, for tests of the engine and of what is above it: no QEMU, no guest
//! kernel, and all the rest as it is. The guests say yes to what a start needs, and no more.
//!
//! Not in a program that is shipped.

mod gateway;
mod guest;

use std::fs;
use std::io;
use std::path::Path;
use std::sync::Arc;

use forkd_capture::HostFeatures;
use forkd_store::MachineIdentity;
use forkd_types::limit::{Deadlines, KVM_PROBE_DEADLINE};
use forkd_types::network::NetworkLeave;
use forkd_types::{Accelerator, Isolation};
use forkd_vmm::fake::FakeDriver;

pub(crate) use self::gateway::FakeGateway;
pub use self::gateway::Ports;
pub use self::guest::{Guests, serve};
use crate::facade::open_directories;
use crate::host::{Chosen, Host, Users};
use crate::{AcceleratorChoice, Engine, EngineConfig, EngineError, IsolationPolicy, Limits};

/// The one image that there is.
pub const IMAGE: &str = "plain";

/// The configuration of an engine whose directories are under `directory`, with one image.
///
/// # Errors
/// When the image cannot be written.
pub fn config(directory: &Path, limits: Limits) -> io::Result<EngineConfig> {
    let under = |name: &str| directory.join(name);
    let image = under("images").join(IMAGE);
    fs::create_dir_all(&image)?;
    let json = r#"{"name":"plain","content_hash":"h","kernel":"k","initramfs":"i",
        "command_line":"quiet"}"#;
    fs::write(image.join("image.json"), json)?;
    Ok(EngineConfig {
        state_dir: under("state"),
        hot_dir: under("hot"),
        run_dir: under("run"),
        image_dir: under("images"),
        shim: under("none"),
        launcher: under("none"),
        gateway: under("none"),
        network: NetworkLeave::default(),
        upstream_ca: None,
        isolation: IsolationPolicy::None,
        accelerator: AcceleratorChoice::Forced(Accelerator::Tcg),
        qemu: None,
        features: HostFeatures { write_protect: false, ..HostFeatures::ALL },
        kvm_probe_deadline: KVM_PROBE_DEADLINE,
        deadlines: Deadlines::default(),
        limits,
        hot_budget: None,
        probe: None,
    })
}

/// An engine whose VMs are `driver`'s, and whose guests listen on `ports`.
///
/// # Errors
/// See [`Engine::open`].
pub async fn open(
    config: &EngineConfig,
    driver: &Arc<FakeDriver>,
    ports: &Arc<Ports>,
) -> Result<Engine, EngineError> {
    open_on(config, "none", driver, ports).await
}

/// The same on a host whose processor guests see as `cpu_model`.
///
/// # Errors
/// See [`Engine::open`].
pub async fn open_on(
    config: &EngineConfig,
    cpu_model: &str,
    driver: &Arc<FakeDriver>,
    ports: &Arc<Ports>,
) -> Result<Engine, EngineError> {
    let files = open_directories(config)?;
    let identity = MachineIdentity {
        vmm_version: "fake".to_owned(),
        accelerator: "tcg".to_owned(),
        cpu_model: cpu_model.to_owned(),
    };
    let driver = Arc::clone(driver) as _;
    let (accelerator, isolation) = (Accelerator::Tcg, Isolation::None);
    let users = Users::DAEMONS;
    let chosen = Chosen { accelerator, driver, identity, isolation, users };
    let gateway = Arc::new(FakeGateway::with(Arc::clone(ports)));
    Engine::open_on(config.clone(), files, Host::with(config, chosen)?, gateway).await
}

/// An engine with VMs of its own, whose guests listen on `ports`.
///
/// # Errors
/// See [`Engine::open`].
pub async fn engine(config: &EngineConfig, ports: &Arc<Ports>) -> Result<Engine, EngineError> {
    let guests = Arc::new(Guests::default());
    open(config, &FakeDriver::new(move |port| serve(&guests, &port)), ports).await
}
