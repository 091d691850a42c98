//! Claims about operations and events: see the name of each file.

#![expect(clippy::unwrap_used, reason = "a test fails by panicking")]

mod cancelled_operations_leave_nothing;
mod events_tell_every_change_in_order;
mod gate;
mod limits_and_leases_hold;
