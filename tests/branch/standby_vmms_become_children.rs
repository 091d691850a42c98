//! Goal: a VMM that was started before anybody knew of its snapshot becomes a child of it as good
//! as any other: its memory, its disk over all overlays of the snapshot, an identity of its own. So
//! does one that was fitted with the state of a snapshot long before, and its clock is right.
//! Method: sandboxes whose processes stood by, of a template and of branches on branches, whose
//! disks have several overlays; what they read and write, and what their siblings see of it. The
//! template is removed while VMMs are fitted with it.
//! Broken by: an overlay that is left out or in the wrong order, a disk that two share, state of
//! another snapshot, an identity or time from before the child was asked for.

use std::time::{SystemTime, UNIX_EPOCH};

use forkd_engine::DeletePolicy;
use forkd_testkit::{Guest, Lab, block_on};
use forkd_types::SnapshotTag;

/// Each branch adds an overlay and a layer.
const GENERATIONS: usize = 3;

/// So many VMMs stand by.
const PLACES: usize = 2;

/// Seconds since the epoch, of this host.
fn now() -> u64 {
    SystemTime::now().duration_since(UNIX_EPOCH).unwrap().as_secs()
}

/// All that stand by have the state of a snapshot.
async fn fitted(lab: &Lab) {
    lab.wait_until("all are fitted", || lab.engine.standby().fitted == PLACES).await;
}

/// A child whose VMM stood by and fitted any snapshot.
async fn child<'a>(lab: &'a Lab, tag: &SnapshotTag) -> Guest<'a> {
    let fits_any = || {
        let usage = lab.engine.standby();
        usage.ready.iter().map(|kind| kind.count).sum::<usize>() > usage.fitted
    };
    lab.wait_until("a VMM stands by", fits_any).await;
    one_that_stood_by(lab, tag).await
}

async fn one_that_stood_by<'a>(lab: &'a Lab, tag: &SnapshotTag) -> Guest<'a> {
    let stood_by = lab.engine.standby_pids();
    let guest = lab.one(tag).await;
    let pid = lab.engine.sandbox(&guest.id).unwrap().pid.unwrap();
    assert!(stood_by.contains(&pid), "{pid} is none of {stood_by:?}");
    guest
}

#[test]
fn standby_vmms_become_children() {
    block_on(async {
        let lab =
            Lab::with_config(&Lab::hot_directory(), |config| config.limits.standby = PLACES).await;
        let template = lab.template("python", 256).await;
        lab.one(&template).await.remove().await;
        let a = child(&lab, &template).await;
        fitted(&lab).await;
        let b = one_that_stood_by(&lab, &template).await;
        let asked_at = now();
        let date: u64 = b.sh("date +%s").await.trim().parse().unwrap();
        assert!((asked_at..=now()).contains(&date), "{date} is not between {asked_at} and now");
        a.sh("echo a > /root/who; echo a > /tmp/who").await;
        b.sh("echo b > /root/who; echo b > /tmp/who").await;
        let read = "echo 3 > /proc/sys/vm/drop_caches; cat /root/who /tmp/who | tr -d '\\n'";
        assert_eq!((a.sh(read).await, b.sh(read).await), ("aa".to_owned(), "bb".to_owned()));
        for command in ["cat /etc/machine-id", "hostname", "head -c 16 /dev/urandom | md5sum"] {
            assert_ne!(a.sh(command).await, b.sh(command).await, "{command}");
        }
        let untouched = a.sh("md5sum < /usr/bin/env").await;

        // What is being fitted now is not counted on by those that follow.
        fitted(&lab).await;
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
        for _ in 0..4 {
            lab.one(&template).await.remove().await;
        }
        fitted(&lab).await;
        lab.engine.delete_snapshot(&template, DeletePolicy::Force).await.unwrap();
        lab.wait_until("none has what is gone", || lab.engine.standby().fitted == 0).await;
        assert_eq!(b.sh(read).await, "bb", "nothing is missed where it was used");
        guest.remove().await;
        b.remove().await;
        lab.engine.shut_down(forkd_engine::AtShutDown::Remove).await;
        assert_eq!((lab.vmm_count(), lab.leftovers()), (0, Vec::new()));
    });
}
