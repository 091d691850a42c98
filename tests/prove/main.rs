//! Claims about one instant: see the name of each file.

mod bench;
mod every_snapshot_is_of_one_instant;
mod torn_branches_are_caught;
