//! Claims about what happens when something breaks: see the name of each file.

#![expect(clippy::unwrap_used, reason = "a test fails by panicking")]

mod bad_input_is_named_with_a_remedy;
mod changed_image_is_refused_by_name;
mod crashed_host_loses_nothing_durable;
mod damaged_ancestor_is_refused_by_name;
mod dropped_pause_resumes;
mod evicted_layers_come_back_on_use;
mod full_tmpfs_fails_the_branch_and_spares_the_source;
mod killed_vmm_fails_its_branch_and_spares_the_others;
mod snapshot_removed_by_force_leaves_its_dependents;
