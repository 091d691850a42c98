//! What a sandbox may reach: the addresses of its link, and its network policy.
//!
//! A policy is read in this order: [`NetworkPolicy::allow_out`], then [`NetworkPolicy::deny_out`],
//! then [`NetworkPolicy::allow_internet_access`]. Above it stand the fixed refusals of the gateway
//! and the operator's leave, [`NetworkLeave`]. [`NetworkPolicy::rules`] decide nothing: they set
//! headers in requests to hosts that may be reached. Who may come in is another matter: the last
//! three fields say it of previews.
//!
//! Guarantees: an entry that has been parsed is one that the gateway can decide. An error names the
//! entry and says what to write instead.
//!
//! Does not do: decide. The gateway does, because a decision needs what its resolver has answered.

mod address;
mod destination;
mod error;
mod header;
mod leave;
mod name;
mod policy;
mod private;
mod request_host;
mod rule;

use std::net::{Ipv4Addr, Ipv6Addr};

pub use address::{AddressRange, PRIVATE_RANGES, is_private_range};
pub use destination::{Destination, Protocol, Target};
pub use error::DestinationError;
pub use header::{
    HEADER_BYTES_MAX, HeaderError, HeaderName, HeaderTemplate, SecretName, UnknownSecret,
    is_header_text,
};
pub use leave::{NetworkLeave, UnknownLeave};
pub use name::DomainName;
pub use policy::{NETWORK_ENTRIES_MAX, NetworkPolicy, PolicyError};
pub use private::{Alias, NetworkName, PRIVATE_DOMAIN, UnknownNetwork};
pub use request_host::{NoRequestHost, RequestHost};
pub use rule::{HeaderRules, HostPattern, RULE_HEADERS_MAX, RULE_HOSTS_MAX, Rule, Transform};

/// The largest IP packet on the link of a sandbox. virtio-net permits more than 65,535 bytes in no
/// frame.
pub const LINK_MTU: usize = 65_520;
/// The guest's hardware address. Every sandbox has the same: each is alone on its link.
pub const GUEST_MAC: [u8; 6] = [0x02, 0x66, 0x6f, 0x72, 0x6b, 0x02];
/// The gateway's hardware address.
pub const GATEWAY_MAC: [u8; 6] = [0x02, 0x66, 0x6f, 0x72, 0x6b, 0x01];
/// The guest's address.
pub const GUEST_IPV4: Ipv4Addr = Ipv4Addr::new(10, 42, 0, 2);
/// The gateway's address, which is also the resolver's.
pub const GATEWAY_IPV4: Ipv4Addr = Ipv4Addr::new(10, 42, 0, 1);
/// Bits of the network in [`GUEST_IPV4`].
pub const LINK_PREFIX_IPV4: u8 = 30;
/// The guest's address.
pub const GUEST_IPV6: Ipv6Addr = Ipv6Addr::new(0xfd66, 0x6f72, 0x6b64, 0, 0, 0, 0, 2);
/// The gateway's address, which is also the resolver's.
pub const GATEWAY_IPV6: Ipv6Addr = Ipv6Addr::new(0xfd66, 0x6f72, 0x6b64, 0, 0, 0, 0, 1);
/// Bits of the network in [`GUEST_IPV6`].
pub const LINK_PREFIX_IPV6: u8 = 64;
