//! Images: what templates boot from. A directory each, with an `image.json`.

use std::fs;
use std::path::{Path, PathBuf};

use forkd_types::ByteCount;
use forkd_vmm::BootSource;
use serde::Deserialize;

use crate::{EngineError, ImageInfo};

/// The images in a directory.
#[derive(Debug, Clone)]
pub(crate) struct Images {
    directory: PathBuf,
}

impl Images {
    /// Those in `directory`.
    pub(crate) const fn new(directory: PathBuf) -> Self {
        Self { directory }
    }

    /// All of them, by name. One that cannot be read is left out with a warning.
    pub(crate) fn list(&self) -> Vec<ImageInfo> {
        list(&self.directory)
    }

    /// The image called `name`.
    pub(crate) fn find(&self, name: &str) -> Result<Image, EngineError> {
        find(&self.directory, name)
    }
}

/// An image, its paths made absolute.
#[derive(Debug, Clone)]
pub(crate) struct Image {
    pub(crate) name: String,
    pub(crate) description: String,
    pub(crate) content_hash: String,
    pub(crate) boot: BootSource,
    pub(crate) root_disk: Option<(PathBuf, ByteCount)>,
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
}

pub(super) fn list(directory: &Path) -> Vec<ImageInfo> {
    let Ok(entries) = fs::read_dir(directory) else { return Vec::new() };
    let mut images: Vec<ImageInfo> = entries
        .flatten()
        .filter(|entry| entry.path().join("image.json").exists())
        .filter_map(|entry| match read(&entry.path()) {
            Ok(image) => Some(ImageInfo { name: image.name, description: image.description }),
            Err(problem) => {
                tracing::warn!(path = %entry.path().display(), problem, "an image is unusable");
                None
            }
        })
        .collect();
    images.sort_by(|a, b| a.name.cmp(&b.name));
    images
}

/// The images in `directory` by name, each with what is wrong with it.
pub(super) fn examine(directory: &Path) -> Vec<(String, Option<String>)> {
    let entries = fs::read_dir(directory).into_iter().flatten().flatten();
    let images = entries.filter(|entry| entry.path().join("image.json").exists());
    let mut found: Vec<_> = images
        .map(|entry| {
            let name = entry.file_name().to_string_lossy().into_owned();
            let problem = match read(&entry.path()) {
                Err(problem) => Some(problem),
                Ok(image) => {
                    let disk = image.root_disk.map(|(path, _)| path);
                    let mut files =
                        [image.boot.kernel, image.boot.initramfs].into_iter().chain(disk);
                    let missing = files.find(|file| !file.is_file());
                    missing.map(|file| format!("`{}` is missing", file.display()))
                }
            };
            (name, problem)
        })
        .collect();
    found.sort();
    found
}

fn find(directory: &Path, name: &str) -> Result<Image, EngineError> {
    // A name is a single path component: nothing outside the directory can be meant.
    let plain = !name.is_empty() && !name.contains(['/', '\0']) && name != "." && name != "..";
    let path = directory.join(name);
    if !plain || !path.join("image.json").exists() {
        let known: Vec<String> = list(directory).into_iter().map(|image| image.name).collect();
        let known = if known.is_empty() { "none".to_owned() } else { known.join(", ") };
        let name = name.chars().take(64).collect();
        return Err(EngineError::UnknownImage { name, directory: directory.to_owned(), known });
    }
    read(&path).map_err(|problem| EngineError::BadRequest {
        field: "image",
        problem: format!("`{}` is unusable: {problem}", path.display()),
    })
}

fn read(path: &Path) -> Result<Image, String> {
    let text = fs::read_to_string(path.join("image.json")).map_err(|error| error.to_string())?;
    let file: ImageFile = serde_json::from_str(&text).map_err(|error| error.to_string())?;
    let root_disk = match (file.root_disk, file.root_disk_bytes) {
        (Some(disk), Some(bytes)) => Some((path.join(disk), ByteCount::new(bytes))),
        (None, _) => None,
        (Some(_), None) => return Err("`root_disk_bytes` is missing".to_owned()),
    };
    Ok(Image {
        name: file.name,
        description: file.description,
        content_hash: file.content_hash,
        boot: BootSource {
            kernel: path.join(file.kernel),
            initramfs: path.join(file.initramfs),
            command_line: file.command_line,
        },
        root_disk,
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_unknown_image_and_a_path_are_refused_with_the_known_names() {
        let directory = tempfile::tempdir().unwrap();
        let image = directory.path().join("good");
        fs::create_dir(&image).unwrap();
        let json = r#"{"name":"good","content_hash":"h","kernel":"../k","initramfs":"i",
            "command_line":"quiet","root_disk":"d","root_disk_bytes":4096}"#;
        fs::write(image.join("image.json"), json).unwrap();
        let found = find(directory.path(), "good").unwrap();
        assert_eq!(found.root_disk, Some((image.join("d"), ByteCount::new(4096))));
        for bad in ["", "..", "../good", "absent", "good/"] {
            let error = find(directory.path(), bad).unwrap_err();
            assert!(error.to_string().contains("there are: good"), "{bad}: {error}");
        }
    }
}
