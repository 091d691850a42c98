//! What a branch does: holds, what a child inherits, and connections to ports of a guest.

use std::os::fd::AsFd as _;
use std::time::{Duration, Instant};

use forkd_netd_protocol::{ClientError, Failure, Flow, read_connections};
use forkd_types::SandboxId;
use forkd_types::network::NetworkLeave;
use rustix::net::{RecvFlags, SendFlags};
use smoltcp::socket::tcp::State;
use tokio::io::{AsyncReadExt as _, AsyncWriteExt as _};

use crate::guest::Ended;
use crate::world::{World, beginning, lasting, link};

#[test]
fn inherited_connections_end_and_others_go_on() {
    let world = World::new();
    world.serve_echo(80);
    world.serve(81, |mut stream| async move {
        // Half closed: the server has finished, the guest has not.
        stream.shutdown().await.unwrap();
        tokio::io::copy(&mut stream, &mut tokio::io::sink()).await.ok();
    });
    let guest = world.guest("");
    let idle = guest.connect("203.0.113.7:80").unwrap();
    let busy = guest.connect("[2001:db8::7]:80").unwrap();
    busy.write_all(b"x").unwrap();
    busy.read().unwrap();
    let half = guest.connect("203.0.113.7:81").unwrap();
    assert_eq!(half.read(), Err(Ended::Finished));
    let finished = guest.connect("203.0.113.7:80").unwrap();
    finished.finish();
    let server = guest.listen(8080);
    let sandbox = guest.sandbox.clone();
    let dialled = world.ask(world.client.dial(sandbox.clone(), 8080)).unwrap();
    world.wait("the guest has taken it", || server.state() == State::Established);

    let flows = world.ask(world.client.hold(sandbox.clone())).unwrap();
    assert!(flows.len() >= 4, "{flows:?}");
    let stopped = guest.stop();
    // A child is the same memory on another link; the source is let go here.
    let (gateway, theirs) = link();
    let child = SandboxId::random();
    world.attach(&child, "", NetworkLeave::Public, flows, Some(sandbox.clone()), &gateway);
    world.ask(world.client.detach(sandbox)).unwrap();
    drop(dialled);
    let guest = stopped.resume(child, theirs);
    let start = Instant::now();
    let inherited = [&idle, &busy, &half, &finished, &server];
    // A connection whose both ends had finished waits for nothing.
    let has_ended =
        |stream: &&crate::guest::Stream| matches!(stream.state(), State::Closed | State::TimeWait);
    world.wait("all have ended", || inherited.iter().all(has_ended));
    println!("{} inherited connections ended after {:?}", inherited.len(), start.elapsed());
    let fresh = guest.connect("203.0.113.7:80").unwrap();
    fresh.write_all(b"hi").unwrap();
    assert_eq!(fresh.read().unwrap(), b"hi", "the child's own connections work");
}

#[test]
fn connections_are_written_down_until_they_end() {
    let world = World::new();
    world.serve_echo(80);
    let guest = world.guest("");
    let written = |sandbox: &SandboxId| {
        let mut written = read_connections(&world.logs.join(sandbox.as_str())).unwrap();
        written.sort_by_key(|flow| flow.guest_port);
        written.into_iter().map(Flow::Tcp).collect::<Vec<_>>()
    };
    let [first, second] =
        ["203.0.113.7:80", "[2001:db8::7]:80"].map(|to| guest.connect(to).unwrap());
    let sandbox = guest.sandbox.clone();
    world.wait("both are written down", || written(&sandbox).len() == 2);
    let mut flows = world.ask(world.client.flows(sandbox.clone())).unwrap();
    flows.sort_by_key(|flow| match flow {
        Flow::Tcp(flow) => flow.guest_port,
        Flow::Query(_) => 0,
    });
    assert_eq!(written(&sandbox), flows);
    first.abort();
    world.wait("one is left", || written(&sandbox) == flows[1..]);
    // The slot is used again.
    let third = guest.connect("203.0.113.7:80").unwrap();
    world.wait("two are written down", || written(&sandbox).len() == 2);
    // For a child until they have been reset.
    let stopped = guest.stop();
    let (gateway, theirs) = link();
    let child = SandboxId::random();
    let flows = world.ask(world.client.flows(sandbox.clone())).unwrap();
    world.attach(&child, "", NetworkLeave::Public, flows, None, &gateway);
    assert_eq!(written(&child).len(), 2);
    let _guest = stopped.resume(child.clone(), theirs);
    world.wait("they have ended", || {
        [&second, &third].iter().all(|stream| stream.state() == State::Closed)
    });
    world.wait("none is left", || written(&child).is_empty());
}

#[test]
fn probes_do_not_disturb_a_connection_that_exists() {
    let world = World::new();
    world.serve_echo(80);
    let guest = world.guest("");
    let stream = guest.connect("203.0.113.7:80").unwrap();
    stream.write_all(b"one").unwrap();
    assert_eq!(stream.read().unwrap(), b"one");
    let flows = world.ask(world.client.flows(guest.sandbox.clone())).unwrap();
    let [Flow::Tcp(flow)] = flows[..] else { panic!("{flows:?}") };
    // As the gateway sends it.
    let frames = probe_frames(&world, flow);
    for frame in frames {
        guest.receive_frame(&frame);
    }
    stream.write_all(b"two").unwrap();
    assert_eq!(stream.read().unwrap(), b"two");
}

/// What the gateway sends for an inherited connection, taken from a link without a guest.
fn probe_frames(world: &World, flow: forkd_netd_protocol::TcpFlow) -> Vec<Vec<u8>> {
    let (gateway, vmm) = link();
    let sandbox = SandboxId::random();
    let inherited = vec![Flow::Tcp(flow)];
    world.attach(&sandbox, "", NetworkLeave::Public, inherited, None, &gateway);
    let mut frames = Vec::new();
    world.wait("a probe comes", || {
        frames.extend(take_frame(&vmm));
        !frames.is_empty()
    });
    world.ask(world.client.detach(sandbox)).unwrap();
    frames
}

pub(crate) fn take_frame(link: &std::os::fd::OwnedFd) -> Option<Vec<u8>> {
    let mut buffer = vec![0; 70_000];
    let (bytes, _) = rustix::net::recv(link, &mut buffer[..], RecvFlags::DONTWAIT).ok()?;
    buffer.truncate(bytes);
    Some(buffer)
}

#[test]
fn a_hold_writes_nothing_and_ends_by_itself() {
    let world = World::new();
    let (gateway, vmm) = link();
    let sandbox = SandboxId::random();
    world.attach(&sandbox, "", NetworkLeave::Public, Vec::new(), None, &gateway);
    // Each is answered by "port unreachable".
    let frame = crate::guest::datagram("10.1.2.3:9".parse().unwrap(), 6000, b"x");
    let send = || rustix::net::send(&vmm, &frame, SendFlags::empty()).unwrap();
    send();
    world.wait("an answer comes", || take_frame(&vmm).is_some());

    // The hold begins later than this.
    let asked = Instant::now();
    world.ask(world.client.hold(sandbox.clone())).unwrap();
    (0..20).for_each(|_| assert_eq!(send(), frame.len()));
    // The frames are taken, which the flows' owner says by answering after them.
    world.ask(world.client.flows(sandbox.clone())).unwrap();
    let (mut first, mut after) = (None, 0);
    world.wait("the hold has ended by itself", || {
        if take_frame(&vmm).is_some() {
            first.get_or_insert_with(|| asked.elapsed());
            after += 1;
        }
        after == 20
    });
    let first = first.unwrap();
    assert!(first >= Duration::from_millis(50), "written while the link was held: {first:?}");

    world.ask(world.client.hold(sandbox.clone())).unwrap();
    send();
    world.ask(world.client.release(sandbox)).unwrap();
    world.wait("a release ends it at once", || take_frame(&vmm).is_some());
}

#[test]
fn a_port_of_the_guest_is_reached_whatever_the_policy() {
    let world = World::new();
    let guest = world.guest_with("-all", NetworkLeave::None, Vec::new(), None);
    let server = guest.listen(8080);
    let sandbox = &guest.sandbox;
    let mut stream = world.ask(world.client.dial(sandbox.clone(), 8080)).unwrap();
    world.ask(stream.write_all(b"question")).unwrap();
    world.wait("the guest has taken it", || server.state() == State::Established);
    assert_eq!(server.read().unwrap(), b"question");
    server.write_all(b"answer").unwrap();
    server.finish();
    let mut answer = Vec::new();
    world.ask(stream.read_to_end(&mut answer)).unwrap();
    assert_eq!(answer, b"answer");
    let closed = world.ask(world.client.dial(sandbox.clone(), 8081)).unwrap_err();
    assert!(matches!(closed, ClientError::Failed(Failure::PortClosed(8081))), "{closed}");
    let unknown = SandboxId::random();
    let error = world.ask(world.client.dial(unknown.clone(), 1)).unwrap_err();
    assert!(matches!(error, ClientError::Failed(Failure::NoLink(id)) if id == unknown));
}

#[test]
fn links_are_attached_once_and_listed() {
    let world = World::new();
    let guest = world.guest("");
    let links = world.ask(world.client.links()).unwrap();
    assert_eq!(links, std::slice::from_ref(&guest.sandbox));
    let (gateway, _vmm) = link();
    let attach = beginning(&guest.sandbox, "");
    let again = world.ask(world.client.attach(attach.clone(), gateway.as_fd(), lasting().as_fd()));
    assert!(matches!(again, Err(ClientError::Failed(Failure::HasLink(_)))), "{again:?}");
    world.ask(world.client.detach(guest.sandbox.clone())).unwrap();
    let (stream, _other) = std::os::unix::net::UnixStream::pair().unwrap();
    let wrong = world.ask(world.client.attach(attach, stream.as_fd(), lasting().as_fd()));
    assert!(matches!(wrong, Err(ClientError::Failed(Failure::BadLink { .. }))), "{wrong:?}");
    assert!(world.ask(world.client.links()).unwrap().is_empty());
}

#[test]
fn a_link_is_let_go_when_its_vmm_ends() {
    let world = World::new();
    let (gateway, _near_end_that_nobody_closes) = link();
    let mut vmm = std::process::Command::new("sleep").arg("infinity").spawn().unwrap();
    let pid = rustix::process::Pid::from_child(&vmm);
    let ends = rustix::process::pidfd_open(pid, rustix::process::PidfdFlags::empty()).unwrap();
    let sandbox = SandboxId::random();
    let attach = beginning(&sandbox, "");
    world.ask(world.client.attach(attach, gateway.as_fd(), ends.as_fd())).unwrap();
    assert_eq!(world.ask(world.client.links()).unwrap(), [sandbox]);
    vmm.kill().unwrap();
    vmm.wait().unwrap();
    let begun = Instant::now();
    while !world.ask(world.client.links()).unwrap().is_empty() {
        assert!(begun.elapsed() < Duration::from_secs(60), "the link is still there");
    }
}
