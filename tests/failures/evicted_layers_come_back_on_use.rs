//! Goal: hot copies of durable layers are given up where they are beyond the budget or where space
//! is needed, come back when they are used, and never go while a sandbox maps them.
//!
//! Method: a budget that nothing fits into; and a small tmpfs of which a template takes so much
//! that another one fits only without it. Breaks when a child gets other memory, or a mapped layer
//! goes.

use std::fs;
use std::path::Path;

use forkd_testkit::{Lab, SmallTmpfs, block_on};
use forkd_types::ByteCount;

/// Layers that have a hot copy.
fn hot(lab: &Lab) -> usize {
    layers(&lab.config().hot_dir)
}

fn layers(hot: &Path) -> usize {
    let entries = fs::read_dir(hot.join("layers")).unwrap();
    entries.filter(|entry| entry.as_ref().unwrap().path().extension().is_none()).count()
}

#[test]
fn hot_copies_beyond_the_budget_go_when_nobody_uses_them() {
    block_on(async {
        let directory = Lab::hot_directory();
        let none = |config: &mut forkd_engine::EngineConfig| {
            config.hot_budget = Some(ByteCount::ZERO);
        };
        let lab = Lab::with_config(&directory, none).await;
        let template = lab.template("tiny", 128).await;
        lab.wait_until("the template is evicted", || hot(&lab) == 0).await;
        let source = lab.one(&template).await;
        source.sh("echo kept > /tmp/file").await;
        let (first, children) = source.branch_into(1).await;
        lab.wait_durable(&first).await;
        tokio::time::sleep(std::time::Duration::from_millis(300)).await;
        assert_eq!(hot(&lab), 2, "source and child map them");
        assert_eq!(children[0].sh("cat /tmp/file").await, "kept");
        let second = source.branch().await.tag;
        lab.wait_durable(&second).await;
        for guest in [source, children[0].clone()] {
            guest.remove().await;
        }
        lab.wait_until("all are evicted", || hot(&lab) == 0).await;
        for tag in [first, second] {
            let child = lab.one(&tag).await;
            assert_eq!(child.sh("cat /tmp/file").await, "kept");
            child.remove().await;
        }
    });
}

#[test]
fn hot_copies_make_room_for_what_is_asked_for() {
    block_on(async {
        let small = SmallTmpfs::mount(512);
        let lab = Lab::with_hot(small.path()).await;
        let first = lab.template("tiny", 128).await;
        lab.wait_durable(&first).await;
        // A template of 128 MiB needs 192.
        small.fill(&small.path().join("filler"), 185);
        let second = "second".parse().unwrap();
        lab.build(&second, "tiny", 128).await.unwrap();
        assert_eq!(hot(&lab), 1, "the first one was evicted");
        fs::remove_file(small.path().join("filler")).unwrap();
        for tag in [&first, &second] {
            let child = lab.one(tag).await;
            assert_eq!(child.sh("echo here").await, "here");
            child.remove().await;
        }
    });
}
