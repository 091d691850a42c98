//! Claims about what a branch is: see the name of each file.

#![expect(clippy::unwrap_used, reason = "a test fails by panicking")]

mod child_goes_on_from_the_branch_point;
