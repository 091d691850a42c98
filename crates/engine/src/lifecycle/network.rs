//! Joining VMs to the network gateway: before they run, after they were taken over, and again
//! whenever another gateway process has taken the place of one that died.

use std::collections::BTreeSet;
use std::sync::Arc;

use forkd_netd_protocol::Notice;
use forkd_types::network::NetworkName;
use rustix::process::{PidfdFlags, pidfd_open};

use super::Lifecycle;
use crate::background::blocking;
use crate::network::{InheritedNetwork, VmLink};
use crate::sandboxes::{Machine, SandboxHandle};
use crate::{EngineError, SandboxOptions, describe};

impl Lifecycle {
    /// Joins a VM that does not run yet, if it has a network device. What it inherits of
    /// connections is reset.
    pub(super) async fn join_network(
        &self,
        handle: &SandboxHandle,
        machine: Machine,
        inherited: InheritedNetwork,
    ) -> Result<Machine, EngineError> {
        let machine = Self::find_link(handle, machine).await?;
        if let Some(link) = handle.link() {
            let options = handle.sandbox().options;
            self.networks.join(handle.id(), &options, inherited, link).await?;
            self.catch_up(handle, &options).await?;
        }
        Ok(machine)
    }

    /// Tells the gateway of memberships that have changed while a link with `options` was joined.
    async fn catch_up(
        &self,
        handle: &SandboxHandle,
        options: &SandboxOptions,
    ) -> Result<(), EngineError> {
        if handle.memberships(&options.owner) == options.memberships {
            return Ok(());
        }
        let _turn = self.networks.changing.lock().await;
        self.networks.set_networks(handle.id(), handle.memberships(&options.owner)).await
    }

    /// Makes a sandbox a member of exactly these networks of its owner's. The gateway is not told.
    pub(crate) fn settle_networks(
        &self,
        handle: &SandboxHandle,
        wanted: &BTreeSet<NetworkName>,
    ) -> Result<(), EngineError> {
        let owner = handle.owner();
        let has = handle.memberships(&owner);
        let others = || {
            let all = self.sandboxes.all().into_iter().filter(|it| it.id() != handle.id());
            all.flat_map(|it| it.memberships(&owner).into_values()).collect()
        };
        self.networks.private.settle(&owner, wanted, &has, others, |memberships| {
            handle.update(|sandbox| sandbox.options.memberships = memberships);
        })
    }

    /// Finds out by which link a VM's network device is reached, if it has one.
    pub(super) async fn find_link(
        handle: &SandboxHandle,
        mut machine: Machine,
    ) -> Result<Machine, EngineError> {
        let (machine, socket) = blocking(move || {
            let socket = machine.vm.network_link();
            (machine, socket)
        })
        .await?;
        if let Some(socket) = socket? {
            let vmm = pidfd_open(machine.vm.pid(), PidfdFlags::empty());
            let vmm =
                vmm.map_err(|errno| EngineError::Internal(format!("watch a VMM: {errno}")))?;
            handle.set_link(Arc::new(VmLink { socket, vmm }));
        }
        Ok(machine)
    }

    /// Hands each gateway process the links that it does not have, and takes what it tells, until
    /// the engine ends.
    pub(crate) async fn keep_networks(self: Arc<Self>) {
        let mut number = 0;
        loop {
            tokio::select! {
                next = self.networks.gateway_started(number) => {
                    number = next;
                    if let Err(error) = self.networks.hand_over().await {
                        let problem = describe(&error);
                        tracing::error!(%problem, "the network gateway has no secrets");
                    }
                    self.join_again().await;
                }
                Notice::Refused { sandbox, times } = self.networks.noticed() => {
                    if let Ok(handle) = self.sandboxes.get(&sandbox) {
                        handle.refused(times);
                    }
                }
                () = self.background.ending() => return,
            }
        }
    }

    async fn join_again(&self) {
        let joined = self.networks.joined().await.unwrap_or_default();
        for handle in self.sandboxes.all() {
            let Some(link) = handle.link().filter(|_| !joined.contains(handle.id())) else {
                continue;
            };
            let options = handle.sandbox().options;
            let again = match self.networks.join_again(handle.id(), &options, link).await {
                Ok(()) => self.catch_up(&handle, &options).await,
                failed => failed,
            };
            if let Err(error) = again {
                let problem = describe(&error);
                tracing::error!(sandbox = %handle.id(), %problem, "a sandbox has no network");
            }
        }
    }
}
