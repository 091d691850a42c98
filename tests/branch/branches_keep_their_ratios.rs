//! Goal: what makes a live branch cheap stays so: its pause does not grow with what the guest has
//! written, nor with the branches before; a diff, which copies in the pause, costs several times as
//! much; an idle guest is hardly held up by faults; and no more is stored than was written.
//!
//! Method: in turns an idle guest, and one that has written 64 MiB, are branched live, and again
//! after as much as a diff. Of each kind the shortest pause counts: a busy host only makes them
//! longer. Breaks when something is copied or scanned in the pause, when protection is set up page
//! by page, or when a branch leaves something behind that the next one has to go through.

use std::time::Duration;

use forkd_engine::BranchReport;
use forkd_testkit::{Guest, Lab, block_on};
use forkd_types::BranchMode;

const TURNS: usize = 6;
/// More follow while the host is too busy to tell.
const TURNS_MAX: usize = 60;
const WRITTEN: u64 = 64 << 20;
/// What an idle guest with a Python interpreter and its agent writes between two branches.
const IDLE_BYTES: u64 = 6 << 20;
/// Of an idle guest, while its few pages are copied; two were counted.
const IDLE_FAULTS: u64 = 200;
const SETUP: &str = "blob = bytearray(64 << 20); turn = 0";
/// A byte of each page.
const WRITE: &str = "turn += 1; blob[::4096] = bytes([turn]) * (len(blob) >> 12)";

/// What was told of each kind of branch, in their order.
#[derive(Debug, Default)]
struct Told {
    idle: Vec<BranchReport>,
    written: Vec<BranchReport>,
    diff: Vec<BranchReport>,
}

impl Told {
    async fn turn(&mut self, source: &Guest<'_>) {
        self.idle.push(branch(source, BranchMode::Live).await);
        source.eval(WRITE).await;
        self.written.push(branch(source, BranchMode::Live).await);
        source.eval(WRITE).await;
        self.diff.push(branch(source, BranchMode::Diff).await);
    }

    /// Which ratios do not hold.
    fn broken(&self) -> Vec<String> {
        let (before, after) = self.idle.split_at(self.idle.len() / 2);
        let of = [&self.idle, &self.written, &self.diff].map(|reports| shortest(reports));
        let [idle, written, diff] = of;
        let (before, after) = (shortest(before), shortest(after));
        let ratios = [
            (written < idle * 2, format!("written {written:.2?}, idle {idle:.2?}")),
            (diff > written * 5, format!("diff {diff:.2?}, live {written:.2?}")),
            (after < before * 2, format!("idle: later {after:.2?}, at first {before:.2?}")),
        ];
        ratios.into_iter().filter(|(holds, _)| !holds).map(|(_, what)| what).collect()
    }
}

async fn branch(source: &Guest<'_>, mode: BranchMode) -> BranchReport {
    source.try_branch(mode).await.unwrap().branch.unwrap()
}

fn shortest(reports: &[BranchReport]) -> Duration {
    reports.iter().map(|report| report.pause).min().unwrap()
}

#[test]
fn the_pause_grows_neither_with_what_was_written_nor_with_the_branches_before() {
    block_on(async {
        let lab = Lab::shared().await;
        let source = lab.python().await;
        source.eval(SETUP).await;
        source.branch().await;
        let mut told = Told::default();
        for turn in 1..=TURNS_MAX {
            told.turn(&source).await;
            if turn >= TURNS && told.broken().is_empty() {
                break;
            }
        }
        assert_eq!(told.broken(), Vec::<String>::new());
        for report in &told.idle {
            let is_small = report.captured.get() <= IDLE_BYTES;
            assert!(report.faults <= IDLE_FAULTS && is_small, "{report:?}");
        }
        for report in told.written.iter().chain(&told.diff) {
            let (stored, captured) = (report.stored.get(), report.captured.get());
            assert!(stored >= WRITTEN && captured <= WRITTEN + 2 * IDLE_BYTES, "{report:?}");
        }
    });
}
