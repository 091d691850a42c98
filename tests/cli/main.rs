//! Claims about the command line: see the name of each file.

#![expect(clippy::unwrap_used, reason = "a test fails by panicking")]

mod bench_branch_measures_and_leaves_nothing;
mod bench_fork_measures_and_leaves_nothing;
mod bench_places;
mod builds_go_on_from_the_last_common_step;
mod doctor_finds_what_is_broken;
mod e2b_packages;
mod e2b_programs_run_unchanged;
mod e2b_users_programs_say_what_they_should;
mod emulation_is_refused_where_kvm_is_required;
mod events_and_operations_reach_clients;
mod every_route_is_asked_for_by_a_verb;
mod exit_codes_tell_forkd_from_the_program;
mod forkd;
mod internet;
mod local_users_cannot_get_in_the_way;
mod logs_say_what_is_missing;
mod main_job_works_from_the_command_line;
mod many_children_come_and_go_and_fail_one_by_one;
mod members_of_a_network_reach_each_other;
mod models_use_sandboxes_over_mcp;
mod network_access_needs_a_token;
mod normal_session_logs_no_warning;
mod ordinary_clients_work_through_the_gateway;
mod own_images_become_templates;
mod pages;
mod ports_of_a_sandbox_are_reached;
mod previews_show_each_child_its_own;
mod processes;
mod published_client_works_unchanged;
mod run_keeps_streams_and_leaves_nothing;
mod sandboxes_outlive_their_daemon;
mod sandboxes_reach_the_network_by_policy;
mod sandboxes_stay_confined;
mod secrets_stay_out_of_sandboxes;
mod snapshots_travel_through_registries;
mod snapshots_travel_to_other_daemons;
mod standby_vmms_go_with_their_daemon;
mod streams_of_a_sandbox_over_http;
mod terminal;
mod terminals_belong_to_programs_and_come_back;
mod thousand_requests_leave_nothing;
mod unit_confines_the_daemon_and_lets_it_work;
mod uploads_of_any_size_stay_small_in_memory;
mod upstream;
