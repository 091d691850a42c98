//! Claim: what an image says is what its disk has, and an image that lies is refused by name.
//!
//! Layers are made by another implementation of tar, and disks are read by e2fsprogs.

#![expect(clippy::unwrap_used, reason = "a test fails by panicking")]

mod disks;
mod docker;
mod image;
mod layers;
mod mirrors;
mod registry;
mod repository;
