//! Goal: a snapshot of which any part is missing or damaged, its own or an ancestor's, is never put
//! together from something else: it starts no child, and the error names the snapshot and the part.
//! While one of the two copies of a layer is good, the other is made anew from it.
//!
//! Method: a chain of three layers and overlays; one file after the other is damaged, a child is
//! asked for, the file is put back. Breaks when a part is not looked at, or looked at too late.

use std::collections::BTreeSet;
use std::fs;
use std::os::unix::fs::PermissionsExt;
use std::path::{Path, PathBuf};

use forkd_engine::EngineError;
use forkd_testkit::{Guest, Lab, block_on};
use forkd_types::SnapshotTag;

/// Names of the layers or overlays in `directory`.
fn ids(directory: &Path) -> BTreeSet<String> {
    let names = fs::read_dir(directory).unwrap().map(|entry| entry.unwrap().path());
    let ids = names.map(|path| path.file_stem().unwrap().to_str().unwrap().to_owned());
    ids.filter(|id| id.starts_with("ly-")).collect()
}

/// A branch of a child of a branch, durable.
struct Chain<'a> {
    lab: &'a Lab,
    tag: SnapshotTag,
    /// Base first.
    layers: Vec<String>,
    /// All overlays of the disk, in no order.
    overlays: BTreeSet<String>,
}

impl<'a> Chain<'a> {
    async fn new(lab: &'a Lab) -> Self {
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
        Self { lab, tag, layers, overlays }
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
        assert!(text.contains(part) && text.contains(self.tag.as_str()), "{what}: {text}");
        assert_eq!(self.lab.vmm_count(), 0, "{what}");
    }
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
        let lab = Lab::new().await;
        let chain = Chain::new(&lab).await;
        for layer in &chain.layers {
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
            chain.works("the durable pages are back").await;
        }
        let top = &chain.layers[2];
        let device = |path: PathBuf| path.with_extension("device");
        fs::remove_file(device(chain.hot(top))).unwrap();
        chain.works("no hot device state").await;
        fs::remove_file(device(chain.hot(top))).unwrap();
        let _away = Away::take(device(chain.durable(top)));
        chain.refused(top, "no device state at all").await;
    });
}

#[test]
fn a_missing_or_cut_overlay_is_refused_by_name() {
    block_on(async {
        let lab = Lab::new().await;
        let chain = Chain::new(&lab).await;
        assert_eq!(chain.overlays.len(), 3);
        let directory = lab.config().state_dir.join("overlays");
        for overlay in &chain.overlays {
            let path = directory.join(format!("{overlay}.qcow2"));
            let bytes = fs::read(&path).unwrap();
            let away = Away::take(path.clone());
            chain.refused(overlay, "missing").await;
            drop(away);
            fs::write(&path, &bytes[..bytes.len() - 1]).unwrap();
            chain.refused(overlay, "cut").await;
            fs::write(&path, &bytes).unwrap();
        }
        chain.works("all overlays are back").await;
    });
}
