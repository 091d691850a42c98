//! Snapshots as files, and the keys that these are signed with.

use std::collections::BTreeMap;
use std::io::Read;
use std::sync::Arc;

use forkd_artifact::PublicKey;
use forkd_types::SnapshotTag;

use crate::background::blocking;
use crate::snapshots::{Keys, Label};
use crate::{Engine, EngineError, Exported, ImportRequest, Snapshot, Trust, TrustedKey};

impl Engine {
    /// Begins to export a snapshot as one file. The file has what was in the guest's memory.
    ///
    /// # Errors
    /// [`EngineError::UnknownSnapshot`], [`EngineError::SnapshotNotReady`],
    /// [`EngineError::SnapshotDamaged`], [`EngineError::Cancelled`].
    pub async fn export_snapshot(&self, tag: &SnapshotTag) -> Result<Exported, EngineError> {
        let row = self.ready_row(tag)?;
        let ancestors = self.ancestors_of(row.manifest.parent_tag.clone());
        let ancestors = ancestors.iter().map(|tag| tag.shown_to(tag.owner())).collect();
        let machine = self.lifecycle.host.artifact_machine();
        let owner = self.caller.owner().clone();
        self.snapshots.export(row, Label { ancestors, machine, owner }).await
    }

    /// Makes a snapshot of the caller's of a file that [`Self::export_snapshot`] has made, here or
    /// on another host.
    ///
    /// # Errors
    /// [`EngineError::ArtifactRefused`], [`EngineError::ArtifactUnfit`],
    /// [`EngineError::KeyNotTrusted`], [`EngineError::AdminOnly`], [`EngineError::TagTaken`],
    /// [`EngineError::NoSpace`], [`EngineError::LimitReached`], [`EngineError::Cancelled`]; nothing
    /// is left then.
    pub async fn import_snapshot(
        &self,
        request: ImportRequest,
        source: impl Read + Send + 'static,
    ) -> Result<Snapshot, EngineError> {
        if request.trust == Trust::Once {
            self.require_admin("importing what an unknown key has signed")?;
        }
        let (caller, machine) = (self.caller.clone(), self.lifecycle.host.artifact_machine());
        let tag = self.snapshots.import(request, caller, machine, source).await?;
        self.snapshot(&tag)
    }

    /// The key that this daemon signs with.
    ///
    /// # Errors
    /// When it cannot be read, or made.
    pub async fn signing_key(&self) -> Result<PublicKey, EngineError> {
        self.with_keys(|keys| Ok(keys.own()?.public())).await
    }

    /// The keys that are trusted, by name.
    #[must_use]
    pub fn trusted_keys(&self) -> BTreeMap<String, TrustedKey> {
        self.snapshots.keys.list()
    }

    /// Trusts a key from now on, in place of the one that had this name.
    ///
    /// # Errors
    /// [`EngineError::AdminOnly`], [`EngineError::BadRequest`].
    pub async fn trust_key(&self, name: String, key: PublicKey) -> Result<(), EngineError> {
        self.require_admin("trusting a key")?;
        self.with_keys(move |keys| keys.trust(&name, key)).await
    }

    /// Trusts a key no more. What was imported stays.
    ///
    /// # Errors
    /// [`EngineError::AdminOnly`], [`EngineError::UnknownKey`].
    pub async fn remove_key(&self, name: String) -> Result<(), EngineError> {
        self.require_admin("removing a trusted key")?;
        self.with_keys(move |keys| keys.remove(&name)).await
    }

    fn require_admin(&self, what: &'static str) -> Result<(), EngineError> {
        if self.caller.is_admin() { Ok(()) } else { Err(EngineError::AdminOnly { what }) }
    }

    async fn with_keys<T: Send + 'static>(
        &self,
        work: impl FnOnce(&Keys) -> Result<T, EngineError> + Send + 'static,
    ) -> Result<T, EngineError> {
        let snapshots = Arc::clone(&self.snapshots);
        blocking(move || work(&snapshots.keys)).await?
    }

    /// `parent` and what is below it, as far as the caller sees it, the nearest first.
    #[must_use]
    pub fn ancestors_of(&self, parent: Option<SnapshotTag>) -> Vec<SnapshotTag> {
        let mut tags: Vec<SnapshotTag> = Vec::new();
        let mut next = parent;
        while let Some(tag) = next {
            // A parent may have been removed; and no registry, however damaged, holds us in a
            // circle.
            if tags.contains(&tag) {
                break;
            }
            let Ok(snapshot) = self.snapshot(&tag) else { break };
            tags.push(tag);
            next = snapshot.parent_tag;
        }
        tags
    }
}
