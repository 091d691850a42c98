//! What can go wrong with an artifact.

use std::io;

use forkd_store::StoreError;

use crate::{Digest, KeyError};

/// An artifact was not written, or is refused.
#[derive(Debug, thiserror::Error)]
pub enum ArtifactError {
    /// The file ends in the middle.
    #[error("the file ends within {within}")]
    Cut {
        /// What was being read.
        within: String,
    },
    /// Whoever carries it has failed, for reasons of its own.
    #[error("the artifact cannot be carried")]
    Carrier(#[source] Box<dyn std::error::Error + Send + Sync>),
    /// The bytes did not arrive, or could not be written.
    #[error("the artifact cannot be {what}")]
    Transfer {
        /// `read` or `written`.
        what: &'static str,
        /// The system's word.
        #[source]
        source: io::Error,
    },
    /// It is no artifact of forkd, or one whose entries were changed or put in another order.
    #[error("the file has {found}, where {wanted} is due")]
    Entry {
        /// What is there.
        found: String,
        /// What should be.
        wanted: String,
    },
    /// A part is not what its name says.
    #[error("the part {0} does not match its digest")]
    Digest(Digest),
    /// A part does not hold what the manifest needs of it.
    #[error("the part {part} {how}")]
    Part {
        /// Which.
        part: Digest,
        /// How that shows.
        how: &'static str,
    },
    /// The signature is not the key's.
    #[error("the signature is wrong")]
    Signature(#[source] KeyError),
    /// The manifest contradicts itself, or asks for more than is allowed.
    #[error("the manifest is refused: {0}")]
    Manifest(String),
    /// Another version of the format.
    #[error("the artifact has format {found}, this program knows {known}")]
    Format {
        /// What the manifest says.
        found: u32,
        /// What this program writes.
        known: u32,
    },
    /// A snapshot is larger than an artifact can be.
    #[error("the snapshot is too large for an artifact: {0}")]
    TooLarge(String),
    /// The snapshot's files changed meanwhile.
    #[error("a part of the snapshot changed while it was exported")]
    Changed,
    /// A part of the store failed, or does not fit.
    #[error(transparent)]
    Store(#[from] StoreError),
    /// Whoever asked no longer wants it.
    #[error("it was stopped")]
    Stopped,
}

impl ArtifactError {
    pub(crate) const fn reading(source: io::Error) -> Self {
        Self::Transfer { what: "read", source }
    }

    pub(crate) const fn writing(source: io::Error) -> Self {
        Self::Transfer { what: "written", source }
    }
}
