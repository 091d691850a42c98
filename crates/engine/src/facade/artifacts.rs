//! Snapshots as files and in registries, and the keys that these are signed with.

use std::collections::BTreeMap;
use std::io::Read;
use std::sync::Arc;

use forkd_artifact::PublicKey;
use forkd_store::SnapshotRow;
use forkd_types::SnapshotTag;
use forkd_vmm::qemu;

use crate::background::blocking;
use crate::snapshots::{Keys, Label, hub, reference_of};
use crate::{
    Engine, EngineError, Exported, HubListing, HubSnapshot, ImportRequest, Pushed, Snapshot, Trust,
    TrustedKey,
};

impl Engine {
    /// Begins to export a snapshot as one file. The file has what was in the guest's memory.
    ///
    /// # Errors
    /// [`EngineError::UnknownSnapshot`], [`EngineError::SnapshotNotReady`],
    /// [`EngineError::SnapshotPrivate`], [`EngineError::SnapshotDamaged`],
    /// [`EngineError::Cancelled`].
    pub async fn export_snapshot(&self, tag: &SnapshotTag) -> Result<Exported, EngineError> {
        let row = self.row_that_may_leave(tag)?;
        let label = self.label(&row);
        self.snapshots.export(row, label).await
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
        let (caller, machines) = (self.caller.clone(), self.lifecycle.host.artifact_machines());
        let tag = self.snapshots.import(request, caller, machines, source).await?;
        self.snapshot(&tag)
    }

    /// Puts a snapshot into a registry, with the credentials of the daemon's user. What the
    /// registry has is not sent. It gets what was in the guest's memory.
    ///
    /// # Errors
    /// As [`Self::export_snapshot`]; [`EngineError::AdminOnly`], [`EngineError::BadRequest`],
    /// [`EngineError::RegistryFailed`].
    pub async fn push_snapshot(
        &self,
        tag: &SnapshotTag,
        reference: &str,
    ) -> Result<Pushed, EngineError> {
        let row = self.row_that_may_leave(tag)?;
        self.require_admin("pushing to a registry")?;
        let to = reference_of(reference)?;
        if to.digest.is_some() {
            let problem = "a push needs a tag, not a digest".to_owned();
            return Err(EngineError::BadRequest { field: "reference", problem });
        }
        let label = self.label(&row);
        self.snapshots.push(row, label, to).await
    }

    /// Makes a snapshot of the caller's of what [`Self::push_snapshot`] has put into a registry.
    ///
    /// # Errors
    /// As [`Self::import_snapshot`], and [`EngineError::RegistryFailed`]; nothing is left then.
    pub async fn pull_snapshot(
        &self,
        reference: &str,
        request: ImportRequest,
    ) -> Result<Snapshot, EngineError> {
        self.require_admin("pulling from a registry")?;
        let from = reference_of(reference)?;
        let (caller, machines) = (self.caller.clone(), self.lifecycle.host.artifact_machines());
        let tag = self.snapshots.pull(request, from, caller, machines).await?;
        self.snapshot(&tag)
    }

    /// What a registry has under a reference, and whether it would start here. No memory is
    /// fetched.
    ///
    /// # Errors
    /// [`EngineError::AdminOnly`], [`EngineError::BadRequest`], [`EngineError::RegistryFailed`],
    /// [`EngineError::ArtifactRefused`].
    pub async fn hub_snapshot(&self, reference: &str) -> Result<HubSnapshot, EngineError> {
        self.require_admin("looking into a registry")?;
        let from = reference_of(reference)?;
        let machines = self.lifecycle.host.artifact_machines();
        self.snapshots.hub_snapshot(&from, &machines).await
    }

    /// The snapshots in the registry at `host`, in repositories with `term` in their name.
    ///
    /// # Errors
    /// [`EngineError::AdminOnly`], [`EngineError::RegistryFailed`]; [`EngineError::BadRequest`]
    /// also for a registry that lists nothing.
    pub async fn hub_search(&self, host: &str, term: &str) -> Result<HubListing, EngineError> {
        self.require_admin("looking into a registry")?;
        hub::search(host, term).await
    }

    fn row_that_may_leave(&self, tag: &SnapshotTag) -> Result<SnapshotRow, EngineError> {
        let row = self.ready_row(tag)?;
        match row.manifest.private {
            true => Err(EngineError::SnapshotPrivate { tag: tag.clone() }),
            false => Ok(row),
        }
    }

    /// What goes along with a snapshot that leaves this host.
    fn label(&self, row: &SnapshotRow) -> Label {
        let ancestors = self.ancestors_of(row.manifest.parent_tag.clone());
        let ancestors = ancestors.iter().map(|tag| tag.shown_to(tag.owner())).collect();
        let cpu = qemu::cpu_model_of(&row.manifest.machine.cpu_model);
        let machine = self.lifecycle.host.artifact_machine(cpu);
        Label { ancestors, machine, owner: self.caller.owner().clone() }
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
