//! Blobs by their digests: fetched once, checked, shared by all images that have them.
//!
//! ```text
//! blobs/HEX      a layer, checked          partial/HEX   the beginning of one
//! ```
//!
//! A blob is in `blobs` only whole and checked. What breaks off stays in `partial`, and the next
//! attempt goes on there. The oldest blobs go when all of them take too much.
//!
//! Does not do: keep manifests. A tag is asked for anew each time, so it is never out of date.

use std::collections::HashMap;
use std::fs::{self, File};
use std::io::{self, Seek as _};
use std::path::{Path, PathBuf};
use std::sync::{Arc, Mutex, PoisonError};
use std::time::SystemTime;

use forkd_types::ByteCount;
use tempfile::NamedTempFile;

use crate::docker::Docker;
use crate::hashing::Hashing;
use crate::limit::{CACHE_BYTES_MAX, DOCUMENT_BYTES_MAX};
use crate::local::{Layout, Saving, checked};
use crate::manifest::{Descriptor, Document, configuration, document, for_this_machine};
use crate::mirrors::Mirrors;
use crate::registry::{Registry, Rights};
use crate::source::{DocumentKind, Source, Watch};
use crate::{Digest, ImageConfig, OciError, Reference, RegistryReference};

/// Indexes within indexes that are followed.
const INDEX_DEPTH_MAX: usize = 4;
/// A transfer that broke off is begun again so often, each time where it broke off.
const ATTEMPTS: usize = 4;

/// Where blobs are kept.
#[derive(Debug)]
pub struct Cache {
    directory: PathBuf,
    /// Where Docker listens, if not where it does by itself.
    docker: Option<PathBuf>,
    /// The file that says where mirrors are, if not this host's.
    registries: Option<PathBuf>,
    /// A blob that two images want is fetched by one of them.
    busy: Mutex<HashMap<Digest, Arc<tokio::sync::Mutex<()>>>>,
}

/// An image whose layers are here.
#[derive(Debug)]
pub struct Pulled {
    /// Its name for people, with the digest of its manifest.
    pub name: String,
    /// The digest of its configuration: equal images have the same, wherever they come from.
    pub id: Digest,
    /// What it says about itself.
    pub config: ImageConfig,
    /// The lowest first. Open, so that nobody takes them away.
    pub(crate) layers: Vec<File>,
}

impl Cache {
    /// The cache in a directory, which is made when it is needed.
    #[must_use]
    pub fn new(directory: PathBuf) -> Self {
        Self { directory, docker: None, registries: None, busy: Mutex::default() }
    }

    /// The same, with Docker listening on another Unix socket than the environment says.
    #[must_use]
    pub fn with_docker_at(mut self, socket: PathBuf) -> Self {
        self.docker = Some(socket);
        self
    }

    /// The same, with another `registries.conf` than this host's.
    #[must_use]
    pub fn with_registries_of(mut self, file: PathBuf) -> Self {
        self.registries = Some(file);
        self
    }

    /// Gets an image: from the first of its mirrors that has it whole, else from its registry.
    /// Nothing is fetched that is here.
    ///
    /// # Errors
    /// See [`OciError`].
    pub async fn pull(&self, reference: &Reference, watch: &dyn Watch) -> Result<Pulled, OciError> {
        for folder in ["blobs", "partial"] {
            let folder = self.directory.join(folder);
            fs::create_dir_all(&folder).map_err(OciError::file(folder))?;
        }
        // Until its layers are in the cache.
        let mut saved = None;
        if let Reference::DockerDaemon { image } = reference {
            let docker = match &self.docker {
                Some(socket) => Docker::at(socket)?,
                None => Docker::of_environment()?,
            };
            saved = Some(docker.save(image, &self.directory.join("partial"), watch).await?);
        }
        match reference {
            Reference::Registry(image) => self.pull_by_name(image, watch).await,
            _ => {
                let source = open(reference, saved.as_ref().map(NamedTempFile::path)).await?;
                self.pull_from(source.as_ref(), reference, watch).await
            }
        }
    }

    /// Gets an image from a mirror of its registry, or from there.
    async fn pull_by_name(
        &self,
        image: &RegistryReference,
        watch: &dyn Watch,
    ) -> Result<Pulled, OciError> {
        let mirrors = match &self.registries {
            Some(file) => Mirrors::of_file(file)?,
            None => Mirrors::of_host()?,
        };
        let places = mirrors.places(image)?;
        let image = Reference::Registry(image.clone());
        let pull_at = async |place: RegistryReference| {
            let source = open(&Reference::Registry(place), None).await?;
            self.pull_from(source.as_ref(), &image, watch).await
        };
        for mirror in places.mirrors {
            let name = mirror.to_string();
            match pull_at(mirror).await {
                Err(error) if error.is_of_a_place() => {
                    tracing::warn!(mirror = name, %error, "a mirror failed; the next is asked");
                }
                done => return done,
            }
        }
        pull_at(places.registry).await
    }

    /// Gets an image from one place.
    async fn pull_from(
        &self,
        source: &dyn Source,
        reference: &Reference,
        watch: &dyn Watch,
    ) -> Result<Pulled, OciError> {
        let image = reference.to_string();
        let (manifest, digest) = manifest_of(source, &image).await?;
        let config = source.document(&manifest.config, DocumentKind::Configuration).await?;
        let config = checked(config, &manifest.config, &image)?;
        let config = configuration(&config, &image)?;
        if config.layers.len() != manifest.layers.len() {
            let problem = "its manifest and its configuration have different numbers of layers";
            return Err(OciError::damaged(image, problem));
        }
        self.require_room(&image, &manifest.layers)?;
        let total = manifest.layers.iter().map(|layer| layer.size).sum();
        let (mut done, mut layers) = (0, Vec::new());
        for layer in &manifest.layers {
            let told = |of_layer: u64| watch.progress(done + of_layer, total);
            layers.push(self.blob(source, layer, &told).await?);
            done += layer.size;
            watch.progress(done, total);
        }
        let name = match reference {
            Reference::Registry(found) if found.digest.is_none() => format!("{image}@{digest}"),
            _ => image,
        };
        Ok(Pulled { name, id: manifest.config.digest, config, layers })
    }

    /// Refuses an image whose layers do not fit before any of them is fetched.
    fn require_room(&self, image: &str, layers: &[Descriptor]) -> Result<(), OciError> {
        let had = |path: PathBuf| fs::metadata(path).map_or(0, |facts| facts.len());
        let missing = |layer: &Descriptor| {
            let hex = layer.digest.hex();
            match self.directory.join("blobs").join(&hex).exists() {
                true => 0,
                false => layer.size.saturating_sub(had(self.directory.join("partial").join(hex))),
            }
        };
        let needed = ByteCount::new(layers.iter().map(missing).sum());
        let stat = rustix::fs::statvfs(&self.directory)
            .map_err(|errno| OciError::file(&self.directory)(errno.into()))?;
        let free = ByteCount::new(stat.f_bavail * stat.f_frsize);
        if needed <= free {
            return Ok(());
        }
        let (what, directory) = (image.to_owned(), self.directory.clone());
        Err(OciError::NoRoom { what, directory, needed, free })
    }

    /// One blob, fetched if it is not here.
    async fn blob(
        &self,
        source: &dyn Source,
        layer: &Descriptor,
        told: &(dyn Fn(u64) + Sync),
    ) -> Result<File, OciError> {
        let turn = {
            let mut busy = self.busy.lock().unwrap_or_else(PoisonError::into_inner);
            busy.retain(|_, turn| Arc::strong_count(turn) > 1);
            Arc::clone(busy.entry(layer.digest).or_default())
        };
        let _turn = turn.lock().await;
        let path = self.directory.join("blobs").join(layer.digest.hex());
        if let Ok(file) = File::open(&path) {
            // For whoever removes the oldest.
            file.set_modified(SystemTime::now()).map_err(OciError::file(&path))?;
            return Ok(file);
        }
        let partial = self.directory.join("partial").join(layer.digest.hex());
        self.fetch(source, layer, &partial, told).await?;
        fs::rename(&partial, &path).map_err(OciError::file(&path))?;
        File::open(&path).map_err(OciError::file(&path))
    }

    /// Fetches a blob into `partial` and checks it.
    async fn fetch(
        &self,
        source: &dyn Source,
        layer: &Descriptor,
        partial: &Path,
        told: &(dyn Fn(u64) + Sync),
    ) -> Result<(), OciError> {
        let failed = |error| OciError::file(partial)(error);
        let mut attempt = 1;
        loop {
            let mut options = File::options();
            options.read(true).write(true).create(true).truncate(false);
            let mut file = options.open(partial).map_err(failed)?;
            let had = file.seek(io::SeekFrom::End(0)).map_err(failed)?;
            let fetched = match had < layer.size {
                true => source.layer(layer, &mut file, told).await,
                false => Ok(()),
            };
            let has = file.seek(io::SeekFrom::End(0)).map_err(failed)?;
            match fetched {
                Err(error @ OciError::Unreachable { .. }) if attempt < ATTEMPTS => {
                    tracing::debug!(%error, has, "goes on where it broke off");
                    attempt += 1;
                    continue;
                }
                fetched => fetched?,
            }
            let (reader, found) = {
                let mut reader = file.try_clone().map_err(failed)?;
                reader.rewind().map_err(failed)?;
                let found = Hashing::new(reader);
                (file, tokio::task::spawn_blocking(move || found.finish(u64::MAX)))
            };
            let found = found.await.map_err(|error| failed(io::Error::other(error)))?;
            let found = found.map_err(failed)?;
            if found == layer.digest && has == layer.size {
                reader.sync_all().map_err(failed)?;
                return Ok(());
            }
            fs::remove_file(partial).map_err(failed)?;
            // What an earlier attempt left may have been the damaged part.
            if had == 0 || attempt >= ATTEMPTS {
                let (what, wanted) = ("a layer".to_owned(), layer.digest);
                return Err(OciError::Digest { what, wanted, found });
            }
            attempt += 1;
        }
    }

    /// Removes the oldest blobs until the rest take no more than they may.
    ///
    /// # Errors
    /// When the directory cannot be read, or a file in it not removed.
    pub fn trim(&self) -> Result<(), OciError> {
        self.trim_to(CACHE_BYTES_MAX)
    }

    fn trim_to(&self, max: u64) -> Result<(), OciError> {
        let mut blobs = Vec::new();
        for folder in ["blobs", "partial"] {
            let folder = self.directory.join(folder);
            let entries = match fs::read_dir(&folder) {
                Err(error) if error.kind() == io::ErrorKind::NotFound => continue,
                entries => entries.map_err(OciError::file(&folder))?,
            };
            for entry in entries.flatten() {
                if let Ok(facts) = entry.metadata() {
                    let used = facts.modified().unwrap_or(SystemTime::UNIX_EPOCH);
                    blobs.push((used, facts.len(), entry.path()));
                }
            }
        }
        blobs.sort();
        let mut sum: u64 = blobs.iter().map(|blob| blob.1).sum();
        for (_, bytes, path) in blobs {
            if sum <= max {
                break;
            }
            fs::remove_file(&path).map_err(OciError::file(path))?;
            sum -= bytes;
        }
        Ok(())
    }
}

/// Opens what a reference names; `saved` is what Docker saved, if it names an image there.
async fn open(reference: &Reference, saved: Option<&Path>) -> Result<Box<dyn Source>, OciError> {
    let (reference, saved) = (reference.clone(), saved.map(Path::to_owned));
    let opened = tokio::task::spawn_blocking(move || -> Result<Box<dyn Source>, OciError> {
        Ok(match &reference {
            Reference::Registry(reference) => Box::new(Registry::new(reference, Rights::Pull)?),
            Reference::Layout { path, tag } => Box::new(Layout::of_directory(path, tag.clone())),
            Reference::OciArchive { path, tag } => Box::new(Layout::of_archive(path, tag.clone())?),
            Reference::DockerArchive { path, tag } => {
                Box::new(Saving::open(path, tag.as_deref(), &reference.to_string())?)
            }
            Reference::DockerDaemon { .. } => {
                let saved = saved.ok_or_else(|| OciError::NotFound(reference.to_string()))?;
                Box::new(Saving::open(&saved, None, &reference.to_string())?)
            }
        })
    });
    opened.await.map_err(|error| OciError::damaged("the reader of the image", error))?
}

/// The manifest for our machine, and its digest.
async fn manifest_of(
    source: &dyn Source,
    image: &str,
) -> Result<(crate::manifest::Manifest, Digest), OciError> {
    let mut bytes = source.root().await?;
    for _ in 0..INDEX_DEPTH_MAX {
        if bytes.len() as u64 > DOCUMENT_BYTES_MAX {
            let max = format!("{DOCUMENT_BYTES_MAX} bytes");
            return Err(OciError::TooLarge { what: format!("the manifest of {image}"), max });
        }
        match document(&bytes, &format!("the manifest of {image}"))? {
            Document::Manifest(manifest) => return Ok((manifest, Digest::of(&bytes))),
            Document::Index(index) => {
                let ours = for_this_machine(&index, image)?;
                bytes =
                    checked(source.document(&ours, DocumentKind::Manifest).await?, &ours, image)?;
            }
        }
    }
    Err(OciError::damaged(image, "its indexes lead to each other"))
}
