//! Goal: a VMM that was started before anybody knew of its snapshot becomes a child of it as good
//! as any other: its memory, its disk over all overlays of the snapshot, an identity of its own.
//! Method: sandboxes whose processes stood by, of a template and of branches on branches, whose
//! disks have several overlays; what they read and write, and what their siblings see of it.
//! Broken by: an overlay that is left out or in the wrong order, a disk that two share, state of
//! another snapshot.

use forkd_testkit::{Guest, Lab, block_on};
use forkd_types::SnapshotTag;

/// Each branch adds an overlay and a layer.
const GENERATIONS: usize = 3;

/// A child whose VMM stood by.
async fn child<'a>(lab: &'a Lab, tag: &SnapshotTag) -> Guest<'a> {
    lab.wait_until("a VMM stands by", || !lab.engine.standby_pids().is_empty()).await;
    let stood_by = lab.engine.standby_pids();
    let guest = lab.one(tag).await;
    let pid = lab.engine.sandbox(&guest.id).unwrap().pid.unwrap();
    assert!(stood_by.contains(&pid), "{pid} is none of {stood_by:?}");
    guest
}

#[test]
fn standby_vmms_become_children() {
    block_on(async {
        let lab = Lab::with_config(&Lab::hot_directory(), |config| config.limits.standby = 2).await;
        let template = lab.template("python", 256).await;
        lab.one(&template).await.remove().await;
        let (a, b) = (child(&lab, &template).await, child(&lab, &template).await);
        a.sh("echo a > /root/who; echo a > /tmp/who").await;
        b.sh("echo b > /root/who; echo b > /tmp/who").await;
        let read = "echo 3 > /proc/sys/vm/drop_caches; cat /root/who /tmp/who | tr -d '\\n'";
        assert_eq!((a.sh(read).await, b.sh(read).await), ("aa".to_owned(), "bb".to_owned()));
        for command in ["cat /etc/machine-id", "hostname", "head -c 16 /dev/urandom | md5sum"] {
            assert_ne!(a.sh(command).await, b.sh(command).await, "{command}");
        }
        let untouched = a.sh("md5sum < /usr/bin/env").await;

        let mut guest = a;
        for generation in 0..GENERATIONS {
            // On the disk: a file of its own, and a part of one that all write to.
            let write = format!(
                "echo {generation} > /root/of-{generation}; \
                 dd if=/dev/zero bs=4096 count=16 2>/dev/null | tr '\\0' '{generation}' \
                 | dd of=/root/all bs=4096 seek={generation} conv=notrunc 2>/dev/null; \
                 echo {generation} >> /tmp/memory; sync"
            );
            guest.sh(&write).await;
            let tag = guest.branch().await.tag;
            let next = child(&lab, &tag).await;
            next.sh("echo 3 > /proc/sys/vm/drop_caches").await;
            let files = (0..=generation).map(|each| format!("{each}")).collect::<String>();
            assert_eq!(next.sh("cat /root/of-* | tr -d '\\n'").await, files);
            assert_eq!(next.sh("tr -d '\\n' < /tmp/memory").await, files);
            let blocks = "for i in $(seq 0 17); do dd if=/root/all bs=4096 skip=$i count=1 \
                2>/dev/null | head -c 1; done";
            assert_eq!(next.sh(blocks).await, guest.sh(blocks).await);
            assert_eq!(next.sh("md5sum < /usr/bin/env").await, untouched);
            guest.remove().await;
            guest = next;
        }
        assert_eq!(b.sh(read).await, "bb", "nothing reached its sibling");
        guest.remove().await;
        b.remove().await;
        lab.engine.shut_down(forkd_engine::AtShutDown::Remove).await;
        assert_eq!((lab.vmm_count(), lab.leftovers()), (0, Vec::new()));
    });
}
