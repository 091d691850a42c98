//! Goal: a host disk without space is an error for the guest's write; the guest runs on, and can be
//! branched and written to when there is space again.
//!
//! Method: the state directory is a small file system, filled up; the guest writes through to its
//! disk. Breaks when QEMU stops the vCPUs, as it does by default.

use std::fs;

use forkd_testkit::{Lab, SOON, SmallTmpfs, block_on};

use crate::scene::ALONE;

#[test]
fn a_guest_whose_disk_has_no_space_gets_an_error_and_runs_on() {
    block_on(async {
        let _alone = ALONE.lock().await;
        let small = SmallTmpfs::mount(768);
        let hot = Lab::hot_directory();
        let lab =
            Lab::with_config(&hot, |config| small.path().clone_into(&mut config.state_dir)).await;
        let template = lab.template("python", 256).await;
        lab.wait_durable(&template).await;
        let source = lab.one(&template).await;
        source.sh("echo kept > /srv/kept; sync").await;
        let filler = small.path().join("filler");
        SmallTmpfs::fill_up(&filler);
        let write = source.try_sh("dd if=/dev/zero of=/srv/big bs=1M count=8 conv=fsync 2>&1");
        let write = tokio::time::timeout(SOON, write).await;
        let write = write.expect("the guest runs").unwrap();
        assert_ne!(write.code, 0, "{}", write.stdout);
        assert_eq!(source.sh("echo alive").await, "alive");
        fs::remove_file(&filler).unwrap();
        let (_, children) = source.branch_into(1).await;
        assert_eq!(children[0].sh("cat /srv/kept").await, "kept");
    });
}
