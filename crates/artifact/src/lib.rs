//! A snapshot as a set of parts, to be carried to another daemon: written from a store, and read
//! into one. `docs/reference/artifact.md` describes the format.
//!
//! ```text
//! manifest   what the snapshot consists of, by digest     signature  who says so
//! layout     the order of the parts, and their documents  chunk      a few pages, compressed
//! export, import   from and into a store                  carrier    what takes or brings parts
//! receiver   parts on their way into a store              contents   what is in layers
//! file       the carrier that is one file                 archive    one entry after the other
//! ```
//!
//! Guarantees: the signature covers the manifest, and the manifest covers every other byte that is
//! used. A part is decompressed only after its digest was compared, into a buffer of known size. A
//! file that differs from what [`export`] writes in a single bit is refused. An import that ends
//! early leaves no file. Neither direction holds more than the manifest and one part in memory.
//!
//! Does not do: decide whom to trust, whether a machine fits this host, or what a snapshot is
//! called.

mod archive;
mod carrier;
mod chunk;
mod contents;
mod error;
mod export;
mod file;
mod import;
mod layout;
mod manifest;
mod receiver;
mod signature;
#[cfg(test)]
mod tests;

pub use carrier::{Documents, Incoming, Outgoing};
pub use contents::Contents;
pub use error::ArtifactError;
pub use export::{Export, Parts};
pub use file::FileReader;
pub use forkd_types::Digest;
pub use import::{SignedArtifact, Unpacked};
pub use layout::Named;
pub use manifest::{
    ArtifactManifest, Chunk, ImageReference, LayerPart, Limits, Machine, OverlayPart, Stream,
};
pub use receiver::{AlreadyHere, Received};
pub use signature::{KeyError, PublicKey, Signature, SigningKey};
