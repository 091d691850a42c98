//! Goal: whatever an agent sends, asked or not, the daemon's memory stays flat, and requests to
//! this guest that follow the rules are answered.
//!
//! Method: an agent that is played by hand sends what no credit bounds, to requests whose clients
//! do not read, for longer than the memory could hold; the memory of this process is watched. Alone
//! in its process, one test after the other. Breaks when a buffer between guest and client is
//! bounded by the guest's good will.

#![expect(clippy::unwrap_used, reason = "a test whose setup fails has failed")]

#[path = "../socket/raw.rs"]
#[expect(dead_code, reason = "other tests use the rest")]
mod raw;

mod support {
    use std::time::Duration;

    /// As in the other tests.
    pub(crate) const SOON: Duration = Duration::from_secs(120);
}

use std::collections::HashMap;
use std::sync::{Mutex, PoisonError};
use std::time::{Duration, Instant};

use forkd_engine::guest::{
    Depth, EvalRequest, ExecRequest, GuestAgent, GuestError, Identity, OUTPUT_BYTES_MAX,
    WithEntries,
};
use forkd_protocol::{DATA_BYTES_MAX, HookReport, Reply, Request, credit_cost, encode_reply};
use tokio::io::AsyncWriteExt;

use raw::{Raw, client_of_raw_agent};
use support::SOON;

/// Memory is the process's, so only one test may use it.
static ALONE: Mutex<()> = Mutex::new(());

/// What all bounds of one guest allow is 50 MiB; the allocator keeps some of what was freed.
const ROOM_KIB: u64 = 80 << 10;

fn own_memory_kib() -> u64 {
    let status = std::fs::read_to_string("/proc/self/status").unwrap();
    let line = status.lines().find_map(|line| line.strip_prefix("RssAnon:")).unwrap();
    line.trim().trim_end_matches(" kB").parse().unwrap()
}

/// The most memory that this process has had while `work` went on.
async fn growth_during(work: impl Future<Output = ()>) -> u64 {
    let before = own_memory_kib();
    let mut most = before;
    tokio::pin!(work);
    loop {
        tokio::select! {
            () = &mut work => return most.max(own_memory_kib()).saturating_sub(before),
            () = tokio::time::sleep(Duration::from_millis(2)) => most = most.max(own_memory_kib()),
        }
    }
}

fn run(test: impl Future<Output = ()>) {
    let _alone = ALONE.lock().unwrap_or_else(PoisonError::into_inner);
    tokio::runtime::Runtime::new().unwrap().block_on(test);
}

fn large_result() -> Reply {
    let text = Some("x".repeat(120 << 10));
    Reply::EvalDone {
        result: text.clone(),
        error: text,
        exception: None,
        timed_out: false,
        state_lost: false,
    }
}

/// As many bytes as `wire` repeated, as fast as they are taken.
async fn flood(raw: &mut Raw, wire: &[u8], bytes: usize) {
    for _ in 0..bytes / wire.len() {
        raw.stream.write_all(wire).await.unwrap();
    }
}

#[test]
fn replies_without_credit_to_readers_that_are_slow_are_bounded() {
    run(async {
        let (agent, mut raw) = client_of_raw_agent().await;
        // 60 watches whose readers take nothing.
        let mut watches = Vec::new();
        let mut ids = Vec::new();
        for _ in 0..60 {
            let watching = agent.watch_files("/", Depth::Recursive, WithEntries::No);
            let answered = async {
                let (id, _) = raw.request().await;
                raw.answer(id, &Reply::Watching {}).await;
                id
            };
            let (watch, id) = tokio::join!(watching, answered);
            watches.push(watch.unwrap());
            ids.push(id);
        }
        let grown = growth_during(async {
            for id in ids {
                let mut wire = Vec::new();
                encode_reply(id, &large_result(), &mut wire).unwrap();
                flood(&mut raw, &wire, 2 << 20).await;
            }
        })
        .await;
        assert!(grown < ROOM_KIB, "120 MiB of replies took {grown} KiB");
        for watch in &mut watches {
            assert!(matches!(watch.next().await, Err(GuestError::Protocol { .. })));
        }
    });
}

#[test]
fn a_guest_that_talks_to_itself_costs_neither_memory_nor_a_processor() {
    run(async {
        let (agent, mut raw) = client_of_raw_agent().await;
        let mut wire = Vec::new();
        encode_reply(77, &large_result(), &mut wire).unwrap();
        wire.extend_from_slice(&[b'x'; 3000]);
        wire.push(0);
        let begun = Instant::now();
        let grown = growth_during(flood(&mut raw, &wire, 48 << 20)).await;
        assert!(grown < ROOM_KIB, "48 MiB of noise took {grown} KiB");
        assert!(begun.elapsed() > Duration::from_millis(500), "it was read without a rest");
        let ping = agent.ping(SOON);
        let pong = async {
            let (id, _) = raw.request().await;
            let pong =
                Reply::Pong { uptime_ns: 1, epoch: 1, requests_running: 0, frames_rejected: 0 };
            raw.answer(id, &pong).await;
        };
        let (pulse, ()) = tokio::join!(ping, pong);
        pulse.unwrap();
        assert!(agent.counters().replies_unrouted > 0);
    });
}

/// Answers every request for output with as much of it as it has credit for, without end.
async fn gush(mut raw: Raw) {
    let mut wires = HashMap::new();
    let mut credits: HashMap<u64, u64> = HashMap::new();
    loop {
        let (id, request) = raw.request().await;
        let (Request::Exec { output_credit: more, .. } | Request::Credit { bytes: more }) = request
        else {
            continue;
        };
        let credit = credits.entry(id).or_default();
        *credit += more;
        let wire: &mut Vec<u8> = wires.entry(id).or_default();
        if wire.is_empty() {
            let data = vec![b'x'; DATA_BYTES_MAX];
            encode_reply(id, &Reply::Stdout { data }, wire).unwrap();
        }
        while let Some(rest) = credit.checked_sub(credit_cost(DATA_BYTES_MAX)) {
            *credit = rest;
            if raw.stream.write_all(wire).await.is_err() {
                return;
            }
        }
    }
}

#[test]
fn outputs_that_are_collected_at_the_same_time_are_bounded_together() {
    run(async {
        let (agent, raw) = client_of_raw_agent().await;
        let guest = tokio::spawn(gush(raw));
        // The gush ends by its size, however slow this machine is.
        let request = ExecRequest { timeout: SOON * 5, ..ExecRequest::new(["yes"]) };
        let run = |agent: GuestAgent, request| async move { agent.exec(request).await };
        let grown = growth_during(async {
            let mut execs = tokio::task::JoinSet::new();
            for _ in 0..32 {
                execs.spawn(run(agent.clone(), request.clone()));
            }
            while let Some(done) = execs.join_next().await {
                let error = done.unwrap().unwrap_err();
                let too_large = matches!(
                    error,
                    GuestError::OutputTooLarge { .. } | GuestError::OutputsTooLarge { .. }
                );
                assert!(too_large, "{error}");
            }
        })
        .await;
        guest.abort();
        // Two outputs of the largest size, which a growing vector can have twice.
        let most = 4 * (OUTPUT_BYTES_MAX >> 10) + ROOM_KIB;
        assert!(grown < most, "32 outputs took {grown} KiB");
    });
}

#[test]
fn a_renewal_and_a_value_that_are_blown_up_are_refused() {
    run(async {
        let (agent, mut raw) = client_of_raw_agent().await;
        let identity = Identity {
            instance_id: "i".to_owned(),
            hostname: "h".to_owned(),
            machine_id: "0".repeat(32),
        };
        let renewing = async { agent.begin_renewal(identity, SOON).await?.confirmed().await };
        let answered = async {
            raw.welcome().await;
            let (id, _) = raw.request().await;
            let hooks = vec![HookReport { name: String::new(), exit_code: 1 }; 3000];
            let renewed = Reply::Renewed { instance_id: "i".to_owned(), clock_step_ns: 0, hooks };
            raw.answer(id, &renewed).await;
        };
        let (renewed, ()) = tokio::join!(renewing, answered);
        assert!(matches!(renewed, Err(GuestError::Protocol { .. })), "{renewed:?}");

        // The largest value that is allowed still comes.
        let request = EvalRequest { code: "1".to_owned(), timeout: SOON };
        let answered = async {
            let (id, _) = loop {
                let next = raw.request().await;
                if matches!(next.1, Request::Eval { .. }) {
                    break next;
                }
            };
            raw.answer(id, &large_result()).await;
        };
        let (value, ()) = tokio::join!(agent.eval(request), answered);
        assert_eq!(value.unwrap().result.unwrap().len(), 120 << 10);
    });
}
