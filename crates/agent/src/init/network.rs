//! The network as programs find it: the loopback interface, and the link to the gateway if the
//! machine has one.
//!
//! All of it is in place before a template is frozen, and is the same in every child: a child says
//! nothing on its link until a program does. So the gateway's hardware address is given and not
//! asked for, and IPv6 neither looks for routers nor for somebody with the same address.

use std::fs;
use std::io;
use std::net::IpAddr;
use std::path::Path;

use forkd_types::network as link;
use netlink_packet_core::{
    NLM_F_ACK, NLM_F_CREATE, NLM_F_REPLACE, NLM_F_REQUEST, NetlinkHeader, NetlinkMessage,
    NetlinkPayload,
};
use netlink_packet_route::address::{AddressAttribute, AddressHeaderFlags, AddressMessage};
use netlink_packet_route::link::{LinkFlags, LinkMessage};
use netlink_packet_route::neighbour::{NeighbourAttribute, NeighbourMessage, NeighbourState};
use netlink_packet_route::route::{
    RouteAttribute, RouteHeader, RouteMessage, RouteProtocol, RouteScope, RouteType,
};
use netlink_packet_route::{AddressFamily as Family, RouteNetlinkMessage};
use rustix::fd::OwnedFd;
use rustix::net::netlink::SocketAddrNetlink;
use rustix::net::{
    AddressFamily, Protocol, RecvFlags, SendFlags, SocketFlags, SocketType, recv, sendto,
    socket_with,
};

/// The kernel gives the loopback interface this index in every network namespace.
const LOOPBACK_INDEX: u32 = 1;

/// The first network device.
const INTERFACE: &str = "eth0";

/// The protocol's number is 0, which is written as none.
const NETLINK_ROUTE: Option<Protocol> = None;

const ANSWER_BYTES_MAX: usize = 4096;

/// What IPv6 leaves undone on the link.
const QUIET_IPV6: [(&str, &str); 6] = [
    ("accept_ra", "0"),
    ("accept_dad", "0"),
    ("autoconf", "0"),
    ("router_solicitations", "0"),
    // No address of its own making.
    ("addr_gen_mode", "1"),
    // What it must say of multicast groups is said at once, so no child says it.
    ("mldv2_unsolicited_report_interval", "1"),
];

/// Brings up what there is.
pub(super) fn set_up() -> io::Result<()> {
    let socket = RouteSocket::open()?;
    socket.bring_up(LOOPBACK_INDEX)?;
    let index = Path::new("/sys/class/net").join(INTERFACE).join("ifindex");
    let Ok(index) = fs::read_to_string(index) else { return Ok(()) };
    let index = index.trim().parse().map_err(io::Error::other)?;
    for (name, value) in QUIET_IPV6 {
        // A kernel without IPv6 has none of them.
        fs::write(format!("/proc/sys/net/ipv6/conf/{INTERFACE}/{name}"), value).ok();
    }
    socket.bring_up(index)?;
    socket.join(
        index,
        link::GUEST_IPV4.into(),
        link::LINK_PREFIX_IPV4,
        link::GATEWAY_IPV4.into(),
    )?;
    if Path::new("/proc/sys/net/ipv6").exists() {
        let gateway = link::GATEWAY_IPV6.into();
        socket.join(index, link::GUEST_IPV6.into(), link::LINK_PREFIX_IPV6, gateway)?;
    }
    name_servers()
}

/// Tells programs who answers for names. The image's own file is about another network.
fn name_servers() -> io::Result<()> {
    const FILE: &str = "/etc/resolv.conf";
    // It may be a link to what a service would write.
    fs::remove_file(FILE).ok();
    fs::write(FILE, format!("nameserver {}\noptions timeout:2 attempts:3\n", link::GATEWAY_IPV4))?;
    let hosts = Path::new("/etc/hosts");
    if hosts.exists() {
        return Ok(());
    }
    fs::write(hosts, "127.0.0.1 localhost\n::1 localhost\n")
}

/// A connection to the kernel's tables of interfaces, addresses and routes.
struct RouteSocket(OwnedFd);

impl RouteSocket {
    fn open() -> io::Result<Self> {
        let (family, flags) = (AddressFamily::NETLINK, SocketFlags::CLOEXEC);
        Ok(Self(socket_with(family, SocketType::RAW, flags, NETLINK_ROUTE)?))
    }

    fn bring_up(&self, index: u32) -> io::Result<()> {
        let mut message = LinkMessage::default();
        message.header.index = index;
        message.header.flags = LinkFlags::Up;
        message.header.change_mask = LinkFlags::Up;
        self.ask(RouteNetlinkMessage::SetLink(message))
    }

    /// Gives the interface its address, and sends everything that is not its own to `gateway`.
    fn join(&self, index: u32, own: IpAddr, prefix: u8, gateway: IpAddr) -> io::Result<()> {
        let family = if own.is_ipv4() { Family::Inet } else { Family::Inet6 };
        let mut address = AddressMessage::default();
        address.header.family = family;
        address.header.prefix_len = prefix;
        address.header.index = index;
        address.header.flags = AddressHeaderFlags::Nodad;
        address.attributes = vec![AddressAttribute::Local(own), AddressAttribute::Address(own)];
        self.ask(RouteNetlinkMessage::NewAddress(address))?;

        let mut neighbour = NeighbourMessage::default();
        neighbour.header.family = family;
        neighbour.header.ifindex = index;
        neighbour.header.state = NeighbourState::Permanent;
        neighbour.attributes = vec![
            NeighbourAttribute::Destination(gateway.into()),
            NeighbourAttribute::LinkLayerAddress(link::GATEWAY_MAC.to_vec()),
        ];
        self.ask(RouteNetlinkMessage::NewNeighbour(neighbour))?;

        let mut route = RouteMessage::default();
        route.header.address_family = family;
        route.header.table = RouteHeader::RT_TABLE_MAIN;
        route.header.protocol = RouteProtocol::Boot;
        route.header.scope = RouteScope::Universe;
        route.header.kind = RouteType::Unicast;
        route.attributes =
            vec![RouteAttribute::Gateway(gateway.into()), RouteAttribute::Oif(index)];
        self.ask(RouteNetlinkMessage::NewRoute(route))
    }

    /// Sends one message and waits for the kernel's word.
    fn ask(&self, message: RouteNetlinkMessage) -> io::Result<()> {
        let mut header = NetlinkHeader::default();
        header.flags = NLM_F_REQUEST | NLM_F_ACK | NLM_F_CREATE | NLM_F_REPLACE;
        let mut message = NetlinkMessage::new(header, NetlinkPayload::from(message));
        message.finalize();
        let mut bytes = vec![0; message.buffer_len()];
        message.serialize(&mut bytes);
        sendto(&self.0, &bytes, SendFlags::empty(), &SocketAddrNetlink::new(0, 0))?;
        let mut answer = [0; ANSWER_BYTES_MAX];
        let (_, count) = recv(&self.0, &mut answer[..], RecvFlags::empty())?;
        let answer = NetlinkMessage::<RouteNetlinkMessage>::deserialize(&answer[..count]);
        match answer.map_err(io::Error::other)?.payload {
            NetlinkPayload::Error(error) => match error.code {
                None => Ok(()),
                Some(_) => Err(error.to_io()),
            },
            _ => Err(io::ErrorKind::InvalidData.into()),
        }
    }
}
