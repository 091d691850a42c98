//! Ranges of addresses.

use std::fmt;
use std::net::{IpAddr, Ipv4Addr, Ipv6Addr};
use std::str::FromStr;

use serde::{Deserialize, Serialize};

use super::error::{DestinationError, wrong};
use super::name::DomainName;
use crate::text::as_text;

/// Addresses with the same first bits: `203.0.113.0/24`, `2001:db8::1`.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
#[serde(try_from = "String", into = "String")]
pub struct AddressRange {
    network: IpAddr,
    prefix: u8,
}

impl AddressRange {
    /// The range of all addresses whose first `prefix` bits are those of `network`.
    #[must_use]
    pub const fn new(network: IpAddr, prefix: u8) -> Self {
        Self { network, prefix }
    }

    /// Whether it covers the address.
    #[must_use]
    pub fn contains(&self, address: IpAddr) -> bool {
        let (ours, theirs) = (left_aligned(self.network), left_aligned(address));
        let differing = (ours ^ theirs).checked_shr(128 - u32::from(self.prefix)).unwrap_or(0);
        self.network.is_ipv4() == address.is_ipv4() && differing == 0
    }

    /// Whether all of its addresses are in `other` as well.
    #[must_use]
    pub fn is_within(&self, other: &Self) -> bool {
        self.prefix >= other.prefix && other.contains(self.network)
    }

    /// Whether its addresses are those of IPv6.
    pub(super) fn is_ipv6(&self) -> bool {
        self.network.is_ipv6()
    }

    /// `0.0.0.0/0`, which users of other sandboxes write for all traffic.
    pub(super) fn is_everything(&self) -> bool {
        self.prefix == 0 && self.network.is_ipv4()
    }
}

/// Bits of an address from the top, so that prefixes of both families count alike.
fn left_aligned(address: IpAddr) -> u128 {
    match address {
        IpAddr::V4(address) => u128::from(address.to_bits()) << 96,
        IpAddr::V6(address) => address.to_bits(),
    }
}

impl fmt::Display for AddressRange {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let whole = if self.network.is_ipv4() { 32 } else { 128 };
        match self.prefix == whole {
            true => write!(f, "{}", self.network),
            false => write!(f, "{}/{}", self.network, self.prefix),
        }
    }
}

impl FromStr for AddressRange {
    type Err = DestinationError;

    fn from_str(value: &str) -> Result<Self, DestinationError> {
        let (address, prefix) = match value.split_once('/') {
            Some((address, prefix)) => (address, Some(prefix)),
            None => (value, None),
        };
        let Ok(network) = address.parse::<IpAddr>() else {
            let remedy = match value.parse::<DomainName>() {
                Ok(_) => {
                    "a name denies nothing, because its addresses have other names; \
                          write addresses, or list what you allow in `allow_out`"
                }
                Err(_) => "write an address or a range such as `203.0.113.0/24`",
            };
            return Err(wrong(value, remedy));
        };
        let whole: u8 = if network.is_ipv4() { 32 } else { 128 };
        let prefix = match prefix.map(str::parse::<u8>) {
            None => whole,
            Some(Ok(prefix)) if prefix <= whole => prefix,
            Some(_) => return Err(wrong(value, &format!("a prefix is 0 to {whole}"))),
        };
        let mask = u128::MAX.checked_shl(128 - u32::from(prefix)).unwrap_or(0);
        let masked = left_aligned(network) & mask;
        if masked != left_aligned(network) {
            let network = match network {
                IpAddr::V4(_) => {
                    IpAddr::V4(Ipv4Addr::from_bits(u32::try_from(masked >> 96).unwrap_or(u32::MAX)))
                }
                IpAddr::V6(_) => IpAddr::V6(Ipv6Addr::from_bits(masked)),
            };
            return Err(wrong(value, &format!("write `{}`", Self { network, prefix })));
        }
        Ok(Self { network, prefix })
    }
}

as_text!(AddressRange, DestinationError);

/// Ranges that are not part of the internet. A policy opens them only by a range within them.
pub const PRIVATE_RANGES: [AddressRange; 5] = [
    AddressRange::new(IpAddr::V4(Ipv4Addr::new(10, 0, 0, 0)), 8),
    AddressRange::new(IpAddr::V4(Ipv4Addr::new(172, 16, 0, 0)), 12),
    AddressRange::new(IpAddr::V4(Ipv4Addr::new(192, 168, 0, 0)), 16),
    AddressRange::new(IpAddr::V4(Ipv4Addr::new(100, 64, 0, 0)), 10),
    AddressRange::new(IpAddr::V6(Ipv6Addr::new(0xfc00, 0, 0, 0, 0, 0, 0, 0)), 7),
];

/// Whether all addresses of the range are private.
#[must_use]
pub fn is_private_range(range: &AddressRange) -> bool {
    PRIVATE_RANGES.iter().any(|private| range.is_within(private))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_range_contains_its_own_family_only() {
        let range: AddressRange = "203.0.113.0/24".parse().unwrap();
        assert!(range.contains("203.0.113.255".parse().unwrap()));
        assert!(!range.contains("203.0.114.0".parse().unwrap()));
        let all: AddressRange = "0.0.0.0/0".parse().unwrap();
        assert!(all.contains("255.255.255.255".parse().unwrap()));
        assert!(!all.contains("::".parse().unwrap()));
        let one: AddressRange = "2001:db8::1".parse().unwrap();
        assert!(one.contains("2001:db8::1".parse().unwrap()));
        assert!(!one.contains("2001:db8::".parse().unwrap()));
    }
}
