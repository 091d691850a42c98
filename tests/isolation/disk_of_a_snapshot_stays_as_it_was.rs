//! Goal: who takes over a VMM after a branch can change nothing of the disk that the snapshot has;
//! a VMM that was taken over before, and keeps what it wrote with, gives no snapshot at all.
//!
//! Method: the preload library, in the real VMM of a source with a disk, writes through every
//! descriptor that it has to the overlay that a branch has frozen, and opens it anew. The one works
//! before the branch, the other in a VMM that is not confined. Then the library copies the VMM's
//! descriptors, as a hostile VMM would, before a branch.
//!
//! Broken by: a VMM that is not told to close what is frozen, a kernel that is not asked whether it
//! did, a frozen file that stays the VMM's own.

use std::fs;

use forkd_engine::IsolationPolicy;
use forkd_testkit::{Guest, block_on};
use forkd_types::{BranchMode, SnapshotStatus};

use crate::prisoner::{Attempt, attempt, lab, top_overlay};

fn works(attempt: &Attempt) -> bool {
    matches!(attempt, Attempt::Worked(_))
}

async fn on_disk(guest: &Guest<'_>, words: &str) {
    guest.sh(&format!("echo {words} > /srv/words && sync")).await;
}

#[test]
fn a_vmm_gives_up_what_a_branch_has_frozen() {
    block_on(async {
        let lab = lab(IsolationPolicy::Required, None).await;
        let tag = lab.template("python", 256).await;
        let guest = lab.one(&tag).await;
        on_disk(&guest, "of-the-branch").await;
        let (overlay, inode) = top_overlay(&lab, &guest);
        let inode = inode.to_string();
        let write = |guest: &Guest<'_>| attempt(&lab, guest, "write_descriptors", &inode);
        assert!(works(&write(&guest)), "before the branch the disk is its own");
        let (snapshot, _) = guest.branch_into(0).await;
        let frozen = fs::read(&overlay).unwrap();
        let written = write(&guest);
        assert!(matches!(written, Attempt::Refused(_)), "{written:?}");
        let name = format!("/disk/overlays/{}", overlay.file_name().unwrap().display());
        let opened = attempt(&lab, &guest, "open_for_writing", &name);
        assert!(matches!(opened, Attempt::Refused(_)), "{opened:?}");
        on_disk(&guest, "of-the-source").await;
        assert!(fs::read(&overlay).unwrap() == frozen, "the disk of a snapshot has changed");
        let child = lab.one(&snapshot).await;
        assert_eq!(child.sh("cat /srv/words").await, "of-the-branch");

        // It has taken over its VMM by the next branch, and keeps what it writes with.
        let kept = attempt(&lab, &guest, "keep_writable", "");
        assert!(works(&kept), "{kept:?}");
        for reason in ["after the pause", "before the pause"] {
            let error = guest.try_branch(BranchMode::Diff).await.unwrap_err();
            let words = forkd_engine::describe(&error);
            assert!(words.contains("open for writing"), "{reason}: {words}");
        }
        let snapshots = lab.engine.snapshots();
        let usable = snapshots.iter().filter(|one| one.status == SnapshotStatus::Ready).count();
        assert_eq!(usable, 2, "the template and the first branch: {snapshots:#?}");
        assert_eq!(guest.sh("cat /srv/words").await, "of-the-source");
        assert_eq!(lab.one(&snapshot).await.sh("cat /srv/words").await, "of-the-branch");
        assert!(fs::read(&overlay).unwrap() == frozen, "the disk of a snapshot has changed");
    });
}

#[test]
fn a_vmm_that_is_not_confined_opens_it_again() {
    block_on(async {
        let lab = lab(IsolationPolicy::None, None).await;
        let tag = lab.template("python", 256).await;
        let guest = lab.one(&tag).await;
        let (overlay, inode) = top_overlay(&lab, &guest);
        guest.branch_into(0).await;
        let written = attempt(&lab, &guest, "write_descriptors", &inode.to_string());
        assert!(matches!(written, Attempt::Refused(_)), "it was closed here too: {written:?}");
        let name = overlay.display().to_string();
        let opened = attempt(&lab, &guest, "open_for_writing", &name);
        assert!(works(&opened), "{opened:?}");
    });
}
