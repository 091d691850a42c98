//! Goal: a thousand requests, fifty at once, while sandboxes are branched, forked and removed, get
//! an answer or a documented refusal each, and leave no file, process, mount, descriptor or memory
//! behind.
//!
//! Method: fifty clients draw requests of all kinds, wrong ones among them, from a seeded die. When
//! everything has been removed what is left is compared with what was there before. Breaks when a
//! request fails for no documented reason, or what one has made has no owner.

use std::collections::BTreeMap;
use std::path::Path;
use std::sync::{Arc, Mutex};
use std::time::{Duration, Instant};

use forkd_client::api::{BranchRequest, CreateSandboxes, ExecRequest};
use forkd_client::{Client, ClientError, Dependents, Target};
use forkd_types::{BranchMode, SandboxState};

use crate::forkd::Forkd;

const CLIENTS: u64 = 50;
const REQUESTS_EACH: u64 = 20;
/// Sandboxes beyond these are not started: each takes a processor for a while.
const SANDBOXES_MAX: usize = 6;
const SOON: Duration = Duration::from_secs(120);
/// Connections that this program's own client keeps for its next request.
const OWN_CONNECTIONS_MAX: usize = 4;
/// What the allocator and caches may keep.
const RSS_GROWTH_KIB_MAX: u64 = 96 << 10;

/// A small generator, so that a seed repeats the choices.
struct Die(u64);

impl Die {
    /// A number below `sides`.
    fn roll(&mut self, sides: u64) -> u64 {
        // Steele, Lea and Flood: SplitMix64.
        self.0 = self.0.wrapping_add(0x9E37_79B9_7F4A_7C15);
        let mut z = self.0;
        z = (z ^ (z >> 30)).wrapping_mul(0xBF58_476D_1CE4_E5B9);
        z = (z ^ (z >> 27)).wrapping_mul(0x94D0_49BB_1331_11EB);
        (z ^ (z >> 31)) % sides
    }

    fn pick<'a, T>(&mut self, from: &'a [T]) -> Option<&'a T> {
        let sides = u64::try_from(from.len()).ok().filter(|sides| *sides > 0)?;
        from.get(usize::try_from(self.roll(sides)).ok()?)
    }
}

/// How often each kind of request ended how.
type Tally = Arc<Mutex<BTreeMap<(&'static str, String), usize>>>;

#[tokio::test]
async fn a_thousand_requests_at_fifty_at_once_fail_only_as_documented_and_leave_nothing() {
    // What stands by for the next sandbox would be there, and is no leftover.
    let mut forkd = Forkd::with_variables(&[("FORKD_STANDBY", "0")]);
    forkd.template("tiny", "t", 128);
    forkd.hold_to_contract();
    let client = Client::new(Target::Socket(forkd.socket())).unwrap();
    // What is made once is made before the comparison.
    warm_up(&client).await;
    let before = Inventory::of(&forkd);
    client.create_sandboxes(&CreateSandboxes::new("t", 3)).await.unwrap();
    let tally = Tally::default();
    let clients: Vec<_> = (0..CLIENTS)
        .map(|seed| {
            let (client, tally) = (client.clone(), Arc::clone(&tally));
            tokio::spawn(async move {
                let mut die = Die(seed);
                for _ in 0..REQUESTS_EACH {
                    let (kind, result) = request(&client, &mut die).await;
                    let end = describe(kind, result);
                    *tally.lock().unwrap().entry((kind, end)).or_default() += 1;
                }
            })
        })
        .collect();
    for client in clients {
        client.await.unwrap();
    }
    let tally = tally.lock().unwrap().clone();
    let count = |kind: &str, end: &str| {
        let matching = tally.iter().filter(|((k, e), _)| *k == kind && e == end);
        matching.map(|(_, count)| count).sum::<usize>()
    };
    assert_eq!(tally.values().sum::<usize>(), 1000);
    for kind in ["branch", "exec", "list", "fork"] {
        assert!(count(kind, "done") > 0, "{kind}: {tally:?}");
    }
    clean_up(&client).await;
    let begun = Instant::now();
    loop {
        let after = Inventory::of(&forkd);
        let Some(problem) = before.compare(&after) else { break };
        assert!(begun.elapsed() < SOON, "{problem}");
        tokio::time::sleep(Duration::from_millis(100)).await;
    }
}

/// One request of a random kind.
async fn request(client: &Client, die: &mut Die) -> (&'static str, Result<(), ClientError>) {
    let sandboxes = client.sandboxes().await.unwrap_or_default();
    let running: Vec<String> = sandboxes
        .iter()
        .filter(|s| s.state == SandboxState::Running)
        .map(|s| s.id.clone())
        .collect();
    let sandbox = die.pick(&running).cloned().unwrap_or_else(|| "sb-000000000000".to_owned());
    match die.roll(12) {
        0..=2 => {
            let body = ExecRequest::new(["/bin/sh", "-c", "echo $$ > /tmp/x; cat /tmp/x"]);
            ("exec", client.exec(&sandbox, &body).await.map(drop))
        }
        3 | 4 => {
            let mode = die.pick(&BranchMode::ALL).map(|mode| (*mode).into());
            let body = BranchRequest { mode, wait: die.roll(2) == 0, ..BranchRequest::default() };
            ("branch", client.branch(&sandbox, &body).await.map(drop))
        }
        5 if sandboxes.len() < SANDBOXES_MAX => {
            let snapshots = client.snapshots().await.unwrap_or_default();
            let tag = die.pick(&snapshots).map_or("t".to_owned(), |one| one.tag.clone());
            ("fork", client.create_sandboxes(&CreateSandboxes::new(tag, 1)).await.map(drop))
        }
        6 if running.len() > 2 => ("remove", client.delete_sandbox(&sandbox).await),
        7 => {
            let snapshots = client.snapshots().await.unwrap_or_default();
            let others: Vec<_> = snapshots.into_iter().filter(|one| one.tag != "t").collect();
            let tag = die.pick(&others).map_or("absent".to_owned(), |one| one.tag.clone());
            ("forget", client.delete_snapshot(&tag, Dependents::Refuse).await)
        }
        8 => ("wrong", client.exec("sb-000000000000", &ExecRequest::new(["true"])).await.map(drop)),
        9 => ("metrics", client.metrics().await.map(drop)),
        10 => ("list", client.snapshots().await.map(drop)),
        _ => ("ping", client.ping(&sandbox).await.map(drop)),
    }
}

/// How a request ended; fails the test unless that is documented.
fn describe(kind: &str, result: Result<(), ClientError>) -> String {
    match result {
        Ok(()) => "done".to_owned(),
        Err(ClientError::Api(failure)) => {
            // On a busy host a guest may not answer in time.
            let silent = failure.code == "guest_silent";
            let documented = silent || matches!(failure.status, 400..=499 | 503);
            assert!(documented, "{kind}: {} {}: {failure}", failure.status, failure.code);
            assert!(!failure.hint.is_empty(), "{kind}: {failure}");
            failure.code
        }
        Err(other) => panic!("{kind}: {other}: {:?}", std::error::Error::source(&other)),
    }
}

async fn warm_up(client: &Client) {
    let made = client.create_sandboxes(&CreateSandboxes::new("t", 3)).await.unwrap();
    for sandbox in &made {
        client.branch(&sandbox.id, &BranchRequest::default()).await.unwrap();
    }
    clean_up(client).await;
}

/// Removes all sandboxes, and all snapshots but the template.
async fn clean_up(client: &Client) {
    for sandbox in client.sandboxes().await.unwrap() {
        client.delete_sandbox(&sandbox.id).await.unwrap();
    }
    settle(client).await;
    loop {
        let snapshots = client.snapshots().await.unwrap();
        let others: Vec<_> = snapshots.into_iter().filter(|one| one.tag != "t").collect();
        let Some(first) = others.first() else { break };
        client.delete_snapshot(&first.tag, Dependents::Remove).await.unwrap();
    }
}

/// Waits for work in the background.
async fn settle(client: &Client) {
    let begun = Instant::now();
    while !client.operations(Some("running")).await.unwrap().is_empty() {
        assert!(begun.elapsed() < SOON, "operations do not end");
        tokio::time::sleep(Duration::from_millis(20)).await;
    }
}

/// What could be left behind.
#[derive(Debug)]
struct Inventory {
    files: Vec<String>,
    processes: usize,
    mounts: usize,
    /// What the daemon has open, but sockets and the registry.
    open: Vec<String>,
    sockets: usize,
    rss_kib: u64,
}

impl Inventory {
    fn of(forkd: &Forkd) -> Self {
        let pid = forkd.daemon_pid();
        let (sockets, mut open): (Vec<_>, Vec<_>) =
            descriptors_of(pid).into_iter().partition(|name| name.starts_with("socket:"));
        // SQLite opens files of its own when it likes.
        open.retain(|name| !name.contains("registry"));
        open.sort();
        let status = std::fs::read_to_string(format!("/proc/{pid}/status")).unwrap();
        let rss = status.lines().find_map(|line| line.strip_prefix("VmRSS:")).unwrap();
        let mut files = Vec::new();
        for directory in [forkd.home(), forkd.hot()] {
            list(directory, &mut files);
        }
        files.sort();
        Self {
            files,
            processes: children_of(pid),
            mounts: std::fs::read_to_string("/proc/mounts").unwrap().lines().count(),
            open,
            sockets: sockets.len(),
            rss_kib: rss.trim().trim_end_matches(" kB").parse().unwrap(),
        }
    }

    /// What is there now and was not before.
    fn compare(&self, after: &Self) -> Option<String> {
        let new: Vec<_> = after.files.iter().filter(|file| !self.files.contains(file)).collect();
        let more = |what: &str, before: usize, now: usize| {
            (now > before).then(|| format!("{now} {what} after {before}"))
        };
        (!new.is_empty())
            .then(|| format!("files are left: {new:?}"))
            .or_else(|| more("processes", self.processes, after.processes))
            .or_else(|| more("mounts", self.mounts, after.mounts))
            .or_else(|| more("sockets", self.sockets + OWN_CONNECTIONS_MAX, after.sockets))
            .or_else(|| {
                let (before, now) = (&self.open, &after.open);
                (now.len() > before.len()).then(|| format!("open are {now:?} after {before:?}"))
            })
            .or_else(|| {
                let grown = after.rss_kib.saturating_sub(self.rss_kib);
                (grown > RSS_GROWTH_KIB_MAX).then(|| format!("memory grew by {grown} KiB"))
            })
    }
}

fn descriptors_of(pid: u32) -> Vec<String> {
    let entries = std::fs::read_dir(format!("/proc/{pid}/fd")).unwrap().flatten();
    let links = entries.filter_map(|entry| std::fs::read_link(entry.path()).ok());
    links.map(|link| link.display().to_string()).collect()
}

/// All files below `directory` by name, but those that SQLite and logs write.
fn list(directory: &Path, into: &mut Vec<String>) {
    for entry in std::fs::read_dir(directory).into_iter().flatten().flatten() {
        let path = entry.path();
        if path.is_dir() {
            list(&path, into);
        }
        let name = path.display().to_string();
        if !name.contains("registry") && !name.ends_with(".log") {
            into.push(name);
        }
    }
}

fn children_of(pid: u32) -> usize {
    let tasks = std::fs::read_dir(format!("/proc/{pid}/task")).into_iter().flatten().flatten();
    let children = |task: std::fs::DirEntry| std::fs::read_to_string(task.path().join("children"));
    tasks.filter_map(|task| children(task).ok()).map(|text| text.split_whitespace().count()).sum()
}
