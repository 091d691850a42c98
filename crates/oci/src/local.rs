//! Images in files of this host: the OCI image layout, as a directory or a tar file, and what
//! `docker save` writes.

use std::collections::BTreeMap;
use std::fs::File;
use std::io::{self, Read, Seek as _, SeekFrom};
use std::path::{Path, PathBuf};

use serde::Deserialize;

use crate::archive::{Archive, Kind};
use crate::limit::{DOCUMENT_BYTES_MAX, ENTRIES_MAX};
use crate::manifest::{Descriptor, Document, REFERENCE_NAME, document};
use crate::source::{DocumentKind, Source};
use crate::{Digest, OciError};

/// Symbolic links between files of an archive that are followed; `docker save` writes one.
const LINKS_MAX: usize = 4;
const COPY_BYTES: usize = 1 << 20;

/// Files by their names.
#[derive(Debug)]
enum Files {
    Directory(PathBuf),
    Tar { path: PathBuf, members: BTreeMap<PathBuf, Member> },
}

#[derive(Debug)]
enum Member {
    /// Where its content is.
    File {
        offset: u64,
        size: u64,
    },
    Link(PathBuf),
}

impl Files {
    fn of_tar(path: &Path) -> Result<Self, OciError> {
        let broken = |error: io::Error| OciError::damaged(path.display().to_string(), error);
        let mut file = File::open(path).map_err(OciError::file(path))?;
        let mut magic = [0; 2];
        if file.read(&mut magic).map_err(OciError::file(path))? == 2 && magic == [0x1f, 0x8b] {
            return Err(OciError::Unsupported {
                what: format!("the compressed archive `{}`", path.display()),
                remedy: "unpack it with gunzip".to_owned(),
            });
        }
        file.rewind().map_err(OciError::file(path))?;
        let mut members = BTreeMap::new();
        let mut archive = Archive::new(file);
        while let Some(entry) = archive.next().map_err(broken)? {
            let name = clean(&PathBuf::from(String::from_utf8_lossy(&entry.path).into_owned()));
            let member = match entry.kind {
                Kind::File(size) => {
                    let offset = archive.inner().stream_position().map_err(broken)?;
                    Member::File { offset, size: size.bytes }
                }
                Kind::Symlink(to) | Kind::HardLink(to) => {
                    Member::Link(PathBuf::from(String::from_utf8_lossy(&to).into_owned()))
                }
                _ => continue,
            };
            members.insert(name, member);
            if members.len() as u64 > ENTRIES_MAX {
                let (what, max) = (path.display().to_string(), format!("{ENTRIES_MAX} entries"));
                return Err(OciError::TooLarge { what, max });
            }
        }
        Ok(Self::Tar { path: path.to_owned(), members })
    }

    /// A file at its beginning, and how long it is.
    fn open(&self, name: &Path) -> Result<(File, u64), OciError> {
        match self {
            Self::Directory(path) => {
                let path = path.join(name);
                let file = File::open(&path).map_err(OciError::file(&path))?;
                let size = file.metadata().map_err(OciError::file(&path))?.len();
                Ok((file, size))
            }
            Self::Tar { path, members } => {
                let mut name = clean(name);
                for _ in 0..=LINKS_MAX {
                    match members.get(&name) {
                        Some(Member::File { offset, size }) => {
                            let mut file = File::open(path).map_err(OciError::file(path))?;
                            file.seek(SeekFrom::Start(*offset)).map_err(OciError::file(path))?;
                            return Ok((file, *size));
                        }
                        Some(Member::Link(to)) => {
                            name = clean(&name.parent().unwrap_or(Path::new("")).join(to));
                        }
                        None => break,
                    }
                }
                let missing = format!("`{}` is not in it", name.display());
                Err(OciError::damaged(path.display().to_string(), missing))
            }
        }
    }

    fn read(&self, name: &Path) -> Result<Vec<u8>, OciError> {
        let (file, size) = self.open(name)?;
        if size > DOCUMENT_BYTES_MAX {
            let (what, max) = (name.display().to_string(), format!("{DOCUMENT_BYTES_MAX} bytes"));
            return Err(OciError::TooLarge { what, max });
        }
        let mut bytes = Vec::new();
        file.take(size).read_to_end(&mut bytes).map_err(OciError::file(name))?;
        Ok(bytes)
    }

    /// Adds to `into` what it has not got of a file.
    fn copy(
        &self,
        name: &Path,
        into: &mut File,
        told: &(dyn Fn(u64) + Sync),
    ) -> Result<(), OciError> {
        let (mut file, size) = self.open(name)?;
        let failed = |error| OciError::file(name)(error);
        let mut done = into.seek(SeekFrom::End(0)).map_err(failed)?;
        file.seek_relative(i64::try_from(done).unwrap_or(i64::MAX)).map_err(failed)?;
        while done < size {
            let part = (size - done).min(COPY_BYTES as u64);
            let copied = io::copy(&mut (&mut file).take(part), into).map_err(failed)?;
            if copied == 0 {
                return Err(OciError::damaged(name.display().to_string(), "it is too short"));
            }
            done += copied;
            told(done);
        }
        Ok(())
    }
}

/// Without `.`, and `..` taken back; the root is the archive.
fn clean(path: &Path) -> PathBuf {
    use std::path::Component;
    path.components().fold(PathBuf::new(), |mut clean, part| {
        match part {
            Component::Normal(part) => clean.push(part),
            Component::ParentDir => drop(clean.pop()),
            _ => {}
        }
        clean
    })
}

fn blob_name(digest: &Digest) -> PathBuf {
    Path::new("blobs/sha256").join(digest.hex())
}

/// An image in the OCI image layout.
pub(crate) struct Layout {
    files: Files,
    name: String,
    tag: Option<String>,
}

impl Layout {
    pub(crate) fn of_directory(path: &Path, tag: Option<String>) -> Self {
        let name = format!("oci:{}", path.display());
        Self { files: Files::Directory(path.to_owned()), name, tag }
    }

    pub(crate) fn of_archive(path: &Path, tag: Option<String>) -> Result<Self, OciError> {
        let name = format!("oci-archive:{}", path.display());
        Ok(Self { files: Files::of_tar(path)?, name, tag })
    }
}

#[async_trait::async_trait]
impl Source for Layout {
    async fn root(&self) -> Result<Vec<u8>, OciError> {
        let bytes = self.files.read(Path::new("index.json"))?;
        let Document::Index(images) = document(&bytes, &format!("the index of {}", self.name))?
        else {
            return Err(OciError::damaged(&self.name, "index.json is not an index"));
        };
        let tag_of = |image: &Descriptor| image.annotations.get(REFERENCE_NAME).cloned();
        // Some tools write the whole name.
        let is_called = |image: &&Descriptor, tag: &String| {
            let found = tag_of(image).unwrap_or_default();
            found == *tag || found.ends_with(&format!(":{tag}"))
        };
        let chosen = match &self.tag {
            Some(tag) => images.iter().find(|image| is_called(image, tag)),
            // Without a tag either there is one image, or the index is that of one.
            None if images.len() == 1 => images.first(),
            None if images.iter().all(|image| tag_of(image).is_none()) => return Ok(bytes),
            None => None,
        };
        match chosen {
            Some(image) => checked(self.files.read(&blob_name(&image.digest))?, image, &self.name),
            None => {
                let tags: Vec<String> = images.iter().filter_map(tag_of).collect();
                let tag = self.tag.as_deref().map(|tag| format!(":{tag}")).unwrap_or_default();
                Err(OciError::NotFound(format!(
                    "{}{tag}; name one of its tags: {}",
                    self.name,
                    tags.join(", ")
                )))
            }
        }
    }

    async fn document(
        &self,
        descriptor: &Descriptor,
        _: DocumentKind,
    ) -> Result<Vec<u8>, OciError> {
        self.files.read(&blob_name(&descriptor.digest))
    }

    async fn layer(
        &self,
        descriptor: &Descriptor,
        file: &mut File,
        told: &(dyn Fn(u64) + Sync),
    ) -> Result<(), OciError> {
        self.files.copy(&blob_name(&descriptor.digest), file, told)
    }
}

/// The bytes, if they are what the descriptor names.
pub(crate) fn checked(
    bytes: Vec<u8>,
    descriptor: &Descriptor,
    image: &str,
) -> Result<Vec<u8>, OciError> {
    let found = Digest::of(&bytes);
    if found == descriptor.digest {
        return Ok(bytes);
    }
    let what = format!("a document of {image}");
    Err(OciError::Digest { what, wanted: descriptor.digest, found })
}

/// One image of `manifest.json` in what `docker save` writes.
#[derive(Deserialize)]
#[serde(rename_all = "PascalCase")]
struct Saved {
    config: PathBuf,
    #[serde(default)]
    layers: Vec<PathBuf>,
    #[serde(default)]
    repo_tags: Option<Vec<String>>,
}

/// An image that `docker save` has written. It has no manifest: one is made that names its files.
pub(crate) struct Saving {
    files: Files,
    manifest: Vec<u8>,
    names: BTreeMap<Digest, PathBuf>,
}

impl Saving {
    /// Opens it; `name` is what it is called in errors.
    pub(crate) fn open(path: &Path, tag: Option<&str>, name: &str) -> Result<Self, OciError> {
        let files = Files::of_tar(path)?;
        let bytes = files.read(Path::new("manifest.json"))?;
        let images: Vec<Saved> =
            serde_json::from_slice(&bytes).map_err(|error| OciError::damaged(name, error))?;
        let tags = |image: &Saved| image.repo_tags.clone().unwrap_or_default();
        let is_called =
            |image: &&Saved| tag.is_none_or(|tag| tags(image).iter().any(|known| known == tag));
        let mut fitting = images.iter().filter(is_called);
        let (Some(image), None) = (fitting.next(), fitting.next()) else {
            let known: Vec<String> = images.iter().flat_map(tags).collect();
            let known = known.join(", ");
            return Err(OciError::NotFound(format!("{name}; name one of its images: {known}")));
        };
        let mut names = BTreeMap::new();
        let mut describe = |file: &Path| {
            let (content, size) = files.open(file)?;
            let digest = crate::hashing::Hashing::new(content.take(size)).finish(u64::MAX);
            let digest = digest.map_err(OciError::file(path))?;
            names.insert(digest, file.to_owned());
            Ok::<_, OciError>(serde_json::json!({"digest": digest.to_string(), "size": size}))
        };
        let config = describe(&image.config)?;
        let layers =
            image.layers.iter().map(|layer| describe(layer)).collect::<Result<Vec<_>, _>>();
        let manifest = serde_json::json!({"schemaVersion": 2, "config": config, "layers": layers?});
        Ok(Self { manifest: manifest.to_string().into_bytes(), files, names })
    }

    fn name(&self, descriptor: &Descriptor) -> Result<&Path, OciError> {
        let name = self.names.get(&descriptor.digest).map(PathBuf::as_path);
        name.ok_or_else(|| OciError::NotFound(descriptor.digest.to_string()))
    }
}

#[async_trait::async_trait]
impl Source for Saving {
    async fn root(&self) -> Result<Vec<u8>, OciError> {
        Ok(self.manifest.clone())
    }

    async fn document(
        &self,
        descriptor: &Descriptor,
        _: DocumentKind,
    ) -> Result<Vec<u8>, OciError> {
        self.files.read(self.name(descriptor)?)
    }

    async fn layer(
        &self,
        descriptor: &Descriptor,
        file: &mut File,
        told: &(dyn Fn(u64) + Sync),
    ) -> Result<(), OciError> {
        self.files.copy(self.name(descriptor)?, file, told)
    }
}
