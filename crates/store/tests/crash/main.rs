//! Goal: whenever the process is killed, and whenever the power is lost with it, the next one finds
//! every snapshot absent, `failed` with a reason, or complete: memory, device state and disk are
//! what was written, page by page. A snapshot that was durable is complete. No file is left that
//! belongs to nobody. Where there is no space, the operation is refused and nothing is damaged.
//!
//! Method: this program starts itself as another process, which works on a real store at random and
//! is killed: at a failpoint (see the store's `Failpoint`), or after a random time. Then the directories are
//! made what they may be when the power is lost as well, or left; sometimes another process starts
//! and is killed while it recovers. The store is then opened as a daemon does, and compared with a
//! model that knows nothing of files. All choices follow from a seed.
//!
//! Breaks when a row is written before its files, a flush or a rename is left out or in the wrong
//! place, a removal comes before its row is gone, or recovery trusts what it should not.

#![expect(clippy::unwrap_used, reason = "a test fails by panicking")]

mod check;
mod child;
mod log;
mod model;
mod power;
mod workload;

use std::collections::BTreeMap;

use crate::check::Scene;
use crate::child::FAILPOINTS;
use crate::model::{Dice, mixed};

/// Crash points of one store; then another one begins.
const POINTS_PER_STORE: u64 = 25;

fn number(variable: &str) -> Option<u64> {
    std::env::var(variable).ok().map(|value| value.parse().expect(variable))
}

#[test]
fn a_store_is_whole_after_a_crash_at_any_moment() {
    let points = number("FORKD_CRASH_N").unwrap_or(500);
    let seed = number("FORKD_CRASH_SEED").unwrap_or_else(|| {
        let now = std::time::SystemTime::now().duration_since(std::time::UNIX_EPOCH).unwrap();
        u64::from(now.subsec_nanos()) % 1_000_000
    });
    println!("{points} crashes, seed {seed}: repeat with `make crash N={points} SEED={seed}`");
    let mut failpoints: BTreeMap<String, u64> = BTreeMap::new();
    let mut scene = Scene::new();
    for point in 0..points {
        if point % POINTS_PER_STORE == 0 {
            scene = Scene::new();
        }
        let dice = Dice::new(mixed(seed).wrapping_add(point));
        // Every other one at a known failpoint, so that none is left out.
        let failpoint = (point % 2 == 0)
            .then(|| FAILPOINTS[usize::try_from(point / 2).unwrap() % FAILPOINTS.len()]);
        let died_at = scene.crash(&format!("seed {seed}, crash {point}"), failpoint, dice);
        *failpoints.entry(died_at).or_default() += 1;
    }
    for (failpoint, count) in &failpoints {
        println!("{count:6}  {failpoint}");
    }
}

#[test]
#[ignore = "a process of the other test: it kills itself"]
fn the_process_that_dies() {
    child::run();
}
