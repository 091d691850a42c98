//! The process that dies.

use std::collections::BTreeMap;
use std::fs;
use std::io;
use std::path::{Path, PathBuf};
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Duration;

use forkd_store::{Failpoint, Living, Registry, StoreFiles, recover, sweep, watch_failpoints};
use rustix::process::{Signal, getpid, kill_process};
use serde::{Deserialize, Serialize};

use crate::log::{Line, Log};
use crate::model::{Content, Dice};
use crate::workload::Workload;

/// Names the file with the order.
pub(crate) const ORDER: &str = "FORKD_CRASH_ORDER";

/// A process that has not died after so many failpoints never will.
const GIVE_UP: u64 = 20_000;

/// Failpoints of the work at which a process dies in each run of the test.
pub(crate) const FAILPOINTS: &[&str] = &[
    "making hot pages",
    "making hot index",
    "written hot pages",
    "written hot index",
    "renamed hot pages",
    "renamed hot index",
    "renamed hot device state",
    "making durable pages",
    "written durable pages",
    "synced durable pages",
    "renaming durable pages",
    "renamed durable pages",
    "written durable device state",
    "synced durable device state",
    "renamed durable device state",
    "written durable index",
    "synced durable index",
    "renamed durable index",
    "named layers",
    "synced overlay",
    "named overlays",
    "row writing",
    "row writing written",
    "row ready",
    "row ready written",
    "row removed",
    "row removed written",
    "flushing rows",
    "flushed rows",
    "removing durable index",
    "removed durable index",
    "removed durable pages",
    "removed durable device state",
    "removing hot index",
    "removed hot index",
    "removed hot pages",
    "removing overlay",
    "removed overlay",
];

/// When the process dies.
#[derive(Debug, Clone, Serialize, Deserialize)]
pub(crate) enum Death {
    /// At the n-th failpoint.
    AtFailpoint(u64),
    /// When it reaches the failpoint of this name for the n-th time.
    AtNamed(String, u64),
    /// When it is killed by the other process.
    Anywhere,
}

/// What the process is to do.
#[derive(Debug, Serialize, Deserialize)]
pub(crate) struct Order {
    pub(crate) state: PathBuf,
    pub(crate) hot: PathBuf,
    /// For what is removed, in case the power is lost.
    pub(crate) aside: PathBuf,
    pub(crate) log: PathBuf,
    pub(crate) seed: u64,
    /// At which failpoint it kills itself.
    pub(crate) death: Death,
    /// From which failpoint to which there is no space.
    pub(crate) full: Option<(u64, u64)>,
    /// Failpoints count from the start of the process, not from the end of its recovery.
    pub(crate) in_recovery: bool,
    pub(crate) contents: BTreeMap<String, Content>,
}

pub(crate) fn run() {
    let path = std::env::var(ORDER).expect("it is started by the other test");
    let order: Order = serde_json::from_slice(&fs::read(path).unwrap()).unwrap();
    let log = Log::open(&order.log);
    if order.in_recovery {
        watch(&order);
    }
    let files = StoreFiles::open(&order.state, &order.hot).unwrap();
    let registry = Registry::open(&files.registry()).unwrap();
    let rows = recover(&registry, &files).unwrap();
    sweep(&files, &rows, &Living::default());
    if order.in_recovery {
        return;
    }
    watch(&order);
    Workload::new(files, registry, rows, order.contents, Dice::new(order.seed), log).run()
}

fn watch(order: &Order) {
    let log = Log::open(&order.log);
    let (hot, aside) = (order.hot.clone(), order.aside.clone());
    let (death, full) = (order.death.clone(), order.full);
    let [count, kept, same] = [(); 3].map(|()| AtomicU64::new(0));
    watch_failpoints(move |failpoint| {
        let keep = |path: &Path| {
            if path.starts_with(&hot) || !path.exists() {
                return None;
            }
            let number = kept.fetch_add(1, Ordering::Relaxed);
            let place = aside.join(format!("{}-{number}", std::process::id()));
            fs::hard_link(path, &place).unwrap();
            Some(place)
        };
        tell(&log, failpoint, keep);
        let now = count.fetch_add(1, Ordering::Relaxed);
        let dies = match &death {
            Death::AtFailpoint(at) => *at == now,
            Death::AtNamed(wanted, times) => {
                name(failpoint, &hot) == *wanted && same.fetch_add(1, Ordering::Relaxed) == *times
            }
            Death::Anywhere => false,
        };
        assert!(now < GIVE_UP, "there is no failpoint {death:?}");
        if dies {
            log.line(&Line::Dying(name(failpoint, &hot)));
            kill_process(getpid(), Signal::KILL).unwrap();
            std::thread::sleep(Duration::from_secs(60));
        }
        let needs_space = matches!(
            failpoint,
            Failpoint::Writing(_) | Failpoint::Written(_) | Failpoint::RowChanging(_)
        );
        match full {
            Some((from, to)) if needs_space && (from..to).contains(&now) => {
                Err(io::Error::from_raw_os_error(rustix::io::Errno::NOSPC.raw_os_error()))
            }
            _ => Ok(()),
        }
    });
}

fn tell(log: &Log, failpoint: Failpoint<'_>, keep: impl Fn(&Path) -> Option<PathBuf>) {
    let owned = Path::to_owned;
    log.line(&match failpoint {
        Failpoint::Writing(path) => Line::Making(owned(path)),
        Failpoint::Written(path) => Line::Written(owned(path)),
        Failpoint::Flushed(path) => Line::Synced(owned(path)),
        Failpoint::Renaming { from, to } => Line::Renaming(owned(from), owned(to), keep(to)),
        Failpoint::DirectoryFlushed(path) => Line::Named(owned(path)),
        Failpoint::Removing(path) => Line::Removing(owned(path), keep(path)),
        Failpoint::RowChanged(_) => Line::Changed,
        Failpoint::RegistryFlushing => Line::Flushing,
        Failpoint::RegistryFlushed => Line::Flushed,
        Failpoint::Renamed { .. } | Failpoint::Removed(_) | Failpoint::RowChanging(_) => return,
    });
}

/// What a failpoint is called in the table of the test.
fn name(failpoint: Failpoint<'_>, hot: &Path) -> String {
    let of = |path: &Path| {
        let place = if path.starts_with(hot) { "hot" } else { "durable" };
        let file = path.file_name().unwrap().to_str().unwrap();
        let kind = match file.split('.').nth(1) {
            Some("index") => "index",
            Some("device") => "device state",
            Some("qcow2") => return "overlay".to_owned(),
            Some("view" | "view-index") => "view",
            _ => "pages",
        };
        format!("{place} {kind}")
    };
    match failpoint {
        Failpoint::Writing(path) => format!("making {}", of(path)),
        Failpoint::Written(path) => format!("written {}", of(path)),
        Failpoint::Flushed(path) => format!("synced {}", of(path)),
        Failpoint::Renaming { to, .. } => format!("renaming {}", of(to)),
        Failpoint::Renamed { to, .. } => format!("renamed {}", of(to)),
        Failpoint::DirectoryFlushed(path) => {
            format!("named {}", path.file_name().unwrap().to_str().unwrap())
        }
        Failpoint::Removing(path) => format!("removing {}", of(path)),
        Failpoint::Removed(path) => format!("removed {}", of(path)),
        Failpoint::RowChanging(status) => format!("row {status}"),
        Failpoint::RowChanged(status) => format!("row {status} written"),
        Failpoint::RegistryFlushing => "flushing rows".to_owned(),
        Failpoint::RegistryFlushed => "flushed rows".to_owned(),
    }
}
