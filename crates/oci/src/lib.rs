//! OCI images: from a reference to a root disk that a microVM boots.
//!
//! ```text
//! reference -> source (registry, files, Docker) -> cache of blobs -> tree of files -> ext4 disk
//! ```
//!
//! Layers are not unpacked. A first pass over their archives builds a tree of what the image has;
//! a second one copies the content of its files into the disk. So owners, device nodes and
//! attributes come out right without root, and no archive can write outside its image: there is
//! nothing outside.
//!
//! A registry may have mirrors, which are asked first: see `mirrors`.
//!
//! Guarantees: every blob has the digest and the size that its manifest names; every layer unpacks
//! to what the configuration names; sizes and counts are bounded; equal images give equal disks.
//!
//! `repository` puts artifacts that are no images into a registry, and gets them: blobs and the
//! manifest that names them. `catalog` lists what a registry has.
//!
//! Does not do: boot anything; build images, or push them.

mod archive;
mod cache;
mod catalog;
mod certificates;
mod credentials;
mod disk;
mod docker;
mod error;
mod ext4;
mod folders;
#[cfg(feature = "fuzzing")]
pub mod fuzzing;
mod hashing;
mod layer;
pub mod limit;
mod local;
mod manifest;
mod mirrors;
mod reference;
mod registry;
mod repository;
mod source;
mod tree;
mod upload;

pub use cache::{Cache, Pulled};
pub use catalog::{Catalog, Names};
pub use disk::{Disk, build};
pub use error::OciError;
pub use forkd_types::Digest;
pub use manifest::{ImageConfig, ProgramConfig};
pub use reference::{Reference, ReferenceError, RegistryReference};
pub use repository::Repository;
pub use source::Watch;
