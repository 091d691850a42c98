//! Goal: a snapshot of which any part is missing or damaged, its own or an ancestor's, is never put
//! together from something else: it starts no child, the error names the snapshot and the part, and
//! the snapshot is `failed` with that reason until the part is back and a daemon starts. While one
//! of the two copies of a layer is good, the other is made anew from it.
//!
//! Method: a chain of three layers and overlays; one file after the other is damaged, a child is
//! asked for, the file is put back. Flipped bits are found by a daemon that has not written the
//! file itself. Breaks when a part is not looked at, or looked at too late.

use std::collections::BTreeSet;
use std::fs;
use std::os::unix::fs::{FileExt, PermissionsExt};
use std::path::{Path, PathBuf};

use forkd_engine::{AtShutDown, EngineError};
use forkd_testkit::{Guest, Lab, block_on};
use forkd_types::{SnapshotStatus, SnapshotTag};

/// Names of the layers or overlays in `directory`.
fn ids(directory: &Path) -> BTreeSet<String> {
    let names = fs::read_dir(directory).unwrap().map(|entry| entry.unwrap().path());
    let ids = names.map(|path| path.file_stem().unwrap().to_str().unwrap().to_owned());
    ids.filter(|id| id.starts_with("ly-")).collect()
}

/// A branch of a child of a branch, durable.
struct Chain {
    /// The engine of now; the directories go with the first.
    lab: Lab,
    _first: Lab,
    tag: SnapshotTag,
    /// Base first.
    layers: Vec<String>,
    /// All overlays of the disk, in no order.
    overlays: BTreeSet<String>,
}

impl Chain {
    async fn new() -> Self {
        let lab = Lab::new().await;
        let hot = lab.config().hot_dir.join("layers");
        let template = lab.template("python", 256).await;
        let mut layers: Vec<String> = ids(&hot).into_iter().collect();
        let mut guest: Guest<'_> = lab.one(&template).await;
        let mut tag = template;
        for number in 0..2 {
            guest.sh(&format!("echo {number} > /srv/{number} && sync")).await;
            let before = ids(&hot);
            let child = guest.branch_into(1).await.1.pop().unwrap();
            layers.extend(ids(&hot).difference(&before).cloned());
            tag = lab.engine.sandbox(&child.id).unwrap().snapshot_tag;
            lab.wait_durable(&tag).await;
            std::mem::replace(&mut guest, child).remove().await;
        }
        guest.remove().await;
        assert_eq!(layers.len(), 3);
        let overlays = ids(&lab.config().state_dir.join("overlays"));
        let second = restarted(&lab).await;
        Self { lab: second, _first: lab, tag, layers, overlays }
    }

    /// Another daemon in the same directories, which has checked what it found.
    async fn restart(&mut self) {
        self.lab = restarted(&self.lab).await;
    }

    fn hot(&self, layer: &str) -> PathBuf {
        self.lab.config().hot_dir.join("layers").join(layer)
    }

    fn durable(&self, layer: &str) -> PathBuf {
        self.lab.config().state_dir.join("layers").join(layer)
    }

    async fn works(&self, what: &str) {
        let child = self.lab.one(&self.tag).await;
        assert_eq!(child.sh("cat /srv/0 /srv/1").await, "0\n1", "{what}");
        child.remove().await;
    }

    async fn refused(&self, part: &str, what: &str) {
        let error = self.lab.engine.fork(&self.tag, 1).await.unwrap_err();
        let text = error.to_string();
        assert!(matches!(error, EngineError::SnapshotDamaged { .. }), "{what}: {error:?}");
        assert!(text.contains(part) && text.contains(&self.tag.to_string()), "{what}: {text}");
        self.failed(part, what).await;
    }

    /// The snapshot says itself which part it is.
    async fn failed(&self, part: &str, what: &str) {
        let snapshot = self.lab.engine.snapshot(&self.tag).unwrap();
        assert_eq!(snapshot.status, SnapshotStatus::Failed, "{what}");
        assert!(snapshot.error.unwrap().contains(part), "{what}");
        let error = self.lab.engine.fork(&self.tag, 1).await.unwrap_err();
        assert!(error.to_string().contains(part), "{what}: {error}");
        assert_eq!(self.lab.vmm_count(), 0, "{what}");
    }
}

async fn restarted(lab: &Lab) -> Lab {
    lab.engine.shut_down(AtShutDown::Remove).await;
    let config = lab.config();
    let next = Lab::in_directories([&config.state_dir, &config.hot_dir, &config.run_dir], |_| {});
    let next = next.await;
    next.engine.wait_checked().await;
    next
}

/// Flips a bit in the middle of a file, or of its first data.
fn flip(path: &Path, offset: u64) {
    fs::set_permissions(path, fs::Permissions::from_mode(0o600)).unwrap();
    let file = fs::OpenOptions::new().read(true).write(true).open(path).unwrap();
    let mut byte = [0];
    file.read_exact_at(&mut byte, offset).unwrap();
    file.write_all_at(&[byte[0] ^ 4], offset).unwrap();
}

/// Where a sparse file has its first data.
fn first_data(path: &Path) -> u64 {
    rustix::fs::seek(fs::File::open(path).unwrap(), rustix::fs::SeekFrom::Data(0)).unwrap()
}

fn truncate(path: &Path) {
    fs::set_permissions(path, fs::Permissions::from_mode(0o600)).unwrap();
    fs::OpenOptions::new().write(true).open(path).unwrap().set_len(4096).unwrap();
}

/// A file that is out of the way while this lives.
struct Away(PathBuf);

impl Away {
    fn take(path: PathBuf) -> Self {
        fs::rename(&path, path.with_extension("away")).unwrap();
        Self(path)
    }
}

impl Drop for Away {
    fn drop(&mut self) {
        fs::rename(self.0.with_extension("away"), &self.0).unwrap();
    }
}

#[test]
fn a_layer_is_rebuilt_from_its_other_copy_or_refused_by_name() {
    block_on(async {
        let mut chain = Chain::new().await;
        for layer in &chain.layers.clone() {
            truncate(&chain.hot(layer));
            chain.works("truncated hot pages").await;
            fs::remove_file(chain.hot(layer)).unwrap();
            chain.works("no hot pages").await;
            let other = chain.layers.iter().find(|other| *other != layer).unwrap();
            let index = |id: &str| chain.hot(id).with_extension("index");
            fs::copy(index(other), index(layer)).unwrap();
            chain.works("the index of another layer").await;

            let away = Away::take(chain.durable(layer));
            chain.works("no durable pages, but hot ones").await;
            fs::remove_file(chain.hot(layer)).unwrap();
            chain.refused(layer, "no pages at all").await;
            drop(away);
            chain.restart().await;
            chain.works("the durable pages are back").await;
        }
        let top = &chain.layers[2].clone();
        let device = |path: PathBuf| path.with_extension("device");
        fs::remove_file(device(chain.hot(top))).unwrap();
        chain.works("no hot device state").await;
        fs::remove_file(device(chain.hot(top))).unwrap();
        let _away = Away::take(device(chain.durable(top)));
        chain.refused(top, "no device state at all").await;
    });
}

#[test]
fn flipped_bits_are_healed_from_the_other_copy_or_fail_the_snapshot() {
    block_on(async {
        let mut chain = Chain::new().await;
        let top = &chain.layers[2].clone();
        let [hot, durable] = [chain.hot(top), chain.durable(top)];
        let (good, at) = (fs::read(&durable).unwrap(), first_data(&durable) + 77);
        for path in [&hot, &durable] {
            flip(path, at);
            chain.restart().await;
            assert!(fs::read(path).unwrap() == good, "{path:?} was not healed");
            chain.works("one copy is good").await;
        }
        let device = |path: &Path| path.with_extension("device");
        let good = fs::read(device(&durable)).unwrap();
        for path in [device(&hot), device(&durable)] {
            flip(&path, 100);
            chain.restart().await;
            assert!(fs::read(&path).unwrap() == good, "{path:?} was not healed");
            chain.works("one copy of the device state is good").await;
        }
        flip(&durable, at);
        fs::remove_file(&hot).unwrap();
        chain.restart().await;
        chain.failed(top, "flipped, and no hot copy").await;
        flip(&durable, at);
        chain.restart().await;
        chain.works("the bit is back").await;
    });
}

#[test]
fn a_missing_or_cut_overlay_is_refused_by_name() {
    block_on(async {
        let mut chain = Chain::new().await;
        assert_eq!(chain.overlays.len(), 3);
        let directory = chain.lab.config().state_dir.join("overlays");
        for overlay in &chain.overlays.clone() {
            let path = directory.join(format!("{overlay}.qcow2"));
            let bytes = fs::read(&path).unwrap();
            let away = Away::take(path.clone());
            chain.refused(overlay, "missing").await;
            drop(away);
            chain.restart().await;
            fs::write(&path, &bytes[..bytes.len() - 1]).unwrap();
            chain.refused(overlay, "cut").await;
            fs::write(&path, &bytes).unwrap();
            flip(&path, bytes.len() as u64 / 2);
            chain.restart().await;
            chain.failed(overlay, "a flipped bit").await;
            fs::write(&path, &bytes).unwrap();
            chain.restart().await;
        }
        chain.works("all overlays are back").await;
    });
}

/// Where extensions of the header of an overlay begin, and how many bytes QEMU fills with one.
const EXTENSIONS: std::ops::Range<usize> = 112..112 + 8 + 0x180;

/// The header of an overlay, made to name the file at `name` as the one that holds its clusters.
fn with_data_file(mut bytes: Vec<u8>, name: &str) -> Vec<u8> {
    let extension = |kind: u32, data: &[u8]| {
        let length = u32::try_from(data.len()).unwrap();
        [&kind.to_be_bytes(), &length.to_be_bytes(), data].concat()
    };
    let mut planted = extension(0x4441_5441, name.as_bytes());
    planted.resize(planted.len().next_multiple_of(8), 0);
    planted.extend(extension(0x1234_5678, &vec![0; EXTENSIONS.len() - planted.len() - 8]));
    bytes[EXTENSIONS].copy_from_slice(&planted);
    bytes[79] |= 4;
    bytes
}

/// The same, made to name it as what lies below.
fn with_backing_file(mut bytes: Vec<u8>, name: &str) -> Vec<u8> {
    let at = 2048;
    bytes[at..at + name.len()].copy_from_slice(name.as_bytes());
    bytes[8..16].copy_from_slice(&(at as u64).to_be_bytes());
    bytes[16..20].copy_from_slice(&u32::try_from(name.len()).unwrap().to_be_bytes());
    bytes
}

/// What `qemu-img` finds that an image consists of, under its own name for it.
fn named_in(path: &Path) -> String {
    let mut info = std::process::Command::new("qemu-img");
    let output = info.args(["info", "--output=json"]).arg(path).output().unwrap();
    String::from_utf8_lossy(&output.stdout).into_owned()
}

#[test]
fn an_overlay_whose_header_names_a_file_of_the_host_is_refused_by_name() {
    block_on(async {
        let mut chain = Chain::new().await;
        let secret = chain.lab.config().run_dir.join("secret");
        fs::write(&secret, vec![b's'; 1 << 20]).unwrap();
        let secret = secret.to_str().unwrap();
        let overlay = chain.overlays.first().unwrap().clone();
        let path = chain.lab.config().state_dir.join(format!("overlays/{overlay}.qcow2"));
        let good = fs::read(&path).unwrap();
        fs::set_permissions(&path, fs::Permissions::from_mode(0o600)).unwrap();
        for (plant, words) in [
            (with_data_file as fn(Vec<u8>, &str) -> Vec<u8>, "the external data file"),
            (with_backing_file, "the backing file"),
        ] {
            // Written as by the VMM that has it open: in place, when the daemon knows the content.
            fs::write(&path, plant(good.clone(), secret)).unwrap();
            assert!(named_in(&path).contains(secret), "QEMU does not see what was planted");
            let to: SnapshotTag = "compacted".parse().unwrap();
            let error = chain.lab.engine.compact_snapshot(&chain.tag, &to).await.unwrap_err();
            let said = error.to_string();
            for part in [&overlay, words, secret] {
                assert!(said.contains(part), "{part}: {said}");
            }
            fs::write(&path, &good).unwrap();
            chain.restart().await;
            fs::write(&path, plant(good.clone(), secret)).unwrap();
            chain.refused(&overlay, words).await;
            fs::write(&path, &good).unwrap();
            chain.restart().await;
            chain.works("the header is its own again").await;
        }
    });
}
