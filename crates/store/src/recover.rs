//! What is done with snapshots and files when a store is opened after another process has used it,
//! which may have been killed at any moment, or with it the host.
//!
//! Guarantees, when both are done: every snapshot is `failed`, with the reason, or all of its parts
//! are there; no file lies in the directories that neither a snapshot nor a living sandbox lists.
//!
//! Does not do: read pages. That they are what was written is checked when a part is first used.

use std::collections::BTreeSet;
use std::fs;
use std::path::Path;

use forkd_types::{LayerId, LifeCycle as _, OverlayId, SandboxId, SnapshotStatus};

use crate::disk::remove;
use crate::{FileSet, Layer, Registry, SnapshotManifest, SnapshotRow, StoreError, StoreFiles};

/// What sandboxes that live on hold.
#[derive(Debug, Clone, Default)]
pub struct Living {
    /// Memory layers that they map or that their next branches build on, and their disks.
    pub files: FileSet,
    /// Their ids: their directories stay.
    pub sandboxes: BTreeSet<SandboxId>,
}

/// Brings the status of every snapshot in line with what is there, and returns all, oldest first.
///
/// # Errors
/// When the registry cannot be read. One that cannot be written, because the disk is full, is no
/// error: the next start finds the same again.
pub fn recover(registry: &Registry, files: &StoreFiles) -> Result<Vec<SnapshotRow>, StoreError> {
    let mut rows = registry.snapshots()?;
    for row in &mut rows {
        let (status, error) = judge(files, row);
        if (status, &error) == (row.status, &row.error) {
            continue;
        }
        assert!(
            status == row.status || row.status.can_become(status),
            "{} -> {status}",
            row.status
        );
        tracing::info!(snapshot = %row.tag, %status, reason = error, "recovered");
        (row.status, row.error) = (status, error);
        if let Err(error) = registry.put_snapshot(row) {
            tracing::warn!(snapshot = %row.tag, %error, "the registry cannot note its status");
        }
    }
    Ok(rows)
}

/// What the status of a snapshot is, and why.
fn judge(files: &StoreFiles, row: &SnapshotRow) -> (SnapshotStatus, Option<String>) {
    let failed = |reason: String| (SnapshotStatus::Failed, Some(reason));
    let unchanged = || (row.status, row.error.clone());
    match row.status {
        SnapshotStatus::Writing => failed("the daemon ended while it was written".to_owned()),
        SnapshotStatus::Ready if !row.durable && is_cold(files, &row.manifest) => {
            failed("the host went down before it was durable".to_owned())
        }
        SnapshotStatus::Ready => match files.look_at_parts(&row.manifest) {
            Ok(()) => unchanged(),
            Err(error) => failed(error.to_string()),
        },
        // It was damaged, or it was never complete and lists nothing.
        SnapshotStatus::Failed if row.durable && !row.manifest.layers.is_empty() => {
            match files.check_parts(&row.manifest) {
                Ok(()) => (SnapshotStatus::Ready, None),
                Err(error) if error.is_damage() => failed(error.to_string()),
                // It cannot be told now; the reason that is known stays.
                Err(_) => unchanged(),
            }
        }
        SnapshotStatus::Failed => unchanged(),
    }
}

/// Whether a snapshot has lost the layer that is its own. Others may have been evicted.
fn is_cold(files: &StoreFiles, manifest: &SnapshotManifest) -> bool {
    manifest.layers.last().is_none_or(|top| Layer::open_hot(files, top).is_err())
}

impl StoreFiles {
    /// Whether all parts of a ready snapshot are there, as far as can be told without reading
    /// pages.
    ///
    /// # Errors
    /// What is missing or damaged, by name.
    pub fn look_at_parts(&self, manifest: &SnapshotManifest) -> Result<(), StoreError> {
        for id in &manifest.layers {
            let Err(hot) = Layer::open_hot(self, id) else { continue };
            let missing = |error: &StoreError| matches!(error, StoreError::LayerMissing(_));
            if let Err(durable) = self.durable_copy(id) {
                return Err(if missing(&durable) { hot } else { durable });
            }
        }
        self.require_state_of(manifest)?;
        for id in &manifest.overlays {
            self.require_overlay_length(id, manifest.overlay_checksums.get(id))?;
        }
        Ok(())
    }

    /// Reads all parts of a snapshot, as far as this process does not know them to be good. Hot
    /// copies that are missing are made, and bad copies replaced by good ones.
    ///
    /// # Errors
    /// What is missing or damaged, by name; or no space for a hot copy.
    pub fn check_parts(&self, manifest: &SnapshotManifest) -> Result<(), StoreError> {
        for id in &manifest.layers {
            self.open_layer(id)?;
        }
        self.require_state_of(manifest)?;
        for id in &manifest.overlays {
            self.require_overlay(id, manifest.overlay_checksums.get(id))?;
        }
        Ok(())
    }

    fn require_state_of(&self, manifest: &SnapshotManifest) -> Result<(), StoreError> {
        let Some(top) = manifest.layers.last() else { return Ok(()) };
        self.require_device_state(top, manifest.device_state.as_ref()).map(drop)
    }
}

/// Removes files that no snapshot and no living sandbox lists, and views, which are made again.
pub fn sweep(files: &StoreFiles, rows: &[SnapshotRow], living: &Living) {
    let listed: FileSet = rows.iter().map(|row| FileSet::from(&row.manifest)).collect();
    let needed = listed.union(living.files.clone());
    for directory in [files.hot().join("layers"), files.state().join("layers")] {
        for name in names(&directory) {
            let known = name.split('.').next().and_then(|stem| stem.parse().ok());
            let is_view = name.ends_with(".view") || name.ends_with(".view-index");
            let unfinished = name.ends_with(".new") || is_view;
            if unfinished || !known.is_some_and(|id: LayerId| needed.layers.contains(&id)) {
                remove_leftover(&directory.join(name));
            }
        }
    }
    let directory = files.state().join("overlays");
    for name in names(&directory) {
        let known = name.strip_suffix(".qcow2").and_then(|stem| stem.parse::<OverlayId>().ok());
        if known.is_some_and(|id| !needed.overlays.contains(&id)) || name.ends_with(".new") {
            remove_leftover(&directory.join(name));
        }
    }
    for directory in [files.hot().join("vms"), files.state().join("vms")] {
        for name in names(&directory) {
            let id = name.parse::<SandboxId>();
            if !id.is_ok_and(|id| living.sandboxes.contains(&id)) {
                remove_directory(&directory.join(name));
            }
        }
    }
}

fn names(directory: &Path) -> Vec<String> {
    let entries = fs::read_dir(directory).into_iter().flatten().flatten();
    entries.filter_map(|entry| entry.file_name().into_string().ok()).collect()
}

fn remove_leftover(path: &Path) {
    tracing::info!(path = %path.display(), "removing a file that belongs to nobody");
    remove(path);
}

fn remove_directory(path: &Path) {
    if let Err(error) = fs::remove_dir_all(path)
        && error.kind() != std::io::ErrorKind::NotFound
    {
        tracing::warn!(path = %path.display(), %error, "cannot remove a directory left behind");
    }
}

#[cfg(test)]
mod tests {
    use std::collections::BTreeMap;
    use std::time::SystemTime;

    use forkd_types::{ByteCount, SnapshotTag};

    use super::*;
    use crate::files::temporary_store;
    use crate::qcow2::plain_header;
    use crate::{InheritedLimits, LayerWriter, MachineIdentity};

    struct Store {
        _directories: [tempfile::TempDir; 2],
        files: StoreFiles,
        registry: Registry,
    }

    impl Store {
        fn new() -> Self {
            let (files, directories) = temporary_store();
            let registry = Registry::open(&files.registry()).unwrap();
            Self { _directories: directories, files, registry }
        }

        fn layer(&self) -> LayerId {
            let size = ByteCount::from_mib(1);
            let writer = LayerWriter::create(&self.files, size, ByteCount::ZERO).unwrap();
            let id = writer.seal_base().unwrap().index.id;
            fs::write(self.files.hot_device_state(&id), b"devices").unwrap();
            id
        }

        fn overlay(&self) -> OverlayId {
            let id = OverlayId::random();
            fs::write(self.files.overlay(&id), plain_header()).unwrap();
            id
        }

        fn durable(&self, tag: &str) -> SnapshotRow {
            let (layer, overlay) = (self.layer(), self.overlay());
            let mut manifest = SnapshotManifest {
                image: "none".to_owned(),
                image_hash: String::new(),
                memory: ByteCount::from_mib(1),
                vcpus: 1,
                device_state: Some(self.files.checksum_device_state(&layer).unwrap()),
                contents: crate::KnownContents::default(),
                layers: vec![layer],
                overlays: vec![overlay],
                overlay_checksums: BTreeMap::new(),
                machine: MachineIdentity {
                    vmm_version: String::new(),
                    accelerator: String::new(),
                    cpu_model: String::new(),
                },
                network_device: false,
                gateway_certificate: None,
                private: false,
                parent_tag: None,
                branched_from: None,
            };
            manifest.overlay_checksums = self.files.publish_parts(&manifest, &mut || ()).unwrap();
            let row = SnapshotRow {
                tag: tag.parse::<SnapshotTag>().unwrap(),
                status: SnapshotStatus::Ready,
                durable: true,
                created_at: SystemTime::now(),
                manifest,
                figures: None,
                error: None,
                shared: false,
                limits: InheritedLimits::default(),
                network: None,
            };
            self.registry.put_snapshot(&row).unwrap();
            row
        }

        /// As another process does.
        fn recover(&self, living: &Living) -> Vec<SnapshotRow> {
            let files = StoreFiles::open(self.files.state(), self.files.hot()).unwrap();
            let rows = super::recover(&self.registry, &files).unwrap();
            sweep(&files, &rows, living);
            rows
        }
    }

    #[test]
    fn a_snapshot_without_a_part_is_failed_until_the_part_is_back() {
        let store = Store::new();
        let row = store.durable("a");
        let (layer, overlay) = (&row.manifest.layers[0], &row.manifest.overlays[0]);
        let (files, hot) = (&store.files, store.files.hot().join("layers"));
        for (name, path) in [
            (layer.as_str(), files.durable_pages(layer)),
            (layer.as_str(), files.durable_index(layer)),
            (layer.as_str(), files.durable_device_state(layer)),
            (overlay.as_str(), files.overlay(overlay)),
        ] {
            let away = files.state().join("away");
            fs::rename(&path, &away).unwrap();
            names(&hot).iter().for_each(|file| fs::remove_file(hot.join(file)).unwrap());
            let found = store.recover(&Living::default());
            assert_eq!(found[0].status, SnapshotStatus::Failed, "{path:?}");
            let reason = found[0].error.clone().unwrap();
            assert!(reason.contains(name) && reason.contains("missing"), "{reason}");
            fs::rename(away, &path).unwrap();
            let found = store.recover(&Living::default());
            assert_eq!((found[0].status, &found[0].error), (SnapshotStatus::Ready, &None));
        }
    }

    #[test]
    fn what_living_sandboxes_hold_stays_and_the_rest_goes() {
        let store = Store::new();
        let row = store.durable("a");
        let (layers, overlays) =
            ([store.layer(), store.layer()], [store.overlay(), store.overlay()]);
        let sandboxes = [SandboxId::random(), SandboxId::random()];
        for id in &sandboxes {
            fs::create_dir_all(store.files.vm_directory(id)).unwrap();
            fs::create_dir_all(store.files.overlay_links(id)).unwrap();
        }
        let living = Living {
            files: FileSet::new([layers[0].clone()], [overlays[0].clone()]),
            sandboxes: [sandboxes[0].clone()].into(),
        };
        store.recover(&living);
        let there = |id: &LayerId| store.files.hot_pages(id).exists();
        assert!(there(&row.manifest.layers[0]) && there(&layers[0]) && !there(&layers[1]));
        let there = |id: &OverlayId| store.files.overlay(id).exists();
        assert!(there(&row.manifest.overlays[0]) && there(&overlays[0]) && !there(&overlays[1]));
        let there = |id: &SandboxId| store.files.vm_directory(id).exists();
        assert!(there(&sandboxes[0]) && !there(&sandboxes[1]));
    }
}
