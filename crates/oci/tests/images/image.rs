//! Images that tests make: layers entry by entry, and an OCI layout of them.

use std::fs;
use std::io::Write as _;
use std::path::{Path, PathBuf};
use std::process::Command;

use forkd_oci::{Cache, Digest, Disk, OciError, Pulled, Watch, build};
use serde_json::{Value, json};
use tar::{EntryType, Header};

pub(crate) struct Nobody;
impl Watch for Nobody {}

/// A layer that is being made.
pub(crate) struct Layer(tar::Builder<Vec<u8>>);

impl Layer {
    pub(crate) fn new() -> Self {
        Self(tar::Builder::new(Vec::new()))
    }

    /// An entry as `change` wants its header. Its path is written as it is, whatever it is.
    pub(crate) fn entry(
        mut self,
        path: &str,
        content: &[u8],
        change: impl FnOnce(&mut Header),
    ) -> Self {
        let mut header = Header::new_ustar();
        header.set_size(content.len() as u64);
        header.set_mode(0o644);
        header.set_uid(0);
        header.set_gid(0);
        header.set_mtime(1_700_000_000);
        header.set_entry_type(EntryType::Regular);
        header.as_mut_bytes()[..path.len()].copy_from_slice(path.as_bytes());
        change(&mut header);
        header.set_cksum();
        self.0.append(&header, content).unwrap();
        self
    }

    pub(crate) fn file(self, path: &str, content: impl AsRef<[u8]>) -> Self {
        self.entry(path, content.as_ref(), |_| {})
    }

    pub(crate) fn folder(self, path: &str) -> Self {
        self.entry(path, b"", |header| {
            header.set_entry_type(EntryType::Directory);
            header.set_mode(0o755);
        })
    }

    pub(crate) fn symlink(self, path: &str, target: &str) -> Self {
        self.link(path, target, EntryType::Symlink)
    }

    pub(crate) fn hard_link(self, path: &str, target: &str) -> Self {
        self.link(path, target, EntryType::Link)
    }

    fn link(self, path: &str, target: &str, kind: EntryType) -> Self {
        self.entry(path, b"", |header| {
            header.set_entry_type(kind);
            header.as_mut_bytes()[157..157 + target.len()].copy_from_slice(target.as_bytes());
        })
    }

    /// Records of pax for the next entry.
    pub(crate) fn records(mut self, records: &[(&str, &[u8])]) -> Self {
        self.0.append_pax_extensions(records.iter().copied()).unwrap();
        self
    }

    pub(crate) fn finish(self) -> Vec<u8> {
        self.0.into_inner().unwrap()
    }
}

/// How layers are packed.
#[derive(Clone, Copy, PartialEq, Eq)]
pub(crate) enum Packing {
    Plain,
    Gzip,
    /// Two frames with one between them that is to be skipped, as tools for lazy pulling write.
    Zstd,
}

pub(crate) fn pack(archive: &[u8], packing: Packing) -> Vec<u8> {
    match packing {
        Packing::Plain => archive.to_vec(),
        Packing::Gzip => {
            let mut encoder =
                flate2::write::GzEncoder::new(Vec::new(), flate2::Compression::fast());
            encoder.write_all(archive).unwrap();
            encoder.finish().unwrap()
        }
        Packing::Zstd => {
            let (a, b) = archive.split_at(archive.len() / 2);
            let mut bytes = zstd::encode_all(a, 1).unwrap();
            bytes.extend([0x50, 0x2a, 0x4d, 0x18, 3, 0, 0, 0, 1, 2, 3]);
            bytes.extend(zstd::encode_all(b, 1).unwrap());
            bytes
        }
    }
}

/// An OCI layout with one image.
pub(crate) struct Layout {
    pub(crate) folder: tempfile::TempDir,
    pub(crate) manifest: Value,
}

impl Layout {
    pub(crate) fn new(layers: Vec<Vec<u8>>) -> Self {
        Self::packed(layers, Packing::Plain, json!({}))
    }

    pub(crate) fn packed(layers: Vec<Vec<u8>>, packing: Packing, config: Value) -> Self {
        let folder = tempfile::tempdir().unwrap();
        fs::create_dir_all(folder.path().join("blobs/sha256")).unwrap();
        let mut layout = Self { folder, manifest: Value::Null };
        let diff_ids: Vec<String> =
            layers.iter().map(|layer| Digest::of(layer).to_string()).collect();
        let layers: Vec<Value> =
            layers.iter().map(|layer| layout.blob(&pack(layer, packing))).collect();
        let config = json!({"architecture": "amd64", "os": "linux", "config": config,
            "rootfs": {"type": "layers", "diff_ids": diff_ids}});
        let config = layout.blob(config.to_string().as_bytes());
        layout.publish(json!({"schemaVersion": 2, "config": config, "layers": layers}));
        layout
    }

    /// Adds a blob and gives its descriptor.
    pub(crate) fn blob(&self, bytes: &[u8]) -> Value {
        let digest = Digest::of(bytes);
        fs::write(self.blob_path(&digest), bytes).unwrap();
        json!({"digest": digest.to_string(), "size": bytes.len()})
    }

    pub(crate) fn blob_path(&self, digest: &Digest) -> PathBuf {
        self.folder.path().join("blobs/sha256").join(digest.hex())
    }

    /// Makes `manifest` the one that the index has, with the tag `v1`.
    pub(crate) fn publish(&mut self, manifest: Value) {
        let mut descriptor = self.blob(manifest.to_string().as_bytes());
        descriptor["annotations"] = json!({"org.opencontainers.image.ref.name": "v1"});
        let index = json!({"schemaVersion": 2, "manifests": [descriptor]});
        fs::write(self.folder.path().join("index.json"), index.to_string()).unwrap();
        self.manifest = manifest;
    }

    pub(crate) fn reference(&self) -> String {
        format!("oci:{}", self.folder.path().display())
    }
}

pub(crate) fn pull(reference: &str, cache: &Path) -> Result<Pulled, OciError> {
    let runtime = tokio::runtime::Builder::new_multi_thread().enable_all().build().unwrap();
    let cache = Cache::new(cache.to_owned());
    runtime.block_on(cache.pull(&reference.parse()?, &Nobody))
}

/// A disk that was made of an image, and what e2fsprogs say about it.
#[derive(Debug)]
pub(crate) struct Made {
    _folder: tempfile::TempDir,
    pub(crate) path: PathBuf,
    pub(crate) disk: Disk,
}

pub(crate) fn make(reference: &str) -> Result<Made, OciError> {
    let folder = tempfile::tempdir().unwrap();
    let image = pull(reference, &folder.path().join("cache"))?;
    let path = folder.path().join("disk");
    let disk = build(&image, &path, &Nobody)?;
    let made = Made { _folder: folder, path, disk };
    made.check();
    Ok(made)
}

/// The disk of an image with these layers.
pub(crate) fn disk_of(layers: Vec<Vec<u8>>) -> Made {
    make(&Layout::new(layers).reference()).unwrap()
}

impl Made {
    /// Nothing is wrong with it.
    pub(crate) fn check(&self) {
        let output = tool("e2fsck").args(["-f", "-n"]).arg(&self.path).output().unwrap();
        let text = String::from_utf8_lossy(&output.stdout).into_owned();
        assert!(output.status.success(), "{text}{}", String::from_utf8_lossy(&output.stderr));
        assert!(!text.contains("? no"), "{text}");
    }

    /// All that it has, without the holes.
    pub(crate) fn bytes(&self) -> Vec<u8> {
        let mut tar = Command::new("tar");
        tar.args(["--sparse", "--hole-detection=seek", "--mtime=@0", "-cf", "-", "-C"]);
        tar.arg(self.path.parent().unwrap()).arg("disk").output().unwrap().stdout
    }

    pub(crate) fn ask(&self, request: &str) -> Vec<u8> {
        let output = tool("debugfs").args(["-R", request]).arg(&self.path).output().unwrap();
        output.stdout
    }

    pub(crate) fn cat(&self, path: &str) -> Vec<u8> {
        self.ask(&format!("cat {path}"))
    }

    pub(crate) fn text(&self, path: &str) -> String {
        String::from_utf8(self.cat(path)).unwrap()
    }

    /// What debugfs says of an inode; empty when there is none.
    pub(crate) fn stat(&self, path: &str) -> String {
        String::from_utf8_lossy(&self.ask(&format!("stat {path}"))).into_owned()
    }

    pub(crate) fn has(&self, path: &str) -> bool {
        !self.stat(path).is_empty()
    }

    /// The names in a directory, in order.
    pub(crate) fn names(&self, path: &str) -> Vec<String> {
        let text = String::from_utf8_lossy(&self.ask(&format!("ls -p {path}"))).into_owned();
        let names = text.lines().filter_map(|line| line.split('/').nth(5).map(str::to_owned));
        let mut names: Vec<_> = names.filter(|name| !matches!(name.as_str(), "." | "..")).collect();
        names.sort();
        names
    }

    /// The number of the inode at a path.
    pub(crate) fn inode(&self, path: &str) -> String {
        let stat = self.stat(path);
        stat.split_whitespace().nth(1).unwrap_or_default().to_owned()
    }
}

fn tool(name: &str) -> Command {
    let mut command = Command::new(name);
    let path = std::env::var("PATH").unwrap_or_default();
    command.env("PATH", format!("{path}:/usr/sbin:/sbin")).env("DEBUGFS_PAGER", "__none__");
    command
}
