//! The daemon over an engine on scripted VMs. Each file is named by its claim.

mod lab;
mod routes_tell_nothing_of_other_owners;
