//! The daemon over an engine on scripted VMs. Each file is named by its claim.

mod lab;
mod previews_show_ports_to_those_with_a_token;
mod refused_uploads_are_read_to_their_end;
mod routes_tell_nothing_of_other_owners;
mod snapshots_go_out_and_in_as_files;
mod streams_to_ports_pass_every_transport;
pub(crate) mod tls;
