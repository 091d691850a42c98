//! Claims about what a VMM reaches that was taken over: see the name of each file.

#![expect(clippy::unwrap_used, reason = "a test fails by panicking")]

mod aims;
mod confined_vmm_looks_confined_from_outside;
mod disk_of_a_snapshot_stays_as_it_was;
mod disks_of_guests_are_read_by_a_confined_program;
mod each_step_of_the_launcher_is_needed;
mod gateway_looks_confined_from_outside;
mod limits_hold_for_a_vmm_that_was_taken_over;
mod lying_monitor;
mod ordinary_user;
mod prisoner;
mod subordinate_users_stay_apart_as_long_as_vmms_live;
mod taken_over_vmm_reaches_nothing;
mod vmm_of_an_ordinary_user_reaches_nothing;
mod vmm_that_lies_about_its_disk_is_refused;
mod vmm_that_tries_kvm_out_looks_confined_from_outside;
