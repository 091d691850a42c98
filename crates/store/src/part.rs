//! The parts of a snapshot beside its memory layers: device state and disk overlays. Their lengths
//! and checksums are in the snapshot's row; memory layers have theirs in their index.

use std::fs::{self, File};
use std::io::{self, Read as _};
use std::path::{Path, PathBuf};

use forkd_sys::file::{open_beneath, open_regular};
use forkd_types::{ByteCount, LayerId, OverlayId, limit};

use crate::checksum::problem;
use crate::disk::{put, remove};
use crate::{FileChecksum, Qcow2Header, StoreError, StoreFiles};

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

    /// Takes what a VMM has saved at `saved` as the device state of the snapshot whose top layer
    /// is `id`. It is copied: a VMM that was taken over may keep its own file open and go on
    /// writing to it.
    ///
    /// # Errors
    /// When it is no file, is larger than a device state can be, or cannot be copied.
    pub fn keep_device_state(&self, saved: &Path, id: &LayerId) -> Result<(), StoreError> {
        let target = self.hot_device_state(id);
        // No directory on the way may have become a link.
        let opened = match saved.strip_prefix(self.hot()) {
            Ok(path) => open_beneath(self.hot(), path),
            Err(_) => open_regular(saved),
        };
        let kept = opened
            .and_then(read_saved)
            .and_then(|bytes| put(&target, |path| fs::write(path, &bytes)));
        kept.map_err(|source| StoreError::file("keep device state", saved, source))?;
        remove(saved);
        Ok(())
    }

    /// Writes the device state of the snapshot whose top layer is `id`.
    ///
    /// # Errors
    /// When the hot directory is full.
    pub fn write_device_state(&self, id: &LayerId, bytes: &[u8]) -> Result<(), StoreError> {
        let target = self.hot_device_state(id);
        let written = put(&target, |path| fs::write(path, bytes));
        written.map_err(|source| StoreError::file("write", target, source))
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
    /// not durable. Its header is read each time: the VMM that wrote it may still be able to.
    ///
    /// # Errors
    /// [`StoreError::OverlayDamaged`] when it is missing or damaged,
    /// [`StoreError::OverlayRefused`] when its header asks for what is not allowed.
    pub fn require_overlay(
        &self,
        id: &OverlayId,
        checksum: Option<&FileChecksum>,
    ) -> Result<Qcow2Header, StoreError> {
        self.require_overlay_length(id, checksum)?;
        let known = self.known().known_overlay(id);
        if let Some(checksum) = checksum.filter(|checksum| known != Some(**checksum)) {
            match problem(&self.overlay(id), checksum)? {
                None => self.known().note_overlay(id, *checksum),
                Some(how) => return Err(StoreError::OverlayDamaged { id: id.clone(), how }),
            }
        }
        let path = self.overlay(id);
        let file = open_regular(&path).map_err(|source| StoreError::file("open", path, source))?;
        self.header_of(id, &file)
    }

    /// The header of an open overlay.
    pub(crate) fn header_of(&self, id: &OverlayId, file: &File) -> Result<Qcow2Header, StoreError> {
        let mut head = Vec::with_capacity(Qcow2Header::BYTES);
        let read = file.take(Qcow2Header::BYTES as u64).read_to_end(&mut head);
        read.map_err(|source| StoreError::file("read", self.overlay(id), source))?;
        Qcow2Header::decode(&head).map_err(|how| StoreError::OverlayRefused { id: id.clone(), how })
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

/// What is in a file that a VMM wrote.
fn read_saved(file: File) -> io::Result<Vec<u8>> {
    let mut bytes = Vec::new();
    let max = limit::DEVICE_STATE_MAX.get();
    file.take(max + 1).read_to_end(&mut bytes)?;
    if bytes.len() as u64 > max {
        return Err(io::Error::other(format!("it is larger than {max} bytes")));
    }
    Ok(bytes)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::Qcow2Error;
    use crate::files::temporary_store;
    use crate::qcow2::plain_header;

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
        (" 3 bytes instead of ", |path| fs::write(path, b"dev").unwrap()),
        ("checksum", |path| {
            let mut bytes = fs::read(path).unwrap();
            *bytes.last_mut().unwrap() ^= 1;
            fs::write(path, bytes).unwrap();
        }),
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
    fn what_a_vmm_goes_on_writing_after_it_saved_is_not_in_the_device_state() {
        let store = Store::new();
        let saved = store.files.hot().join("device-state");
        fs::write(&saved, b"devices").unwrap();
        let mut kept_open = fs::OpenOptions::new().write(true).open(&saved).unwrap();
        store.files.keep_device_state(&saved, &store.id).unwrap();
        io::Write::write_all(&mut kept_open, b"another").unwrap();
        assert_eq!(fs::read(store.files.hot_device_state(&store.id)).unwrap(), b"devices");
        assert!(!saved.exists());
    }

    #[test]
    fn a_link_in_the_place_of_a_device_state_is_refused_and_not_followed() {
        let store = Store::new();
        let saved = store.files.hot().join("device-state");
        std::os::unix::fs::symlink("/etc/hostname", &saved).unwrap();
        let error = store.files.keep_device_state(&saved, &store.id).unwrap_err();
        assert!(error.to_string().contains("device-state"), "{error}");
        assert!(!store.files.hot_device_state(&store.id).exists());
    }

    #[test]
    fn a_damaged_overlay_is_refused_by_name_once_it_was_durable() {
        for (words, damage) in DAMAGES {
            let store = Store::new();
            let id = OverlayId::random();
            let path = store.files.overlay(&id);
            fs::write(&path, plain_header()).unwrap();
            let checksum = store.files.publish_overlay(&id).unwrap();
            damage(&path);
            // Another process: this one knows what it has written.
            let files = StoreFiles::open(store.files.state(), store.files.hot()).unwrap();
            let error = files.require_overlay(&id, Some(&checksum)).unwrap_err();
            assert!(error.is_damage() && error.to_string().contains(words), "{error}");
            assert!(error.to_string().contains(id.as_str()), "{error}");
            fs::write(&path, plain_header()).unwrap();
            files.require_overlay(&id, Some(&checksum)).unwrap();
        }
    }

    #[test]
    fn an_overlay_that_names_another_file_is_never_used_and_that_file_never_read() {
        let store = Store::new();
        let id = OverlayId::random();
        let path = store.files.overlay(&id);
        fs::write(&path, plain_header()).unwrap();
        let checksum = store.files.publish_overlay(&id).unwrap();
        assert_eq!(store.files.require_overlay(&id, Some(&checksum)).unwrap().backing_file, None);
        // Written by the VMM later, which leaves the length and what is known of the content.
        let mut header = plain_header();
        header[79] = 4;
        fs::write(&path, header).unwrap();
        for error in [
            store.files.require_overlay(&id, Some(&checksum)).unwrap_err(),
            store.files.require_overlay(&id, None).unwrap_err(),
            store.files.publish_overlay(&id).unwrap_err(),
        ] {
            let refused = matches!(
                error,
                StoreError::OverlayRefused { how: Qcow2Error::DataFile { .. }, .. }
            );
            assert!(refused && error.is_damage(), "{error}");
        }
    }

    #[test]
    fn a_link_in_the_place_of_an_overlay_is_not_followed() {
        let store = Store::new();
        let id = OverlayId::random();
        std::os::unix::fs::symlink("/etc/hostname", store.files.overlay(&id)).unwrap();
        store.files.require_overlay(&id, None).unwrap_err();
        store.files.publish_overlay(&id).unwrap_err();
    }
}
