//! Entries of `allow_out`.

use std::fmt;
use std::net::IpAddr;
use std::ops::RangeInclusive;
use std::str::FromStr;

use serde::{Deserialize, Serialize};

use super::address::{AddressRange, is_private_range};
use super::error::{DestinationError, wrong};
use super::leave::NetworkLeave;
use super::name::DomainName;
use crate::text::as_text;

/// What a flow speaks.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum Protocol {
    /// Streams.
    Tcp,
    /// Datagrams.
    Udp,
    /// Echo requests only.
    Icmp,
}

impl fmt::Display for Protocol {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Self::Tcp => "tcp",
            Self::Udp => "udp",
            Self::Icmp => "icmp",
        })
    }
}

/// Where an entry of `allow_out` leads.
#[derive(Debug, Clone, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum Target {
    /// `*`: every public address, by any name or none.
    Any,
    /// One name.
    Name(DomainName),
    /// `*.name`: all names below it, not itself.
    Below(DomainName),
    /// Addresses.
    Range(AddressRange),
    /// `host`: the host's own loopback address, as the gateway's address in the guest.
    Host,
}

impl Target {
    /// Whether a connection by this name is meant.
    #[must_use]
    pub fn names(&self, name: &DomainName) -> bool {
        match self {
            Self::Name(listed) => listed == name,
            Self::Below(parent) => name.is_below(parent),
            Self::Any | Self::Range(_) | Self::Host => false,
        }
    }
}

/// An entry of `allow_out`: `[tcp://|udp://|icmp://]target[:port[-port]]`.
#[derive(Debug, Clone, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
#[serde(try_from = "String", into = "String")]
pub struct Destination {
    protocol: Protocol,
    target: Target,
    first_port: u16,
    last_port: u16,
}

impl Destination {
    /// What it may be spoken to with.
    #[must_use]
    pub fn protocol(&self) -> Protocol {
        self.protocol
    }

    /// Where it leads.
    #[must_use]
    pub fn target(&self) -> &Target {
        &self.target
    }

    /// Its ports; all of them where it names none.
    #[must_use]
    pub fn ports(&self) -> RangeInclusive<u16> {
        self.first_port..=self.last_port
    }

    /// The least leave of the operator that permits it.
    #[must_use]
    pub fn needs(&self) -> NetworkLeave {
        match &self.target {
            Target::Host => NetworkLeave::Any,
            Target::Range(range) if is_private_range(range) => NetworkLeave::Any,
            _ => NetworkLeave::Public,
        }
    }
}

impl fmt::Display for Destination {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        if self.protocol != Protocol::Tcp {
            write!(f, "{}://", self.protocol)?;
        }
        let all = self.ports() == (0..=u16::MAX);
        match &self.target {
            Target::Any => f.write_str("*"),
            Target::Name(name) => write!(f, "{name}"),
            Target::Below(parent) => write!(f, "*.{parent}"),
            Target::Range(range) if range.is_ipv6() && !all => write!(f, "[{range}]"),
            Target::Range(range) => write!(f, "{range}"),
            Target::Host => f.write_str("host"),
        }?;
        match (self.first_port, self.last_port) {
            _ if all => Ok(()),
            (first, last) if first == last => write!(f, ":{first}"),
            (first, last) => write!(f, ":{first}-{last}"),
        }
    }
}

impl FromStr for Destination {
    type Err = DestinationError;

    fn from_str(value: &str) -> Result<Self, DestinationError> {
        let (protocol, rest) = match value.split_once("://") {
            None => (Protocol::Tcp, value),
            Some(("tcp", rest)) => (Protocol::Tcp, rest),
            Some(("udp", rest)) => (Protocol::Udp, rest),
            Some(("icmp", rest)) => (Protocol::Icmp, rest),
            Some(_) => {
                return Err(wrong(value, "write no scheme, or `tcp://`, `udp://` or `icmp://`"));
            }
        };
        let (target, ports) = split_ports(rest);
        let target = parse_target(value, target)?;
        let (first_port, last_port) = match ports {
            None => (0, u16::MAX),
            Some(_) if protocol == Protocol::Icmp => {
                return Err(wrong(value, "ICMP has no ports; leave them out"));
            }
            Some(ports) => parse_ports(ports)
                .ok_or_else(|| wrong(value, "a port is 1 to 65535, a range `8000-8100`"))?,
        };
        let by_address = matches!(target, Target::Any | Target::Range(_));
        if protocol != Protocol::Tcp && !by_address {
            return Err(wrong(value, "a name decides about TCP only; write its addresses"));
        }
        Ok(Self { protocol, target, first_port, last_port })
    }
}

/// The part after the last colon, unless that colon belongs to an address.
fn split_ports(text: &str) -> (&str, Option<&str>) {
    if let Some((inside, rest)) = text.strip_prefix('[').and_then(|rest| rest.split_once(']')) {
        return match rest.strip_prefix(':') {
            Some(ports) => (inside, Some(ports)),
            None if rest.is_empty() => (inside, None),
            None => (text, None),
        };
    }
    match text.split_once(':') {
        Some((target, ports)) if !ports.contains(':') => (target, Some(ports)),
        _ => (text, None),
    }
}

fn parse_ports(text: &str) -> Option<(u16, u16)> {
    let (first, last) = text.split_once('-').unwrap_or((text, text));
    let port = |text: &str| text.parse::<u16>().ok().filter(|&port| port > 0);
    let (first, last) = (port(first)?, port(last)?);
    (first <= last).then_some((first, last))
}

fn parse_target(entry: &str, text: &str) -> Result<Target, DestinationError> {
    let name = |text: &str| {
        text.parse::<DomainName>().map_err(|DestinationError { remedy, .. }| wrong(entry, &remedy))
    };
    let is_address = text.parse::<IpAddr>().is_ok();
    match text.to_ascii_lowercase().as_str() {
        "*" => Ok(Target::Any),
        "host" => Ok(Target::Host),
        _ if text.starts_with("*.") => name(&text[2..]).map(Target::Below),
        _ if text.contains('*') => Err(wrong(entry, "a `*` stands alone, or first: `*.name`")),
        _ if is_address || text.contains('/') => text
            .parse()
            .map(Target::Range)
            .map_err(|DestinationError { remedy, .. }| wrong(entry, &remedy)),
        _ => match name(text)? {
            // It would be read as the other one.
            host if host.as_str() == "host" => Err(wrong(entry, "write `host` for this host")),
            name => Ok(Target::Name(name)),
        },
    }
}

as_text!(Destination, DestinationError);

#[cfg(test)]
mod tests {
    use super::*;
    use crate::id::shown;

    fn parse(entry: &str) -> Result<Destination, DestinationError> {
        entry.parse()
    }

    #[test]
    fn entries_are_written_as_they_are_read() {
        for entry in [
            "api.example.com",
            "api.example.com:443",
            "*.example.org:8000-8100",
            "*",
            "udp://*:123",
            "203.0.113.0/24:5432",
            "203.0.113.7",
            "2001:db8::/32",
            "[2001:db8::1]:443",
            "[2001:db8::/32]:443",
            "icmp://203.0.113.7",
            "host:5432",
            "_service.example.com",
        ] {
            assert_eq!(parse(entry).unwrap().to_string(), entry);
        }
        for (entry, canonical) in [
            ("tcp://API.Example.COM.:443", "api.example.com:443"),
            ("[2001:db8:0::1]", "2001:db8::1"),
            ("203.0.113.7/32", "203.0.113.7"),
        ] {
            assert_eq!(parse(entry).unwrap().to_string(), canonical);
        }
    }

    #[test]
    fn what_cannot_be_decided_is_refused_with_a_remedy() {
        for (entry, remedy) in [
            ("", "write a name"),
            ("https://example.com", "write no scheme"),
            ("example.com:0", "a port is"),
            ("example.com:99999", "a port is"),
            ("example.com:20-10", "a port is"),
            ("exa mple.com", "write a name"),
            ("münchen.example", "in ASCII"),
            ("*example.com", "stands alone"),
            ("a.*.example.com", "stands alone"),
            ("1.2.3", "write a name"),
            ("127.1", "write a name"),
            ("0x7f000001", "write a name"),
            ("0X7F000001", "write a name"),
            ("host.", "write `host`"),
            ("203.0.113.5/24", "write `203.0.113.0/24`"),
            ("2001:db8::1/32", "write `2001:db8::/32`"),
            ("203.0.113.0/33", "0 to 32"),
            ("2001:db8::/129", "0 to 128"),
            ("udp://example.com", "TCP only"),
            ("udp://host:53", "TCP only"),
            ("icmp://203.0.113.7:1", "no ports"),
            ("[2001:db8::1]443", "write a name"),
            ("a..example.com", "write a name"),
        ] {
            let error = parse(entry).unwrap_err();
            assert!(error.to_string().contains(remedy), "{entry}: {error}");
            assert_eq!(error.entry, shown(entry));
        }
        let long = format!("{}.example", "a".repeat(64));
        assert!(parse(&long).is_err());
        let error = "example.com".parse::<AddressRange>().unwrap_err();
        assert!(error.remedy.contains("denies nothing"), "{error}");
    }
}
