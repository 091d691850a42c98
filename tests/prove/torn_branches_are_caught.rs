//! Goal: the proof of one instant would notice a branch that is torn.
//!
//! Method: each branch of a writing source gets a mutation, a defect that is built in on purpose. It
//! strikes pages or records of the witness only, once they have been written anew; so every branch
//! is torn and every child lives to tell. Each check that can see the defect must catch it in each
//! of them: in the first branch of the source, which protects and scans all of its RAM, and in the
//! next one, which goes by the faults. Breaks when a check looks away.
//!
//! | mutation | the witness in the child | comparison with the copy |
//! |---|---|---|
//! | pages written before the pause stay writable | catches | catches |
//! | a page is released before it is copied | catches | catches |
//! | a dirty page is skipped | catches | catches |
//! | the disk is cut after the resume | catches | cannot: memory is right |

use forkd_testkit::{Mutation, Verdict, block_on};
use forkd_types::{BranchMode, PageIndex};

use crate::bench::{Bench, Finding};

/// The first branch of a source, and one that builds on it.
const BRANCHES: u32 = 2;

/// What of a branch is torn.
#[derive(Clone, Copy, PartialEq)]
enum Torn {
    Memory,
    Disk,
}

/// The checks must catch `mutation` in every branch, and blame nothing else than it strikes.
async fn assert_caught(mutation: Mutation, torn: Torn) {
    let bench = Bench::take().await;
    let source = bench.source(42).await;
    for number in 1..=BRANCHES {
        let Verdict { pages, .. } = source.ask_witness().await.expect("the source answers");
        bench.probe.mutate_next(mutation, pages.clone());
        let finding = bench.branch(&source, BranchMode::Live).await;
        let told = format!("{mutation:?}, branch {number}\n{finding}");
        let verdict = finding.verdict.as_ref().unwrap_or_else(|_| panic!("{told}"));
        assert!(!verdict.ok, "the witness looks away: {told}");
        let Finding { comparison, .. } = &finding;
        match torn {
            Torn::Memory => {
                assert!(!comparison.differing.is_empty(), "the comparison looks away: {told}");
                let is_hot = |page: &u64| pages.hot.contains(&PageIndex::new(*page));
                assert!(comparison.differing.iter().all(is_hot), "others are torn: {told}");
            }
            Torn::Disk => assert!(comparison.differing.is_empty(), "memory is right: {told}"),
        }
        bench.forget(&finding.snapshot.tag).await;
    }
    let verdict = source.ask_witness().await.expect("the source answers");
    assert!(verdict.ok, "only the snapshot is torn: {}", verdict.text);
    source.remove().await;
}

#[test]
fn pages_that_are_not_protected_again_are_caught() {
    block_on(assert_caught(Mutation::UnprotectedPages, Torn::Memory));
}

#[test]
fn a_page_released_before_it_is_copied_is_caught() {
    block_on(assert_caught(Mutation::EarlyRelease, Torn::Memory));
}

#[test]
fn a_skipped_page_is_caught() {
    block_on(assert_caught(Mutation::SkippedPage, Torn::Memory));
}

#[test]
fn a_disk_that_is_cut_after_the_resume_is_caught_and_memory_is_not_blamed() {
    block_on(assert_caught(Mutation::LateDisk, Torn::Disk));
}
