//! Where the engine works and with what.

use std::path::PathBuf;
use std::str::FromStr;
use std::sync::Arc;
use std::time::Duration;

use forkd_capture::HostFeatures;
use forkd_types::limit::Deadlines;
use forkd_types::network::NetworkLeave;
use forkd_types::{Accelerator, ByteCount};

use crate::{BranchProbe, Limits};

/// What [`crate::Engine::open`] needs.
#[derive(Debug, Clone)]
pub struct EngineConfig {
    /// Durable files.
    pub state_dir: PathBuf,
    /// Hot memory layers; on tmpfs.
    pub hot_dir: PathBuf,
    /// Sockets and logs of VMs. Its path must be short: socket paths are limited to 107 bytes.
    pub run_dir: PathBuf,
    /// Images.
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
    /// trusts.
    pub upstream_ca: Option<PathBuf>,
    /// How far VMMs must be kept from this host.
    pub isolation: IsolationPolicy,
    /// What executes guests.
    pub accelerator: AcceleratorChoice,
    /// QEMU; by default the distribution's.
    pub qemu: Option<PathBuf>,
    /// What captures may use of the host.
    pub features: HostFeatures,
    /// For the guest that is booted to see whether KVM works, to answer:
    /// [`limit::KVM_PROBE_DEADLINE`] unless KVM itself runs in an emulated machine.
    ///
    /// [`limit::KVM_PROBE_DEADLINE`]: forkd_types::limit::KVM_PROBE_DEADLINE
    pub kvm_probe_deadline: Duration,
    /// How long VMMs and guests may take to answer.
    pub deadlines: Deadlines,
    /// How much there may be at once.
    pub limits: Limits,
    /// How much the hot copies of layers may take together, as far as they can be spared. None: as
    /// much as there is.
    pub hot_budget: Option<ByteCount>,
    /// Sees every branch; for tests.
    pub probe: Option<Arc<dyn BranchProbe>>,
}

/// How far VMMs must be kept from their host.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum IsolationPolicy {
    /// As far as this user can; where that is not at all, no VMM is started.
    Required,
    /// As far as this user can, and be it not at all.
    Best,
    /// Not at all.
    None,
}

/// The given word is no isolation policy.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[error("`{0}` is not an isolation policy: use `required`, `best` or `none`")]
pub struct UnknownIsolation(pub String);

impl FromStr for IsolationPolicy {
    type Err = UnknownIsolation;

    fn from_str(value: &str) -> Result<Self, UnknownIsolation> {
        match value {
            "required" => Ok(Self::Required),
            "best" => Ok(Self::Best),
            "none" => Ok(Self::None),
            other => Err(UnknownIsolation(other.chars().take(32).collect())),
        }
    }
}

/// How the accelerator is chosen.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum AcceleratorChoice {
    /// KVM if a guest boots on it, else emulation.
    Auto,
    /// KVM if a guest boots on it, else the engine does not open.
    KvmOnly,
    /// This one.
    Forced(Accelerator),
}

/// The given word is no accelerator.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[error("`{0}` is not an accelerator: use `auto`, `kvm` or `tcg`")]
pub struct UnknownAccelerator(pub String);

impl FromStr for AcceleratorChoice {
    type Err = UnknownAccelerator;

    fn from_str(value: &str) -> Result<Self, UnknownAccelerator> {
        match value {
            "auto" => Ok(Self::Auto),
            "kvm" => Ok(Self::Forced(Accelerator::Kvm)),
            "tcg" => Ok(Self::Forced(Accelerator::Tcg)),
            other => Err(UnknownAccelerator(other.chars().take(32).collect())),
        }
    }
}
