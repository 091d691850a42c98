//! Products and their cache: a product is a folder, current when the description in it names the
//! hash of the inputs that it would be built from now.

use std::fs::{self, File};
use std::os::unix::fs::PermissionsExt;
use std::path::{Path, PathBuf};

use anyhow::Context;
use sha2::{Digest, Sha256};

use crate::workspace::Workspace;

/// Prefix of names that a build in progress uses.
const TEMPORARY: &str = ".tmp-";

/// Raise it when the code that builds a product changes what it builds.
const FORMAT: &str = "forkd images 1";

/// What an image consists of, paths relative to its folder.
pub(super) struct Content {
    pub(super) initramfs: &'static str,
    pub(super) root_disk: Option<&'static str>,
    pub(super) root_disk_bytes: Option<u64>,
    /// Bytes that the image's own files take on the host's disk.
    pub(super) stored_bytes: u64,
    /// Packages with their versions; empty for an image without any.
    pub(super) packages: Vec<String>,
}

/// Collects what a product depends on. Order matters; each part is named and delimited.
pub(super) struct Inputs(Sha256);

impl Inputs {
    pub(super) fn new() -> Self {
        let mut inputs = Self(Sha256::new());
        inputs.add("format", FORMAT.as_bytes());
        inputs
    }

    pub(super) fn add(&mut self, name: &str, bytes: &[u8]) {
        for part in [name.as_bytes(), bytes] {
            self.0.update(part.len().to_le_bytes());
            self.0.update(part);
        }
    }

    /// Adds every file and folder below `root`; a missing `root` counts as empty.
    pub(super) fn add_tree(&mut self, name: &str, root: &Path) -> anyhow::Result<()> {
        for entry in tree(root)? {
            self.add(name, entry.path.as_bytes());
            self.add("mode", &entry.mode.to_le_bytes());
            self.add("content", entry.content.as_deref().unwrap_or_default());
        }
        Ok(())
    }

    /// The hash in hexadecimal.
    pub(super) fn finish(self) -> String {
        hex::encode(self.0.finalize())
    }
}

/// A file or folder below a root.
pub(super) struct TreeEntry {
    /// Relative to the root, without a leading slash.
    pub(super) path: String,
    /// Permission bits, of which only "executable" is kept: the rest depends on the umask of
    /// whoever cloned the repository.
    pub(super) mode: u32,
    /// None for a folder.
    pub(super) content: Option<Vec<u8>>,
}

/// Everything below `root` in the order of paths, folders before what they hold.
pub(super) fn tree(root: &Path) -> anyhow::Result<Vec<TreeEntry>> {
    let mut entries = Vec::new();
    let mut folders = vec![PathBuf::new()];
    while let Some(folder) = folders.pop() {
        let absolute = root.join(&folder);
        if !absolute.is_dir() {
            continue;
        }
        for entry in
            fs::read_dir(&absolute).with_context(|| format!("read {}", absolute.display()))?
        {
            let entry = entry?;
            let relative = folder.join(entry.file_name());
            let metadata = fs::metadata(entry.path())?;
            let (mode, content) = if metadata.is_dir() {
                folders.push(relative.clone());
                (0o755, None)
            } else {
                let executable = metadata.permissions().mode() & 0o111 != 0;
                let bytes = fs::read(entry.path())
                    .with_context(|| format!("read {}", entry.path().display()))?;
                (if executable { 0o755 } else { 0o644 }, Some(bytes))
            };
            let path = relative.to_str().context("file names must be UTF-8")?.to_owned();
            entries.push(TreeEntry { path, mode, content });
        }
    }
    entries.sort_by(|a, b| a.path.cmp(&b.path));
    Ok(entries)
}

/// A folder that is built as a whole.
pub(super) struct Product {
    parent: PathBuf,
    name: String,
    description: &'static str,
    inputs_hash: String,
}

impl Product {
    /// `description` is the JSON file in the folder that has the field `inputs_hash`.
    pub(super) fn new(
        parent: PathBuf,
        name: &str,
        description: &'static str,
        inputs_hash: String,
    ) -> Self {
        Self { parent, name: name.to_owned(), description, inputs_hash }
    }

    pub(super) fn inputs_hash(&self) -> &str {
        &self.inputs_hash
    }

    /// The finished product's folder.
    pub(super) fn folder(&self) -> PathBuf {
        self.parent.join(&self.name)
    }

    /// The finished product's description, if there is one.
    pub(super) fn read_description(&self) -> Option<serde_json::Value> {
        let text = fs::read(self.folder().join(self.description)).ok()?;
        serde_json::from_slice(&text).ok()
    }

    pub(super) fn is_current(&self) -> bool {
        self.read_description().is_some_and(|found| found["inputs_hash"] == *self.inputs_hash)
    }

    /// Makes an empty folder to build in.
    pub(super) fn begin(&self) -> anyhow::Result<PathBuf> {
        let folder = self.parent.join(format!("{TEMPORARY}{}", self.name));
        remove(&folder)?;
        fs::create_dir_all(&folder).with_context(|| format!("create {}", folder.display()))?;
        Ok(folder)
    }

    /// Puts the built folder in the place of an older one. Files that a running VM has open stay
    /// alive for it.
    pub(super) fn publish(&self) -> anyhow::Result<()> {
        let built = self.parent.join(format!("{TEMPORARY}{}", self.name));
        let old = self.parent.join(format!("{TEMPORARY}{}-old", self.name));
        let folder = self.folder();
        remove(&old)?;
        if folder.exists() {
            fs::rename(&folder, &old).with_context(|| format!("move {} away", folder.display()))?;
        }
        fs::rename(&built, &folder).with_context(|| format!("publish {}", folder.display()))?;
        remove(&old)
    }
}

/// Removes what interrupted builds left. The caller holds the build lock.
pub(super) fn remove_leftovers(parent: &Path) -> anyhow::Result<()> {
    for entry in fs::read_dir(parent).with_context(|| format!("read {}", parent.display()))? {
        let entry = entry?;
        if entry.file_name().to_string_lossy().starts_with(TEMPORARY) {
            remove(&entry.path())?;
        }
    }
    Ok(())
}

fn remove(folder: &Path) -> anyhow::Result<()> {
    match fs::remove_dir_all(folder) {
        Err(error) if error.kind() != std::io::ErrorKind::NotFound => {
            Err(error).with_context(|| format!("remove {}", folder.display()))
        }
        _ => Ok(()),
    }
}

/// Writes JSON for people and programs, whole or not at all; leaves a file that is the same alone.
pub(super) fn write_json(path: &Path, value: &serde_json::Value) -> anyhow::Result<()> {
    let text = format!("{value:#}\n");
    if fs::read(path).is_ok_and(|found| found == text.as_bytes()) {
        return Ok(());
    }
    let temporary = path.with_extension("json.tmp");
    fs::write(&temporary, text).with_context(|| format!("write {}", temporary.display()))?;
    fs::rename(&temporary, path).with_context(|| format!("write {}", path.display()))
}

/// Held while products are built; others wait.
pub(super) fn lock(workspace: &Workspace) -> anyhow::Result<File> {
    let output = workspace.images();
    fs::create_dir_all(&output).with_context(|| format!("create {}", output.display()))?;
    let lock = File::create(output.join(".lock")).context("create the build lock")?;
    rustix::fs::flock(&lock, rustix::fs::FlockOperation::LockExclusive)
        .context("wait for another image build")?;
    Ok(lock)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn product(parent: &Path, hash: &str) -> Product {
        Product::new(parent.to_owned(), "thing", "thing.json", hash.to_owned())
    }

    fn build(product: &Product, hash: &str) {
        let folder = product.begin().unwrap();
        let description = serde_json::json!({"inputs_hash": hash});
        write_json(&folder.join("thing.json"), &description).unwrap();
    }

    #[test]
    fn only_a_published_product_with_the_same_inputs_is_current() {
        let parent = tempfile::tempdir().unwrap();
        let first = product(parent.path(), "a");
        assert!(!first.is_current(), "nothing is built");
        build(&first, "a");
        assert!(!first.is_current(), "built but interrupted before it was published");
        first.publish().unwrap();
        assert!(first.is_current());
        assert!(!product(parent.path(), "b").is_current(), "inputs changed");
    }

    #[test]
    fn publishing_replaces_the_older_product_and_leaves_no_other_folder() {
        let parent = tempfile::tempdir().unwrap();
        for hash in ["a", "b"] {
            let product = product(parent.path(), hash);
            build(&product, hash);
            product.publish().unwrap();
            assert!(product.is_current());
        }
        assert_eq!(fs::read_dir(parent.path()).unwrap().count(), 1);
    }

    #[test]
    fn leftovers_of_interrupted_builds_are_removed_and_products_kept() {
        let parent = tempfile::tempdir().unwrap();
        let product = product(parent.path(), "a");
        build(&product, "a");
        product.publish().unwrap();
        product.begin().unwrap();
        remove_leftovers(parent.path()).unwrap();
        assert!(product.is_current());
        assert_eq!(fs::read_dir(parent.path()).unwrap().count(), 1);
    }

    #[test]
    fn inputs_differ_when_bytes_move_between_parts() {
        let hash = |parts: [&[u8]; 2]| {
            let mut inputs = Inputs::new();
            inputs.add("p", parts[0]);
            inputs.add("p", parts[1]);
            inputs.finish()
        };
        assert_ne!(hash([b"ab", b"c"]), hash([b"a", b"bc"]));
        assert_eq!(hash([b"ab", b"c"]), hash([b"ab", b"c"]));
    }

    #[test]
    fn a_tree_lists_folders_before_their_files_and_sees_the_executable_bit() {
        let root = tempfile::tempdir().unwrap();
        fs::create_dir_all(root.path().join("etc/x.d")).unwrap();
        fs::write(root.path().join("etc/x.d/run"), "1").unwrap();
        fs::set_permissions(root.path().join("etc/x.d/run"), fs::Permissions::from_mode(0o700))
            .unwrap();
        let entries = tree(root.path()).unwrap();
        let paths: Vec<_> = entries.iter().map(|e| (e.path.as_str(), e.mode)).collect();
        assert_eq!(paths, [("etc", 0o755), ("etc/x.d", 0o755), ("etc/x.d/run", 0o755)]);
        assert!(tree(&root.path().join("absent")).unwrap().is_empty());
    }
}
