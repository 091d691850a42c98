//! Goal: memory, registers, pipe and disk of every snapshot belong to one instant, whatever the
//! mode, however deep the lineage, while the source writes at full speed, and while a server sends
//! it all that it takes.
//!
//! Method: many branches of sources in which the witness writes. Each snapshot is compared, page by
//! page, with a copy of guest RAM taken in its pause; a child of it is asked for the witness's
//! verdict. Now and then the child becomes the next source, or a fresh sandbox does. Everything
//! chosen follows from one seed. Breaks with every mutation of `torn_branches_are_caught`. In some
//! branches the copy takes longer than the gateway is quiet, so frames come in the pause too: it
//! also breaks when the VMM takes them then.

use std::io::Write as _;
use std::net::TcpListener;
use std::time::Instant;

use forkd_testkit::{Guest, SOON, block_on};
use forkd_types::network::NetworkPolicy;
use forkd_types::{BranchMode, SnapshotTag};

use crate::bench::Bench;

const BRANCHES: u64 = 100;

/// Deepest lineage: branches of children of children.
const GENERATIONS_MAX: usize = 6;

/// Numbers that follow from the seed.
struct Choices(u64);

impl Choices {
    fn below(&mut self, limit: u64) -> u64 {
        self.0 = self.0.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1);
        (self.0 >> 33) % limit
    }

    fn mode(&mut self) -> BranchMode {
        match self.below(8) {
            0 => BranchMode::Full,
            1 => BranchMode::Diff,
            _ => BranchMode::Live,
        }
    }
}

/// A number from the environment.
fn setting(name: &str) -> Option<u64> {
    let value = std::env::var(name).ok().filter(|value| !value.is_empty())?;
    Some(value.parse().unwrap_or_else(|_| panic!("{name}={value} is not a number")))
}

fn any_seed() -> u64 {
    let now = std::time::SystemTime::now().duration_since(std::time::UNIX_EPOCH);
    u64::from(now.expect("a clock after 1970").subsec_nanos())
}

/// The source and the snapshots that it descends from, oldest first.
struct Lineage<'a> {
    source: Guest<'a>,
    snapshots: Vec<SnapshotTag>,
}

impl<'a> Lineage<'a> {
    async fn begin(bench: &'a Bench, choices: &mut Choices) -> Self {
        let source = bench.source(choices.below(1 << 32)).await;
        Self { source, snapshots: Vec::new() }
    }

    async fn end(self, bench: &Bench) {
        let verdict = self.source.ask_witness().await.expect("the source answers");
        assert!(verdict.ok, "the source itself: {}", verdict.text);
        self.source.remove().await;
        if let Some(oldest) = self.snapshots.first() {
            bench.forget(oldest).await;
        }
    }
}

#[test]
fn branches_of_writing_sources_in_all_modes_are_each_of_one_instant() {
    let count = setting("FORKD_PROVE_N").unwrap_or(BRANCHES);
    let seed = setting("FORKD_PROVE_SEED").unwrap_or_else(any_seed);
    println!("seed {seed}: to repeat, make prove N={count} SEED={seed}");
    block_on(async {
        let bench = Bench::take().await;
        let mut choices = Choices(seed);
        let mut lineage = Lineage::begin(&bench, &mut choices).await;
        let (begun, mut compared) = (Instant::now(), 0);
        for number in 1..=count {
            let (mode, depth) = (choices.mode(), lineage.snapshots.len());
            let finding = bench.branch(&lineage.source, mode).await;
            assert!(
                finding.is_one_instant(),
                "branch {number}, {mode}, generation {depth}\n{finding}\n\
                 to repeat: make prove N={number} SEED={seed}"
            );
            compared += finding.comparison.compared;
            if number.is_multiple_of(50) {
                println!("{number} branches of {count}");
            }
            let tag = finding.snapshot.tag;
            match (choices.below(8), finding.child) {
                (0, _) => {
                    bench.forget(&tag).await;
                    lineage.end(&bench).await;
                    lineage = Lineage::begin(&bench, &mut choices).await;
                }
                (1..=3, Some(child)) if depth < GENERATIONS_MAX => {
                    std::mem::replace(&mut lineage.source, child).remove().await;
                    lineage.snapshots.push(tag);
                }
                _ => bench.forget(&tag).await,
            }
        }
        lineage.end(&bench).await;
        println!("{count} branches, {compared} pages compared, {:.0?}", begun.elapsed());
    });
}

/// In the guest: connections on which everything is taken that comes.
const TAKE: &str = "
import socket, threading
taken = 0
def take():
    global taken
    buffer, connection = bytearray(1 << 18), socket.create_connection(('10.42.0.1', PORT), 120)
    while size := connection.recv_into(buffer):
        taken += size
for _ in range(4):
    threading.Thread(target=take, daemon=True).start()
";

/// A port of the host's loopback address that sends without an end.
fn flood() -> u16 {
    let listener = TcpListener::bind("127.0.0.1:0").expect("a port");
    let port = listener.local_addr().expect("its address").port();
    std::thread::spawn(move || {
        for mut stream in listener.incoming().flatten() {
            let bytes: Vec<u8> = (0..1 << 18).map(|number: u32| number.to_le_bytes()[0]).collect();
            std::thread::spawn(move || while stream.write_all(&bytes).is_ok() {});
        }
    });
    port
}

async fn taken(source: &Guest<'_>) -> u64 {
    source.eval("taken").await.parse().expect("a number of bytes")
}

#[test]
fn branches_of_a_source_that_is_sent_all_it_takes_are_each_of_one_instant() {
    block_on(async {
        let bench = Bench::take().await;
        let source = bench.source(14).await;
        let port = flood();
        let allow_out = vec![format!("host:{port}").parse().unwrap()];
        let policy = NetworkPolicy { allow_out, ..NetworkPolicy::default() };
        bench.lab.engine.set_network(&source.id, policy, None).await.unwrap();
        source.eval(&TAKE.replace("PORT", &port.to_string())).await;
        let modes = [BranchMode::Live, BranchMode::Live, BranchMode::Diff, BranchMode::Full];
        for (number, mode) in modes.into_iter().cycle().take(8).enumerate() {
            let before = taken(&source).await;
            let finding = bench.branch(&source, mode).await;
            assert!(finding.is_one_instant(), "branch {number}, {mode}\n{finding}");
            let begun = Instant::now();
            while taken(&source).await < before + (1 << 20) {
                assert!(begun.elapsed() < SOON, "the traffic has ended");
            }
            bench.forget(&finding.snapshot.tag).await;
        }
        source.remove().await;
    });
}
