//! The agent as an ordinary process behind a Unix socket. Needs no VM and no privileges; `python3`
//! in the usual places.

#![expect(clippy::unwrap_used, reason = "a test whose setup fails has failed")]

mod agent_serves_over_a_socket;
mod agent_survives_broken_links;
mod cells_show_values_and_keep_contexts;
mod files_are_listed_removed_and_watched;
mod ports_are_listed_as_they_are;
mod processes_lose_nothing_and_hold_nobody;
mod programs_outlive_their_conversation;
mod raw;
mod support;
mod usage_is_told_as_the_kernel_counts_it;
mod values_come_in_all_their_forms;
mod watches_outlive_their_conversation;
