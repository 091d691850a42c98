//! Private networks: who is a member of which, what members are called, and how the link of one
//! reaches the link of another.
//!
//! ```text
//! A's guest -- stack of A's link -- pair of sockets -- stack of B's link -- B's guest
//!                     \--------- knock ----------^
//! ```
//!
//! Guarantees: a link knows the members of its own networks and nobody else. To be a member is the
//! permission. A connection that is reset on one side is reset on the other.
//!
//! Does not do: number networks or members. The daemon does, so that the next gateway has the same.

use std::collections::{BTreeMap, HashMap};
use std::io;
use std::net::{IpAddr, SocketAddr};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use forkd_types::network::{Alias, DomainName, NetworkName, PRIVATE_DOMAIN};
use forkd_types::{Owner, SandboxId};
use tokio::sync::{mpsc, oneshot};
use tokio::time::timeout;

use crate::host::Stream;
use crate::limit::{DIAL_DEADLINE, KNOCKS_QUEUED};

/// The members of all networks.
#[derive(Debug, Default)]
pub(crate) struct Directory(Mutex<HashMap<Key, Vec<Member>>>);

type Key = (Owner, NetworkName);

#[derive(Debug, Clone)]
struct Member {
    sandbox: SandboxId,
    name: Option<String>,
    alias: Alias,
    door: mpsc::Sender<Knock>,
}

/// A member wants to connect to a port of another one.
#[derive(Debug)]
pub(crate) struct Knock {
    pub(crate) network: NetworkName,
    /// The alias and the port of the one that connects.
    pub(crate) from: SocketAddr,
    pub(crate) port: u16,
    pub(crate) reply: oneshot::Sender<io::Result<Stream>>,
}

impl Directory {
    fn members(&self) -> MutexGuard<'_, HashMap<Key, Vec<Member>>> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

/// What one link knows of private networks.
#[derive(Debug, Clone)]
pub(crate) struct Members {
    owner: Owner,
    own: Arc<BTreeMap<NetworkName, Alias>>,
    directory: Arc<Directory>,
}

impl Members {
    /// The network of which only members have this address.
    pub(crate) fn network_of(&self, address: IpAddr) -> Option<&NetworkName> {
        let number = Alias::of(address)?.network();
        self.own.iter().find(|(_, alias)| alias.network() == number).map(|(name, _)| name)
    }

    /// Under which address members of that network know this one, and its port.
    pub(crate) fn own_end(&self, network: &NetworkName, remote: IpAddr, port: u16) -> SocketAddr {
        let alias = self.own.get(network).map_or(remote, |alias| alias.like(remote));
        SocketAddr::new(alias, port)
    }

    /// How to knock at the member that has this address.
    pub(crate) fn door(&self, address: IpAddr) -> Option<mpsc::Sender<Knock>> {
        self.find(address, |member| member.door.clone())
    }

    /// What the member is called that has this address.
    pub(crate) fn host_name(&self, address: IpAddr) -> Option<String> {
        let network = self.network_of(address)?;
        self.find(address, |member| network.host_name(member.sandbox.as_str()))
    }

    fn find<T>(&self, address: IpAddr, tell: impl Fn(&Member) -> T) -> Option<T> {
        let (alias, network) = (Alias::of(address)?, self.network_of(address)?);
        let members = self.directory.members();
        let members = members.get(&(self.owner.clone(), network.clone()))?;
        members.iter().find(|member| member.alias == alias).map(tell)
    }

    /// The members with this name: nobody, if it names nobody that this one knows. None for a name
    /// that no member can have.
    pub(crate) fn resolve(&self, name: &DomainName) -> Option<Vec<Alias>> {
        let rest = name.as_str().strip_suffix(PRIVATE_DOMAIN)?;
        let rest = match rest.strip_suffix('.') {
            Some(rest) => rest,
            None if rest.is_empty() => return Some(Vec::new()),
            // Another domain, whose last part ends like this one.
            None => return None,
        };
        let known = || {
            let (member, network) = rest.split_once('.')?;
            let (network, _) = self.own.get_key_value(&network.parse::<NetworkName>().ok()?)?;
            let members = self.directory.members();
            let members = members.get(&(self.owner.clone(), network.clone()))?.iter();
            let is_called =
                |it: &&Member| it.sandbox.as_str() == member || it.name.as_deref() == Some(member);
            Some(members.filter(is_called).map(|it| it.alias).collect())
        };
        Some(known().unwrap_or_default())
    }
}

/// The place of a link in the directory, until it is dropped.
pub(crate) struct Seat {
    pub(crate) members: Members,
    pub(crate) sandbox: SandboxId,
    name: Option<String>,
    door: mpsc::Sender<Knock>,
}

impl Seat {
    /// Gives the place, and what knocks.
    pub(crate) fn take(
        directory: &Arc<Directory>,
        sandbox: SandboxId,
        name: Option<String>,
        owner: Owner,
        networks: BTreeMap<NetworkName, Alias>,
    ) -> (Self, mpsc::Receiver<Knock>) {
        let (door, knocks) = mpsc::channel(KNOCKS_QUEUED);
        let members = Members { owner, own: Arc::default(), directory: Arc::clone(directory) };
        let mut seat = Self { members, sandbox, name, door };
        seat.set(networks);
        (seat, knocks)
    }

    /// From now on it is a member of these networks.
    pub(crate) fn set(&mut self, networks: BTreeMap<NetworkName, Alias>) {
        self.leave();
        let mut members = self.members.directory.members();
        for (network, &alias) in &networks {
            let key = (self.members.owner.clone(), network.clone());
            let (sandbox, name) = (self.sandbox.clone(), self.name.clone());
            let member = Member { sandbox, name, alias, door: self.door.clone() };
            members.entry(key).or_default().push(member);
        }
        drop(members);
        self.members.own = Arc::new(networks);
    }

    fn leave(&self) {
        let mut all = self.members.directory.members();
        for network in self.members.own.keys() {
            let key = (self.members.owner.clone(), network.clone());
            if let Some(members) = all.get_mut(&key) {
                // A link that takes the place of another has its own door.
                members.retain(|member| !member.door.same_channel(&self.door));
                if members.is_empty() {
                    all.remove(&key);
                }
            }
        }
    }
}

impl Drop for Seat {
    fn drop(&mut self) {
        self.leave();
    }
}

/// Connects to a member, or says why not.
pub(crate) async fn dial(
    door: mpsc::Sender<Knock>,
    network: NetworkName,
    from: SocketAddr,
    port: u16,
) -> io::Result<Stream> {
    let refused = || io::Error::from(io::ErrorKind::ConnectionRefused);
    let (reply, answer) = oneshot::channel();
    let knock = Knock { network, from, port, reply };
    timeout(DIAL_DEADLINE, async {
        door.send(knock).await.map_err(|_| refused())?;
        answer.await.map_err(|_| refused())?
    })
    .await?
}

#[cfg(test)]
mod tests {
    use super::*;

    fn member(
        directory: &Arc<Directory>,
        owner: &str,
        name: Option<&str>,
        networks: &[(&str, u16, u16)],
    ) -> (Seat, SandboxId) {
        let alias = |(name, network, member): &(&str, u16, u16)| {
            (name.parse().unwrap(), Alias::new(*network, *member).unwrap())
        };
        let (id, networks) = (SandboxId::random(), networks.iter().map(alias).collect());
        let name = name.map(str::to_owned);
        let owner = owner.parse().unwrap();
        (Seat::take(directory, id.clone(), name, owner, networks).0, id)
    }

    fn found(seat: &Seat, name: &str) -> Option<usize> {
        seat.members.resolve(&name.parse().unwrap()).map(|found| found.len())
    }

    #[test]
    fn names_are_those_of_members_of_own_networks() {
        let directory = Arc::default();
        let (one, first) = member(&directory, "ann", Some("db"), &[("team", 0, 1)]);
        let networks = [("team", 0, 2), ("lab", 1, 1)];
        let (mut two, second) = member(&directory, "ann", Some("db"), &networks);
        let (other, third) = member(&directory, "bob", None, &[("team", 0, 1)]);
        let name = |id: &SandboxId, network: &str| format!("{id}.{network}.forkd.internal");
        assert_eq!(found(&one, &name(&second, "team")), Some(1));
        assert_eq!(found(&one, &name(&first, "team")), Some(1), "itself");
        assert_eq!(found(&one, "db.team.forkd.internal"), Some(2), "all that are called so");
        for unknown in [
            name(&second, "lab"),
            name(&third, "team"),
            "forkd.internal".into(),
            "team.forkd.internal".into(),
            "x.db.team.forkd.internal".into(),
        ] {
            assert_eq!(found(&one, &unknown), Some(0), "{unknown}");
        }
        assert_eq!(found(&other, &name(&first, "team")), Some(0), "another owner's");
        assert_eq!(found(&one, "notforkd.internal"), None);
        assert_eq!(found(&one, "a.example"), None);

        let alias = Alias::new(0, 2).unwrap();
        assert!(one.members.door(alias.ipv6().into()).is_some());
        assert_eq!(one.members.host_name(alias.ipv4().into()), Some(name(&second, "team")));
        assert!(one.members.door(Alias::new(1, 1).unwrap().ipv4().into()).is_none(), "not there");
        assert!(one.members.door(Alias::new(0, 3).unwrap().ipv4().into()).is_none(), "guessed");
        assert!(other.members.door(alias.ipv4().into()).is_none(), "another owner's");
        two.set(BTreeMap::new());
        assert!(one.members.door(alias.ipv4().into()).is_none(), "it has left");
        assert_eq!(found(&one, &name(&second, "team")), Some(0));
        drop((one, two, other));
        assert!(directory.members().is_empty());
    }

    #[test]
    fn a_link_that_has_taken_the_place_of_another_stays() {
        let directory = Arc::default();
        let (one, _) = member(&directory, "ann", None, &[("team", 0, 1)]);
        let (two, _) = member(&directory, "ann", None, &[("team", 0, 1)]);
        drop(one);
        assert!(two.members.door(Alias::new(0, 1).unwrap().ipv4().into()).is_some());
    }
}
