//! Claims about what a branch is: see the name of each file.

#![expect(clippy::unwrap_used, reason = "a test fails by panicking")]

mod branches_nest_three_deep;
mod chains_of_one_source_hold_only_what_changed;
mod child_goes_on_from_the_branch_point;
mod children_are_isolated_from_each_other_and_the_source;
mod compacted_snapshot_stands_alone;
mod disk_of_a_child_is_that_of_the_branch_point;
mod every_mode_gives_the_same_child;
mod full_branch_measures_a_diff;
mod generations_of_branches_keep_a_shallow_disk;
mod memory_above_the_pci_hole_is_captured;
mod missing_kernel_features_are_worked_around;
mod processes_files_pipes_and_tcp_survive_in_the_child;
mod repeated_branches_stay_correct;
mod sandboxes_are_paused_and_rolled_back;
mod seventy_branches_of_one_source_stay_shallow;
mod starting_a_child_costs_the_same_at_any_depth;
mod streams_of_the_source_go_on_through_a_branch;
mod two_sandboxes_branch_at_once;
