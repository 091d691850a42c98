//! One crash and the look at what it left.

use std::collections::{BTreeMap, BTreeSet};
use std::fs;
use std::os::unix::fs::FileExt;
use std::os::unix::process::ExitStatusExt;
use std::path::PathBuf;
use std::process::{Command, Stdio};
use std::time::Duration;

use forkd_store::{Layer, Living, Registry, SnapshotRow, StoreFiles, recover, sweep};
use forkd_types::SnapshotStatus;

use crate::child::{Death, ORDER, Order};
use crate::log::{self, Line};
use crate::model::{
    Content, Dice, Entry, History, PAGE, PAGES, Rows, file_bytes, overlay_bytes, page_bytes,
};
use crate::power;

/// Failpoints that a process reaches at most before it is killed at one.
const FAILPOINTS_MAX: usize = 150;
/// Failpoints that a recovery may reach.
const RECOVERY_FAILPOINTS_MAX: usize = 30;
/// The longest time, in microseconds, after which a process is killed wherever it is.
const TIME_MAX: usize = 40_000;

/// A store that is crashed again and again.
pub(crate) struct Scene {
    root: tempfile::TempDir,
    rows: Rows,
    contents: BTreeMap<String, Content>,
}

impl Scene {
    /// On tmpfs, all of it: what a disk may lose is lost by [`power::lose`].
    pub(crate) fn new() -> Self {
        let root = tempfile::TempDir::with_prefix_in("forkd-crash-", "/dev/shm").unwrap();
        Self { root, rows: Rows::new(), contents: BTreeMap::new() }
    }

    fn path(&self, name: &str) -> PathBuf {
        self.root.path().join(name)
    }

    /// Crashes it, at the failpoint of the given name if there is one, checks what is left, and
    /// returns where the process died.
    pub(crate) fn crash(&mut self, what: &str, failpoint: Option<&str>, mut dice: Dice) -> String {
        for name in ["aside", "log"] {
            let path = self.path(name);
            fs::remove_dir_all(&path).or_else(|_| fs::remove_file(&path)).ok();
        }
        fs::create_dir(self.path("aside")).unwrap();
        let death = match failpoint {
            Some(name) => Death::AtNamed(name.to_owned(), dice.below(4) as u64),
            None if dice.one_in(2) => Death::AtFailpoint(dice.below(FAILPOINTS_MAX) as u64),
            None => Death::Anywhere,
        };
        let full = dice.one_in(4).then(|| {
            let from = dice.below(FAILPOINTS_MAX) as u64;
            (from, from + 1 + dice.below(20) as u64)
        });
        let order = self.order(dice.roll(), death, full);
        let time = Duration::from_micros(dice.below(TIME_MAX) as u64);
        self.lose_process(&order, time, what);
        let lines = log::read(&self.path("log"));
        let power_lost = dice.one_in(2);
        if power_lost {
            power::lose(&self.path("state"), &self.path("hot"), &lines, &mut dice);
        }
        let what = format!("{what}, {order:?}, power lost: {power_lost}");
        let what = what.split(" contents:").next().unwrap().to_owned();
        let found = self.check_rows(&what, &lines, power_lost);
        if dice.one_in(4) {
            let order = Order {
                in_recovery: true,
                full: None,
                ..self.order(
                    0,
                    Death::AtFailpoint(dice.below(RECOVERY_FAILPOINTS_MAX) as u64),
                    None,
                )
            };
            self.lose_process(&order, Duration::MAX, &what);
        }
        self.check_recovered(&what, &found, power_lost);
        let died_at = lines.iter().find_map(|line| match line {
            Line::Dying(failpoint) => Some(failpoint.clone()),
            _ => None,
        });
        died_at.unwrap_or_else(|| match lines.is_empty() {
            true => "before any failpoint".to_owned(),
            false => "between failpoints".to_owned(),
        })
    }

    fn order(&self, seed: u64, death: Death, full: Option<(u64, u64)>) -> Order {
        Order {
            state: self.path("state"),
            hot: self.path("hot"),
            aside: self.path("aside"),
            log: self.path("log"),
            seed,
            death,
            full,
            in_recovery: false,
            contents: self.contents.clone(),
        }
    }

    /// Starts the process and waits until it is dead.
    fn lose_process(&self, order: &Order, time: Duration, what: &str) {
        fs::write(self.path("order"), serde_json::to_vec(order).unwrap()).unwrap();
        let mut child = Command::new(std::env::current_exe().unwrap())
            .args(["--exact", "the_process_that_dies", "--ignored", "--nocapture"])
            .env(ORDER, self.path("order"))
            .stdout(Stdio::null())
            .stderr(Stdio::piped())
            .spawn()
            .unwrap();
        if matches!(order.death, Death::Anywhere) {
            std::thread::sleep(time);
            child.kill().unwrap();
        }
        let output = child.wait_with_output().unwrap();
        let killed = output.status.signal() == Some(9);
        // A recovery may have less to do than was thought.
        let done = order.in_recovery && output.status.success();
        let words = String::from_utf8_lossy(&output.stderr);
        assert!(killed || done, "{what}: {:?}: {words}", output.status);
    }

    /// The rows as they lie there must be those of a moment that the model knows.
    fn check_rows(&mut self, what: &str, lines: &[Line], power_lost: bool) -> Vec<SnapshotRow> {
        let mut history = History::new(self.rows.clone());
        for line in lines {
            match line {
                Line::Planned(name, content) => {
                    self.contents.insert(name.clone(), content.clone());
                }
                Line::Changing(change) => history.begin(change.clone()),
                Line::Changed => history.done(),
                Line::Flushed | Line::Promised => history.flushed(),
                Line::Refused(words) => {
                    assert!(words.contains("No space left"), "{what}: {words}");
                }
                _ => {}
            }
        }
        let files = StoreFiles::open(&self.path("state"), &self.path("hot")).unwrap();
        let registry = Registry::open(&files.registry()).unwrap();
        let rows = registry.snapshots().unwrap();
        let found: Rows = rows.iter().map(|row| (row.tag.to_string(), Entry::of(row))).collect();
        let possible = history.possible(power_lost);
        assert!(possible.contains(&found), "{what}: {found:#?} is none of {possible:#?}");
        rows
    }

    /// What a daemon finds after its start.
    fn check_recovered(&mut self, what: &str, before: &[SnapshotRow], power_lost: bool) {
        let files = StoreFiles::open(&self.path("state"), &self.path("hot")).unwrap();
        let registry = Registry::open(&files.registry()).unwrap();
        for row in registry.sandboxes().unwrap() {
            // As the engine does with those whose VM is gone.
            registry.remove_sandbox(&row.id).unwrap();
        }
        let rows = recover(&registry, &files).unwrap();
        sweep(&files, &rows, &Living::default());
        assert_eq!(rows.len(), before.len(), "{what}: a snapshot came or went");
        for (row, before) in rows.iter().zip(before) {
            assert_eq!(row.tag, before.tag, "{what}");
            let whole = match before.status {
                SnapshotStatus::Ready => before.durable || !power_lost,
                SnapshotStatus::Writing | SnapshotStatus::Failed => false,
            };
            let wanted = if whole { SnapshotStatus::Ready } else { SnapshotStatus::Failed };
            assert_eq!(row.status, wanted, "{what}: {row:?}");
            if whole {
                self.check_content(what, &files, row);
            } else {
                assert!(row.error.is_some(), "{what}: {row:?} has no reason");
            }
        }
        assert_eq!(registry.snapshots().unwrap().len(), rows.len(), "{what}");
        self.check_files(what, &rows);
        self.rows = rows.iter().map(|row| (row.tag.to_string(), Entry::of(row))).collect();
        let named: BTreeSet<&String> = self.rows.values().map(|entry| &entry.content).collect();
        self.contents.retain(|name, _| named.contains(name));
    }

    /// Every page that a child would see, both copies of every layer, and the other parts.
    fn check_content(&self, what: &str, files: &StoreFiles, row: &SnapshotRow) {
        let tag = &row.tag;
        let content = &self.contents[&row.manifest.image_hash];
        let plan = files.mapping_plan(&row.manifest.layers);
        let plan = plan.unwrap_or_else(|error| panic!("{what}: {tag}: {error}"));
        let mut shown = 0;
        for part in &plan.runs {
            for page in part.run.start.get()..part.run.end().get() {
                let mut found = vec![0; PAGE];
                if let Some(file) = plan.file(part) {
                    file.read_exact_at(&mut found, page * PAGE as u64).unwrap();
                }
                let page = usize::try_from(page).unwrap();
                let wanted = page_bytes(content.memory[page], page);
                assert!(found == wanted, "{what}: {tag}: page {page} is another");
                shown += 1;
            }
        }
        assert_eq!(shown, PAGES, "{what}: {tag}");
        let overlays: Vec<_> = content.disk.iter().map(|(id, _)| id.clone()).collect();
        assert_eq!(row.manifest.overlays, overlays, "{what}: {tag}");
        for id in overlays.iter().filter(|_| row.durable) {
            let checksum = row.manifest.overlay_checksums.get(id);
            assert!(checksum.is_some(), "{what}: {tag}: overlay {id} has no checksum");
        }
        for (id, number) in &content.disk {
            let found = fs::read(files.overlay(id)).unwrap();
            assert!(found == overlay_bytes(*number), "{what}: {tag}: overlay {id} is another");
        }
        let top = row.manifest.layers.last().unwrap();
        let checksum = row.manifest.device_state.as_ref();
        let device = fs::read(files.require_device_state(top, checksum).unwrap()).unwrap();
        assert!(device == file_bytes(content.device), "{what}: {tag}: device state");
        files.check_parts(&row.manifest).unwrap();
        if row.durable {
            for id in &row.manifest.layers {
                // A store of its own knows nothing and reads all.
                let other = StoreFiles::open(files.state(), files.hot()).unwrap();
                other.check_durable(id).unwrap_or_else(|error| panic!("{what}: {tag}: {error}"));
                check_copies(what, &other, &Layer::open_hot(&other, id).unwrap());
            }
            let durable = fs::read(files.durable_device_state(top)).unwrap();
            assert!(durable == device, "{what}: {tag}: durable device state");
        }
    }

    /// Nothing lies in the directories that a snapshot does not list.
    fn check_files(&self, what: &str, rows: &[SnapshotRow]) {
        let layers: BTreeSet<String> =
            rows.iter().flat_map(|row| &row.manifest.layers).map(ToString::to_string).collect();
        let overlays: BTreeSet<String> = rows
            .iter()
            .flat_map(|row| &row.manifest.overlays)
            .map(|id| format!("{id}.qcow2"))
            .collect();
        for directory in ["hot/layers", "state/layers", "state/overlays", "hot/vms"] {
            for name in names(&self.path(directory)) {
                let (stem, end) = name.split_once('.').unwrap_or((&name, ""));
                let known = match directory {
                    "state/overlays" => overlays.contains(&name),
                    _ => layers.contains(stem) && ["", "index", "device"].contains(&end),
                };
                assert!(known, "{what}: {directory}/{name} belongs to nobody");
            }
        }
        let state = names(&self.path("state"));
        let known = |name: &String| {
            name.starts_with("registry.") || ["layers", "overlays", "vms"].contains(&name.as_str())
        };
        assert!(state.iter().all(known), "{what}: {state:?}");
    }
}

fn names(directory: &std::path::Path) -> Vec<String> {
    let names = fs::read_dir(directory).unwrap().map(|entry| entry.unwrap().file_name());
    names.map(|name| name.into_string().unwrap()).collect()
}

/// The hot and the durable pages of a layer are the same.
fn check_copies(what: &str, files: &StoreFiles, hot: &Layer) {
    let id = &hot.index.id;
    let durable = fs::File::open(files.durable_pages(id)).unwrap();
    for run in &hot.index.stored {
        let [mut a, mut b] = [(); 2].map(|()| vec![0; run.bytes().as_usize()]);
        hot.pages.read_exact_at(&mut a, run.start.byte_offset()).unwrap();
        durable.read_exact_at(&mut b, run.start.byte_offset()).unwrap();
        assert!(a == b, "{what}: the copies of {id} differ");
    }
}
