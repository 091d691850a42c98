//! The engine on a scripted VMM: no QEMU, no guest kernel. What a real VMM does is the business of
//! the system tests; here it is what the engine does when a VMM is slow, refuses, falls silent or
//! dies, at each call.

mod adoption;
mod branch;
mod fixture;
mod owners;
mod snapshots;
mod start;
mod task;
