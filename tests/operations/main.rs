//! Claims about operations and events: see the name of each file.

#![expect(clippy::unwrap_used, reason = "a test fails by panicking")]

mod cancelled_operations_leave_nothing;
mod control_groups_limit_and_go;
mod events_tell_every_change_in_order;
mod gate;
mod limits_and_leases_hold;
mod memory_limits_end_only_their_own_vmm;
