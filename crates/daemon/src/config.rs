//! What a daemon needs to know before it starts.

use std::collections::BTreeMap;
use std::net::SocketAddr;
use std::path::PathBuf;
use std::str::FromStr;

use forkd_e2b::Domain;
use forkd_engine::{
    AcceleratorChoice, AtShutDown, EngineConfig, HostFeatures, IsolationPolicy, Limits,
};
use forkd_types::network::NetworkLeave;
use forkd_types::{ByteCount, TagName};

use crate::preview_url::PreviewUrl;

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
    /// Who may connect to it.
    pub socket_mode: SocketMode,
    /// Images that templates are built from.
    pub image_dir: PathBuf,
    /// The VMM's preload library.
    pub shim: PathBuf,
    /// The program that confines VMMs.
    pub launcher: PathBuf,
    /// The program whose verb `netd` is the network gateway.
    pub gateway: PathBuf,
    /// The most that any sandbox may reach.
    pub network: NetworkLeave,
    /// Certificates that servers of hosts with header rules may have besides those that the host
    /// trusts, PEM.
    pub upstream_ca: Option<PathBuf>,
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
    /// On loopback every process may do everything, whoever's it is.
    pub insecure_no_token: bool,
    /// Certificate chain and private key for TCP, PEM.
    pub tls: Option<TlsFiles>,
    /// Previews of sandboxes' ports, if there are to be any.
    pub previews: Option<PreviewConfig>,
    /// E2B's interfaces, if there are to be any.
    pub e2b: Option<E2bConfig>,
    /// Where requests are written down.
    pub audit_log: Option<PathBuf>,
    /// Sandboxes are removed when the daemon is told to end; otherwise they run on, and the next
    /// daemon takes them over.
    pub stop_sandboxes: bool,
}

/// Permission bits of the Unix socket: which users may connect. Each is an owner of its own, except
/// that the daemon's and root are one.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct SocketMode(u32);

impl Default for SocketMode {
    fn default() -> Self {
        Self(0o600)
    }
}

impl SocketMode {
    /// The bits.
    #[must_use]
    pub const fn bits(self) -> u32 {
        self.0
    }

    /// Whether users other than the daemon's and root may connect.
    #[must_use]
    pub const fn admits_others(self) -> bool {
        self.0 & 0o066 != 0
    }
}

/// The text is no mode of a socket.
#[derive(Debug, Clone, Copy, PartialEq, Eq, thiserror::Error)]
#[error("use 600 for the daemon's user, 660 for its group too, or 666 for all users")]
pub struct SocketModeError;

impl FromStr for SocketMode {
    type Err = SocketModeError;

    fn from_str(text: &str) -> Result<Self, SocketModeError> {
        match text.strip_prefix('0').unwrap_or(text) {
            "600" => Ok(Self(0o600)),
            "660" => Ok(Self(0o660)),
            "666" => Ok(Self(0o666)),
            _ => Err(SocketModeError),
        }
    }
}

/// What TLS needs.
#[derive(Debug, Clone)]
pub struct TlsFiles {
    /// The certificate chain.
    pub certificate: PathBuf,
    /// Its private key.
    pub key: PathBuf,
}

/// Where previews are listened for, and where clients find them.
#[derive(Debug, Clone)]
pub struct PreviewConfig {
    /// The address to listen on.
    pub listen: SocketAddr,
    /// Where clients find them; by default at `localhost` and the port that is listened on.
    pub url: Option<PreviewUrl>,
    /// Certificate chain and private key, PEM.
    pub tls: Option<TlsFiles>,
}

/// Where E2B's clients are listened for, and what they find.
#[derive(Debug, Clone)]
pub struct E2bConfig {
    /// The address to listen on: a loopback address unless there is TLS.
    pub listen: SocketAddr,
    /// Names of templates, and the snapshots that they stand for.
    pub templates: BTreeMap<String, TagName>,
    /// Names below it lead to this listener, with TLS, whoever does it; by default `localhost`
    /// and the port that is listened on, without.
    pub domain: Option<Domain>,
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
            gateway: self.gateway.clone(),
            network: self.network,
            upstream_ca: self.upstream_ca.clone(),
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
