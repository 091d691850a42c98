//! What a daemon needs to know before it starts.

use std::net::SocketAddr;
use std::path::PathBuf;

use forkd_engine::{
    AcceleratorChoice, AtShutDown, EngineConfig, HostFeatures, IsolationPolicy, Limits,
};
use forkd_types::ByteCount;

/// Where the daemon works, with what, and where it listens.
#[derive(Debug, Clone)]
pub struct ServeConfig {
    /// Durable files.
    pub state_dir: PathBuf,
    /// Hot memory layers; on tmpfs.
    pub hot_dir: PathBuf,
    /// What hot memory layers may take, as far as they can be spared.
    pub hot_budget: Option<ByteCount>,
    /// Sockets and logs; gone after a reboot.
    pub run_dir: PathBuf,
    /// The Unix socket to listen on.
    pub socket: PathBuf,
    /// Images that templates are built from.
    pub image_dir: PathBuf,
    /// The VMM's preload library.
    pub shim: PathBuf,
    /// The program that confines VMMs.
    pub launcher: PathBuf,
    /// How far VMMs must be kept from this host.
    pub isolation: IsolationPolicy,
    /// How guests run.
    pub accelerator: AcceleratorChoice,
    /// QEMU; by default the distribution's.
    pub qemu: Option<PathBuf>,
    /// How much there may be at once.
    pub limits: Limits,
    /// An address to listen on besides: a loopback address unless there is a token file.
    pub listen: Option<SocketAddr>,
    /// Tokens that requests over TCP must have.
    pub token_file: Option<PathBuf>,
    /// Certificate chain and private key for TCP, PEM.
    pub tls: Option<TlsFiles>,
    /// Where requests are written down.
    pub audit_log: Option<PathBuf>,
    /// Sandboxes are removed when the daemon is told to end; otherwise they run on, and the next
    /// daemon takes them over.
    pub stop_sandboxes: bool,
}

/// What TLS needs.
#[derive(Debug, Clone)]
pub struct TlsFiles {
    /// The certificate chain.
    pub certificate: PathBuf,
    /// Its private key.
    pub key: PathBuf,
}

impl ServeConfig {
    /// What becomes of sandboxes at the end.
    pub(crate) fn at_shut_down(&self) -> AtShutDown {
        if self.stop_sandboxes { AtShutDown::Remove } else { AtShutDown::Leave }
    }

    /// The engine's share.
    pub(crate) fn engine(&self) -> EngineConfig {
        EngineConfig {
            state_dir: self.state_dir.clone(),
            hot_dir: self.hot_dir.clone(),
            run_dir: self.run_dir.clone(),
            image_dir: self.image_dir.clone(),
            shim: self.shim.clone(),
            launcher: self.launcher.clone(),
            isolation: self.isolation,
            accelerator: self.accelerator,
            qemu: self.qemu.clone(),
            features: HostFeatures::ALL,
            kvm_probe_deadline: forkd_types::limit::KVM_PROBE_DEADLINE,
            deadlines: forkd_types::limit::Deadlines::default(),
            limits: self.limits,
            hot_budget: self.hot_budget,
            probe: None,
        }
    }
}
