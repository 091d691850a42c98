//! What a daemon needs to know before it starts.

use std::net::SocketAddr;
use std::path::PathBuf;

use forkd_engine::{AcceleratorChoice, EngineConfig, HostFeatures, Limits};

/// Where the daemon works, with what, and where it listens.
#[derive(Debug, Clone)]
pub struct ServeConfig {
    /// Durable files.
    pub state_dir: PathBuf,
    /// Hot memory layers; on tmpfs.
    pub hot_dir: PathBuf,
    /// Sockets and logs; gone after a reboot.
    pub run_dir: PathBuf,
    /// The Unix socket to listen on.
    pub socket: PathBuf,
    /// Images that templates are built from.
    pub image_dir: PathBuf,
    /// The VMM's preload library.
    pub shim: PathBuf,
    /// How guests run.
    pub accelerator: AcceleratorChoice,
    /// QEMU; by default the distribution's.
    pub qemu: Option<PathBuf>,
    /// How much there may be at once.
    pub limits: Limits,
    /// A loopback address to listen on besides.
    pub listen: Option<SocketAddr>,
}

impl ServeConfig {
    /// The engine's share.
    pub(crate) fn engine(&self) -> EngineConfig {
        EngineConfig {
            state_dir: self.state_dir.clone(),
            hot_dir: self.hot_dir.clone(),
            run_dir: self.run_dir.clone(),
            image_dir: self.image_dir.clone(),
            shim: self.shim.clone(),
            accelerator: self.accelerator,
            qemu: self.qemu.clone(),
            features: HostFeatures::ALL,
            kvm_probe_deadline: forkd_types::limit::KVM_PROBE_DEADLINE,
            deadlines: forkd_types::limit::Deadlines::default(),
            limits: self.limits,
            probe: None,
        }
    }
}
