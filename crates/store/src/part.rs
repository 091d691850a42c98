//! The parts of a snapshot beside its memory layers: device state and disk overlays. Their lengths
//! and checksums are in the snapshot's row; memory layers have theirs in their index.

use std::fs::{self, File};
use std::io;
use std::path::{Path, PathBuf};

use forkd_types::{ByteCount, LayerId, OverlayId};

use crate::checksum::problem;
use crate::disk::put;
use crate::{FileChecksum, StoreError, StoreFiles};

impl StoreFiles {
    /// Length and checksum of the device state of the snapshot whose top layer is `id`, which has
    /// just been written.
    ///
    /// # Errors
    /// When it cannot be read.
    pub fn checksum_device_state(&self, id: &LayerId) -> Result<FileChecksum, StoreError> {
        let path = self.hot_device_state(id);
        let checksum = File::open(&path).and_then(FileChecksum::of);
        checksum.map_err(|source| StoreError::file("read", path, source))
    }

    /// Where the device state of the snapshot whose top layer is `id` is. It is compared with its
    /// checksum; a hot copy that is missing or damaged is made anew from the durable one.
    ///
    /// # Errors
    /// [`StoreError::DeviceStateDamaged`] when there is no good copy, or no checksum.
    pub fn require_device_state(
        &self,
        id: &LayerId,
        checksum: Option<&FileChecksum>,
    ) -> Result<PathBuf, StoreError> {
        let Some(checksum) = checksum else {
            let how = "missing: the snapshot's row has no checksum of it".to_owned();
            return Err(StoreError::DeviceStateDamaged { id: id.clone(), how });
        };
        let (hot, durable) = (self.hot_device_state(id), self.durable_device_state(id));
        let Some(of_hot) = problem(&hot, checksum)? else { return Ok(hot) };
        if let Some(of_durable) = problem(&durable, checksum)? {
            let how = match of_hot == of_durable || of_hot == "missing" {
                true => of_durable,
                false => format!("{of_hot}; its durable copy is {of_durable}"),
            };
            return Err(StoreError::DeviceStateDamaged { id: id.clone(), how });
        }
        if of_hot != "missing" {
            tracing::warn!(layer = %id, how = of_hot, "damaged device state was made anew");
        }
        let copy = |path: &Path| fs::copy(&durable, path).map(drop);
        put(&hot, copy).map_err(|source| StoreError::file("copy to", &hot, source))?;
        Ok(hot)
    }

    /// Makes sure that a frozen overlay is what it was when it became durable. Its length is
    /// compared each time, its content once in this process's life. One without a known checksum is
    /// not durable and must merely be there.
    ///
    /// # Errors
    /// [`StoreError::OverlayDamaged`] when it is missing or damaged.
    pub fn require_overlay(
        &self,
        id: &OverlayId,
        checksum: Option<&FileChecksum>,
    ) -> Result<(), StoreError> {
        self.require_overlay_length(id, checksum)?;
        let known = self.known().known_overlay(id);
        let Some(checksum) = checksum.filter(|checksum| known != Some(**checksum)) else {
            return Ok(());
        };
        match problem(&self.overlay(id), checksum)? {
            None => self.known().note_overlay(id, *checksum),
            Some(how) => return Err(StoreError::OverlayDamaged { id: id.clone(), how }),
        }
        Ok(())
    }

    /// As [`Self::require_overlay`], without reading it.
    pub(crate) fn require_overlay_length(
        &self,
        id: &OverlayId,
        checksum: Option<&FileChecksum>,
    ) -> Result<(), StoreError> {
        let path = self.overlay(id);
        let how = match fs::metadata(&path) {
            Ok(metadata) => {
                let bytes = ByteCount::new(metadata.len());
                checksum.and_then(|checksum| {
                    checksum.differs(&FileChecksum { bytes, crc32: checksum.crc32 })
                })
            }
            Err(error) if error.kind() == io::ErrorKind::NotFound => Some("missing".to_owned()),
            Err(source) => return Err(StoreError::file("ask for the size of", path, source)),
        };
        how.map_or(Ok(()), |how| Err(StoreError::OverlayDamaged { id: id.clone(), how }))
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::files::temporary_store;

    struct Store {
        _directories: [tempfile::TempDir; 2],
        files: StoreFiles,
        id: LayerId,
    }

    impl Store {
        fn new() -> Self {
            let (files, directories) = temporary_store();
            Self { _directories: directories, files, id: LayerId::random() }
        }
    }

    type Damage = fn(&Path);

    const DAMAGES: [(&str, Damage); 3] = [
        ("missing", |path| fs::remove_file(path).unwrap()),
        ("3 bytes instead of 7", |path| fs::write(path, b"dev").unwrap()),
        ("checksum", |path| fs::write(path, b"devicez").unwrap()),
    ];

    #[test]
    fn device_state_is_healed_from_its_durable_copy_or_refused_by_name() {
        for (words, damage) in DAMAGES {
            let store = Store::new();
            let [hot, durable] = [
                store.files.hot_device_state(&store.id),
                store.files.durable_device_state(&store.id),
            ];
            fs::write(&hot, b"devices").unwrap();
            let checksum = store.files.checksum_device_state(&store.id).unwrap();
            let require = || store.files.require_device_state(&store.id, Some(&checksum));
            store.files.publish_device_state(&store.id, &checksum).unwrap();
            damage(&hot);
            assert_eq!(fs::read(require().unwrap()).unwrap(), b"devices", "{words}");
            damage(&durable);
            require().unwrap();
            store.files.publish_device_state(&store.id, &checksum).unwrap();
            assert_eq!(fs::read(&durable).unwrap(), b"devices", "{words}");
            damage(&hot);
            damage(&durable);
            let error = require().unwrap_err();
            assert!(error.is_damage() && error.to_string().contains(words), "{error}");
            assert!(error.to_string().contains(store.id.as_str()), "{error}");
        }
    }

    #[test]
    fn a_damaged_overlay_is_refused_by_name_once_it_was_durable() {
        for (words, damage) in DAMAGES {
            let store = Store::new();
            let id = OverlayId::random();
            let path = store.files.overlay(&id);
            fs::write(&path, b"devices").unwrap();
            let checksum = store.files.publish_overlay(&id).unwrap();
            damage(&path);
            // Another process: this one knows what it has written.
            let files = StoreFiles::open(store.files.state(), store.files.hot()).unwrap();
            let error = files.require_overlay(&id, Some(&checksum)).unwrap_err();
            assert!(error.is_damage() && error.to_string().contains(words), "{error}");
            assert!(error.to_string().contains(id.as_str()), "{error}");
            fs::write(&path, b"devices").unwrap();
            files.require_overlay(&id, Some(&checksum)).unwrap();
        }
    }
}
