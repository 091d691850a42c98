//! Goal: a guest with several vCPUs lives on when its kernel changes code while they run it.
//!
//! Method: a guest of two vCPUs, on which other programs wake and run all the time, turns the
//! kernel's statistics of the scheduler on and off: each time the kernel puts breakpoints over
//! its own code and takes them away. Breaks when an emulated vCPU keeps a breakpoint that is gone,
//! as QEMU before 8.1 does if both vCPUs are emulated at once: then the guest never answers.

use std::sync::Arc;

use forkd_engine::{NoProgress, TemplateImage, TemplateRequest};
use forkd_testkit::{Lab, SOON, block_on};
use forkd_types::{ByteCount, MachineSize};

const CHANGES: &str = "switch=/proc/sys/kernel/sched_schedstats; \
    (while :; do :; done) & busy=$!; (while :; do sleep 0.001; done) & waking=$!; \
    for i in $(seq 1 200); do echo 1 > $switch; echo 0 > $switch; done; \
    kill $busy $waking; cat $switch";

#[test]
fn a_guest_lives_on_when_its_kernel_changes_code_that_another_vcpu_runs() {
    block_on(async {
        let lab = Lab::shared().await;
        let request = TemplateRequest {
            tag: "two-vcpus".parse().unwrap(),
            image: TemplateImage::Named("tiny".to_owned()),
            size: MachineSize::new(ByteCount::from_mib(128), 2).unwrap(),
            cpu: forkd_types::CpuModel::Host,
            warm: Vec::new(),
            shared: false,
            private: false,
        };
        let template = lab.engine.build_template(request, Arc::new(NoProgress)).await.unwrap();
        let guest = lab.one(&template.tag).await;
        assert_eq!(guest.sh("grep -c ^processor /proc/cpuinfo").await, "2");
        for _ in 0..3 {
            let changed = tokio::time::timeout(SOON * 3, guest.sh(CHANGES)).await;
            assert_eq!(changed.expect("the guest hangs"), "0");
        }
        guest.remove().await;
    });
}
