//! Where images come from: the seam under which registries, layouts and archives are the same.

use std::fs::File;

use crate::OciError;
use crate::manifest::Descriptor;

/// Sees how far the work has come, and says whether it is still wanted.
pub trait Watch: Send + Sync {
    /// So many bytes of all are there.
    fn progress(&self, _done: u64, _total: u64) {}

    /// Whether to stop.
    fn is_cancelled(&self) -> bool {
        false
    }
}

/// Which of an image's documents.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum DocumentKind {
    /// A manifest or an index.
    Manifest,
    Configuration,
}

/// A place that has an image.
#[async_trait::async_trait]
pub(crate) trait Source: Send + Sync {
    /// The manifest or the index that the reference names. Checked by the source against the
    /// reference's digest, if it has one.
    async fn root(&self) -> Result<Vec<u8>, OciError>;

    /// A document that another one names. Not checked.
    async fn document(
        &self,
        descriptor: &Descriptor,
        kind: DocumentKind,
    ) -> Result<Vec<u8>, OciError>;

    /// Adds to `file` what it has not got of a layer, at most `descriptor.size` bytes in all. What
    /// is there already is the beginning. Not checked. `told` hears of the bytes that the file has.
    async fn layer(
        &self,
        descriptor: &Descriptor,
        file: &mut File,
        told: &(dyn Fn(u64) + Sync),
    ) -> Result<(), OciError>;
}
