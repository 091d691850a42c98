//! Goal: where KVM works, the probe says so, and what runs a sandbox and a child of its branch is
//! KVM, not emulation. Guests see the level of x86-64 that their template asks for.
//!
//! Method: the probe is made as a daemon makes it. Then each guest says which clock it has, its VMM
//! must hold a VM of KVM open, and the engine must name KVM. Breaks when the probe cannot boot a
//! guest, or when QEMU is started with another accelerator.

use std::fs;
use std::sync::Arc;

use forkd_engine::{
    Accelerator, AcceleratorChoice, EngineConfig, NoProgress, TemplateImage, TemplateRequest,
    probe_kvm,
};
use forkd_testkit::{Lab, block_on};
use forkd_types::{ByteCount, CpuModel, MachineSize, SnapshotTag};

#[test]
#[ignore = "needs KVM; runs in the KVM tier"]
fn the_probe_finds_kvm_and_a_branch_and_its_child_run_on_it() {
    block_on(async {
        let lab = Lab::shared().await;
        assert_eq!(lab.engine.accelerator(), Accelerator::Kvm);
        let config = EngineConfig { accelerator: AcceleratorChoice::Auto, ..lab.config().clone() };
        let verdict = probe_kvm(&config).await;
        assert!(verdict.works, "{}", verdict.reason);
        let only = |config: &mut EngineConfig| {
            config.accelerator = AcceleratorChoice::KvmOnly;
            config.limits.standby = 1;
        };
        let required = Lab::with_config(&Lab::hot_directory(), only).await;
        assert_eq!(required.engine.accelerator(), Accelerator::Kvm);
        a_vmm_that_stands_by_becomes_a_child(&required).await;
        a_guest_and_a_child_of_its_branch_have_a_level(&required).await;

        let source = lab.tiny().await;
        source.sh("echo before > /tmp/word").await;
        let (_, children) = source.branch_into(1).await;
        source.sh("echo after > /tmp/word").await;
        assert_eq!(children[0].sh("cat /tmp/word").await, "before");
        for guest in [&source, &children[0]] {
            let clock = "/sys/devices/system/clocksource/clocksource0/current_clocksource";
            assert_eq!(guest.sh(&format!("cat {clock}")).await, "kvm-clock");
            let pid = lab.engine.sandbox(&guest.id).unwrap().pid.unwrap();
            let files = fs::read_dir(format!("/proc/{pid}/fd")).unwrap().flatten();
            let open: Vec<_> = files.filter_map(|file| fs::read_link(file.path()).ok()).collect();
            assert!(open.iter().any(|target| target.ends_with("anon_inode:kvm-vm")), "{open:?}");
        }
    });
}

/// QEMU starts no VMM for a level that KVM cannot give it whole.
async fn a_guest_and_a_child_of_its_branch_have_a_level(lab: &Lab) {
    let tag: SnapshotTag = "level".parse().expect("a tag");
    let request = TemplateRequest {
        tag: tag.clone(),
        image: TemplateImage::Named("tiny".to_owned()),
        size: MachineSize::new(ByteCount::from_mib(128), 1).expect("a size"),
        cpu: CpuModel::V2,
        warm: Vec::new(),
        shared: false,
        private: false,
    };
    lab.engine.build_template(request, Arc::new(NoProgress)).await.expect("it boots");
    let source = lab.one(&tag).await;
    let (_, mut children) = source.branch_into(1).await;
    for guest in [source, children.remove(0)] {
        let flags = guest.sh("grep -m 1 ^flags /proc/cpuinfo").await;
        let has = |flag: &str| flags.split(' ').any(|one| one == flag);
        assert!(has("sse4_2") && has("popcnt") && !has("avx"), "{flags}");
        guest.remove().await;
    }
}

/// The state that KVM keeps of a guest is loaded into a VM that is older than the guest's fork.
async fn a_vmm_that_stands_by_becomes_a_child(lab: &Lab) {
    let tag = lab.template("tiny", 128).await;
    let first = lab.one(&tag).await;
    lab.wait_until("a VMM stands by", || lab.engine.standby_pids().len() == 1).await;
    let stood_by = lab.engine.standby_pids();
    let child = lab.one(&tag).await;
    let found = lab.engine.sandbox(&child.id).expect("it runs");
    assert_eq!(found.pid, stood_by.first().copied());
    assert_eq!(
        child.sh("echo runs; cat /run/forkd/instance-id").await,
        format!("runs\n{}", child.id)
    );
    for guest in [first, child] {
        guest.remove().await;
    }
}
