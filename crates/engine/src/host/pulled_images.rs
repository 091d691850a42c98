//! Images that users name by a reference: pulled, made into a root disk, and kept by what they are.
//!
//! ```text
//! oci/blobs, oci/partial    layers        oci/images/ID   image.json and root.ext4
//! ```
//!
//! The id is the digest of the image's configuration. So one disk serves all names of an image, and
//! an image that was pushed anew under the same tag has another one. The kernel and the initramfs
//! are those of the image directory.
//!
//! A disk stays as long as something builds on it. One that nothing builds on goes when it has not
//! been used for a week, or when such disks take too much.
//!
//! Does not do: know what builds on a disk. The caller says so.

use std::fs::{self, File};
use std::io;
use std::os::unix::fs::{MetadataExt as _, PermissionsExt as _};
use std::path::{Path, PathBuf};
use std::sync::{Arc, PoisonError};
use std::time::{Duration, SystemTime};

use forkd_oci::{Cache, OciError, Pulled, Reference, Watch};
use serde_json::{Value, json};
use tokio::runtime::Handle;

use super::image::{Image, read};
use super::image_check::sha256_of;
use crate::background::blocking;
use crate::operation::Watcher;
use crate::{EngineConfig, EngineError};

/// Says how images are booted whose recipe is not in the image directory.
const BOOT_FILE: &str = "initramfs/boot.json";
const DISK: &str = "root.ext4";
/// Begins the names of what is not complete.
const UNFINISHED: &str = ".new-";

/// A disk that nothing builds on is kept so long after its last use.
const UNUSED_AGE_MAX: Duration = Duration::from_hours(7 * 24);
/// Disks that nothing builds on may take so many bytes.
const UNUSED_BYTES_MAX: u64 = 20 << 30;
/// A disk that was used so lately stays in any case: what is to build on it may not be known yet.
const USED_LATELY: Duration = Duration::from_hours(1);
/// How exactly the last use is known: a start of a child should not write each time.
const USE_INTERVAL: Duration = Duration::from_mins(10);

/// Where pulled images are.
#[derive(Debug, Clone)]
pub(crate) struct PulledImages {
    directory: PathBuf,
    image_dir: PathBuf,
    cache: Arc<Cache>,
    /// One disk is made at a time: two of the same image are one.
    making: Arc<std::sync::Mutex<()>>,
}

impl PulledImages {
    pub(crate) fn of(config: &EngineConfig) -> Self {
        let directory = config.state_dir.join("oci");
        let cache = Arc::new(Cache::new(directory.clone()));
        let image_dir = config.image_dir.clone();
        Self { directory: directory.join("images"), image_dir, cache, making: Arc::default() }
    }

    /// The image with this id, if its disk was made. Anything else is no id.
    pub(super) fn find(&self, id: &str) -> Option<Image> {
        let is_id = id.len() == 64 && id.bytes().all(|byte| byte.is_ascii_hexdigit());
        let folder = self.directory.join(id);
        let found = (is_id && folder.join("image.json").exists()).then(|| read(&folder))?;
        note_use(&folder);
        found.inspect_err(|problem| tracing::warn!(id, problem, "a pulled image is unusable")).ok()
    }

    /// Removes disks that were not used lately and on which, as `in_use` says of their ids, nothing
    /// builds. What cannot be removed stays, with a warning.
    pub(crate) fn remove_unused(&self, in_use: impl Fn(&str) -> bool) {
        let _one = self.making.lock().unwrap_or_else(PoisonError::into_inner);
        let entries = fs::read_dir(&self.directory).into_iter().flatten().flatten();
        let names = entries.filter_map(|entry| entry.file_name().into_string().ok());
        // Nobody is making one now.
        let (unfinished, ids): (Vec<String>, Vec<String>) =
            names.partition(|name| name.starts_with(UNFINISHED));
        let unused = ids.into_iter().filter(|id| !in_use(id)).map(|id| self.unused(id)).collect();
        let removed = to_remove(unused, SystemTime::now());
        let failed = |name: &str, error: io::Error| {
            tracing::warn!(name, %error, "a disk that nobody needs stays");
        };
        for name in &unfinished {
            fs::remove_dir_all(self.directory.join(name)).unwrap_or_else(|e| failed(name, e));
        }
        for id in &removed {
            self.remove(id).unwrap_or_else(|error| failed(id, error));
        }
    }

    fn unused(&self, id: String) -> Unused {
        let folder = self.directory.join(&id);
        let used = fs::metadata(&folder).and_then(|facts| facts.modified());
        let bytes = fs::metadata(folder.join(DISK)).map_or(0, |facts| facts.blocks() * 512);
        Unused { used: used.unwrap_or(SystemTime::UNIX_EPOCH), bytes, id }
    }

    /// In two steps: under its name there is a whole image or none.
    fn remove(&self, id: &str) -> io::Result<()> {
        let going = self.directory.join(format!("{UNFINISHED}removed"));
        fs::rename(self.directory.join(id), &going)?;
        tracing::info!(id, "the disk of an image that nothing builds on is removed");
        fs::remove_dir_all(&going)
    }

    /// Fetches what is not here of the image that `reference` names.
    pub(crate) async fn pull(
        &self,
        reference: &str,
        watcher: Arc<Watcher>,
    ) -> Result<Pulled, EngineError> {
        let bad = |error: &dyn ToString| EngineError::BadRequest {
            field: "from",
            problem: error.to_string(),
        };
        let parsed: Reference = reference.parse().map_err(|error| bad(&error))?;
        if parsed.is_local() && !parsed.is_absolute() {
            return Err(bad(&format!("`{reference}`: the path must be absolute")));
        }
        let (cache, runtime) = (Arc::clone(&self.cache), Handle::current());
        // It reads and writes files all the time.
        let pulled = blocking(move || {
            let pull = cache.pull(&parsed, watcher.as_ref());
            runtime.block_on(watcher.unless_cancelled(pull))
        })
        .await?;
        pulled.map_err(|error| unavailable(reference, error))
    }

    /// The image with its disk, which is made if it is not there.
    pub(crate) async fn with_disk(
        &self,
        pulled: Pulled,
        watcher: Arc<Watcher>,
    ) -> Result<Image, EngineError> {
        let this = self.clone();
        blocking(move || {
            let one = this.making.lock().unwrap_or_else(PoisonError::into_inner);
            let image = match this.find(&pulled.id.hex()) {
                Some(image) => image,
                None => this.make(&pulled, watcher.as_ref())?,
            };
            drop(one);
            if let Err(error) = this.cache.trim() {
                tracing::warn!(%error, "layers that nobody needs stay");
            }
            // The same image may have several names.
            Ok(image.called(pulled.name))
        })
        .await?
    }

    fn make(&self, pulled: &Pulled, watch: &dyn Watch) -> Result<Image, EngineError> {
        let failed = |path: &Path, error: io::Error| {
            EngineError::Internal(format!("use `{}`: {error}", path.display()))
        };
        let id = pulled.id.hex();
        let (unfinished, folder) =
            (self.directory.join(format!("{UNFINISHED}{id}")), self.directory.join(id));
        match fs::remove_dir_all(&unfinished) {
            Err(error) if error.kind() != io::ErrorKind::NotFound => {
                return Err(failed(&unfinished, error));
            }
            _ => {}
        }
        fs::create_dir_all(&unfinished).map_err(|error| failed(&unfinished, error))?;
        let made = self.fill(pulled, &unfinished, watch).and_then(|()| {
            fs::rename(&unfinished, &folder).map_err(|error| failed(&folder, error))?;
            read(&folder).map_err(EngineError::Internal)
        });
        if made.is_err() {
            // The next attempt removes it otherwise.
            fs::remove_dir_all(&unfinished).ok();
        }
        made
    }

    /// Writes the disk and what `image.json` says of it.
    fn fill(&self, pulled: &Pulled, folder: &Path, watch: &dyn Watch) -> Result<(), EngineError> {
        let boot = self.image_dir.join(BOOT_FILE);
        let boot_problem = |error: &dyn ToString| EngineError::BadRequest {
            field: "from",
            problem: format!(
                "no image can be booted: `{}`: {}; build the images again",
                boot.display(),
                error.to_string()
            ),
        };
        let text = fs::read(&boot).map_err(|error| boot_problem(&error))?;
        let mut image: Value =
            serde_json::from_slice(&text).map_err(|error| boot_problem(&error))?;
        for file in ["kernel", "initramfs"] {
            let path = image[file].as_str().ok_or_else(|| boot_problem(&format!("no {file}")))?;
            image[file] = json!(self.image_dir.join("initramfs").join(path));
        }
        let disk = folder.join(DISK);
        let made = forkd_oci::build(pulled, &disk, watch);
        let made = made.map_err(|error| unavailable(&pulled.name, error))?;
        let internal = |error: io::Error| EngineError::Internal(error.to_string());
        // VMMs are users of their own, who are given this file and no way to it.
        fs::set_permissions(&disk, fs::Permissions::from_mode(0o444)).map_err(internal)?;
        image["name"] = json!(pulled.name);
        image["description"] = json!(format!("Pulled: {}", pulled.name));
        image["content_hash"] = json!(pulled.id.hex());
        image["root_disk"] = json!(DISK);
        image["root_disk_bytes"] = json!(made.bytes);
        image["sha256"]["root_disk"] = json!(sha256_of(&disk).map_err(internal)?);
        fs::write(folder.join("image.json"), image.to_string()).map_err(internal)
    }
}

/// A disk that nothing builds on.
#[derive(Debug)]
struct Unused {
    used: SystemTime,
    bytes: u64,
    id: String,
}

/// Which disks go.
fn to_remove(mut unused: Vec<Unused>, now: SystemTime) -> Vec<String> {
    unused.sort_by_key(|disk| disk.used);
    let mut sum: u64 = unused.iter().map(|disk| disk.bytes).sum();
    let mut gone = Vec::new();
    for disk in unused {
        // A clock that was set back makes nothing old.
        let age = now.duration_since(disk.used).unwrap_or_default();
        if age > USED_LATELY && (age > UNUSED_AGE_MAX || sum > UNUSED_BYTES_MAX) {
            sum -= disk.bytes;
            gone.push(disk.id);
        }
    }
    gone
}

/// Writes down that an image is used now. Only its end is at stake.
fn note_use(folder: &Path) {
    let noted = File::open(folder).and_then(|folder| {
        let age = folder.metadata()?.modified()?.elapsed().unwrap_or(USE_INTERVAL);
        if age >= USE_INTERVAL { folder.set_modified(SystemTime::now()) } else { Ok(()) }
    });
    if let Err(error) = noted {
        tracing::warn!(folder = %folder.display(), %error, "its use cannot be written down");
    }
}

fn unavailable(reference: &str, error: OciError) -> EngineError {
    match error {
        OciError::Reference(error) => {
            EngineError::BadRequest { field: "from", problem: error.to_string() }
        }
        error => EngineError::ImageUnavailable {
            reference: reference.to_owned(),
            source: Arc::new(error),
        },
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const HOUR: Duration = Duration::from_hours(1);

    #[test]
    fn unused_disks_go_by_age_and_beyond_their_budget_the_oldest_first() {
        let now = SystemTime::now();
        let disk = |hours: u32, gib: u64, id: &str| Unused {
            used: now - HOUR * hours,
            bytes: gib << 30,
            id: id.to_owned(),
        };
        let few = vec![disk(2, 3, "a"), disk(169, 3, "old"), disk(167, 3, "b")];
        assert_eq!(to_remove(few, now), ["old"]);
        let many = vec![disk(2, 8, "a"), disk(5, 8, "c"), disk(4, 8, "b"), disk(0, 8, "new")];
        assert_eq!(to_remove(many, now), ["c", "b"]);
        assert_eq!(to_remove(vec![disk(0, 50, "new")], now), [""; 0]);
        let ahead = Unused { used: now + HOUR, bytes: 50 << 30, id: "ahead".to_owned() };
        assert_eq!(to_remove(vec![ahead], now), [""; 0]);
    }

    #[test]
    fn a_disk_stays_while_something_builds_on_it_or_it_is_used() {
        let directory = tempfile::tempdir().unwrap();
        let config = crate::fake::config(directory.path(), crate::Limits::default()).unwrap();
        let images = PulledImages::of(&config);
        let folder = |id: &str| images.directory.join(id);
        let ids = ["1", "2", "3"].map(|digit| digit.repeat(64));
        for id in &ids {
            fs::create_dir_all(folder(id)).unwrap();
            let json = r#"{"name":"n","content_hash":"h","kernel":"/k","initramfs":"/i",
                "command_line":"quiet","root_disk":"root.ext4","root_disk_bytes":4096}"#;
            fs::write(folder(id).join("image.json"), json).unwrap();
            fs::write(folder(id).join(DISK), [0; 4096]).unwrap();
            let old = SystemTime::now() - HOUR * 200;
            File::open(folder(id)).unwrap().set_modified(old).unwrap();
        }
        let unfinished = folder(&format!("{UNFINISHED}{}", ids[0]));
        fs::create_dir(&unfinished).unwrap();
        assert!(images.find(&ids[1]).is_some());
        images.remove_unused(|id| id == ids[0]);
        let left: Vec<bool> = ids.iter().map(|id| folder(id).exists()).collect();
        assert_eq!(left, [true, true, false]);
        assert!(!unfinished.exists());
        assert!(images.find(&ids[2]).is_none());
    }
}
