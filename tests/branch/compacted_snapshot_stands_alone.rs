//! Goal: a compacted snapshot depends on nothing: when the original and all of its ancestors are
//! gone, a child of it has the same memory and the same disk.
//!
//! Method: three generations each add to a list in memory and to the disk, overwrite a file and
//! punch zeros into another; the last branch is compacted and everything else removed. A child's
//! memory and disk, read past the cache, are compared with the original's child. Breaks when a
//! layer or overlay is left out, zeros over the base are lost, or a file is still shared.

use std::fs;
use std::path::Path;

use forkd_engine::{DeletePolicy, EngineError};
use forkd_testkit::{Guest, Lab, block_on};
use forkd_types::{SnapshotStatus, SnapshotTag};

const DISK: &str = "echo 3 > /proc/sys/vm/drop_caches; cat /srv/words; md5sum < /srv/blob; \
                    md5sum < /srv/holes; cat /usr/bin/[a-d]* | md5sum";

async fn generation(guest: &Guest<'_>, number: usize) {
    guest.eval(&format!("words.append('g{number}'); blob[{number} << 20] = {number} + 1")).await;
    guest
        .sh(&format!(
            "echo g{number} >> /srv/words; \
             tr '\\0' {number} < /dev/zero | head -c 3000000 | \
                dd of=/srv/blob bs=1000 seek={number}000 conv=notrunc; \
             dd if=/dev/zero of=/srv/holes bs=1M count=1 seek={number} conv=notrunc; sync"
        ))
        .await;
}

async fn state(guest: &Guest<'_>) -> (String, String) {
    (guest.eval("words, zlib.crc32(blob)").await, guest.sh(DISK).await)
}

fn entries(directory: &Path) -> Vec<String> {
    let names = fs::read_dir(directory).unwrap().map(|entry| entry.unwrap().file_name());
    let mut names: Vec<String> = names.map(|name| name.into_string().unwrap()).collect();
    names.retain(|name| !name.starts_with("blank-"));
    names.sort();
    names
}

#[test]
fn a_child_of_it_works_when_all_ancestors_are_gone() {
    block_on(async {
        let lab = Lab::new().await;
        let mut guest = lab.python().await;
        guest.eval("import zlib; words = []; blob = bytearray(8 << 20)").await;
        guest.sh("tr '\\0' x < /dev/zero | head -c 4194304 > /srv/holes; sync").await;
        for number in 0..3 {
            generation(&guest, number).await;
            guest = guest.branch_into(1).await.1.pop().unwrap();
        }
        let original = lab.engine.sandbox(&guest.id).unwrap().snapshot_tag;
        let expected = state(&guest).await;
        let to: SnapshotTag = "compacted".parse().unwrap();
        let compacted = lab.engine.compact_snapshot(&original, &to).await.unwrap();
        assert_eq!(lab.engine.snapshot(&original).unwrap().chain_depth, 4);
        assert_eq!((compacted.chain_depth, compacted.parent_tag), (1, None));
        assert_eq!(compacted.status, SnapshotStatus::Ready);
        lab.wait_durable(&to).await;
        let template: SnapshotTag = "python-256".parse().unwrap();
        lab.engine.delete_snapshot(&template, DeletePolicy::Cascade).await.unwrap();
        assert!(lab.engine.snapshot(&original).is_err() && lab.engine.sandboxes().is_empty());
        let config = lab.config();
        for (directory, count) in [
            (config.hot_dir.join("layers"), 3),
            (config.state_dir.join("layers"), 3),
            (config.state_dir.join("overlays"), 1),
        ] {
            assert_eq!(entries(&directory).len(), count, "{}", directory.display());
        }
        assert_eq!(state(&lab.one(&to).await).await, expected);
    });
}

#[test]
fn what_cannot_be_compacted_is_refused_or_failed_and_leaves_nothing() {
    block_on(async {
        let lab = Lab::new().await;
        let source = lab.python().await;
        let tag = source.branch().await.tag;
        lab.wait_durable(&tag).await;
        let to: SnapshotTag = "to".parse().unwrap();
        let nowhere: SnapshotTag = "nowhere".parse().unwrap();
        let unknown = lab.engine.compact_snapshot(&nowhere, &to).await.unwrap_err();
        assert!(matches!(unknown, EngineError::UnknownSnapshot { .. }), "{unknown}");
        let taken = lab.engine.compact_snapshot(&tag, &tag).await.unwrap_err();
        assert!(matches!(taken, EngineError::TagTaken { .. }), "{taken}");

        // The overlays are the template's and the frozen one of the source.
        let overlays = lab.config().state_dir.join("overlays");
        let hot = lab.config().hot_dir.join("layers");
        let before = (entries(&overlays), entries(&hot));
        let saved: Vec<_> =
            before.0.iter().map(|name| fs::read(overlays.join(name)).unwrap()).collect();
        // As long as they were, with their headers: only who reads all of them can tell.
        before.0.iter().zip(&saved).for_each(|(name, bytes)| {
            let mut bytes = bytes.clone();
            bytes[4096..].fill(b'x');
            fs::write(overlays.join(name), bytes).unwrap();
        });
        let error = lab.engine.compact_snapshot(&tag, &to).await.unwrap_err().to_string();
        assert!(before.0.iter().any(|name| error.contains(name.as_str())), "{error}");
        let failed = lab.engine.snapshot(&to).unwrap();
        assert_eq!((failed.status, failed.parent_tag), (SnapshotStatus::Failed, None));
        assert!(failed.error.unwrap().contains(&error));
        assert_eq!((entries(&overlays), entries(&hot)), before, "nothing is left");
        let not_ready = lab.engine.compact_snapshot(&to, &nowhere).await.unwrap_err();
        assert!(matches!(not_ready, EngineError::SnapshotNotReady { .. }), "{not_ready}");

        before
            .0
            .iter()
            .zip(saved)
            .for_each(|(n, bytes)| fs::write(overlays.join(n), bytes).unwrap());
        let made = lab.engine.compact_snapshot(&tag, &to).await.unwrap();
        assert_eq!(made.status, SnapshotStatus::Ready, "the tag of a failed one is free");
        lab.one(&to).await;
    });
}
