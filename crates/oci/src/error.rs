//! What can go wrong, each with the name of the thing and what helps.

use std::io;
use std::path::PathBuf;

use forkd_types::ByteCount;

use crate::{Digest, ReferenceError};

/// Why an image cannot be had.
#[derive(Debug, thiserror::Error)]
pub enum OciError {
    /// No reference.
    #[error(transparent)]
    Reference(#[from] ReferenceError),
    /// A file of this host cannot be used.
    #[error("use `{path}`: {source}")]
    File {
        /// The file.
        path: PathBuf,
        /// Why.
        source: io::Error,
    },
    /// A registry cannot be reached.
    #[error("reach the registry {registry}: {problem}")]
    Unreachable {
        /// Its host.
        registry: String,
        /// Why.
        problem: String,
    },
    /// A registry refuses.
    #[error("{registry} refuses {what}: {problem}")]
    Refused {
        /// Its host.
        registry: String,
        /// What was asked for.
        what: String,
        /// What it said, and what helps.
        problem: String,
    },
    /// Docker on this host cannot be asked.
    #[error("ask Docker at `{socket}`: {problem}")]
    Docker {
        /// Where it should listen.
        socket: PathBuf,
        /// Why, and what helps.
        problem: String,
    },
    /// There is no such image.
    #[error("there is no image {0}")]
    NotFound(String),
    /// This host's files forbid it.
    #[error("{image} is blocked: `registries.conf` of this host has `blocked` for {prefix}")]
    Blocked {
        /// The image.
        image: String,
        /// What is blocked.
        prefix: String,
    },
    /// The image is not for this kind of machine.
    #[error("{image} has nothing for linux/amd64; it is for: {platforms}")]
    Platform {
        /// The image.
        image: String,
        /// What it is for.
        platforms: String,
    },
    /// Bytes are not those that were asked for.
    #[error("{what} is not what its digest says: {found} instead of {wanted}")]
    Digest {
        /// What it is.
        what: String,
        /// The digest that was asked for.
        wanted: Digest,
        /// What came.
        found: Digest,
    },
    /// A document or an archive is not as it must be.
    #[error("{what} is damaged: {problem}")]
    Damaged {
        /// What it is.
        what: String,
        /// How.
        problem: String,
    },
    /// More than is allowed.
    #[error("{what} has more than {max}")]
    TooLarge {
        /// What it is.
        what: String,
        /// The limit.
        max: String,
    },
    /// The layers do not fit.
    #[error(
        "there is no room for {what} in `{directory}`: {needed} are needed and {free} are free; \
         make room, or remove snapshots"
    )]
    NoRoom {
        /// The image.
        what: String,
        /// Where its layers are kept.
        directory: PathBuf,
        /// Bytes that are still to be fetched.
        needed: ByteCount,
        /// Bytes that are free.
        free: ByteCount,
    },
    /// A kind of thing that is not understood.
    #[error("{what} is not supported; {remedy}")]
    Unsupported {
        /// What it is.
        what: String,
        /// What helps.
        remedy: String,
    },
    /// Whoever waited for it does not want it any more.
    #[error("cancelled")]
    Cancelled,
}

impl OciError {
    pub(crate) fn file(path: impl Into<PathBuf>) -> impl FnOnce(io::Error) -> Self {
        let path = path.into();
        move |source| Self::File { path, source }
    }

    /// Whether another place that has the image may do better.
    pub(crate) const fn is_of_a_place(&self) -> bool {
        !matches!(self, Self::File { .. } | Self::NoRoom { .. } | Self::Cancelled)
    }

    pub(crate) fn damaged(what: impl Into<String>, problem: impl ToString) -> Self {
        Self::Damaged { what: what.into(), problem: problem.to_string() }
    }
}
