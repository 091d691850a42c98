//! Figures, which a machine of its own and an optimised build need: they are printed, not asserted.

use std::time::{Duration, Instant};

use crate::world::World;

#[test]
#[ignore = "a measurement: run it with --release --ignored --nocapture"]
fn throughput() {
    let world = World::new();
    world.serve(7000, |mut stream| async move {
        tokio::io::copy(&mut stream, &mut tokio::io::sink()).await.ok();
    });
    world.serve(7001, |mut stream| async move {
        tokio::io::copy(&mut tokio::io::repeat(7), &mut stream).await.ok();
    });
    let guest = world.guest("");
    let (out, back) = (guest.connect("203.0.113.7:7000"), guest.connect("203.0.113.7:7001"));
    let (out, chunk) = (out.unwrap(), vec![7; 200_000]);
    measure(&world, "out", || out.write(&chunk).unwrap());
    let back = back.unwrap();
    measure(&world, "in", || back.read().unwrap().len());
}

/// How many bits pass in a second, and in a second of the gateway's processor.
fn measure(world: &World, way: &str, mut pass: impl FnMut() -> usize) {
    for _ in 0..5 {
        let (start, cpu) = (Instant::now(), world.gateway_cpu());
        let mut bytes = 0;
        while start.elapsed() < Duration::from_secs(2) {
            bytes += pass();
        }
        let bits = bytes as f64 * 8e-9;
        let (wall, cpu) = (start.elapsed().as_secs_f64(), world.gateway_cpu() - cpu);
        println!("{way}: {:.2} Gbit/s, {:.2} Gbit/s for a core", bits / wall, bits / cpu);
    }
}

#[test]
#[ignore = "a measurement: run it with --release --ignored --nocapture"]
fn memory_of_links() {
    const LINKS: usize = 500;
    let world = World::new();
    world.serve_echo(80);
    let (before, descriptors) = (resident_kib(), descriptors());
    let ends: Vec<_> = (0..LINKS)
        .map(|_| {
            let (gateway, vmm) = crate::world::link();
            let sandbox = forkd_types::SandboxId::random();
            let leave = forkd_types::network::NetworkLeave::Public;
            world.attach(&sandbox, "+203.0.113.7:80", leave, Vec::new(), None, &gateway);
            (sandbox, vmm)
        })
        .collect();
    let each = |after: u64| (after - before) as f64 / LINKS as f64;
    println!("{:.1} KiB for each of {LINKS} idle links", each(resident_kib()));
    // One of the descriptors is the test's own.
    println!("{:.1} descriptors", (self::descriptors() - descriptors) as f64 / LINKS as f64 - 1.0);
    let guests: Vec<_> =
        ends.into_iter().map(|(sandbox, vmm)| crate::guest::Guest::new(sandbox, vmm)).collect();
    let idle = resident_kib();
    let streams: Vec<_> =
        guests.iter().map(|guest| guest.connect("203.0.113.7:80").unwrap()).collect();
    let chunk = vec![7; 64 << 10];
    for stream in &streams {
        stream.write_all(&chunk).unwrap();
        let mut got = 0;
        while got < chunk.len() {
            got += stream.read().unwrap().len();
        }
    }
    let busy = (resident_kib() - idle) as f64 / LINKS as f64;
    println!(
        "{busy:.1} KiB for a connection that carried 64 KiB, the guest's own stack among them"
    );
}

/// How long a byte and its echo take for one sandbox while others do nothing, and while one of them
/// floods the gateway.
#[test]
#[ignore = "a measurement: run it with --release --ignored --nocapture"]
fn latency_beside_a_flood() {
    let world = World::new();
    world.serve_echo(80);
    world.serve_datagrams("203.0.113.7:6000");
    let guest = world.guest("");
    let stream = guest.connect("203.0.113.7:80").unwrap();
    for round in 0..3 {
        measure_echo(&format!("{round}, alone"), &stream);
        let hostile = world.guest("");
        let ended = std::sync::atomic::AtomicBool::new(false);
        std::thread::scope(|scope| {
            let sent = scope.spawn(|| crate::crafted::flood(&hostile, &ended));
            measure_echo(&format!("{round}, beside a flood"), &stream);
            ended.store(true, std::sync::atomic::Ordering::Relaxed);
            println!("{} frames of the flood", sent.join().unwrap());
        });
    }
}

fn measure_echo(what: &str, stream: &crate::guest::Stream) {
    let mut times: Vec<_> = (0..2000)
        .map(|_| {
            let start = Instant::now();
            stream.write_all(b"x").unwrap();
            stream.read().unwrap();
            start.elapsed()
        })
        .collect();
    times.sort();
    println!("{what}: {:?} median, {:?} p99, {:?} longest", times[1000], times[1980], times[1999]);
}

fn descriptors() -> usize {
    std::fs::read_dir("/proc/self/fd").unwrap().count()
}

fn resident_kib() -> u64 {
    let status = std::fs::read_to_string("/proc/self/status").unwrap();
    let line = status.lines().find(|line| line.starts_with("VmRSS:")).unwrap();
    line.split_whitespace().nth(1).unwrap().parse().unwrap()
}
