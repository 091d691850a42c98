//! Goal: a pause that is given up, by an error or by dropping the guard, lets the guest run again.
//!
//! Method: a VM is started by hand and paused; the guard is dropped at each point of the window,
//! and QEMU is asked whether it runs. Breaks when the guard does not resume.

use forkd_testkit::{Lab, block_on};

#[test]
fn dropping_the_paused_guard_at_any_point_resumes_the_vm() {
    block_on(async {
        let lab = Lab::shared().await;
        let mut vm = lab.bare_vm();
        let state = lab.config().run_dir.join("dropped-device-state");
        for point in 0..3 {
            let plan = forkd_vmm::PausePlan { device_state: state.clone(), overlay: None };
            let prepared = vm.prepare_pause(plan).unwrap();
            if point == 0 {
                drop(prepared);
            } else {
                let mut paused = prepared.pause().unwrap();
                if point == 2 {
                    paused.save_device_state().unwrap();
                }
                drop(paused);
            }
            assert!(vm.is_running().unwrap(), "the VM stands still after point {point}");
        }
        vm.kill();
    });
}

#[test]
fn a_failing_device_state_leaves_the_vm_running_and_the_next_pause_works() {
    block_on(async {
        let lab = Lab::shared().await;
        let mut vm = lab.bare_vm();
        let nowhere = lab.config().run_dir.join("no-such-directory/device-state");
        let plan = forkd_vmm::PausePlan { device_state: nowhere, overlay: None };
        let mut paused = vm.prepare_pause(plan).unwrap().pause().unwrap();
        let error = paused.save_device_state().unwrap_err().to_string();
        assert!(error.contains("xen-save-devices-state"), "{error}");
        drop(paused);
        assert!(vm.is_running().unwrap());
        let state = lab.config().run_dir.join("second-device-state");
        let plan = forkd_vmm::PausePlan { device_state: state.clone(), overlay: None };
        let mut paused = vm.prepare_pause(plan).unwrap().pause().unwrap();
        paused.save_device_state().unwrap();
        paused.resume().unwrap();
        assert!(state.metadata().unwrap().len() > 1000);
        vm.kill();
    });
}
