//! Claims about the command line: see the name of each file.

#![expect(clippy::unwrap_used, reason = "a test fails by panicking")]

mod bench_branch_measures_and_leaves_nothing;
mod forkd;
mod killed_daemon_leaves_nothing_behind;
mod main_job_works_from_the_command_line;
mod models_use_sandboxes_over_mcp;
