//! The links of all sandboxes, as the engine sees them.

use std::collections::BTreeMap;
use std::fs::File;
use std::path::Path;
use std::sync::Arc;
use std::time::Duration;

use forkd_netd_protocol::{Attach, ClientError, Failure, Flow, GatewayUsage, Notice};
use forkd_store::SnapshotManifest;
use forkd_types::SandboxId;
use forkd_types::network::{Alias, NetworkLeave, NetworkName, NetworkPolicy};
use tokio::net::UnixStream;

use super::{
    Authority, CredentialFiles, Gateway, InheritedNetwork, PrivateNetworks, SecretStore,
    TrustedRoots, VmLink,
};
use crate::{EngineConfig, EngineError, SandboxOptions, describe};

/// For the gateway to tell a guest's connections around a branch. The branch does not wait longer.
const NOTE_DEADLINE: Duration = Duration::from_millis(250);

/// Joins sandboxes to the gateway.
#[derive(Debug)]
pub(crate) struct Networks {
    gateway: Arc<dyn Gateway>,
    pub(crate) authority: Authority,
    pub(crate) secrets: SecretStore,
    pub(crate) private: PrivateNetworks,
    roots: TrustedRoots,
    /// The most that any sandbox may reach.
    leave: NetworkLeave,
    /// Held while a policy, or what a sandbox is a member of, is replaced.
    pub(crate) changing: tokio::sync::Mutex<()>,
}

impl Networks {
    pub(crate) fn open(
        gateway: Arc<dyn Gateway>,
        config: &EngineConfig,
    ) -> Result<Self, EngineError> {
        Ok(Self {
            gateway,
            authority: Authority::open(&config.state_dir)?,
            secrets: SecretStore::open(&config.state_dir)?,
            private: PrivateNetworks::open(&config.state_dir)?,
            roots: TrustedRoots::with(config.upstream_ca.clone()),
            leave: config.network,
            changing: tokio::sync::Mutex::default(),
        })
    }

    /// Hands the gateway what header rules need.
    pub(crate) async fn hand_over(&self) -> Result<(), EngineError> {
        let open = |path: &Path| {
            let failed =
                |error| EngineError::Internal(format!("cannot read {}: {error}", path.display()));
            File::open(path).map_err(failed)
        };
        let nothing = Path::new("/dev/null");
        let secrets = self.secrets.file();
        let files = CredentialFiles {
            secrets: open(if secrets.exists() { secrets } else { nothing })?,
            key: open(self.authority.file())?,
            roots: self.roots.file()?,
        };
        self.gateway.set_credentials(Arc::new(files)).await.map_err(unavailable)
    }

    /// Lets a policy pass for a sandbox of this machine. Refuses what the operator does not permit,
    /// and header rules where programs do not trust the gateway: they would see certificates of
    /// somebody whom they do not know.
    pub(crate) fn permit(
        &self,
        policy: NetworkPolicy,
        machine: &SnapshotManifest,
    ) -> Result<NetworkPolicy, EngineError> {
        policy.check(self.leave)?;
        let trusted = machine.gateway_certificate.as_deref();
        match policy.rules.is_empty() || trusted == Some(self.authority.fingerprint()) {
            true => Ok(policy),
            false => Err(EngineError::GatewayNotTrusted { image: machine.image.clone() }),
        }
    }

    /// Joins the link of a VM that does not run yet. It takes the place of a VM that its sandbox
    /// had before.
    pub(crate) async fn join(
        &self,
        sandbox: &SandboxId,
        options: &SandboxOptions,
        inherited: InheritedNetwork,
        link: Arc<VmLink>,
    ) -> Result<(), EngineError> {
        let attach = self.beginning(sandbox, options, inherited);
        let mut attached = self.gateway.attach(attach.clone(), Arc::clone(&link)).await;
        if is_joined(&attached) {
            match self.gateway.detach(sandbox).await {
                // It has gone by itself, with its VMM.
                Ok(()) | Err(ClientError::Failed(Failure::NoLink(_))) => {}
                Err(error) => return Err(unavailable(error)),
            }
            attached = self.gateway.attach(attach, link).await;
        }
        attached.map_err(unavailable)
    }

    /// Joins the link of a VM that runs to a gateway that should not have it. Connections that an
    /// earlier gateway took with it are reset. If it has the link all the same, the sandbox was
    /// being started, and what it inherits is known there.
    pub(crate) async fn join_again(
        &self,
        sandbox: &SandboxId,
        options: &SandboxOptions,
        link: Arc<VmLink>,
    ) -> Result<(), EngineError> {
        let flows = self.gateway.left(sandbox);
        let inherited = InheritedNetwork { flows, ..InheritedNetwork::default() };
        let attach = self.beginning(sandbox, options, inherited);
        let attached = self.gateway.attach(attach, link).await;
        if is_joined(&attached) { Ok(()) } else { attached.map_err(unavailable) }
    }

    fn beginning(
        &self,
        sandbox: &SandboxId,
        options: &SandboxOptions,
        inherited: InheritedNetwork,
    ) -> Attach {
        Attach {
            sandbox: sandbox.clone(),
            name: options.member_name(),
            owner: options.owner.clone(),
            policy: options.policy(),
            leave: self.leave,
            networks: options.memberships.clone(),
            inherited: inherited.flows,
            parent: inherited.source,
        }
    }

    /// Waits for a gateway process after the one with this number. It may have no links.
    pub(crate) async fn gateway_started(&self, after: u64) -> u64 {
        self.gateway.started(after).await
    }

    /// Waits for something that the gateway tells unasked.
    pub(crate) async fn noticed(&self) -> Notice {
        self.gateway.noticed().await
    }

    /// How much goes through the gateway; nothing of one that does not answer soon.
    pub(crate) async fn usage(&self) -> Option<GatewayUsage> {
        tokio::time::timeout(NOTE_DEADLINE, self.gateway.usage()).await.ok()?.ok()
    }

    /// Waits until a gateway that nobody needs has ended, for a moment at most.
    pub(crate) async fn gateway_gone(&self) {
        self.gateway.gone().await;
    }

    /// The sandboxes whose links the gateway has.
    pub(crate) async fn joined(&self) -> Result<Vec<SandboxId>, EngineError> {
        self.gateway.links().await.map_err(unavailable)
    }

    /// Replaces what a sandbox may reach.
    pub(crate) async fn set_policy(
        &self,
        sandbox: &SandboxId,
        policy: &NetworkPolicy,
    ) -> Result<(), EngineError> {
        self.gateway.set_policy(sandbox, policy, self.leave).await.map_err(unavailable)
    }

    /// Replaces the private networks that a sandbox is a member of. One that is not joined yet is
    /// joined with them.
    pub(crate) async fn set_networks(
        &self,
        sandbox: &SandboxId,
        networks: BTreeMap<NetworkName, Alias>,
    ) -> Result<(), EngineError> {
        match self.gateway.set_networks(sandbox, networks).await {
            Err(ClientError::Failed(Failure::NoLink(_))) => Ok(()),
            told => told.map_err(unavailable),
        }
    }

    /// Connects to a port of a guest, on the address of its network device.
    pub(crate) async fn dial(
        &self,
        sandbox: &SandboxId,
        port: u16,
    ) -> Result<UnixStream, EngineError> {
        let id = sandbox.clone();
        self.gateway.dial(sandbox, port).await.map_err(|error| match error {
            ClientError::Failed(Failure::PortClosed(_)) => EngineError::PortClosed { id, port },
            ClientError::Failed(Failure::PortSilent(_)) => EngineError::PortSilent { id, port },
            ClientError::Failed(Failure::Full(_)) => EngineError::TooManyConnections { id },
            other => unavailable(other),
        })
    }

    /// The guest's connections, before it is paused. Frames for it wait from here on.
    pub(crate) async fn hold(&self, sandbox: &SandboxId) -> Vec<Flow> {
        self.noted(sandbox, self.gateway.hold(sandbox)).await
    }

    /// The guest's connections, now that it runs again. What waited is sent.
    pub(crate) async fn release(&self, sandbox: &SandboxId) -> Vec<Flow> {
        self.noted(sandbox, self.gateway.release(sandbox)).await
    }

    /// What the gateway tells in time, or what it has written down.
    async fn noted(
        &self,
        sandbox: &SandboxId,
        flows: impl Future<Output = Result<Vec<Flow>, ClientError>>,
    ) -> Vec<Flow> {
        match tokio::time::timeout(NOTE_DEADLINE, flows).await {
            Ok(Ok(flows)) => return flows,
            Ok(Err(error)) => {
                let problem = describe(&error);
                tracing::info!(%sandbox, %problem, "the gateway does not tell connections");
            }
            // The host is busy, or the gateway stands still.
            Err(_) => tracing::info!(%sandbox, "the gateway tells connections too late"),
        }
        self.gateway.left(sandbox)
    }
}

/// Whether the gateway has a link of that sandbox already.
const fn is_joined(attached: &Result<(), ClientError>) -> bool {
    matches!(attached, Err(ClientError::Failed(Failure::HasLink(_))))
}

fn unavailable(error: ClientError) -> EngineError {
    EngineError::NetworkUnavailable(Arc::new(error))
}

#[cfg(test)]
mod tests {
    use std::os::fd::OwnedFd;

    use forkd_netd_protocol::TcpFlow;

    use super::*;
    use crate::fake::FakeGateway;

    fn inherited() -> InheritedNetwork {
        let flow = TcpFlow {
            guest_port: 40_000,
            remote: [203, 0, 113, 7].into(),
            remote_port: 443,
            expected: 1,
            sent: 2,
        };
        InheritedNetwork { flows: vec![Flow::Tcp(flow)], ..InheritedNetwork::default() }
    }

    fn link() -> Arc<VmLink> {
        let (socket, vmm) = std::os::unix::net::UnixDatagram::pair().unwrap();
        Arc::new(VmLink { socket: OwnedFd::from(socket), vmm: OwnedFd::from(vmm) })
    }

    fn networks(gateway: &Arc<FakeGateway>) -> (Networks, tempfile::TempDir) {
        let folder = tempfile::tempdir().unwrap();
        let config = crate::fake::config(folder.path(), crate::Limits::default()).unwrap();
        std::fs::create_dir_all(&config.state_dir).unwrap();
        (Networks::open(Arc::clone(gateway) as _, &config).unwrap(), folder)
    }

    #[tokio::test]
    async fn a_gateway_that_is_met_again_keeps_what_a_started_sandbox_inherits() {
        let gateway = Arc::new(FakeGateway::default());
        let (networks, _folder) = networks(&gateway);
        let (id, options) = (SandboxId::random(), SandboxOptions::default());
        networks.join(&id, &options, inherited(), link()).await.unwrap();
        networks.join_again(&id, &options, link()).await.unwrap();
        assert_eq!(gateway.attached(&id).unwrap().inherited, inherited().flows);
    }

    #[tokio::test]
    async fn a_vm_that_takes_the_place_of_another_is_joined_in_its_place() {
        let gateway = Arc::new(FakeGateway::default());
        let (networks, _folder) = networks(&gateway);
        let (id, options) = (SandboxId::random(), SandboxOptions::default());
        networks.join(&id, &options, InheritedNetwork::default(), link()).await.unwrap();
        networks.join(&id, &options, inherited(), link()).await.unwrap();
        assert_eq!(gateway.attached(&id).unwrap().inherited, inherited().flows);
    }
}
