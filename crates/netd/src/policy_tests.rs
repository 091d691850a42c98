//! Verdicts, each as a row of a table.

use super::*;
use proptest::prelude::*;

/// `+` allows, `-` denies: `default`, then entries of `allow_out` and `deny_out`.
fn rules(text: &str, leave: NetworkLeave) -> Rules {
    let mut policy = NetworkPolicy::default();
    for word in text.split_whitespace() {
        match word {
            "+all" => policy.allow_internet_access = Some(true),
            "-all" => policy.allow_internet_access = Some(false),
            word if word.starts_with('+') => policy.allow_out.push(word[1..].parse().unwrap()),
            word => policy.deny_out.push(word[1..].parse().unwrap()),
        }
    }
    Rules::new(policy, leave)
}

/// The verdict about `[proto://]address:port[=name]`: `yes`, `named`, or the rule that refuses.
fn judge(rules: &Rules, flow: &str) -> String {
    let (flow, name) = flow.split_once('=').unwrap_or((flow, ""));
    let (protocol, remote) = match flow.split_once("://") {
        Some(("udp", remote)) => (Protocol::Udp, remote),
        Some(("icmp", remote)) => (Protocol::Icmp, remote),
        _ => (Protocol::Tcp, flow),
    };
    let names: Vec<DomainName> = name.split(',').filter_map(|name| name.parse().ok()).collect();
    let remote: SocketAddr = remote.parse().unwrap();
    match rules.verdict(Flow { protocol, remote, names: &names }) {
        Verdict::Allowed { by_name: true, .. } => "named".to_owned(),
        Verdict::Allowed { .. } => "yes".to_owned(),
        Verdict::Member(network) => panic!("{network}: no policy names members"),
        Verdict::Refused(rule) => rule.to_string(),
    }
}

const LIST: &str = "+a.example:443 +*.b.example +203.0.113.0/24:5432 +udp://203.0.113.9:123 \
                    +[2001:db8:1::/48]:443 +icmp://198.51.100.7";
const HTTP: &str = "203.0.113.7:80";

/// Leave, policy, flow, verdict.
const TABLE: &[(NetworkLeave, &str, &str, &str)] = {
    use NetworkLeave::{Any, None, Public};
    &[
        // Without a policy.
        (Public, "", HTTP, "yes"),
        (Public, "", "udp://203.0.113.7:123", "yes"),
        (Public, "", "udp://203.0.113.7:443", "yes"),
        (Public, "", "icmp://203.0.113.7:0", "yes"),
        (Public, "", "[2001:db8::7]:443", "yes"),
        (None, "", HTTP, "operator"),
        (None, "+203.0.113.7", HTTP, "operator"),
        // What is always denied.
        (Any, "+all +*", "0.0.0.0:80", "always denied: this network"),
        (Any, "+all +*", "127.0.0.1:80", "always denied: loopback"),
        (Any, "+127.0.0.0/8", "127.255.0.1:80", "always denied: loopback"),
        (Any, "+[::1]:80", "[::1]:80", "always denied: loopback"),
        (Any, "+::/0", "[::]:80", "always denied: loopback"),
        (Any, "+169.254.169.254", "169.254.169.254:80", "always denied: link-local and metadata"),
        (Any, "+169.254.0.0/16", "169.254.170.2:80", "always denied: link-local and metadata"),
        (Any, "+168.63.129.16", "168.63.129.16:80", "always denied: metadata"),
        (Any, "+fd00:ec2::254", "[fd00:ec2::254]:80", "always denied: metadata"),
        (Any, "+224.0.0.0/4", "224.0.0.251:80", "always denied: multicast"),
        (Any, "+240.0.0.0/4", "240.0.0.1:80", "always denied: reserved and broadcast"),
        (Any, "+255.255.255.255", "255.255.255.255:80", "always denied: reserved and broadcast"),
        (Any, "+fe80::/10", "[fe80::1]:80", "always denied: link-local"),
        (Any, "+fec0::/10", "[fec0::1]:80", "always denied: site-local"),
        (Any, "+ff00::/8", "[ff02::1]:80", "always denied: multicast"),
        (Any, "+0.0.0.0/0", "203.0.113.7:25", "always denied: mail"),
        (Any, "+203.0.113.7:25", "203.0.113.7:25", "always denied: mail"),
        (Any, "+*:853", "203.0.113.7:853", "always denied: encrypted DNS"),
        (Any, "+udp://*:853", "udp://203.0.113.7:853", "always denied: encrypted DNS"),
        (Public, "", "udp://203.0.113.7:5353", "always denied: local names"),
        (Public, "", "udp://203.0.113.7:5355", "always denied: local names"),
        // The link and the gateway.
        (Any, "+10.0.0.0/8", "10.42.0.1:80", "always denied: the gateway"),
        (Any, "+10.42.0.2", "10.42.0.2:80", "always denied: the link"),
        (Any, "+10.42.0.0/30", "10.42.0.3:80", "always denied: the link"),
        (Any, "+fd00::/8", "[fd66:6f72:6b64::1]:80", "always denied: the gateway"),
        (Any, "+fd00::/8", "[fd66:6f72:6b64::2]:80", "always denied: the link"),
        // IPv4 within IPv6.
        (Any, "+all +::/0", "[::ffff:127.0.0.1]:80", "always denied: loopback"),
        (Any, "+all +::/0", "[::127.0.0.1]:80", "always denied: loopback"),
        (
            Any,
            "+all +::/0",
            "[::ffff:169.254.169.254]:80",
            "always denied: link-local and metadata",
        ),
        (Any, "+all +::/0", "[64:ff9b::7f00:1]:80", "always denied: loopback"),
        (Any, "+all +::/0", "[64:ff9b::a9fe:a9fe]:80", "always denied: link-local and metadata"),
        (Any, "+all +::/0", "[64:ff9b:1::cb00:7107]:80", "always denied: translated addresses"),
        (Any, "+all +::/0", "[2002:7f00:1::1]:80", "always denied: loopback"),
        // Teredo: the server, then the client, whose bits are inverted.
        (Any, "+all +::/0", "[2001:0:7f00:1::1]:80", "always denied: loopback"),
        (Any, "+all +::/0", "[2001:0:cb00:7107:0:0:80ff:fffe]:80", "always denied: loopback"),
        (Any, "+all", "[::ffff:10.1.2.3]:80", "private range"),
        (Any, "+all", "[64:ff9b::a01:203]:80", "private range"),
        (Any, "+all", "[2002:a01:203::1]:80", "private range"),
        (Public, "", "[::ffff:203.0.113.7]:80", "yes"),
        (Public, "", "[64:ff9b::cb00:7107]:80", "yes"),
        (Public, "-203.0.113.0/24", "[::ffff:203.0.113.7]:80", "deny_out: 203.0.113.0/24"),
        (Public, "-203.0.113.0/24", "[64:ff9b::cb00:7107]:80", "deny_out: 203.0.113.0/24"),
        (Public, "+203.0.113.7:80", "[::ffff:203.0.113.7]:80", "yes"),
        // Private ranges.
        (Public, "", "10.1.2.3:80", "operator"),
        (Public, "", "172.16.0.1:80", "operator"),
        (Public, "", "192.168.1.1:80", "operator"),
        (Public, "", "100.64.0.1:80", "operator"),
        (Public, "", "[fc00::1]:80", "operator"),
        (Public, "", "172.32.0.1:80", "yes"),
        (Public, "", "100.128.0.1:80", "yes"),
        (Public, "+10.1.0.0/16", "10.1.2.3:80", "operator"),
        (Any, "", "10.1.2.3:80", "private range"),
        (Any, "+all", "10.1.2.3:80", "private range"),
        (Any, "+*", "10.1.2.3:80", "private range"),
        (Any, "+0.0.0.0/0", "10.1.2.3:80", "private range"),
        (Any, "+8.0.0.0/5", "10.1.2.3:80", "private range"),
        (Any, "+::/0", "[fd00::1]:80", "private range"),
        (Any, "+10.1.0.0/16", "10.1.2.3:80", "yes"),
        (Any, "+10.1.0.0/16:443", "10.1.2.3:80", "private range"),
        (Any, "+10.1.0.0/16", "10.2.2.3:80", "private range"),
        (Any, "+10.1.0.0/16", "udp://10.1.2.3:80", "private range"),
        (Any, "+fd00::/8", "[fd00::1]:80", "yes"),
        (Any, "+a.example", "10.1.2.3:80=a.example", "private range"),
        (Any, "+a.example +10.1.0.0/16:80", "10.1.2.3:80=a.example", "yes"),
        // The host's own services.
        (Any, "+host:5432", "10.42.0.1:5432", "yes"),
        (Any, "+host:5432", "[fd66:6f72:6b64::1]:5432", "yes"),
        (Any, "+host:5432", "10.42.0.1:5433", "always denied: the gateway"),
        (Any, "+host:5432", "udp://10.42.0.1:5432", "always denied: the gateway"),
        (Any, "+host:5432", "127.0.0.1:5432", "always denied: loopback"),
        (Public, "+host:5432", "10.42.0.1:5432", "operator"),
        // A list: names on their ports, addresses, nothing else.
        (Public, LIST, "203.0.113.7:443=a.example", "named"),
        (Public, LIST, "203.0.113.7:80=a.example", "default"),
        (Public, LIST, "203.0.113.7:443", "default"),
        (Public, LIST, "203.0.113.7:443=x.a.example", "default"),
        (Public, LIST, "203.0.113.7:443=c.example", "default"),
        (Public, LIST, "203.0.113.7:443=c.example,a.example", "named"),
        (Public, LIST, "198.51.100.9:22=x.b.example", "named"),
        (Public, LIST, "198.51.100.9:22=x.y.b.example", "named"),
        (Public, LIST, "198.51.100.9:22=b.example", "default"),
        (Public, LIST, "198.51.100.9:22=xb.example", "default"),
        (Public, LIST, "[2001:db8::9]:22=x.b.example", "named"),
        (Public, LIST, "203.0.113.7:5432", "yes"),
        (Public, LIST, "203.0.113.7:5433", "default"),
        (Public, LIST, "203.0.114.7:5432", "default"),
        (Public, LIST, "203.0.113.7:5432=evil.example", "yes"),
        (Public, LIST, "[2001:db8:1::7]:443", "yes"),
        (Public, LIST, "[2001:db8:2::7]:443", "default"),
        (Public, LIST, "udp://203.0.113.9:123", "yes"),
        (Public, LIST, "udp://203.0.113.9:124", "default"),
        (Public, LIST, "udp://203.0.113.7:5432", "default"),
        (Public, LIST, "udp://203.0.113.7:443=a.example", "always denied: QUIC"),
        (Public, "+udp://203.0.113.7:443", "udp://203.0.113.7:443", "always denied: QUIC"),
        (Public, LIST, "udp://198.51.100.9:99=x.b.example", "default"),
        (Public, LIST, "icmp://198.51.100.7:0", "yes"),
        (Public, LIST, "icmp://198.51.100.8:0", "default"),
        (Public, "+*:443", "203.0.113.7:443", "yes"),
        (Public, "+*:443", "203.0.113.7:80", "default"),
        (Public, "+*", "udp://203.0.113.7:80", "default"),
        (Public, "+udp://*", "udp://203.0.113.7:80", "yes"),
        // The order.
        (Public, "-198.51.100.0/24", HTTP, "yes"),
        (Public, "-198.51.100.0/24", "198.51.100.7:80", "deny_out: 198.51.100.0/24"),
        (Public, "-198.51.100.0/24", "icmp://198.51.100.7:0", "deny_out: 198.51.100.0/24"),
        (Public, "+198.51.100.7 -198.51.100.0/24", "198.51.100.7:80", "yes"),
        (Public, "+198.51.100.7 -198.51.100.0/24", "198.51.100.8:80", "deny_out: 198.51.100.0/24"),
        (Public, "+all +198.51.100.7 -198.51.100.0/24", HTTP, "yes"),
        (Public, "+198.51.100.7 -198.51.100.0/24", HTTP, "default"),
        (Public, "+all +a.example -0.0.0.0/0", "203.0.113.7:443=a.example", "named"),
        (Public, "+all +a.example -0.0.0.0/0", "203.0.113.7:443", "deny_out: 0.0.0.0/0"),
        (Public, "+all +a.example -0.0.0.0/0", "[2001:db8::7]:443", "deny_out: 0.0.0.0/0"),
        (Public, "+all -::/0", "[2001:db8::7]:443", "deny_out: ::/0"),
        (Public, "+all -::/0", HTTP, "yes"),
        // A name that the default would allow anyway is not checked.
        (Public, "+all +a.example", "203.0.113.7:443=a.example", "yes"),
        (Public, "-all", HTTP, "default"),
        (Public, "-all", "203.0.113.7:443=a.example", "default"),
        (Public, "-all +a.example", "203.0.113.7:443=a.example", "named"),
    ]
};

#[test]
fn each_flow_gets_its_verdict() {
    assert!(TABLE.len() > 100, "{}", TABLE.len());
    for (leave, policy, flow, verdict) in TABLE {
        let judged = judge(&rules(policy, *leave), flow);
        assert_eq!(judged, *verdict, "{flow} under `{policy}` with leave {leave}");
    }
}

#[test]
fn the_hosts_services_are_dialled_at_its_loopback_address() {
    let rules = rules("+host:5432", NetworkLeave::Any);
    let remote = (GATEWAY_IPV4, 5432).into();
    let Verdict::Allowed { dial, .. } =
        rules.verdict(Flow { protocol: Protocol::Tcp, remote, names: &[] })
    else {
        panic!("refused");
    };
    assert_eq!(dial, "127.0.0.1:5432".parse().unwrap());
}

#[test]
fn only_listed_names_resolve() {
    let resolves = |policy: &str, name: &str| {
        rules(policy, NetworkLeave::Public).resolves(&name.parse().unwrap())
    };
    assert!(resolves("", "a.example"));
    assert!(resolves("-198.51.100.0/24", "a.example"));
    assert!(resolves(LIST, "a.example") && resolves(LIST, "x.b.example"));
    assert!(!resolves(LIST, "b.example") && !resolves(LIST, "secret.a.example"));
    assert!(!resolves("+203.0.113.0/24", "a.example"), "no name, no resolver");
    assert!(resolves("+*:443", "a.example"));
    assert!(!resolves("-all", "a.example"));
    assert!(!resolves("+all +a.example -0.0.0.0/0", "b.example"));
    assert!(!rules("", NetworkLeave::None).resolves(&"a.example".parse().unwrap()));
}

#[test]
fn answers_lose_what_is_denied() {
    let answers = |policy: &str, leave, address: &str| {
        rules(policy, leave).may_answer(address.parse().unwrap())
    };
    let (public, any) = (NetworkLeave::Public, NetworkLeave::Any);
    assert!(answers("", public, "203.0.113.7"));
    for address in ["127.0.0.1", "169.254.169.254", "::1", "::ffff:127.0.0.1", "64:ff9b::7f00:1"] {
        assert!(!answers("+*", any, address), "{address}");
    }
    assert!(!answers("", public, "10.1.2.3") && !answers("", any, "10.1.2.3"));
    assert!(answers("+10.1.0.0/16:80", any, "10.1.2.3"));
    assert!(!answers("+10.1.0.0/16:80", public, "10.1.2.3"));
    assert!(!answers("+0.0.0.0/0", any, "10.1.2.3"));
}

proptest! {
    #[test]
    fn with_the_list_emptied_nothing_passes(
        v4: u32, v6: u128, is_v4: bool, port: u16, protocol in 0..3_usize,
        leave in 0..3_usize,
        names in proptest::collection::vec("[a-z]{1,5}\\.example", 0..3), denied: bool,
    ) {
        let address = match is_v4 {
            true => IpAddr::from(Ipv4Addr::from_bits(v4)),
            false => Ipv6Addr::from_bits(v6).into(),
        };
        let names: Vec<DomainName> = names.iter().map(|name| name.parse().unwrap()).collect();
        let protocol = [Protocol::Tcp, Protocol::Udp, Protocol::Icmp][protocol];
        let leave = [NetworkLeave::None, NetworkLeave::Public, NetworkLeave::Any][leave];
        let closed = if denied { "+all -0.0.0.0/0" } else { "-all" };
        let flow = Flow { protocol, remote: (address, port).into(), names: &names };
        let verdict = rules(closed, leave).verdict(flow);
        prop_assert!(matches!(verdict, Verdict::Refused(_)), "{verdict:?}");
    }
}
