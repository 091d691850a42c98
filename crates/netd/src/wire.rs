//! Frames of the link: what a guest's frame is, and the frames that are made without a connection.
//!
//! Guarantees: `parse` takes any bytes. What it returns comes from the guest's own addresses, is
//! whole, and is no fragment.
//!
//! Does not do: connections; see `stack`. Checksums of the guest's frames: nothing can damage them
//! on the way.

use std::net::{IpAddr, Ipv6Addr, SocketAddr};

use forkd_netd_protocol::TcpFlow;
use forkd_types::network::{
    GATEWAY_IPV4, GATEWAY_IPV6, GATEWAY_MAC, GUEST_IPV4, GUEST_IPV6, GUEST_MAC,
};
use smoltcp::phy::{Checksum, ChecksumCapabilities};
use smoltcp::wire::{
    ArpOperation, ArpPacket, ArpRepr, EthernetAddress, EthernetFrame, EthernetProtocol,
    Icmpv4Message, Icmpv4Packet, Icmpv4Repr, Icmpv6Message, Icmpv6Packet, Icmpv6Repr, IpProtocol,
    IpRepr, Ipv4Packet, Ipv6Packet, NdiscNeighborFlags, NdiscRepr, RawHardwareAddress, TcpControl,
    TcpPacket, TcpRepr, TcpSeqNumber, UdpPacket, UdpRepr,
};

/// Bytes before the IP packet.
pub(crate) const ETHERNET_BYTES: usize = 14;
/// Of a refused datagram, as much as an ICMP error repeats.
const REPEATED_BYTES_MAX: usize = 512;
const HOPS: u8 = 64;
const ICMP_HEADER_BYTES: usize = 8;

/// What the guest has sent.
#[derive(Debug, PartialEq, Eq)]
pub(crate) enum Packet<'a> {
    /// A segment of a connection.
    Tcp(Segment<'a>),
    /// A datagram.
    Udp { guest_port: u16, remote: SocketAddr, payload: &'a [u8], packet: &'a [u8] },
    /// A request for an echo.
    Echo(Echo<'a>),
    /// A question for an address of the link; the frame that answers it.
    WhoHas(Vec<u8>),
}

/// A TCP segment.
#[derive(Debug, PartialEq, Eq)]
pub(crate) struct Segment<'a> {
    pub(crate) guest_port: u16,
    pub(crate) remote: SocketAddr,
    /// The first one of a connection that the guest opens.
    pub(crate) opens: bool,
    pub(crate) resets: bool,
    /// What the guest expects next.
    pub(crate) expected: Option<u32>,
    /// Where the guest's own bytes end.
    pub(crate) sent: u32,
    /// The whole IP packet.
    pub(crate) packet: &'a [u8],
}

/// A request for an echo, or the answer.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct Echo<'a> {
    pub(crate) remote: IpAddr,
    pub(crate) ident: u16,
    pub(crate) sequence: u16,
    pub(crate) data: &'a [u8],
}

/// Which checksums are computed: all of what is sent, none of what came.
pub(crate) fn checksums() -> ChecksumCapabilities {
    let mut checksums = ChecksumCapabilities::default();
    (checksums.ipv4, checksums.tcp, checksums.udp) = (Checksum::Tx, Checksum::Tx, Checksum::Tx);
    (checksums.icmpv4, checksums.icmpv6) = (Checksum::Tx, Checksum::Tx);
    checksums
}

/// The gateway's address of the family of `remote`.
pub(crate) fn gateway(remote: IpAddr) -> IpAddr {
    if remote.is_ipv4() { GATEWAY_IPV4.into() } else { GATEWAY_IPV6.into() }
}

/// The guest's address of the family of `remote`.
pub(crate) fn guest(remote: IpAddr) -> IpAddr {
    if remote.is_ipv4() { GUEST_IPV4.into() } else { GUEST_IPV6.into() }
}

/// Understands a frame; none for all that this link does not carry.
pub(crate) fn parse(frame: &[u8]) -> Option<Packet<'_>> {
    let frame = EthernetFrame::new_checked(frame).ok()?;
    let payload = frame.payload();
    match frame.ethertype() {
        EthernetProtocol::Ipv4 => {
            let packet = Ipv4Packet::new_checked(payload).ok()?;
            let fragment = packet.more_frags() || packet.frag_offset() != 0;
            if packet.version() != 4 || packet.src_addr() != GUEST_IPV4 || fragment {
                return None;
            }
            let whole = &payload[..usize::from(packet.total_len())];
            let inside = &whole[usize::from(packet.header_len())..];
            parse_inside(packet.dst_addr().into(), packet.next_header(), whole, inside)
        }
        EthernetProtocol::Ipv6 => {
            let packet = Ipv6Packet::new_checked(payload).ok()?;
            if packet.version() != 6 {
                return None;
            }
            let whole = &payload[..packet.total_len()];
            let inside = &whole[packet.header_len()..];
            if packet.next_header() == IpProtocol::Icmpv6
                && let Some(answer) = answer_neighbor(&packet, inside)
            {
                return Some(Packet::WhoHas(answer));
            }
            if packet.src_addr() != GUEST_IPV6 {
                return None;
            }
            parse_inside(packet.dst_addr().into(), packet.next_header(), whole, inside)
        }
        EthernetProtocol::Arp => answer_arp(payload).map(Packet::WhoHas),
        _ => None,
    }
}

fn parse_inside<'a>(
    remote: IpAddr,
    protocol: IpProtocol,
    packet: &'a [u8],
    inside: &'a [u8],
) -> Option<Packet<'a>> {
    match (protocol, remote) {
        (IpProtocol::Tcp, _) => {
            let segment = TcpPacket::new_checked(inside).ok()?;
            let (guest_port, remote_port) = (segment.src_port(), segment.dst_port());
            if guest_port == 0 || remote_port == 0 {
                return None;
            }
            Some(Packet::Tcp(Segment {
                guest_port,
                remote: SocketAddr::new(remote, remote_port),
                opens: segment.syn() && !segment.ack() && !segment.rst() && !segment.fin(),
                resets: segment.rst(),
                expected: segment.ack().then(|| bits(segment.ack_number())),
                sent: bits(segment.seq_number() + segment.segment_len()),
                packet,
            }))
        }
        (IpProtocol::Udp, _) => {
            let datagram = UdpPacket::new_checked(inside).ok()?;
            let (guest_port, remote_port) = (datagram.src_port(), datagram.dst_port());
            let remote = SocketAddr::new(remote, remote_port);
            let payload = &inside[8..usize::from(datagram.len())];
            let usable = guest_port != 0 && remote_port != 0;
            usable.then_some(Packet::Udp { guest_port, remote, payload, packet })
        }
        (IpProtocol::Icmp, IpAddr::V4(_)) => {
            let message = Icmpv4Packet::new_checked(inside).ok()?;
            if message.msg_type() != Icmpv4Message::EchoRequest || inside.len() < 8 {
                return None;
            }
            let (ident, sequence) = (message.echo_ident(), message.echo_seq_no());
            Some(Packet::Echo(Echo { remote, ident, sequence, data: &inside[8..] }))
        }
        (IpProtocol::Icmpv6, IpAddr::V6(_)) => {
            let message = Icmpv6Packet::new_checked(inside).ok()?;
            if message.msg_type() != Icmpv6Message::EchoRequest || inside.len() < 8 {
                return None;
            }
            let (ident, sequence) = (message.echo_ident(), message.echo_seq_no());
            Some(Packet::Echo(Echo { remote, ident, sequence, data: &inside[8..] }))
        }
        _ => None,
    }
}

#[expect(clippy::cast_sign_loss, reason = "sequence numbers are bits")]
fn bits(number: TcpSeqNumber) -> u32 {
    number.0 as u32
}

#[expect(clippy::cast_possible_wrap, reason = "sequence numbers are bits")]
fn sequence(bits: u32) -> TcpSeqNumber {
    TcpSeqNumber(bits as i32)
}

/// Writes the Ethernet header of a frame to the guest.
pub(crate) fn write_ethernet(frame: &mut [u8]) {
    let version = frame[ETHERNET_BYTES] >> 4;
    let mut frame = EthernetFrame::new_unchecked(frame);
    frame.set_dst_addr(EthernetAddress(GUEST_MAC));
    frame.set_src_addr(EthernetAddress(GATEWAY_MAC));
    let is_v4 = version == 4;
    frame.set_ethertype(if is_v4 { EthernetProtocol::Ipv4 } else { EthernetProtocol::Ipv6 });
}

/// A frame to the guest: `fill` writes what follows the IP header.
fn to_guest(
    from: IpAddr,
    protocol: IpProtocol,
    bytes: usize,
    fill: impl FnOnce(&mut [u8]),
) -> Vec<u8> {
    let header = IpRepr::new(from.into(), guest(from).into(), protocol, bytes, HOPS);
    let mut frame = vec![0; ETHERNET_BYTES + header.header_len() + bytes];
    header.emit(&mut frame[ETHERNET_BYTES..], &checksums());
    fill(&mut frame[ETHERNET_BYTES + header.header_len()..]);
    write_ethernet(&mut frame);
    frame
}

/// A datagram to the guest.
pub(crate) fn udp(from: SocketAddr, guest_port: u16, payload: &[u8]) -> Vec<u8> {
    let header = UdpRepr { src_port: from.port(), dst_port: guest_port };
    to_guest(from.ip(), IpProtocol::Udp, 8 + payload.len(), |inside| {
        header.emit(
            &mut UdpPacket::new_unchecked(inside),
            &from.ip().into(),
            &guest(from.ip()).into(),
            payload.len(),
            |bytes| bytes.copy_from_slice(payload),
            &checksums(),
        );
    })
}

/// The answer to a request for an echo.
pub(crate) fn echo_reply(echo: Echo<'_>) -> Vec<u8> {
    let Echo { remote, ident, sequence: seq_no, data } = echo;
    match remote {
        IpAddr::V4(_) => icmpv4(remote, &Icmpv4Repr::EchoReply { ident, seq_no, data }),
        IpAddr::V6(from) => icmpv6(from, &Icmpv6Repr::EchoReply { ident, seq_no, data }),
    }
}

fn icmpv4(from: IpAddr, message: &Icmpv4Repr<'_>) -> Vec<u8> {
    to_guest(from, IpProtocol::Icmp, message.buffer_len(), |inside| {
        message.emit(&mut Icmpv4Packet::new_unchecked(inside), &checksums());
    })
}

fn icmpv6(from: Ipv6Addr, message: &Icmpv6Repr<'_>) -> Vec<u8> {
    to_guest(from.into(), IpProtocol::Icmpv6, message.buffer_len(), |inside| {
        let mut packet = Icmpv6Packet::new_unchecked(inside);
        message.emit(&from, &GUEST_IPV6, &mut packet, &checksums());
    })
}

/// Says that the destination of this IP packet of the guest does not take it. A program learns it
/// as `ECONNREFUSED`.
pub(crate) fn unreachable(packet: &[u8]) -> Option<Vec<u8>> {
    /// "Port unreachable", of either version.
    const PORT: (u8, u8) = (3, 4);
    let repeated = &packet[..packet.len().min(REPEATED_BYTES_MAX)];
    let (from, protocol): (IpAddr, _) = match packet.first()? >> 4 {
        4 => (<[u8; 4]>::try_from(packet.get(16..20)?).ok()?.into(), IpProtocol::Icmp),
        _ => (<[u8; 16]>::try_from(packet.get(24..40)?).ok()?.into(), IpProtocol::Icmpv6),
    };
    Some(to_guest(from, protocol, ICMP_HEADER_BYTES + repeated.len(), |inside| {
        inside[ICMP_HEADER_BYTES..].copy_from_slice(repeated);
        match from {
            IpAddr::V4(_) => {
                let mut message = Icmpv4Packet::new_unchecked(inside);
                message.set_msg_type(Icmpv4Message::DstUnreachable);
                message.set_msg_code(PORT.0);
                message.fill_checksum();
            }
            IpAddr::V6(from) => {
                let mut message = Icmpv6Packet::new_unchecked(inside);
                message.set_msg_type(Icmpv6Message::DstUnreachable);
                message.set_msg_code(PORT.1);
                message.fill_checksum(&from, &GUEST_IPV6);
            }
        }
    }))
}

/// One byte far outside the window of a connection. Whoever believes in the connection answers with
/// its position, and is reset then. A segment without data would be answered once in 500 ms only.
pub(crate) fn probe(flow: &TcpFlow) -> Vec<u8> {
    let remote = SocketAddr::new(flow.remote, flow.remote_port);
    let segment = TcpRepr {
        src_port: flow.remote_port,
        dst_port: flow.guest_port,
        control: TcpControl::None,
        seq_number: sequence(flow.expected.wrapping_sub(1 << 30)),
        ack_number: Some(sequence(flow.sent)),
        window_len: 0,
        window_scale: None,
        max_seg_size: None,
        sack_permitted: false,
        sack_ranges: [None; 3],
        timestamp: None,
        payload: &[0],
    };
    to_guest(remote.ip(), IpProtocol::Tcp, segment.buffer_len(), |inside| {
        let mut packet = TcpPacket::new_unchecked(inside);
        segment.emit(&mut packet, &remote.ip().into(), &guest(remote.ip()).into(), &checksums());
    })
}

/// The gateway has all addresses but the guest's.
fn answer_arp(payload: &[u8]) -> Option<Vec<u8>> {
    let question = ArpRepr::parse(&ArpPacket::new_checked(payload).ok()?).ok()?;
    let ArpRepr::EthernetIpv4 { operation: ArpOperation::Request, target_protocol_addr, .. } =
        question
    else {
        return None;
    };
    if target_protocol_addr == GUEST_IPV4 {
        return None;
    }
    let answer = ArpRepr::EthernetIpv4 {
        operation: ArpOperation::Reply,
        source_hardware_addr: EthernetAddress(GATEWAY_MAC),
        source_protocol_addr: target_protocol_addr,
        target_hardware_addr: EthernetAddress(GUEST_MAC),
        target_protocol_addr: GUEST_IPV4,
    };
    let mut frame = vec![0; ETHERNET_BYTES + answer.buffer_len()];
    write_ethernet(&mut frame);
    EthernetFrame::new_unchecked(&mut frame).set_ethertype(EthernetProtocol::Arp);
    answer.emit(&mut ArpPacket::new_unchecked(&mut frame[ETHERNET_BYTES..]));
    Some(frame)
}

fn answer_neighbor(packet: &Ipv6Packet<&[u8]>, inside: &[u8]) -> Option<Vec<u8>> {
    let message = Icmpv6Packet::new_checked(inside).ok()?;
    if message.msg_type() != Icmpv6Message::NeighborSolicit {
        return None;
    }
    let NdiscRepr::NeighborSolicit { target_addr, .. } = NdiscRepr::parse(&message).ok()? else {
        return None;
    };
    // An unspecified source asks whether anybody has the address that it is about to take.
    if target_addr != GATEWAY_IPV6 || packet.src_addr().is_unspecified() {
        return None;
    }
    let answer = Icmpv6Repr::Ndisc(NdiscRepr::NeighborAdvert {
        flags: NdiscNeighborFlags::SOLICITED | NdiscNeighborFlags::OVERRIDE,
        target_addr,
        lladdr: Some(RawHardwareAddress::from_bytes(&GATEWAY_MAC)),
    });
    let to = packet.src_addr();
    let header = IpRepr::new(
        GATEWAY_IPV6.into(),
        to.into(),
        IpProtocol::Icmpv6,
        answer.buffer_len(),
        // RFC 4861: with any other number the answer is ignored.
        255,
    );
    let mut frame = vec![0; ETHERNET_BYTES + header.header_len() + answer.buffer_len()];
    header.emit(&mut frame[ETHERNET_BYTES..], &checksums());
    let mut inside =
        Icmpv6Packet::new_unchecked(&mut frame[ETHERNET_BYTES + header.header_len()..]);
    answer.emit(&GATEWAY_IPV6, &to, &mut inside, &checksums());
    write_ethernet(&mut frame);
    Some(frame)
}
