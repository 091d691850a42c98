//! Goal: the proof of one instant would notice a branch that is torn.
//!
//! Method: a defect is built in, and a writing source branched until each check that can see the
//! defect has caught it, a bounded number of times. Breaks when a check looks away.
//!
//! | defect | the witness in the child | comparison with the copy |
//! |---|---|---|
//! | pages written before the pause are not caught up with | catches | catches |
//! | a page is released before it is captured | catches | catches |
//! | a page is skipped | catches | catches |
//! | the disk is cut after the resume | catches | cannot: memory is right |

use forkd_engine::Flaw;
use forkd_testkit::block_on;
use forkd_types::BranchMode;

use crate::bench::Bench;

/// Branches within which a defect must be caught.
const BRANCHES_MAX: u32 = 16;

/// At which branch each check caught the defect.
#[derive(Debug, Default)]
struct Caught {
    by_witness: Option<u32>,
    by_copy: Option<u32>,
    /// Children that did not come up or did not answer. They count for nothing.
    silent: u32,
    /// What was found in each branch.
    findings: Vec<String>,
}

/// Branches with `flaw` until the witness and, where the defect is in memory, the copy caught it.
async fn catch(flaw: Flaw, in_memory: InMemory) -> Caught {
    let bench = Bench::take().await;
    let source = bench.source(42).await;
    bench.probe.build_in(Some(flaw));
    let mut caught = Caught::default();
    for number in 1..=BRANCHES_MAX {
        let finding = bench.branch(&source, BranchMode::Live).await;
        caught.findings.push(finding.to_string());
        match &finding.verdict {
            Ok(verdict) if verdict.ok => {}
            Ok(_) => _ = caught.by_witness.get_or_insert(number),
            Err(_) => caught.silent += 1,
        }
        if !finding.comparison.differing.is_empty() {
            caught.by_copy.get_or_insert(number);
        }
        bench.forget(&finding.snapshot.tag).await;
        let copy_is_done = in_memory == InMemory::No || caught.by_copy.is_some();
        if caught.by_witness.is_some() && copy_is_done {
            break;
        }
    }
    bench.probe.build_in(None);
    let verdict = source.ask_witness().await.expect("the source answers");
    assert!(verdict.ok, "only the snapshot is torn: {}", verdict.text);
    source.remove().await;
    caught
}

/// Whether a defect tears memory.
#[derive(Clone, Copy, PartialEq)]
enum InMemory {
    Yes,
    No,
}

/// The witness and the comparison must both catch `flaw`.
fn assert_both_catch(flaw: Flaw) {
    let caught = block_on(catch(flaw, InMemory::Yes));
    assert!(caught.by_witness.is_some() && caught.by_copy.is_some(), "{flaw:?}: {caught:#?}");
}

#[test]
fn a_dirty_set_that_was_not_caught_up_is_caught() {
    assert_both_catch(Flaw::StaleDirtySet);
}

#[test]
fn a_page_released_before_it_is_captured_is_caught() {
    assert_both_catch(Flaw::ReleaseBeforeCapture);
}

#[test]
fn a_skipped_page_is_caught() {
    assert_both_catch(Flaw::SkippedPage);
}

#[test]
fn a_disk_that_is_cut_after_the_resume_is_caught_and_memory_is_not_blamed() {
    let caught = block_on(catch(Flaw::LateDisk, InMemory::No));
    assert!(caught.by_witness.is_some(), "{caught:#?}");
    assert_eq!(caught.by_copy, None, "memory belongs to the branch point: {caught:#?}");
}
