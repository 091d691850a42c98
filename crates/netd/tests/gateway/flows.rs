//! Connections: what passes, what is refused, and what a slow reader does.

use std::net::SocketAddr;
use std::time::{Duration, Instant};

use smoltcp::socket::tcp::State;
use tokio::io::{AsyncReadExt as _, AsyncWriteExt as _};

use crate::guest::{Ended, Stream};
use crate::world::World;

/// Bytes that differ from flow to flow and place to place.
fn pattern(flow: usize, bytes: usize) -> Vec<u8> {
    (0..bytes).map(|at| u8::try_from((at * 31 + at / 251 + flow * 7) % 256).unwrap()).collect()
}

#[test]
fn hundred_flows_are_exact_to_the_byte_and_half_close() {
    let world = World::new();
    // It answers only when the guest has finished: with its bytes in reverse.
    world.serve(7000, |mut stream| async move {
        let mut all = Vec::new();
        stream.read_to_end(&mut all).await.unwrap();
        all.reverse();
        stream.write_all(&all).await.unwrap();
    });
    let guest = world.guest("");
    let to = |flow: usize| match flow % 2 {
        0 => SocketAddr::from(([203, 0, 113, 7], 7000)),
        _ => "[2001:db8::7]:7000".parse().unwrap(),
    };
    let streams: Vec<Stream> = (0..100).map(|flow| guest.begin(to(flow))).collect();
    let patterns: Vec<Vec<u8>> = (0..100).map(|flow| pattern(flow, 1 + flow * 3001)).collect();
    world.wait("all are connected", || {
        streams.iter().all(|stream| stream.state() == smoltcp::socket::tcp::State::Established)
    });
    // In turns, so that all are under way at once.
    let mut written = vec![0; 100];
    while written.iter().zip(&patterns).any(|(at, pattern)| *at < pattern.len()) {
        for (flow, stream) in streams.iter().enumerate() {
            let rest = &patterns[flow][written[flow]..];
            written[flow] += stream.write(&rest[..rest.len().min(20_000)]).unwrap();
        }
    }
    streams.iter().for_each(Stream::finish);
    for (flow, stream) in streams.iter().enumerate() {
        let mut got = stream.read_all().unwrap();
        got.reverse();
        assert!(
            got == patterns[flow],
            "flow {flow}: {} of {} bytes",
            got.len(),
            patterns[flow].len()
        );
    }
    world.wait("each flow has its line", || world.log(&guest.sandbox).len() == 100);
    let line = &world.log(&guest.sandbox)[0];
    assert_eq!((&line["outcome"], &line["protocol"]), (&"ended".into(), &"tcp".into()), "{line}");
    assert_eq!(line["bytes_out"], line["bytes_in"]);
}

#[test]
fn a_server_that_speaks_first_and_ends_first_is_heard() {
    let world = World::new();
    world.serve(2200, |mut stream| async move {
        stream.write_all(b"hello").await.unwrap();
        stream.shutdown().await.unwrap();
        let mut rest = Vec::new();
        stream.read_to_end(&mut rest).await.unwrap();
        assert_eq!(rest, b"and goodbye");
    });
    let guest = world.guest("");
    let stream = guest.connect("203.0.113.7:2200").unwrap();
    assert_eq!(stream.read_all().unwrap(), b"hello");
    stream.write_all(b"and goodbye").unwrap();
    stream.finish();
    world.wait("the flow has ended", || world.log(&guest.sandbox).len() == 1);
    assert_eq!(world.log(&guest.sandbox)[0]["bytes_out"], 11);
}

#[test]
fn what_is_refused_is_refused_at_once() {
    let world = World::new();
    let guest = world.guest("-198.51.100.0/24");
    let mut times = Vec::new();
    for flow in [
        "203.0.113.7:81",
        "198.51.100.7:80",
        "10.1.2.3:80",
        "169.254.169.254:80",
        "[fd00::1]:80",
        "10.42.0.1:22",
    ] {
        for _ in 0..5 {
            let start = Instant::now();
            assert_eq!(guest.connect(flow).err(), Some(Ended::Reset), "{flow}");
            times.push(start.elapsed());
        }
    }
    times.sort();
    println!("refused after {:?} (median of {}), at most {:?}", times[15], times.len(), times[29]);
    assert!(times[15] < Duration::from_millis(900), "the guest had to repeat its SYN");
    let denied = "198.51.100.7";
    let lines = world.log(&guest.sandbox);
    let refused = lines.iter().find(|line| line["address"] == denied).unwrap();
    assert_eq!(refused["outcome"], "refused");
    assert_eq!(refused["reason"], "deny_out: 198.51.100.0/24");
    let failed = lines.iter().find(|line| line["address"] == "203.0.113.7").unwrap();
    assert_eq!(failed["outcome"], "failed");
}

#[test]
fn a_reset_is_passed_on_both_ways() {
    let world = World::new();
    world.serve_echo(7000);
    world.serve(7001, |mut stream| async move {
        let mut byte = [0];
        stream.read_exact(&mut byte).await.unwrap();
        rustix::net::sockopt::set_socket_linger(&stream, Some(Duration::ZERO)).unwrap();
    });
    let guest = world.guest("");
    let stream = guest.connect("203.0.113.7:7001").unwrap();
    stream.write_all(b"x").unwrap();
    assert_eq!(stream.read_all(), Err(Ended::Reset));
    let (tell, told) = std::sync::mpsc::channel();
    world.serve(7002, move |mut stream| {
        let tell = tell.clone();
        async move {
            let mut all = Vec::new();
            let read = stream.read_to_end(&mut all).await.map_err(|error| error.kind());
            tell.send(read).unwrap();
        }
    });
    let stream = guest.connect("203.0.113.7:7002").unwrap();
    stream.write_all(b"x").unwrap();
    stream.abort();
    let read = told.recv_timeout(Duration::from_secs(20)).unwrap();
    assert_eq!(read, Err(std::io::ErrorKind::ConnectionReset));
}

#[test]
fn a_server_that_does_not_read_stops_the_guest_and_loses_nothing() {
    let world = World::new();
    let gate = std::sync::Arc::new(tokio::sync::Notify::new());
    let (opened, (tell, told)) = (gate.clone(), std::sync::mpsc::channel());
    world.serve(7000, move |mut stream| {
        let (gate, tell) = (gate.clone(), tell.clone());
        async move {
            gate.notified().await;
            let mut all = Vec::new();
            stream.read_to_end(&mut all).await.unwrap();
            tell.send(all).unwrap();
        }
    });
    let guest = world.guest("");
    let stream = guest.connect("203.0.113.7:7000").unwrap();
    let all = pattern(1, 64 << 20);
    let (mut written, mut quiet) = (0, 0);
    while quiet < 200 && written < all.len() {
        let now = stream.write(&all[written..]).unwrap();
        written += now;
        quiet = if now == 0 { quiet + 1 } else { 0 };
        std::thread::sleep(Duration::from_millis(1));
    }
    println!("{} KiB were taken for a server that does not read", written >> 10);
    assert!(written < 32 << 20, "somebody holds {written} bytes");
    opened.notify_one();
    stream.write_all(&all[written..]).unwrap();
    stream.finish();
    assert!(told.recv_timeout(Duration::from_secs(60)).unwrap() == all, "bytes are lost");
}

#[test]
fn more_connections_than_a_sandbox_may_have_are_refused() {
    let world = World::new();
    world.serve(7000, |stream| async move {
        std::future::pending::<()>().await;
        drop(stream);
    });
    let guest = world.guest("");
    let mut kept = Vec::new();
    let refused = loop {
        match guest.connect("203.0.113.7:7000") {
            Ok(stream) => kept.push(stream),
            Err(ended) => break ended,
        }
        // The rate is another limit.
        std::thread::sleep(Duration::from_millis(5));
    };
    assert_eq!(refused, Ended::Reset);
    assert_eq!(kept.len(), 1024);
    let other = world.guest("");
    assert!(other.connect("203.0.113.7:7000").is_ok(), "another sandbox has its own limit");
}

#[test]
fn a_guest_that_reads_late_gets_all_at_once() {
    let world = World::new();
    let bytes = 700_000;
    // More than both buffers; the guest has finished and the server has closed.
    world.serve(7000, move |mut stream| async move {
        stream.read_to_end(&mut Vec::new()).await.unwrap();
        stream.write_all(&pattern(3, bytes)).await.unwrap();
    });
    let guest = world.guest("");
    let late = || {
        let stream = guest.connect("203.0.113.7:7000").unwrap();
        stream.finish();
        world.wait("the guest is full", || stream.unread() == 256 << 10);
        let start = Instant::now();
        assert!(stream.read_all().unwrap() == pattern(3, bytes));
        start.elapsed()
    };
    let mut times: Vec<Duration> = (0..5).map(|_| late()).collect();
    times.sort();
    println!("the rest came in {:?} (median of 5)", times[2]);
    // A window that is not heard of would be asked for after half a second at the earliest, each
    // time. A busy host makes some of them slow.
    assert!(times[0] < Duration::from_millis(450), "{times:?}");
}

#[test]
fn a_client_that_reads_late_gets_all_whoever_ends_first() {
    // More than a socket holds, and less than the gateway does with it.
    let all = pattern(3, 400 << 10);
    for client_ends_first in [true, false] {
        let world = World::new();
        let guest = world.guest("");
        let server = guest.listen(8080);
        let mut client = world.ask(world.client.dial(guest.sandbox.clone(), 8080)).unwrap();
        let begins = if client_ends_first { State::CloseWait } else { State::Established };
        if client_ends_first {
            world.ask(client.shutdown()).unwrap();
        }
        world.wait("the guest has taken it", || server.state() == begins);
        server.write_all(&all).unwrap();
        server.finish();
        let told = if client_ends_first { State::Closed } else { State::FinWait2 };
        world.wait("the gateway has all", || server.state() == told);
        if !client_ends_first {
            world.ask(client.shutdown()).unwrap();
        }
        // A gateway that lets go of what it has does it now.
        std::thread::sleep(Duration::from_millis(100));
        let mut got = Vec::new();
        world.ask(client.read_to_end(&mut got)).unwrap();
        assert!(got == all, "client first: {client_ends_first}: {} bytes", got.len());
        world.wait("nothing is left", || server.state() != State::FinWait2);
    }
}
