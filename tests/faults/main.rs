//! The fault matrix: what may break at each edge of a branch's phases, and what must hold after.

#![expect(clippy::unwrap_used, reason = "a test fails by panicking")]

mod agent_that_takes_nothing_fails_the_branch;
mod branch_outlives_its_gateway;
mod connections;
mod every_fault_at_every_edge_spares_the_rest;
mod floods_of_a_guest_are_bounded;
mod full_disk_does_not_stop_the_guest;
mod panicked_guest_is_dead_and_leaves_nothing;
mod scene;
mod source_outlives_a_daemon_killed_at_any_edge;
