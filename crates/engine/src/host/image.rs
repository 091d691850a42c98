//! One image: what its `image.json` says.

use std::fs;
use std::path::{Path, PathBuf};

use forkd_types::ByteCount;
use forkd_vmm::BootSource;
use serde::Deserialize;

/// An image, its paths made absolute.
#[derive(Debug, Clone)]
pub(crate) struct Image {
    pub(crate) name: String,
    pub(crate) description: String,
    pub(crate) content_hash: String,
    pub(crate) boot: BootSource,
    pub(crate) root_disk: Option<(PathBuf, ByteCount)>,
    /// Its files with their SHA-256.
    checksums: Vec<(PathBuf, String)>,
}

impl Image {
    /// Its files with their SHA-256.
    pub(super) fn checksums(&self) -> &[(PathBuf, String)] {
        &self.checksums
    }

    /// The same image by another of its names.
    pub(super) fn called(self, name: String) -> Self {
        Self { name, ..self }
    }
}

#[derive(Deserialize)]
struct ImageFile {
    name: String,
    #[serde(default)]
    description: String,
    content_hash: String,
    kernel: PathBuf,
    initramfs: PathBuf,
    command_line: String,
    root_disk: Option<PathBuf>,
    root_disk_bytes: Option<u64>,
    #[serde(default)]
    sha256: Checksums,
}

/// Those of images that `make images` did not build may be missing.
#[derive(Default, Deserialize)]
struct Checksums {
    kernel: Option<String>,
    initramfs: Option<String>,
    root_disk: Option<String>,
}

/// Reads the image in the directory `path`.
pub(super) fn read(path: &Path) -> Result<Image, String> {
    let text = fs::read_to_string(path.join("image.json")).map_err(|error| error.to_string())?;
    let file: ImageFile = serde_json::from_str(&text).map_err(|error| error.to_string())?;
    let root_disk = match (file.root_disk, file.root_disk_bytes) {
        (Some(disk), Some(bytes)) => Some((path.join(disk), ByteCount::new(bytes))),
        (None, _) => None,
        (Some(_), None) => return Err("`root_disk_bytes` is missing".to_owned()),
    };
    let (kernel, initramfs) = (path.join(file.kernel), path.join(file.initramfs));
    let disk = root_disk.as_ref().map(|(disk, _)| disk.clone());
    let checksums = [
        (Some(kernel.clone()), file.sha256.kernel),
        (Some(initramfs.clone()), file.sha256.initramfs),
        (disk, file.sha256.root_disk),
    ];
    Ok(Image {
        name: file.name,
        description: file.description,
        content_hash: file.content_hash,
        boot: BootSource { kernel, initramfs, command_line: file.command_line },
        root_disk,
        checksums: checksums.into_iter().filter_map(|(path, sha256)| path.zip(sha256)).collect(),
    })
}
