//! Images: what templates boot from. A directory each, with an `image.json`.

use std::fs;
use std::path::{Path, PathBuf};

use forkd_store::SnapshotManifest;

use super::image::{Image, read};
use super::image_check::check;
use super::pulled_images::PulledImages;
use crate::{EngineConfig, EngineError, ImageInfo};

/// The images in a directory.
#[derive(Debug, Clone)]
pub(crate) struct Images {
    directory: PathBuf,
    /// Where it is kept which files have been checked.
    record: PathBuf,
    pub(crate) pulled: PulledImages,
}

impl Images {
    /// Those that `config` names.
    pub(crate) fn of(config: &EngineConfig) -> Self {
        let record = config.state_dir.join("image-checks.json");
        Self { directory: config.image_dir.clone(), record, pulled: PulledImages::of(config) }
    }

    /// All of them, by name. One that cannot be read is left out with a warning.
    pub(crate) fn list(&self) -> Vec<ImageInfo> {
        list(&self.directory)
    }

    /// Compares the image's files with their checksums, if they have any. Blocks: a file that has
    /// not been checked since it was changed is read.
    ///
    /// # Errors
    /// Names the file that is another, and what helps.
    pub(crate) fn check(&self, image: &Image) -> Result<(), String> {
        image.checksums().iter().try_for_each(|(path, sha256)| check(path, sha256, &self.record))
    }

    /// The image that a snapshot was made from. Another one that has its name now is found too.
    pub(crate) fn of_snapshot(&self, manifest: &SnapshotManifest) -> Result<Image, EngineError> {
        self.known(&manifest.image, &manifest.image_hash)
    }

    /// The image with this content if it was pulled, under whatever name, or the one called `name`.
    pub(crate) fn known(&self, name: &str, content_hash: &str) -> Result<Image, EngineError> {
        match self.pulled.find(content_hash) {
            // Its disk may have been made under another name.
            Some(image) => Ok(image.called(name.to_owned())),
            None => self.find(name),
        }
    }

    /// The image called `name`.
    pub(crate) fn find(&self, name: &str) -> Result<Image, EngineError> {
        find(&self.directory, name)
    }
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

#[cfg(test)]
mod tests {
    use forkd_types::ByteCount;

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

    #[test]
    fn a_pulled_image_is_known_by_its_content_under_any_name() {
        let directory = tempfile::tempdir().unwrap();
        let config = crate::fake::config(directory.path(), crate::Limits::default()).unwrap();
        let images = Images::of(&config);
        let hash = "5".repeat(64);
        let pulled = config.state_dir.join("oci/images").join(&hash);
        fs::create_dir_all(&pulled).unwrap();
        let json = format!(
            r#"{{"name":"first","content_hash":"{hash}","kernel":"/k","initramfs":"/i",
            "command_line":"quiet","root_disk":"d","root_disk_bytes":4096}}"#
        );
        fs::write(pulled.join("image.json"), json).unwrap();
        let found = images.known("host/other:tag", &hash).unwrap();
        assert_eq!((found.name.as_str(), &found.content_hash), ("host/other:tag", &hash));
        let absent = images.known("host/other:tag", &"6".repeat(64)).unwrap_err();
        assert!(matches!(absent, EngineError::UnknownImage { .. }), "{absent}");
    }
}
