//! Whether sandboxes that may reach the network could: the host's routes and resolvers. Nothing is
//! sent anywhere.

use std::fs;
use std::net::{IpAddr, SocketAddr, UdpSocket};

use super::check::Check;

/// Addresses of nobody (RFC 5737, RFC 3849): a route to them is the one to the internet.
const OUTSIDE: [(&str, &str); 2] = [("192.0.2.1:9", "0.0.0.0:0"), ("[2001:db8::1]:9", "[::]:0")];

/// Routes, resolvers.
pub(super) fn all() -> Vec<Check> {
    let [ipv4, ipv6] = OUTSIDE.map(|(outside, any)| has_route(outside, any));
    let resolv_conf = fs::read_to_string("/etc/resolv.conf").unwrap_or_default();
    vec![routes(ipv4, ipv6), resolvers(&resolv_conf)]
}

/// A datagram socket that is connected has a route, and nothing has been sent.
fn has_route(outside: &str, any: &str) -> bool {
    let outside = outside.parse::<SocketAddr>();
    let socket = UdpSocket::bind(any);
    outside.is_ok_and(|outside| socket.is_ok_and(|socket| socket.connect(outside).is_ok()))
}

fn routes(ipv4: bool, ipv6: bool) -> Check {
    const NAME: &str = "routes";
    match (ipv4, ipv6) {
        (true, true) => Check::ok(NAME, "sandboxes can reach out over IPv4 and IPv6"),
        (true, false) => Check::ok(NAME, "sandboxes can reach out over IPv4; IPv6 is refused"),
        (false, true) => Check::ok(NAME, "sandboxes can reach out over IPv6; IPv4 is refused"),
        (false, false) => {
            let remedy = "only sandboxes that use the network need it: give the host a default \
                          route";
            Check::warn(NAME, "this host has no route out, so sandboxes have none", remedy)
        }
    }
}

fn resolvers(resolv_conf: &str) -> Check {
    const NAME: &str = "resolvers";
    let server = |line: &str| line.strip_prefix("nameserver")?.trim().parse::<IpAddr>().ok();
    let servers: Vec<String> =
        resolv_conf.lines().filter_map(server).map(|server| server.to_string()).collect();
    if servers.is_empty() {
        let remedy = "only sandboxes that use names need it: put a `nameserver` line there";
        return Check::warn(NAME, "/etc/resolv.conf names none, so names fail", remedy);
    }
    Check::ok(NAME, format!("{} for the names that sandboxes ask for", servers.join(", ")))
}

#[cfg(test)]
mod tests {
    use super::super::Outcome;
    use super::*;

    #[test]
    fn a_host_without_a_way_out_warns_and_one_of_two_is_enough() {
        assert_eq!(routes(false, false).outcome, Outcome::Warn);
        assert_eq!(routes(true, false).outcome, Outcome::Ok);
        assert!(routes(true, false).detail.contains("IPv6 is refused"));
        assert!(has_route("127.0.0.1:9", "0.0.0.0:0"));
        assert!(!has_route("255.255.255.255:9", "0.0.0.0:0"), "the kernel refuses it");
    }

    #[test]
    fn resolvers_are_told_and_their_absence_warns() {
        let found = resolvers("# x\nnameserver 192.0.2.53\nsearch a\nnameserver   2001:db8::53\n");
        assert_eq!(found.outcome, Outcome::Ok);
        assert!(found.detail.starts_with("192.0.2.53, 2001:db8::53 for"), "{}", found.detail);
        for none in ["", "search a\n", "nameserver x\n", "#nameserver 192.0.2.53\n"] {
            assert_eq!(resolvers(none).outcome, Outcome::Warn, "{none:?}");
        }
    }
}
