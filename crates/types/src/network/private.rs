//! Private networks: their names, and the addresses that members have for each other.
//!
//! A member's own address is that of every sandbox. Other members reach it by its alias, which is
//! one address of each version. Aliases of different owners may be equal: they mean nothing to each
//! other.

use std::fmt;
use std::net::{IpAddr, Ipv4Addr, Ipv6Addr};
use std::str::FromStr;

use serde::{Deserialize, Serialize};

use crate::id::shown;
use crate::limit::{NETWORK_MEMBERS_MAX, NETWORKS_PER_OWNER_MAX};
use crate::text::as_text;

/// Bytes of one part of a domain name.
const LABEL_BYTES_MAX: usize = 63;
/// Bits of an alias that say which member it is.
const MEMBER_BITS: u32 = 10;
/// The first 16 bits of every alias: 10.43.0.0.
const ALIAS_IPV4: u32 = 0x0a2b_0000;
/// The first 64 bits of every alias.
const ALIAS_IPV6: [u16; 4] = [0xfd66, 0x6f72, 0x6b64, 1];

/// All names of members end so, and no other names do.
pub const PRIVATE_DOMAIN: &str = "forkd.internal";

const _: () = assert!(NETWORKS_PER_OWNER_MAX <= 1 << (16 - MEMBER_BITS));
const _: () = assert!(NETWORK_MEMBERS_MAX < (1 << MEMBER_BITS) - 1);

/// The name of a private network: one part of a domain name, in lower case.
#[derive(Debug, Clone, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
#[serde(try_from = "String", into = "String")]
pub struct NetworkName(String);

/// Something that names no private network.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[error(
    "`{0}` is no name of a network: use at most {LABEL_BYTES_MAX} lower-case letters, digits and \
     `-`, and no `-` at either end"
)]
pub struct UnknownNetwork(String);

impl NetworkName {
    /// The name as text.
    #[must_use]
    pub fn as_str(&self) -> &str {
        &self.0
    }

    /// By what domain name members of this network reach the one that is called `member`.
    #[must_use]
    pub fn host_name(&self, member: &str) -> String {
        format!("{member}.{}.{PRIVATE_DOMAIN}", self.0)
    }
}

impl fmt::Display for NetworkName {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.0)
    }
}

impl FromStr for NetworkName {
    type Err = UnknownNetwork;

    fn from_str(value: &str) -> Result<Self, UnknownNetwork> {
        let is_part = |b: u8| b.is_ascii_lowercase() || b.is_ascii_digit() || b == b'-';
        let fits = (1..=LABEL_BYTES_MAX).contains(&value.len()) && value.bytes().all(is_part);
        match fits && !value.starts_with('-') && !value.ends_with('-') {
            true => Ok(Self(value.to_owned())),
            false => Err(UnknownNetwork(shown(value))),
        }
    }
}

as_text!(NetworkName, UnknownNetwork);

/// What other members of a network reach a member by: an address of each version.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
#[serde(transparent)]
pub struct Alias(u16);

impl Alias {
    /// Of a member of one of an owner's networks. Both are counted: networks from 0, members from
    /// 1. None beyond the limits of either.
    #[must_use]
    pub fn new(network: u16, member: u16) -> Option<Self> {
        let fits = usize::from(network) < NETWORKS_PER_OWNER_MAX
            && (1..=NETWORK_MEMBERS_MAX).contains(&usize::from(member));
        fits.then_some(Self(network << MEMBER_BITS | member))
    }

    /// The one that an address belongs to, if it can belong to one.
    #[must_use]
    pub fn of(address: IpAddr) -> Option<Self> {
        let (network, member) = match address.to_canonical() {
            IpAddr::V4(address) => {
                let bits = address.to_bits();
                let [_, _, high, low] = address.octets();
                let rest = u16::from_be_bytes([high, low]);
                (bits & 0xffff_0000 == ALIAS_IPV4)
                    .then_some((rest >> MEMBER_BITS, rest & ((1 << MEMBER_BITS) - 1)))?
            }
            IpAddr::V6(address) => {
                let [a, b, c, d, 0, 0, network, member] = address.segments() else { return None };
                ([a, b, c, d] == ALIAS_IPV6).then_some((network, member))?
            }
        };
        Self::new(network, member)
    }

    /// Which of its owner's networks it is in.
    #[must_use]
    pub const fn network(self) -> u16 {
        self.0 >> MEMBER_BITS
    }

    /// Which member it is.
    #[must_use]
    pub const fn member(self) -> u16 {
        self.0 & ((1 << MEMBER_BITS) - 1)
    }

    /// The address of IPv4.
    #[must_use]
    pub fn ipv4(self) -> Ipv4Addr {
        Ipv4Addr::from_bits(ALIAS_IPV4 | u32::from(self.0))
    }

    /// The address of IPv6.
    #[must_use]
    pub const fn ipv6(self) -> Ipv6Addr {
        let [a, b, c, d] = ALIAS_IPV6;
        Ipv6Addr::new(a, b, c, d, 0, 0, self.network(), self.member())
    }

    /// The address of the same version as `other`.
    #[must_use]
    pub fn like(self, other: IpAddr) -> IpAddr {
        if other.is_ipv4() { self.ipv4().into() } else { self.ipv6().into() }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_alias_is_known_by_both_of_its_addresses() {
        let last = u16::try_from(NETWORKS_PER_OWNER_MAX - 1).unwrap();
        let most = u16::try_from(NETWORK_MEMBERS_MAX).unwrap();
        for (network, member) in [(0, 1), (1, 2), (last, most)] {
            let alias = Alias::new(network, member).unwrap();
            assert_eq!((alias.network(), alias.member()), (network, member));
            assert_eq!(Alias::of(alias.ipv4().into()), Some(alias));
            assert_eq!(Alias::of(alias.ipv6().into()), Some(alias));
        }
        assert_eq!(Alias::new(1, 2).unwrap().ipv4(), Ipv4Addr::new(10, 43, 4, 2));
        assert!(Alias::new(last + 1, 1).is_none() && Alias::new(0, most + 1).is_none());
        assert!(Alias::new(0, 0).is_none(), "the network itself");
        let none = ["10.42.0.2", "10.44.0.1", "10.43.0.0", "10.43.3.255", "fd66:6f72:6b64::2"];
        for address in none.into_iter().chain(["fd66:6f72:6b64:1::1:0:1", "fd66:6f72:6b64:1::"]) {
            assert_eq!(Alias::of(address.parse().unwrap()), None, "{address}");
        }
    }

    #[test]
    fn a_name_is_one_part_of_a_domain_name() {
        let team: NetworkName = "team-1".parse().unwrap();
        assert_eq!(team.host_name("sb-1"), "sb-1.team-1.forkd.internal");
        let long = "x".repeat(LABEL_BYTES_MAX + 1);
        for bad in ["", "Team", "a.b", "-a", "a-", "a_b", "ä", long.as_str(), "a/b", "a\n"] {
            assert!(bad.parse::<NetworkName>().is_err(), "{bad:?}");
        }
    }
}
