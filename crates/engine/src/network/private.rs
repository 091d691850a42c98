//! Private networks of all owners: which there are, and which aliases their members get.
//!
//! The networks are in a file of the state directory. Who is a member is written down with each
//! sandbox, so a membership lives as long as its sandbox does.
//!
//! Guarantees: a change is durable or there is none. No two members of a network have one alias.
//!
//! Does not do: tell the gateway.

use std::collections::{BTreeMap, BTreeSet};
use std::fs;
use std::io;
use std::path::{Path, PathBuf};
use std::sync::{Mutex, MutexGuard, PoisonError};
use std::time::{SystemTime, UNIX_EPOCH};

use forkd_store::{remove_unfinished, write_private_file};
use forkd_types::Owner;
use forkd_types::limit::{NETWORK_MEMBERS_MAX, NETWORKS_PER_OWNER_MAX, NETWORKS_PER_SANDBOX_MAX};
use forkd_types::network::{Alias, NetworkName};
use serde::{Deserialize, Serialize};

use crate::EngineError;

const FILE: &str = "networks";

/// A network without its members.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
pub(crate) struct PrivateNetwork {
    /// Which of its owner's it is: a part of its members' aliases.
    number: u16,
    pub(crate) created_at_unix: u64,
    /// The member that joined last. An alias that is free again is given to nobody for as long as
    /// there are others: programs keep addresses.
    #[serde(skip)]
    last: u16,
}

type Networks = BTreeMap<Owner, BTreeMap<NetworkName, PrivateNetwork>>;

/// Where networks are kept.
#[derive(Debug)]
pub(crate) struct PrivateNetworks {
    file: PathBuf,
    networks: Mutex<Networks>,
}

impl PrivateNetworks {
    /// Those in this state directory.
    pub(crate) fn open(state: &Path) -> Result<Self, EngineError> {
        let file = state.join(FILE);
        remove_unfinished(&file)?;
        let read = match fs::read(&file) {
            Ok(bytes) => serde_json::from_slice(&bytes).map_err(io::Error::from),
            Err(error) if error.kind() == io::ErrorKind::NotFound => Ok(Networks::default()),
            Err(error) => Err(error),
        };
        let failed =
            |error| EngineError::Internal(format!("cannot use {}: {error}", file.display()));
        let networks = Mutex::new(read.map_err(failed)?);
        Ok(Self { file, networks })
    }

    fn lock(&self) -> MutexGuard<'_, Networks> {
        self.networks.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// An owner's networks.
    pub(crate) fn list(&self, owner: &Owner) -> BTreeMap<NetworkName, PrivateNetwork> {
        self.lock().get(owner).cloned().unwrap_or_default()
    }

    /// One of an owner's networks.
    pub(crate) fn get(
        &self,
        owner: &Owner,
        name: &NetworkName,
    ) -> Result<PrivateNetwork, EngineError> {
        find(&mut self.lock(), owner, name).copied()
    }

    /// Makes a network without members.
    pub(crate) fn create(
        &self,
        owner: &Owner,
        name: &NetworkName,
    ) -> Result<PrivateNetwork, EngineError> {
        let mut networks = self.lock();
        let mut changed = networks.clone();
        let own = changed.entry(owner.clone()).or_default();
        if own.contains_key(name) {
            return Err(EngineError::NetworkTaken { name: name.clone() });
        }
        let taken: BTreeSet<u16> = own.values().map(|network| network.number).collect();
        let most = u16::try_from(NETWORKS_PER_OWNER_MAX).unwrap_or(u16::MAX);
        let Some(number) = (0..most).find(|number| !taken.contains(number)) else {
            return Err(full("networks", NETWORKS_PER_OWNER_MAX, own.len()));
        };
        let now = SystemTime::now().duration_since(UNIX_EPOCH).unwrap_or_default();
        let made = PrivateNetwork { number, created_at_unix: now.as_secs(), last: 0 };
        own.insert(name.clone(), made);
        self.write(&changed)?;
        *networks = changed;
        Ok(made)
    }

    /// Removes a network. From here on nobody joins it.
    pub(crate) fn remove(&self, owner: &Owner, name: &NetworkName) -> Result<(), EngineError> {
        let mut networks = self.lock();
        let mut changed = networks.clone();
        let removed = changed.get_mut(owner).and_then(|own| own.remove(name));
        removed.ok_or_else(|| EngineError::UnknownNetwork { name: name.clone() })?;
        changed.retain(|_, own| !own.is_empty());
        self.write(&changed)?;
        *networks = changed;
        Ok(())
    }

    /// Whether a sandbox of this owner may be a member of these.
    pub(crate) fn check(
        &self,
        owner: &Owner,
        wanted: &BTreeSet<NetworkName>,
    ) -> Result<(), EngineError> {
        if wanted.len() > NETWORKS_PER_SANDBOX_MAX {
            return Err(full("networks_per_sandbox", NETWORKS_PER_SANDBOX_MAX, 0));
        }
        let mut networks = self.lock();
        wanted.iter().try_for_each(|name| find(&mut networks, owner, name).map(drop))
    }

    /// What a sandbox that has memberships gets if it is to be a member of `wanted`: it keeps the
    /// aliases that it has. `taken` are those of the other members of its owner's networks, which
    /// nobody else changes until `done` has been told the result.
    pub(crate) fn settle(
        &self,
        owner: &Owner,
        wanted: &BTreeSet<NetworkName>,
        has: &BTreeMap<NetworkName, Alias>,
        taken: impl FnOnce() -> BTreeSet<Alias>,
        done: impl FnOnce(BTreeMap<NetworkName, Alias>),
    ) -> Result<(), EngineError> {
        self.check(owner, wanted)?;
        let mut networks = self.lock();
        let taken = taken();
        let mut settled = BTreeMap::new();
        for name in wanted {
            let network = find(&mut networks, owner, name)?;
            let kept = has.get(name).filter(|alias| alias.network() == network.number);
            let alias = match kept {
                Some(alias) => *alias,
                None => network.free(&taken)?,
            };
            settled.insert(name.clone(), alias);
        }
        done(settled);
        Ok(())
    }

    /// Of written memberships, those in networks that there are.
    pub(crate) fn retain(&self, owner: &Owner, memberships: &mut BTreeMap<NetworkName, Alias>) {
        let networks = self.lock();
        let own = networks.get(owner);
        memberships.retain(|name, alias| {
            let network = own.and_then(|own| own.get(name));
            network.is_some_and(|network| network.number == alias.network())
        });
    }

    fn write(&self, networks: &Networks) -> Result<(), EngineError> {
        let bytes = serde_json::to_vec(networks);
        let bytes = bytes.map_err(|error| EngineError::Internal(error.to_string()))?;
        Ok(write_private_file(&self.file, &bytes)?)
    }
}

impl PrivateNetwork {
    fn free(&mut self, taken: &BTreeSet<Alias>) -> Result<Alias, EngineError> {
        let most = u16::try_from(NETWORK_MEMBERS_MAX).unwrap_or(u16::MAX);
        let alias = |member: u16| Alias::new(self.number, member);
        let free = (self.last + 1..=most).chain(1..=self.last).filter_map(alias);
        let free = free.into_iter().find(|alias| !taken.contains(alias));
        let alias =
            free.ok_or_else(|| full("network_members", NETWORK_MEMBERS_MAX, NETWORK_MEMBERS_MAX))?;
        self.last = alias.member();
        Ok(alias)
    }
}

fn find<'a>(
    networks: &'a mut Networks,
    owner: &Owner,
    name: &NetworkName,
) -> Result<&'a mut PrivateNetwork, EngineError> {
    let own = networks.get_mut(owner).and_then(|own| own.get_mut(name));
    own.ok_or_else(|| EngineError::UnknownNetwork { name: name.clone() })
}

fn full(limit: &'static str, max: usize, in_use: usize) -> EngineError {
    let (max, in_use) = (max.to_string(), in_use.to_string());
    EngineError::LimitReached { limit, max, in_use, asked: "1".to_owned() }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn name(text: &str) -> NetworkName {
        text.parse().unwrap()
    }

    fn settled(
        networks: &PrivateNetworks,
        wanted: &[&str],
        has: &BTreeMap<NetworkName, Alias>,
        taken: &BTreeSet<Alias>,
    ) -> Result<BTreeMap<NetworkName, Alias>, EngineError> {
        let wanted = wanted.iter().map(|text| name(text)).collect();
        let mut settled = BTreeMap::new();
        let done = |given| settled = given;
        networks.settle(&Owner::default(), &wanted, has, || taken.clone(), done)?;
        Ok(settled)
    }

    #[test]
    fn networks_are_there_for_their_owner_after_the_next_start() {
        let folder = tempfile::tempdir().unwrap();
        let networks = PrivateNetworks::open(folder.path()).unwrap();
        let (one, other) = (Owner::default(), "other".parse().unwrap());
        let made = networks.create(&one, &name("team")).unwrap();
        networks.create(&one, &name("lab")).unwrap();
        networks.create(&other, &name("team")).unwrap();
        let taken = networks.create(&one, &name("team")).unwrap_err();
        assert!(matches!(taken, EngineError::NetworkTaken { .. }), "{taken}");
        networks.remove(&one, &name("lab")).unwrap();
        let unknown = networks.remove(&other, &name("lab")).unwrap_err();
        assert!(matches!(unknown, EngineError::UnknownNetwork { .. }), "{unknown}");
        let networks = PrivateNetworks::open(folder.path()).unwrap();
        assert_eq!(networks.list(&one), [(name("team"), made)].into());
        assert_eq!(networks.list(&other).len(), 1);
        let mut written: BTreeMap<_, _> = [("team", 0), ("lab", 1)]
            .map(|(text, number)| (name(text), Alias::new(number, 1).unwrap()))
            .into();
        networks.retain(&one, &mut written);
        assert_eq!(written.len(), 1, "a network that is gone has no members");
        fs::write(folder.path().join(FILE), "nonsense").unwrap();
        assert!(PrivateNetworks::open(folder.path()).is_err());
    }

    #[test]
    fn an_alias_stays_and_is_given_to_one_and_not_soon_again() {
        let folder = tempfile::tempdir().unwrap();
        let networks = PrivateNetworks::open(folder.path()).unwrap();
        networks.create(&Owner::default(), &name("team")).unwrap();
        networks.create(&Owner::default(), &name("lab")).unwrap();
        let (mut taken, none) = (BTreeSet::new(), BTreeMap::new());
        let first = settled(&networks, &["team"], &none, &taken).unwrap();
        taken.extend(first.values());
        let both = settled(&networks, &["team", "lab"], &first, &taken).unwrap();
        assert_eq!(both[&name("team")], first[&name("team")]);
        assert_ne!(both[&name("lab")].network(), both[&name("team")].network());
        let second = settled(&networks, &["team"], &none, &taken).unwrap();
        assert_ne!(second, first);
        let later = settled(&networks, &["team"], &none, &taken).unwrap();
        assert_ne!(later, second, "one that has left is remembered by others");
        let unknown = settled(&networks, &["team", "none"], &none, &taken).unwrap_err();
        assert!(matches!(unknown, EngineError::UnknownNetwork { .. }), "{unknown}");
    }

    #[test]
    fn limits_are_named() {
        let folder = tempfile::tempdir().unwrap();
        let networks = PrivateNetworks::open(folder.path()).unwrap();
        let owner = Owner::default();
        let names: Vec<String> = (0..NETWORKS_PER_OWNER_MAX).map(|n| format!("n{n}")).collect();
        for text in &names {
            networks.create(&owner, &name(text)).unwrap();
        }
        let error = networks.create(&owner, &name("one-more")).unwrap_err();
        assert!(error.to_string().contains("`networks` of 64"), "{error}");
        networks.create(&"other".parse().unwrap(), &name("n0")).unwrap();
        let many: Vec<&str> =
            names[..=NETWORKS_PER_SANDBOX_MAX].iter().map(String::as_str).collect();
        let (none, empty) = (BTreeMap::new(), BTreeSet::new());
        let error = settled(&networks, &many, &none, &empty).unwrap_err();
        assert!(error.to_string().contains("`networks_per_sandbox` of 16"), "{error}");
        let mut taken = BTreeSet::new();
        for _ in 0..NETWORK_MEMBERS_MAX {
            taken.extend(settled(&networks, &["n5"], &none, &taken).unwrap().into_values());
        }
        let error = settled(&networks, &["n5"], &none, &taken).unwrap_err();
        assert!(error.to_string().contains("`network_members` of 1000"), "{error}");
        let left = Alias::new(5, 500).unwrap();
        taken.remove(&left);
        assert_eq!(settled(&networks, &["n5"], &none, &taken).unwrap()[&name("n5")], left);
    }
}
