//! Private networks: what there is, and who is a member. Even an admin is told of its own alone.

use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;

use forkd_types::network::{Alias, NetworkName};
use forkd_types::{Owner, SandboxId};

use crate::background::blocking;
use crate::network::PrivateNetworks;
use crate::sandboxes::SandboxHandle;
use crate::{Engine, EngineError, Network, Sandbox};

impl Engine {
    /// The caller's networks, by name.
    #[must_use]
    pub fn networks(&self) -> Vec<Network> {
        let own = self.lifecycle.networks.private.list(self.caller.owner()).into_iter();
        own.map(|(name, network)| self.network_of(name, network.created_at_unix)).collect()
    }

    /// One of them.
    ///
    /// # Errors
    /// [`EngineError::UnknownNetwork`].
    pub fn network(&self, name: &NetworkName) -> Result<Network, EngineError> {
        let network = self.lifecycle.networks.private.get(self.caller.owner(), name)?;
        Ok(self.network_of(name.clone(), network.created_at_unix))
    }

    fn network_of(&self, name: NetworkName, created_at_unix: u64) -> Network {
        let mut members: Vec<Sandbox> =
            self.members_of(self.caller.owner(), &name).iter().map(|it| it.sandbox()).collect();
        members.sort_by_key(|sandbox| sandbox.options.memberships.get(&name).copied());
        Network { name, created_at_unix, members }
    }

    fn members_of(&self, owner: &Owner, name: &NetworkName) -> Vec<Arc<SandboxHandle>> {
        let mut all = self.all_sandboxes.all();
        all.retain(|it| it.memberships(owner).contains_key(name));
        all
    }

    /// Makes a network without members.
    ///
    /// # Errors
    /// [`EngineError::NetworkTaken`], [`EngineError::LimitReached`].
    pub async fn create_network(&self, name: NetworkName) -> Result<Network, EngineError> {
        let made = name.clone();
        self.with_networks(move |networks, owner| networks.create(&owner, &made)).await?;
        self.network(&name)
    }

    /// Removes a network: its members are members no longer.
    ///
    /// # Errors
    /// [`EngineError::UnknownNetwork`], and when the gateway does not answer: the next one that
    /// does knows it.
    pub async fn remove_network(&self, name: NetworkName) -> Result<(), EngineError> {
        let networks = &self.lifecycle.networks;
        let _turn = networks.changing.lock().await;
        let removed = name.clone();
        self.with_networks(move |networks, owner| networks.remove(&owner, &removed)).await?;
        let mut told = Ok(());
        for handle in self.members_of(self.caller.owner(), &name) {
            handle.update(|sandbox| {
                sandbox.options.memberships.remove(&name);
            });
            let now = self.tell_networks(&handle).await;
            told = told.and(now);
        }
        told
    }

    /// Makes a sandbox a member of one more network of its owner's, if it is none yet.
    ///
    /// # Errors
    /// As [`Self::set_networks`].
    pub async fn join_network(
        &self,
        id: &SandboxId,
        name: &NetworkName,
    ) -> Result<Sandbox, EngineError> {
        let change = |names: &mut BTreeSet<NetworkName>| {
            names.insert(name.clone());
        };
        self.change_networks(id, change).await
    }

    /// Makes a sandbox a member no longer. Its connections to other members are reset.
    ///
    /// # Errors
    /// [`EngineError::NotMember`], and as [`Self::set_networks`].
    pub async fn leave_network(
        &self,
        id: &SandboxId,
        name: &NetworkName,
    ) -> Result<Sandbox, EngineError> {
        let handle = self.visible(id)?;
        let owner = handle.owner();
        self.lifecycle.networks.private.get(&owner, name)?;
        if !handle.memberships(&owner).contains_key(name) {
            return Err(EngineError::NotMember { id: id.clone(), name: name.clone() });
        }
        let change = |names: &mut BTreeSet<NetworkName>| {
            names.remove(name);
        };
        self.change_networks(id, change).await
    }

    /// Makes a sandbox a member of exactly these networks of its owner's.
    ///
    /// # Errors
    /// [`EngineError::UnknownNetwork`], [`EngineError::LimitReached`],
    /// [`EngineError::NoNetworkDevice`], and when the gateway does not answer: the next one that
    /// does knows it.
    pub async fn set_networks(
        &self,
        id: &SandboxId,
        wanted: BTreeSet<NetworkName>,
    ) -> Result<Sandbox, EngineError> {
        self.change_networks(id, |names| *names = wanted).await
    }

    async fn change_networks(
        &self,
        id: &SandboxId,
        change: impl FnOnce(&mut BTreeSet<NetworkName>) + Send,
    ) -> Result<Sandbox, EngineError> {
        let handle = self.with_link(id)?;
        // One change after the other: the last one told is the one in force.
        let _turn = self.lifecycle.networks.changing.lock().await;
        let mut names = handle.memberships(&handle.owner()).into_keys().collect();
        change(&mut names);
        self.lifecycle.settle_networks(&handle, &names)?;
        self.tell_networks(&handle).await?;
        Ok(handle.sandbox())
    }

    /// Writes down a sandbox's memberships, and tells the gateway.
    async fn tell_networks(&self, handle: &SandboxHandle) -> Result<(), EngineError> {
        self.all_sandboxes.record_options(handle)?;
        let memberships: BTreeMap<NetworkName, Alias> = handle.memberships(&handle.owner());
        self.lifecycle.networks.set_networks(handle.id(), memberships).await
    }

    async fn with_networks<T: Send + 'static>(
        &self,
        work: impl FnOnce(&PrivateNetworks, Owner) -> Result<T, EngineError> + Send + 'static,
    ) -> Result<T, EngineError> {
        let networks = Arc::clone(&self.lifecycle.networks);
        let owner = self.caller.owner().clone();
        blocking(move || work(&networks.private, owner)).await?
    }
}
