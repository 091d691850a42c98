//! The decision: may this sandbox speak this protocol to this address and port, which it knows by
//! these names?
//!
//! Guarantees: one pure function. What is always denied no list opens; private ranges are opened
//! only by a range within them, and only with the operator's leave.
//!
//! Does not do: know the host's own addresses (see `host`), what the resolver has answered (see
//! `pins`), or who is a member of a private network (see `members`).

use std::fmt;
use std::net::{IpAddr, Ipv4Addr, Ipv6Addr, SocketAddr};

use forkd_types::network::{
    AddressRange, DomainName, GATEWAY_IPV4, GATEWAY_IPV6, HeaderRules, LINK_PREFIX_IPV4,
    LINK_PREFIX_IPV6, NetworkLeave, NetworkName, NetworkPolicy, PRIVATE_RANGES, Protocol, Target,
    is_private_range,
};

/// Plain DNS: the resolver's own, whatever the address.
pub(crate) const DNS_PORT: u16 = 53;
/// DNS over TLS and over QUIC: names that the resolver would not see.
const PRIVATE_DNS_PORT: u16 = 853;
/// QUIC, whose names cannot be checked.
const QUIC_PORT: u16 = 443;
/// Mail between servers.
const SMTP_PORT: u16 = 25;
/// Names without a server: mDNS and LLMNR.
const LOCAL_NAME_PORTS: [u16; 2] = [5353, 5355];

const fn v4(a: u8, b: u8, c: u8, d: u8, prefix: u8) -> AddressRange {
    AddressRange::new(IpAddr::V4(Ipv4Addr::new(a, b, c, d)), prefix)
}

const fn v6(first: u16, second: u16, third: u16, prefix: u8) -> AddressRange {
    AddressRange::new(IpAddr::V6(Ipv6Addr::new(first, second, third, 0, 0, 0, 0, 0)), prefix)
}

/// What no policy opens. The ranges for documentation are not here: tests need an internet.
const ALWAYS_DENIED: [(AddressRange, &str); 17] = [
    (v4(0, 0, 0, 0, 8), "this network"),
    (v4(127, 0, 0, 0, 8), "loopback"),
    (v4(169, 254, 0, 0, 16), "link-local and metadata"),
    (v4(168, 63, 129, 16, 32), "metadata"),
    (v4(224, 0, 0, 0, 4), "multicast"),
    (v4(240, 0, 0, 0, 4), "reserved and broadcast"),
    (AddressRange::new(IpAddr::V4(GATEWAY_IPV4), 32), "the gateway"),
    // What follows are the other addresses of the link.
    (v4(10, 42, 0, 0, LINK_PREFIX_IPV4), "the link"),
    (v6(0, 0, 0, 127), "loopback"),
    (v6(0x64, 0xff9b, 1, 48), "translated addresses"),
    (v6(0x100, 0, 0, 64), "discard"),
    (v6(0xfe80, 0, 0, 10), "link-local"),
    (v6(0xfec0, 0, 0, 10), "site-local"),
    (v6(0xff00, 0, 0, 8), "multicast"),
    (
        AddressRange::new(IpAddr::V6(Ipv6Addr::new(0xfd00, 0xec2, 0, 0, 0, 0, 0, 0x254)), 128),
        "metadata",
    ),
    (AddressRange::new(IpAddr::V6(GATEWAY_IPV6), 128), "the gateway"),
    (AddressRange::new(IpAddr::V6(GATEWAY_IPV6), LINK_PREFIX_IPV6), "the link"),
];

/// What decided, in the words of the log.
#[derive(Debug, Clone, PartialEq, Eq, Hash)]
pub(crate) enum Rule {
    /// An entry of `allow_out`.
    AllowOut(String),
    /// An entry of `deny_out`.
    DenyOut(AddressRange),
    /// `allow_internet_access`, said or implied.
    Default,
    /// The fixed refusals, with their reason.
    Always(&'static str),
    /// A private range that no range of `allow_out` opens.
    Private,
    /// The operator's leave.
    Operator,
    /// A name in the first bytes that the policy does not allow here.
    Name,
    /// A limit of the gateway.
    Limit(&'static str),
    /// The rules for this host.
    Headers(String),
    /// The daemon dials a port of the guest.
    Inbound,
    /// Both ends are members of this network.
    Network(NetworkName),
    /// No member of this network has the address.
    NoMember(NetworkName),
    /// A member of this network connects to the guest.
    InboundNetwork(NetworkName),
    /// The guest asks the resolver.
    Resolver,
}

impl fmt::Display for Rule {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::AllowOut(entry) => write!(f, "allow_out: {entry}"),
            Self::DenyOut(range) => write!(f, "deny_out: {range}"),
            Self::Default => f.write_str("default"),
            Self::Always(what) => write!(f, "always denied: {what}"),
            Self::Private => f.write_str("private range"),
            Self::Operator => f.write_str("operator"),
            Self::Name => f.write_str("name"),
            Self::Limit(what) => write!(f, "limit: {what}"),
            Self::Headers(host) => write!(f, "rules: {host}"),
            Self::Inbound => f.write_str("inbound"),
            Self::Network(name) => write!(f, "network: {name}"),
            Self::NoMember(name) => write!(f, "no such member of network: {name}"),
            Self::InboundNetwork(name) => write!(f, "inbound, network: {name}"),
            Self::Resolver => f.write_str("resolver"),
        }
    }
}

/// A decision, and what made it.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) enum Verdict {
    /// Connect there.
    Allowed {
        /// The address on the host, which differs from the guest's for the host's own services.
        dial: SocketAddr,
        /// Only names allow it: the name in the first bytes must be allowed too.
        by_name: bool,
        rule: Rule,
    },
    /// Connect to the member of this network that has the address.
    Member(NetworkName),
    /// Refuse at once.
    Refused(Rule),
}

/// What the guest wants to speak to.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Flow<'a> {
    pub(crate) protocol: Protocol,
    /// Port 0 for ICMP.
    pub(crate) remote: SocketAddr,
    /// Names that the resolver has given this address for.
    pub(crate) names: &'a [DomainName],
}

/// The policy of one sandbox under the operator's leave.
#[derive(Debug, Clone)]
pub(crate) struct Rules {
    policy: NetworkPolicy,
    leave: NetworkLeave,
    /// Nothing but what `allow_out` names.
    list: bool,
}

impl Rules {
    pub(crate) fn new(policy: NetworkPolicy, leave: NetworkLeave) -> Self {
        let list = policy.is_list();
        Self { policy, leave, list }
    }

    /// Decides about a flow.
    pub(crate) fn verdict(&self, flow: Flow<'_>) -> Verdict {
        let Flow { protocol, remote, .. } = flow;
        let address = unwrap_mapped(remote.ip());
        let remote = SocketAddr::new(address, remote.port());
        if self.leave == NetworkLeave::None {
            return Verdict::Refused(Rule::Operator);
        }
        if address == GATEWAY_IPV4 || address == GATEWAY_IPV6 {
            return self.host_service(protocol, remote);
        }
        if let Some(what) = always_denied(address).or_else(|| self.denied_port(protocol, remote)) {
            return Verdict::Refused(Rule::Always(what));
        }
        let allowed = |by_name, rule| Verdict::Allowed { dial: remote, by_name, rule };
        if embedded(address).into_iter().flatten().chain([address]).any(is_private) {
            return match self.allowing_range(protocol, remote, is_private_range) {
                _ if self.leave < NetworkLeave::Any => Verdict::Refused(Rule::Operator),
                Some(rule) => allowed(false, rule),
                None => Verdict::Refused(Rule::Private),
            };
        }
        if let Some(rule) = self.allowing_range(protocol, remote, |_| true) {
            return allowed(false, rule);
        }
        let otherwise = self.denying_range(address);
        if otherwise.is_none() && self.policy.allows_by_default() {
            return allowed(false, Rule::Default);
        }
        let by_name = |name| self.allowing_name(name, remote.port());
        match flow.names.iter().find_map(by_name) {
            Some(rule) if protocol == Protocol::Tcp => allowed(true, rule),
            _ => Verdict::Refused(otherwise.unwrap_or(Rule::Default)),
        }
    }

    /// What headers are set.
    pub(crate) fn headers(&self) -> &HeaderRules {
        &self.policy.rules
    }

    /// Whether a connection that names allow may carry this name to this port.
    pub(crate) fn allows_name(&self, name: &DomainName, port: u16) -> bool {
        self.allowing_name(name, port).is_some()
    }

    /// Whether the resolver answers for this name.
    pub(crate) fn resolves(&self, name: &DomainName) -> bool {
        let mut entries = self.policy.allow_out.iter();
        let listed = |target: &Target| *target == Target::Any || target.names(name);
        self.leave > NetworkLeave::None
            && (!self.list || entries.any(|entry| listed(entry.target())))
    }

    /// Whether an answer of the resolver may hold this address.
    pub(crate) fn may_answer(&self, address: IpAddr) -> bool {
        let private = embedded(address).into_iter().flatten().chain([address]).any(is_private);
        let opened = self.policy.allow_out.iter().any(|entry| match entry.target() {
            Target::Range(range) => is_private_range(range) && range.contains(address),
            _ => false,
        });
        always_denied(address).is_none() && (!private || self.leave >= NetworkLeave::Any && opened)
    }

    fn denied_port(&self, protocol: Protocol, remote: SocketAddr) -> Option<&'static str> {
        match (protocol, remote.port()) {
            (Protocol::Icmp, _) => None,
            (Protocol::Tcp, SMTP_PORT) => Some("mail"),
            (_, PRIVATE_DNS_PORT) => Some("encrypted DNS"),
            (Protocol::Udp, QUIC_PORT) if self.list || !self.policy.rules.is_empty() => {
                Some("QUIC")
            }
            (Protocol::Udp, port) if LOCAL_NAME_PORTS.contains(&port) => Some("local names"),
            _ => None,
        }
    }

    /// The gateway's address stands for the host's loopback address, where `host` is listed.
    fn host_service(&self, protocol: Protocol, remote: SocketAddr) -> Verdict {
        let listed = self.policy.allow_out.iter().find(|entry| {
            *entry.target() == Target::Host
                && entry.protocol() == protocol
                && entry.ports().contains(&remote.port())
        });
        let address = match remote.ip() {
            IpAddr::V4(_) => IpAddr::from(Ipv4Addr::LOCALHOST),
            IpAddr::V6(_) => Ipv6Addr::LOCALHOST.into(),
        };
        match listed {
            Some(_) if self.leave < NetworkLeave::Any => Verdict::Refused(Rule::Operator),
            Some(entry) => Verdict::Allowed {
                dial: SocketAddr::new(address, remote.port()),
                by_name: false,
                rule: Rule::AllowOut(entry.to_string()),
            },
            None => Verdict::Refused(Rule::Always("the gateway")),
        }
    }

    fn allowing_range(
        &self,
        protocol: Protocol,
        remote: SocketAddr,
        counts: impl Fn(&AddressRange) -> bool,
    ) -> Option<Rule> {
        let matches = |target: &Target| match target {
            Target::Any => !is_private(remote.ip()),
            Target::Range(range) => counts(range) && range.contains(remote.ip()),
            Target::Name(_) | Target::Below(_) | Target::Host => false,
        };
        let mut entries = self.policy.allow_out.iter();
        let found = entries.find(|entry| {
            entry.protocol() == protocol
                && (protocol == Protocol::Icmp || entry.ports().contains(&remote.port()))
                && matches(entry.target())
        });
        found.map(|entry| Rule::AllowOut(entry.to_string()))
    }

    fn allowing_name(&self, name: &DomainName, port: u16) -> Option<Rule> {
        let mut entries = self.policy.allow_out.iter();
        let found =
            entries.find(|entry| entry.target().names(name) && entry.ports().contains(&port));
        found.map(|entry| Rule::AllowOut(entry.to_string()))
    }

    fn denying_range(&self, address: IpAddr) -> Option<Rule> {
        let inner = embedded(address);
        let covers = |range: &&AddressRange| {
            range.contains(address) || inner.into_iter().flatten().any(|it| range.contains(it))
        };
        let found = self.policy.deny_out.iter().find(covers).copied();
        // See `NetworkPolicy::is_list`.
        let all = v4(0, 0, 0, 0, 0);
        let found = found.or_else(|| self.policy.deny_out.contains(&all).then_some(all));
        found.map(Rule::DenyOut)
    }
}

fn is_private(address: IpAddr) -> bool {
    PRIVATE_RANGES.iter().any(|range| range.contains(address))
}

/// Why no policy opens this address.
fn always_denied(address: IpAddr) -> Option<&'static str> {
    let listed = |address| {
        ALWAYS_DENIED.iter().find(|(range, _)| range.contains(address)).map(|(_, what)| *what)
    };
    listed(address).or_else(|| embedded(address).into_iter().flatten().find_map(listed))
}

/// `::ffff:192.0.2.1` is `192.0.2.1` for every system call.
fn unwrap_mapped(address: IpAddr) -> IpAddr {
    address.to_canonical()
}

/// IPv4 addresses that traffic to an IPv6 address may reach: behind a translator (NAT64) or a
/// tunnel (6to4, Teredo), and the notation that nobody uses any more.
fn embedded(address: IpAddr) -> [Option<IpAddr>; 2] {
    let IpAddr::V6(address) = address else { return [None; 2] };
    let [a, b, c, d, e, f, g, h] = address.segments();
    let join = |high: u16, low: u16| {
        Some(IpAddr::from(Ipv4Addr::from_bits(u32::from(high) << 16 | u32::from(low))))
    };
    match [a, b] {
        [0, 0] if [c, d, e] == [0; 3] && (f == 0xffff || f == 0) => [join(g, h), None],
        [0x64, 0xff9b] if [c, d, e, f] == [0; 4] => [join(g, h), None],
        [0x2002, _] => [join(b, c), None],
        [0x2001, 0] => [join(c, d), join(!g, !h)],
        _ => [None; 2],
    }
}

#[cfg(test)]
#[path = "policy_tests.rs"]
mod tests;
