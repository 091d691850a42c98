//! A gateway that knows which links it has. What its guests listen on, a test says.

use std::collections::{BTreeMap, HashMap};
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use async_trait::async_trait;
use forkd_netd_protocol::{Attach, ClientError, Failure, Flow, GatewayUsage, Notice};
use forkd_types::SandboxId;
use forkd_types::network::{Alias, NetworkLeave, NetworkName, NetworkPolicy};
use tokio::net::UnixStream;
use tokio::sync::mpsc;

use crate::network::{CredentialFiles, Gateway, VmLink};

/// What is behind the ports of all guests: nothing, unless a test says otherwise. And the private
/// networks that they are members of, as their gateway was told.
#[derive(Debug, Default)]
pub struct Ports {
    tries: AtomicU64,
    behind: Mutex<BTreeMap<u16, Behind>>,
    networks: Mutex<BTreeMap<SandboxId, BTreeMap<NetworkName, Alias>>>,
}

/// What is behind a port.
#[derive(Debug)]
enum Behind {
    Server(mpsc::UnboundedSender<UnixStream>),
    Failure(Failure),
}

impl Ports {
    /// From now on something listens there. Gives its connections.
    pub fn listen(&self, port: u16) -> mpsc::UnboundedReceiver<UnixStream> {
        let (server, connections) = mpsc::unbounded_channel();
        self.put(port, Behind::Server(server));
        connections
    }

    /// From now on a connection to this port fails so.
    pub fn fail(&self, port: u16, failure: Failure) {
        self.put(port, Behind::Failure(failure));
    }

    /// How many connections were tried.
    #[must_use]
    pub fn tries(&self) -> u64 {
        self.tries.load(Ordering::Relaxed)
    }

    /// The private networks of a guest.
    #[must_use]
    pub fn networks(&self, sandbox: &SandboxId) -> BTreeMap<NetworkName, Alias> {
        let networks = self.networks.lock().unwrap_or_else(PoisonError::into_inner);
        networks.get(sandbox).cloned().unwrap_or_default()
    }

    fn set_networks(&self, sandbox: SandboxId, networks: BTreeMap<NetworkName, Alias>) {
        self.networks.lock().unwrap_or_else(PoisonError::into_inner).insert(sandbox, networks);
    }

    fn put(&self, port: u16, behind: Behind) {
        self.behind.lock().unwrap_or_else(PoisonError::into_inner).insert(port, behind);
    }

    fn connect(&self, port: u16) -> Result<UnixStream, ClientError> {
        self.tries.fetch_add(1, Ordering::Relaxed);
        let ports = self.behind.lock().unwrap_or_else(PoisonError::into_inner);
        let server = match ports.get(&port) {
            Some(Behind::Server(server)) => server,
            Some(Behind::Failure(failure)) => return Err(failure.clone().into()),
            None => return Err(Failure::PortClosed(port).into()),
        };
        let (near, far) = UnixStream::pair().map_err(|error| ClientError::Lost(error.into()))?;
        // A server that has gone listens no more.
        server.send(far).map_err(|_| Failure::PortClosed(port))?;
        Ok(near)
    }
}

/// The gateway.
#[derive(Debug, Default)]
pub(crate) struct FakeGateway {
    links: Mutex<HashMap<SandboxId, Attach>>,
    ports: Arc<Ports>,
}

impl FakeGateway {
    /// One whose guests listen on these.
    pub(crate) fn with(ports: Arc<Ports>) -> Self {
        Self { links: Mutex::default(), ports }
    }

    fn links(&self) -> MutexGuard<'_, HashMap<SandboxId, Attach>> {
        self.links.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// What the link of a sandbox began with.
    #[cfg(test)]
    pub(crate) fn attached(&self, sandbox: &SandboxId) -> Option<Attach> {
        self.links().get(sandbox).cloned()
    }
}

#[async_trait]
impl Gateway for FakeGateway {
    async fn started(&self, _: u64) -> u64 {
        std::future::pending().await
    }

    async fn noticed(&self) -> Notice {
        std::future::pending().await
    }

    async fn usage(&self) -> Result<GatewayUsage, ClientError> {
        Ok(GatewayUsage::default())
    }

    async fn gone(&self) {}

    fn left(&self, _: &SandboxId) -> Vec<Flow> {
        Vec::new()
    }

    async fn links(&self) -> Result<Vec<SandboxId>, ClientError> {
        Ok(self.links().keys().cloned().collect())
    }

    async fn attach(&self, attach: Attach, _: Arc<VmLink>) -> Result<(), ClientError> {
        let mut links = self.links();
        if links.contains_key(&attach.sandbox) {
            return Err(Failure::HasLink(attach.sandbox).into());
        }
        self.ports.set_networks(attach.sandbox.clone(), attach.networks.clone());
        links.insert(attach.sandbox.clone(), attach);
        Ok(())
    }

    async fn set_credentials(&self, _: Arc<CredentialFiles>) -> Result<(), ClientError> {
        Ok(())
    }

    async fn detach(&self, sandbox: &SandboxId) -> Result<(), ClientError> {
        let removed = self.links().remove(sandbox);
        removed.map(drop).ok_or_else(|| Failure::NoLink(sandbox.clone()).into())
    }

    async fn set_policy(
        &self,
        _: &SandboxId,
        _: &NetworkPolicy,
        _: NetworkLeave,
    ) -> Result<(), ClientError> {
        Ok(())
    }

    async fn set_networks(
        &self,
        sandbox: &SandboxId,
        networks: BTreeMap<NetworkName, Alias>,
    ) -> Result<(), ClientError> {
        if !self.links().contains_key(sandbox) {
            return Err(Failure::NoLink(sandbox.clone()).into());
        }
        self.ports.set_networks(sandbox.clone(), networks);
        Ok(())
    }

    async fn dial(&self, _: &SandboxId, port: u16) -> Result<UnixStream, ClientError> {
        self.ports.connect(port)
    }

    async fn hold(&self, _: &SandboxId) -> Result<Vec<Flow>, ClientError> {
        Ok(Vec::new())
    }

    async fn release(&self, _: &SandboxId) -> Result<Vec<Flow>, ClientError> {
        Ok(Vec::new())
    }
}
