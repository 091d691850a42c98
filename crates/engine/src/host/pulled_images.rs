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
//! Does not do: remove disks, on which snapshots may build.

use std::fs;
use std::io;
use std::os::unix::fs::PermissionsExt as _;
use std::path::{Path, PathBuf};
use std::sync::Arc;

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
        found.inspect_err(|problem| tracing::warn!(id, problem, "a pulled image is unusable")).ok()
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
            let one = this.making.lock().unwrap_or_else(std::sync::PoisonError::into_inner);
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
