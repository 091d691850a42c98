//! Goal: the VMM that a daemon tries KVM out with is confined as every other, although no sandbox
//! is in it yet.
//! Method: `/proc`, while the probe is made. Without `/dev/kvm` no such VMM is started.
//! Broken by: a probe that starts QEMU itself.

use std::path::Path;
use std::time::{Duration, Instant};

use forkd_engine::{AcceleratorChoice, EngineConfig, probe_kvm};
use forkd_testkit::audit::{violations, violations_before_the_machine};
use forkd_testkit::{Lab, SOON, block_on};
use forkd_types::{Isolation, limit};

#[test]
fn the_vmm_that_tries_kvm_out_looks_confined_from_outside() {
    if !Path::new("/dev/kvm").exists() {
        eprintln!("not looked at: there is no /dev/kvm");
        return;
    }
    block_on(async {
        let lab = Lab::with_config(&Lab::hot_directory(), |config| config.limits.standby = 0).await;
        let config = EngineConfig {
            accelerator: AcceleratorChoice::Auto,
            kvm_probe_deadline: limit::KVM_PROBE_DEADLINE,
            ..lab.config().clone()
        };
        let looked = async {
            let begun = Instant::now();
            loop {
                // It is there before it is confined.
                if let [pid] = lab.vmm_pids()[..] {
                    let others = [std::process::id()];
                    let found = violations_before_the_machine(pid, &others);
                    if found.is_empty() || violations(pid, &others, Isolation::Full).is_empty() {
                        return;
                    }
                    assert!(begun.elapsed() < SOON, "{found:#?}");
                }
                assert!(begun.elapsed() < SOON, "no VMM was seen");
                tokio::time::sleep(Duration::from_millis(2)).await;
            }
        };
        let (verdict, ()) = tokio::join!(probe_kvm(&config), looked);
        assert!(verdict.works || verdict.reason.contains("no guest boots"), "{}", verdict.reason);
    });
}
