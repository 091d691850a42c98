//! The engine on a scripted VMM: no QEMU, no guest kernel. What a real VMM does is the business of
//! the system tests; here it is what the engine does when a VMM is slow, refuses, falls silent or
//! dies, at each call.

mod adoption;
mod artifacts;
mod branch;
mod disk_quota;
mod fixture;
mod network;
mod owners;
mod ports;
mod private_networks;
mod registries;
mod snapshots;
mod standby;
mod start;
mod task;
