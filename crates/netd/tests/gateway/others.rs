//! Datagrams, echoes, hostile guests and neighbours.

use std::time::{Duration, Instant};

use forkd_types::SandboxId;
use forkd_types::network::NetworkLeave;
use rustix::net::SendFlags;

use crate::guest::datagram;
use crate::world::{World, link};

#[test]
fn datagrams_pass_by_address_and_are_refused_aloud() {
    let world = World::new();
    world.serve_datagrams("203.0.113.7:7");
    world.serve_datagrams("[2001:db8::7]:7");
    let guest = world.guest("-198.51.100.0/24");
    assert_eq!(guest.exchange("203.0.113.7:7", 6000, b"one").unwrap(), b"one");
    assert_eq!(guest.exchange("[2001:db8::7]:7", 6000, b"two").unwrap(), b"two");
    let large = vec![7; 60_000];
    assert_eq!(guest.exchange("203.0.113.7:7", 6001, &large).unwrap(), large);
    assert_eq!(guest.exchange("198.51.100.7:7", 6000, b"x"), None, "refused by the policy");
    assert_eq!(guest.exchange("192.0.2.1:7", 6000, b"x"), None, "the host's own");
}

#[test]
fn echoes_of_the_gateway_and_of_others_come_back() {
    let world = World::new();
    let guest = world.guest("");
    for to in ["10.42.0.1", "203.0.113.7"] {
        assert_eq!(guest.ping(to, b"sixteen bytes...").unwrap(), b"sixteen bytes...", "{to}");
    }
    let closed = world.guest("-all");
    assert!(closed.ping("10.42.0.1", b"x").is_some(), "the gateway always answers");
    assert!(closed.ping("203.0.113.7", b"x").is_none());
}

#[test]
fn nothing_that_a_guest_sends_ends_the_gateway() {
    let world = World::new();
    world.serve_echo(80);
    let (gateway, vmm) = link();
    let hostile = SandboxId::random();
    world.attach(&hostile, "", NetworkLeave::Public, Vec::new(), None, &gateway);
    let good = datagram("10.42.0.1:53".parse().unwrap(), 6000, &[0; 40]);
    let mut random = 4711_u64;
    let mut next = || {
        random = random.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1);
        usize::try_from(random >> 33).unwrap()
    };
    for _ in 0..20_000 {
        let mut frame = good.clone();
        for _ in 0..next() % 8 {
            let at = next() % frame.len();
            frame[at] = u8::try_from(next() % 256).unwrap();
        }
        frame.truncate(next() % (frame.len() + 1));
        // Full: the gateway reads when it can.
        rustix::net::send(&vmm, &frame, SendFlags::DONTWAIT).ok();
    }
    let guest = world.guest("");
    assert!(guest.connect("203.0.113.7:80").is_ok());
    let flows = world.ask(world.client.flows(hostile)).unwrap();
    assert!(flows.len() <= 64, "{}", flows.len());
}

#[test]
fn a_noisy_neighbour_does_not_keep_others_waiting() {
    let world = World::new();
    world.serve_echo(80);
    let quiet = world.guest("");
    let stream = quiet.connect("203.0.113.7:80").unwrap();
    let round = || {
        let start = Instant::now();
        stream.write_all(b"x").unwrap();
        stream.read().unwrap();
        start.elapsed()
    };
    let median = |mut times: Vec<Duration>| {
        times.sort();
        times[times.len() / 2]
    };
    let alone = median((0..100).map(|_| round()).collect());
    let (gateway, vmm) = link();
    let noisy = SandboxId::random();
    world.attach(&noisy, "-all", NetworkLeave::Public, Vec::new(), None, &gateway);
    let (stop, stopped) = std::sync::mpsc::channel::<()>();
    let flood = std::thread::spawn(move || {
        let frame = datagram("203.0.113.7:9".parse().unwrap(), 6000, &[0; 1000]);
        let mut sent = 0_u64;
        while stopped.try_recv() == Err(std::sync::mpsc::TryRecvError::Empty) {
            while rustix::net::recv(&vmm, &mut [0; 2048][..], rustix::net::RecvFlags::DONTWAIT)
                .is_ok()
            {}
            sent += u64::from(rustix::net::send(&vmm, &frame, SendFlags::DONTWAIT).is_ok());
        }
        sent
    });
    let beside = median((0..100).map(|_| round()).collect());
    stop.send(()).unwrap();
    let sent = flood.join().unwrap();
    println!("a round trip: {alone:?} alone, {beside:?} beside a flood of {sent} frames");
    assert!(sent > 1000, "{sent}");
    assert!(beside < alone * 20 + Duration::from_millis(50), "{alone:?}, {beside:?}");
}

#[test]
fn many_links_of_one_address_get_their_own_bytes_only() {
    const LINKS: usize = 60;
    let world = World::new();
    world.serve_echo(80);
    let guests: Vec<_> = (0..LINKS).map(|_| world.guest("")).collect();
    let streams: Vec<_> =
        guests.iter().map(|guest| guest.connect("203.0.113.7:80").unwrap()).collect();
    for round in 0..3 {
        let word = |number: usize| format!("{round}-{number};").repeat(2000).into_bytes();
        for (number, stream) in streams.iter().enumerate() {
            stream.write_all(&word(number)).unwrap();
        }
        for (number, stream) in streams.iter().enumerate() {
            let (wanted, mut got) = (word(number), Vec::new());
            while got.len() < wanted.len() {
                got.extend(stream.read().unwrap());
            }
            assert!(got == wanted, "link {number} has got other bytes");
        }
    }
}
