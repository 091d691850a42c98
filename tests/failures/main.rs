//! Claims about what happens when something breaks: see the name of each file.

#![expect(clippy::unwrap_used, reason = "a test fails by panicking")]

mod bad_input_is_named_with_a_remedy;
mod damaged_ancestor_is_refused_by_name;
mod dropped_pause_resumes;
mod full_tmpfs_fails_the_branch_and_spares_the_source;
mod killed_vmm_fails_its_branch_and_spares_the_others;
