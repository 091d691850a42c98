//! Goal: what the source writes to its disk after the branch never reaches a child, also where the
//! child has not read the disk yet.
//!
//! Method: a file is written and dropped from the guest's cache before the branch; then the source
//! overwrites it in place, and the child reads it from its disk. Breaks when the overlay is not
//! frozen in the pause.

use forkd_testkit::{Lab, block_on};

/// Overwrites the file in place with 4 MiB of one letter, and makes the next read go to the disk.
fn fill(letter: char) -> String {
    format!(
        "head -c 4194304 /dev/zero | tr '\\0' {letter} | dd of=/srv/blob conv=notrunc bs=1M && \
         sync && echo 3 > /proc/sys/vm/drop_caches"
    )
}

#[test]
fn a_file_that_the_source_overwrites_later_is_unchanged_in_the_child() {
    block_on(async {
        let lab = Lab::shared().await;
        let source = lab.python().await;
        source.sh(&fill('a')).await;
        let before = source.sh("md5sum < /srv/blob && echo 3 > /proc/sys/vm/drop_caches").await;
        let (_, children) = source.branch_into(1).await;
        source.sh(&fill('b')).await;
        let after = source.sh("md5sum < /srv/blob").await;
        assert_ne!(before, after, "the source has its own content");
        assert_eq!(children[0].sh("md5sum < /srv/blob").await, before);
    });
}
