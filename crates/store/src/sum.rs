//! Length and checksum of a file that belongs to a snapshot: device state and disk overlays. Kept
//! in the snapshot's row. Memory layers have theirs in their index.

use std::fs::{self, File};
use std::io::{self, Read};
use std::path::{Path, PathBuf};

use forkd_types::{ByteCount, LayerId, OverlayId};
use serde::{Deserialize, Serialize};

use crate::disk::{CHUNK_BYTES, Rest, put};
use crate::{StoreError, StoreFiles};

/// What a file held when it was sealed.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
pub struct FileSum {
    /// Its length.
    pub bytes: ByteCount,
    /// Checksum of its content.
    pub crc32: u32,
}

impl FileSum {
    pub(crate) fn of(mut file: impl Read) -> io::Result<Self> {
        let mut hasher = crc32fast::Hasher::new();
        let mut buffer = vec![0; CHUNK_BYTES];
        let (mut bytes, mut rest) = (0, Rest::new());
        loop {
            match file.read(&mut buffer) {
                Ok(0) => break,
                Ok(count) => {
                    hasher.update(&buffer[..count]);
                    bytes += count as u64;
                    rest.after(count);
                }
                Err(error) if error.kind() == io::ErrorKind::Interrupted => {}
                Err(error) => return Err(error),
            }
        }
        Ok(Self { bytes: ByteCount::new(bytes), crc32: hasher.finalize() })
    }

    fn differs(&self, found: &Self) -> Option<String> {
        if found.bytes != self.bytes {
            let (found, wanted) = (found.bytes.get(), self.bytes.get());
            return Some(format!("damaged: it has {found} bytes instead of {wanted}"));
        }
        let same = found.crc32 == self.crc32;
        (!same).then(|| "damaged: it does not match its checksum".to_owned())
    }
}

/// What is wrong with the file at `path`, if anything.
fn problem(path: &Path, sum: &FileSum) -> Result<Option<String>, StoreError> {
    match File::open(path).and_then(FileSum::of) {
        Ok(found) => Ok(sum.differs(&found)),
        Err(error) if error.kind() == io::ErrorKind::NotFound => Ok(Some("missing".to_owned())),
        Err(source) => Err(StoreError::file("read", path, source)),
    }
}

impl StoreFiles {
    /// Length and checksum of the device state of the snapshot whose top layer is `id`, which has
    /// just been written.
    ///
    /// # Errors
    /// When it cannot be read.
    pub fn sum_device_state(&self, id: &LayerId) -> Result<FileSum, StoreError> {
        let path = self.hot_device_state(id);
        let sum = File::open(&path).and_then(FileSum::of);
        sum.map_err(|source| StoreError::file("read", path, source))
    }

    /// Where the device state of the snapshot whose top layer is `id` is. It is compared with its
    /// checksum; a hot copy that is missing or damaged is made anew from the durable one.
    ///
    /// # Errors
    /// [`StoreError::DeviceStateDamaged`] when there is no good copy, or no checksum.
    pub fn require_device_state(
        &self,
        id: &LayerId,
        sum: Option<&FileSum>,
    ) -> Result<PathBuf, StoreError> {
        let Some(sum) = sum else {
            let how = "missing: the snapshot's row has no checksum of it".to_owned();
            return Err(StoreError::DeviceStateDamaged { id: id.clone(), how });
        };
        let (hot, durable) = (self.hot_device_state(id), self.durable_device_state(id));
        let Some(of_hot) = problem(&hot, sum)? else { return Ok(hot) };
        if let Some(of_durable) = problem(&durable, sum)? {
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
    /// compared each time, its content once in this process's life. One without a known sum is not
    /// durable and must merely be there.
    ///
    /// # Errors
    /// [`StoreError::OverlayDamaged`] when it is missing or damaged.
    pub fn require_overlay(&self, id: &OverlayId, sum: Option<&FileSum>) -> Result<(), StoreError> {
        self.require_overlay_length(id, sum)?;
        let known = self.known_overlay(id);
        let Some(sum) = sum.filter(|sum| known != Some(**sum)) else { return Ok(()) };
        match problem(&self.overlay(id), sum)? {
            None => self.note_overlay(id, *sum),
            Some(how) => return Err(StoreError::OverlayDamaged { id: id.clone(), how }),
        }
        Ok(())
    }

    /// As [`Self::require_overlay`], without reading it.
    pub(crate) fn require_overlay_length(
        &self,
        id: &OverlayId,
        sum: Option<&FileSum>,
    ) -> Result<(), StoreError> {
        let path = self.overlay(id);
        let how = match fs::metadata(&path) {
            Ok(metadata) => {
                let bytes = ByteCount::new(metadata.len());
                sum.and_then(|sum| sum.differs(&FileSum { bytes, crc32: sum.crc32 }))
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

    struct Store {
        _state: tempfile::TempDir,
        _hot: tempfile::TempDir,
        files: StoreFiles,
        id: LayerId,
    }

    impl Store {
        fn new() -> Self {
            let state = tempfile::tempdir().unwrap();
            let hot = tempfile::tempdir_in("/dev/shm").unwrap();
            let files = StoreFiles::open(state.path(), hot.path()).unwrap();
            Self { _state: state, _hot: hot, files, id: LayerId::random() }
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
            let sum = store.files.sum_device_state(&store.id).unwrap();
            let require = || store.files.require_device_state(&store.id, Some(&sum));
            store.files.publish_device_state(&store.id, &sum).unwrap();
            damage(&hot);
            assert_eq!(fs::read(require().unwrap()).unwrap(), b"devices", "{words}");
            damage(&durable);
            require().unwrap();
            store.files.publish_device_state(&store.id, &sum).unwrap();
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
            let sum = store.files.publish_overlay(&id).unwrap();
            damage(&path);
            // Another process: this one knows what it has written.
            let files = StoreFiles::open(store.files.state(), store.files.hot()).unwrap();
            let error = files.require_overlay(&id, Some(&sum)).unwrap_err();
            assert!(error.is_damage() && error.to_string().contains(words), "{error}");
            assert!(error.to_string().contains(id.as_str()), "{error}");
            fs::write(&path, b"devices").unwrap();
            files.require_overlay(&id, Some(&sum)).unwrap();
        }
    }
}
