//! What the gateway knows of a guest's connections and queries at the instants when it is easily
//! wrong: while an answer or a reset is on its way to the guest.

use std::net::Ipv4Addr;
use std::os::fd::OwnedFd;

use forkd_netd_protocol::{Flow, TcpFlow, read_connections};
use forkd_types::SandboxId;
use forkd_types::network::{GUEST_IPV4, NetworkLeave};
use hickory_proto::op::{Message, Query};
use hickory_proto::rr::{Name, RecordType};
use rustix::net::SendFlags;
use smoltcp::phy::ChecksumCapabilities;
use smoltcp::socket::tcp::State;
use smoltcp::wire::{
    IpAddress, IpProtocol, IpRepr, Ipv4Packet, TcpControl, TcpPacket, TcpRepr, TcpSeqNumber,
};

use crate::branches::take_frame;
use crate::guest::{Ended, HEADER, datagram, with_ethernet};
use crate::world::{World, link, parse};

const SERVER: Ipv4Addr = Ipv4Addr::new(203, 0, 113, 7);
const GUEST_PORT: u16 = 40_000;
const SERVER_PORT: u16 = 80;

/// A segment's control, its sequence number and its acknowledgement.
type Spoken = (TcpControl, TcpSeqNumber, Option<TcpSeqNumber>);

/// Sends a segment without data as the guest.
fn speak(vmm: &OwnedFd, (control, seq_number, ack_number): Spoken) {
    let segment = TcpRepr {
        src_port: GUEST_PORT,
        dst_port: SERVER_PORT,
        control,
        seq_number,
        ack_number,
        window_len: 1000,
        window_scale: None,
        max_seg_size: None,
        sack_permitted: false,
        sack_ranges: [None; 3],
        timestamp: None,
        payload: &[],
    };
    let (from, to) = (IpAddress::from(GUEST_IPV4), IpAddress::from(SERVER));
    let checksums = ChecksumCapabilities::default();
    let ip = IpRepr::new(from, to, IpProtocol::Tcp, segment.buffer_len(), 64);
    let mut packet = vec![0; ip.buffer_len()];
    ip.emit(&mut packet[..], &checksums);
    let mut inside = TcpPacket::new_unchecked(&mut packet[ip.header_len()..]);
    segment.emit(&mut inside, &from, &to, &checksums);
    let frame = with_ethernet(&packet);
    assert_eq!(rustix::net::send(vmm, &frame, SendFlags::empty()).unwrap(), frame.len());
}

/// The next segment for the guest.
fn hear(world: &World, vmm: &OwnedFd) -> Spoken {
    let mut heard = None;
    world.wait("a segment comes", || {
        let frame = take_frame(vmm);
        heard = frame.map(|frame| {
            let packet = Ipv4Packet::new_checked(&frame[HEADER..]).unwrap();
            let inside = TcpPacket::new_checked(packet.payload()).unwrap();
            let (from, to) = (packet.src_addr().into(), packet.dst_addr().into());
            let checksums = ChecksumCapabilities::default();
            let segment = TcpRepr::parse(&inside, &from, &to, &checksums).unwrap();
            (segment.control, segment.seq_number, segment.ack_number)
        });
        heard.is_some()
    });
    heard.unwrap()
}

fn written(world: &World, sandbox: &SandboxId) -> Vec<TcpFlow> {
    read_connections(&world.logs.join(sandbox.as_str())).unwrap()
}

fn position(number: TcpSeqNumber) -> u32 {
    number.0.cast_unsigned()
}

#[test]
fn a_connection_is_written_down_before_the_guest_learns_of_it() {
    let world = World::new();
    world.serve_echo(SERVER_PORT);
    let (gateway, vmm) = link();
    let sandbox = SandboxId::random();
    world.attach(&sandbox, "", NetworkLeave::Public, Vec::new(), None, &gateway);
    speak(&vmm, (TcpControl::Syn, TcpSeqNumber(1000), None));
    let (control, theirs, own) = hear(&world, &vmm);
    assert_eq!((control, own), (TcpControl::Syn, Some(TcpSeqNumber(1001))));
    // A gateway that died here would have told the guest already.
    let [flow] = written(&world, &sandbox)[..] else { panic!("one connection") };
    assert_eq!((flow.guest_port, flow.remote_port), (GUEST_PORT, SERVER_PORT));
    assert_eq!(flow.remote, SERVER);
    assert_eq!(flow.sent, 1001);
    speak(&vmm, (TcpControl::None, TcpSeqNumber(1001), Some(theirs + 1)));
    world.wait(
        "it is written down what the guest expects",
        || matches!(written(&world, &sandbox)[..], [flow] if flow.expected == position(theirs + 1)),
    );
}

#[test]
fn a_connection_is_known_until_the_guest_has_heard_of_its_end() {
    let world = World::new();
    let (gateway, vmm) = link();
    let sandbox = SandboxId::random();
    let flow = TcpFlow {
        guest_port: GUEST_PORT,
        remote: SERVER.into(),
        remote_port: SERVER_PORT,
        expected: 5000,
        sent: 1001,
    };
    let inherited = vec![Flow::Tcp(flow)];
    world.attach(&sandbox, "", NetworkLeave::Public, inherited, None, &gateway);
    assert_eq!(hear(&world, &vmm).2, Some(TcpSeqNumber(1001)), "a probe");
    // The guest believes in it. The reset may wait for the VMM when the guest is branched.
    let own = (TcpControl::None, TcpSeqNumber(1001), Some(TcpSeqNumber(5000)));
    speak(&vmm, own);
    while hear(&world, &vmm).0 != TcpControl::Rst {}
    let known = world.ask(world.client.flows(sandbox.clone())).unwrap();
    assert_eq!(known, [Flow::Tcp(flow)]);
    assert_eq!(written(&world, &sandbox), [flow], "for the next gateway, too");
    // It is asked again, and knows better now.
    assert_eq!(hear(&world, &vmm).0, TcpControl::None);
    speak(&vmm, (TcpControl::Rst, TcpSeqNumber(1001), Some(TcpSeqNumber(5000))));
    world.wait("it is forgotten", || {
        let known = world.ask(world.client.flows(sandbox.clone())).unwrap();
        known.is_empty() && written(&world, &sandbox).is_empty()
    });
}

#[test]
fn a_reset_that_is_on_its_way_at_the_branch_point_reaches_the_child() {
    let world = World::new();
    world.serve_echo(SERVER_PORT);
    let guest = world.guest("");
    let stream = guest.connect("203.0.113.7:80").unwrap();
    let sandbox = guest.sandbox.clone();
    // Its processors stand still, and so it does not read the reset.
    let stopped = guest.stop();
    let (client, none) = (&world.client, parse("-all"));
    world.ask(client.set_policy(sandbox.clone(), none, NetworkLeave::Public)).unwrap();
    world.wait("it is reset", || !world.log(&sandbox).is_empty());
    let flows = world.ask(world.client.hold(sandbox.clone())).unwrap();
    let (gateway, theirs) = link();
    let child = SandboxId::random();
    world.attach(&child, "", NetworkLeave::Public, flows, Some(sandbox), &gateway);
    let _guest = stopped.resume(child, theirs);
    world.wait("it has ended", || stream.state() == State::Closed);
    assert_eq!(stream.read(), Err(Ended::Reset));
}

/// A child with what the gateway says of its source, and what is sent to it.
fn child_of(world: &World, source: &SandboxId) -> (OwnedFd, OwnedFd) {
    let flows = world.ask(world.client.hold(source.clone())).unwrap();
    let (gateway, vmm) = link();
    let (child, parent) = (SandboxId::random(), Some(source.clone()));
    world.attach(&child, "", NetworkLeave::Public, flows, parent, &gateway);
    (gateway, vmm)
}

#[test]
fn a_connection_under_way_becomes_one_of_the_childs_own() {
    let world = World::new();
    world.serve_echo(SERVER_PORT);
    let (gateway, vmm) = link();
    let source = SandboxId::random();
    world.attach(&source, "", NetworkLeave::Public, Vec::new(), None, &gateway);
    let syn = (TcpControl::Syn, TcpSeqNumber(1000), None);
    speak(&vmm, syn);
    world.wait("it is answered", || !written(&world, &source).is_empty());
    // The guest has not read the answer, and does not know what the child is asked.
    let (_link, vmm) = child_of(&world, &source);
    assert_eq!(hear(&world, &vmm).0, TcpControl::None, "a probe");
    speak(&vmm, syn);
    let answer = std::iter::repeat_with(|| hear(&world, &vmm)).find(|it| it.0 == TcpControl::Syn);
    assert_eq!(answer.unwrap().2, Some(TcpSeqNumber(1001)));
}

#[test]
fn a_query_whose_answer_is_on_its_way_is_asked_again_for_the_child() {
    let world = World::new();
    world.name("slow.example", &["203.0.113.9"]);
    let (gateway, vmm) = link();
    let source = SandboxId::random();
    world.attach(&source, "", NetworkLeave::Public, Vec::new(), None, &gateway);
    let mut query = Message::query();
    query.add_query(Query::query(Name::from_ascii("slow.example").unwrap(), RecordType::A));
    let resolver = "10.42.0.1:53".parse().unwrap();
    let frame = datagram(resolver, 5000, &query.to_vec().unwrap());
    rustix::net::send(&vmm, &frame, SendFlags::empty()).unwrap();
    let mut answer = None;
    let mut comes = |vmm: &OwnedFd| {
        world.wait("an answer", || {
            answer = take_frame(vmm);
            answer.is_some()
        });
        // Behind the headers of Ethernet, IPv4 and UDP.
        Message::from_vec(&answer.take().unwrap()[HEADER + 28..]).unwrap()
    };
    let first = comes(&vmm);
    let (_link, vmm) = child_of(&world, &source);
    let again = comes(&vmm);
    assert_eq!(again.metadata.id, query.metadata.id);
    assert_eq!((again.answers.len(), again.answers), (1, first.answers));
}
