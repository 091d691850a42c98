//! Claims about the command line: see the name of each file.

#![expect(clippy::unwrap_used, reason = "a test fails by panicking")]

mod bench_branch_measures_and_leaves_nothing;
mod doctor_finds_what_is_broken;
mod events_and_operations_reach_clients;
mod every_route_is_asked_for_by_a_verb;
mod exit_codes_tell_forkd_from_the_program;
mod forkd;
mod local_users_cannot_get_in_the_way;
mod logs_say_what_is_missing;
mod main_job_works_from_the_command_line;
mod models_use_sandboxes_over_mcp;
mod network_access_needs_a_token;
mod normal_session_logs_no_warning;
mod published_client_works_unchanged;
mod run_keeps_streams_and_leaves_nothing;
mod sandboxes_outlive_their_daemon;
mod sandboxes_stay_confined;
mod streams_of_a_sandbox_over_http;
mod terminal;
mod terminals_belong_to_programs_and_come_back;
mod thousand_requests_leave_nothing;
mod unit_confines_the_daemon_and_lets_it_work;
