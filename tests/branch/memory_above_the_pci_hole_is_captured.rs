//! Goal: guests with more than 3 GiB of RAM, whose memory lies in two regions of guest-physical
//! addresses, are branched like others.
//!
//! Method: a guest of 3.5 GiB, two vCPUs, fills a RAM disk of 1 GiB. Linux takes memory from the
//! upper region first, which has half a GiB: so the file lies in both. Sums over pages of all of it
//! are compared in the child, before and after a change near its end. Breaks when the place of a
//! page in a layer is its guest-physical address here and its place in RAM there.

use forkd_engine::{NoProgress, TemplateRequest};
use forkd_testkit::{Lab, block_on};
use forkd_types::{ByteCount, MachineSize};

/// Sums 27 pages, spread over the file.
const SAMPLE: &str = "for page in $(seq 0 10000 260000); do \
    dd if=/big/file bs=4k skip=$page count=1 2>/dev/null; done | md5sum";

#[test]
fn a_guest_with_memory_in_two_regions_has_all_of_it_in_the_child() {
    block_on(async {
        let lab = Lab::shared().await;
        let tag = "large".parse().unwrap();
        let request = TemplateRequest {
            tag,
            image: forkd_engine::TemplateImage::Named("tiny".to_owned()),
            size: MachineSize::new(ByteCount::from_mib(3584), 2).unwrap(),
            cpu: forkd_types::CpuModel::Host,
            warm: Vec::new(),
            shared: false,
            private: false,
        };
        let template =
            lab.engine.build_template(request, std::sync::Arc::new(NoProgress)).await.unwrap();
        let source = lab.one(&template.tag).await;
        source.sh("mkdir -p /big && mount -t tmpfs -o size=1100m big /big").await;
        // The same random bytes again and again, shifted a little by a number before each copy:
        // fast to make, and no two pages are equal.
        source
            .sh("dd if=/dev/urandom of=/tmp/part bs=1M count=16 2>/dev/null; \
                 for i in $(seq 1 64); do echo $i; cat /tmp/part; done > /big/file")
            .await;
        let sum = source.sh(SAMPLE).await;
        let first = source.branch().await;
        let stored = first.branch.as_ref().unwrap().stored;
        assert!(stored > ByteCount::from_mib(1020), "{stored}");
        // The last of the sampled pages.
        source
            .sh("echo changed | dd of=/big/file bs=4k seek=260000 conv=notrunc 2>/dev/null")
            .await;
        let changed = source.sh(SAMPLE).await;
        assert_ne!(sum, changed);
        let second = source.branch().await;
        for (snapshot, want) in [(&first, &sum), (&second, &changed)] {
            let child = lab.one(&snapshot.tag).await;
            assert_eq!(&child.sh(SAMPLE).await, want);
            child.remove().await;
        }
        source.remove().await;
    });
}
