//! Goal: a pause that is given up, by an error or by dropping the guard, lets the guest run again.
//!
//! Method: a VM is started by hand and paused; the guard is dropped at each point of the window,
//! and QEMU is asked whether it runs. Breaks when the guard does not resume.

use forkd_testkit::{Lab, block_on};
use forkd_vmm::qemu::QemuVm;
use forkd_vmm::{PausePlan, Vm};

#[test]
fn dropping_the_window_at_any_point_resumes_the_vm() {
    block_on(async {
        let lab = Lab::shared().await;
        let mut vm = lab.bare_vm();
        let state = lab.config().run_dir.join("dropped-device-state");
        for point in 0..4 {
            let plan = PausePlan { device_state: state.clone(), overlay: None };
            let prepared = as_vm(&mut vm).prepare_pause(plan).unwrap();
            match point {
                // Not stopped: nothing is to be undone.
                0 => {}
                1 => drop(prepared.stop().unwrap()),
                2 => drop(prepared.stop().unwrap().save_device_state().unwrap()),
                _ => {
                    let saved = prepared.stop().unwrap().save_device_state().unwrap();
                    drop(saved.freeze_disk().unwrap());
                }
            }
            assert!(vm.is_running().unwrap(), "the VM stands still after point {point}");
        }
        Box::new(vm).kill();
    });
}

#[test]
fn a_failing_device_state_leaves_the_vm_running_and_the_next_pause_works() {
    block_on(async {
        let lab = Lab::shared().await;
        let mut vm = lab.bare_vm();
        let nowhere = lab.config().run_dir.join("no-such-directory/device-state");
        let plan = PausePlan { device_state: nowhere, overlay: None };
        let stopped = as_vm(&mut vm).prepare_pause(plan).unwrap().stop().unwrap();
        let error = stopped.save_device_state().unwrap_err().to_string();
        assert!(error.contains("xen-save-devices-state"), "{error}");
        assert!(vm.is_running().unwrap());
        let state = lab.config().run_dir.join("second-device-state");
        let plan = PausePlan { device_state: state.clone(), overlay: None };
        let stopped = as_vm(&mut vm).prepare_pause(plan).unwrap().stop().unwrap();
        stopped.save_device_state().unwrap().freeze_disk().unwrap().resume().unwrap();
        assert!(state.metadata().unwrap().len() > 1000);
        Box::new(vm).kill();
    });
}

fn as_vm(vm: &mut QemuVm) -> &mut dyn Vm {
    vm
}
