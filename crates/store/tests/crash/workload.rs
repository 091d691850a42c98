//! What the process that dies does: snapshots made, published, compacted, removed, evicted and
//! opened, at random and without end, in the order in which the engine does it.

use std::collections::{BTreeMap, BTreeSet};
use std::fs;
use std::path::Path;
use std::str::FromStr;

use forkd_store::{
    Chain, FileSet, LayerWriter, MachineIdentity, Registry, SandboxRow, SnapshotManifest,
    SnapshotRow, StoreError, StoreFiles, flatten,
};
use forkd_types::{
    ByteCount, LayerId, OverlayId, PageIndex, PageRun, SandboxId, SandboxState, SnapshotStatus,
    SnapshotTag,
};

use crate::log::{Line, Log};
use crate::model::{
    Change, Content, Dice, PAGE, PAGES, file_bytes, mixed, overlay_bytes, page_bytes,
};

/// More are removed.
const SNAPSHOTS_MAX: usize = 8;

pub(crate) struct Workload {
    files: StoreFiles,
    registry: Registry,
    rows: Vec<SnapshotRow>,
    contents: BTreeMap<String, Content>,
    dice: Dice,
    log: Log,
}

fn memory_size() -> ByteCount {
    ByteCount::new((PAGES * PAGE) as u64)
}

impl Workload {
    pub(crate) fn new(
        files: StoreFiles,
        registry: Registry,
        rows: Vec<SnapshotRow>,
        contents: BTreeMap<String, Content>,
        dice: Dice,
        log: Log,
    ) -> Self {
        Self { files, registry, rows, contents, dice, log }
    }

    /// Never returns: the process is killed. A refusal for lack of space is told and lived with;
    /// any other is a defect.
    pub(crate) fn run(mut self) -> ! {
        loop {
            if let Err(error) = self.step() {
                let text = describe(&error);
                let full = matches!(error, StoreError::NoSpace { .. })
                    || text.contains("No space left on device");
                assert!(full, "an operation failed: {text}");
                self.log.line(&Line::Refused(text));
                // Whether the last change was made is not known.
                self.rows = self.registry.snapshots().unwrap();
                self.fail_unfinished();
            }
        }
    }

    fn step(&mut self) -> Result<(), StoreError> {
        if self.rows.len() > SNAPSHOTS_MAX {
            return self.remove();
        }
        match self.dice.below(12) {
            0..=3 => self.make(),
            4..=6 => self.publish(),
            7 => self.compact(),
            8 => self.remove(),
            9 => {
                let salt = self.dice.roll();
                // What is not durable is held, as the engine holds it.
                let fresh = self.rows.iter().filter(|row| !row.durable);
                let fresh: BTreeSet<LayerId> =
                    fresh.flat_map(|row| row.manifest.layers.iter().cloned()).collect();
                let held =
                    |id: &LayerId| fresh.contains(id) || Dice::new(number_of(id) ^ salt).one_in(3);
                self.files.evict(ByteCount::ZERO, &held);
                Ok(())
            }
            10 => self.open(),
            _ => self.sandbox(),
        }
    }

    fn put(&mut self, row: SnapshotRow) -> Result<(), StoreError> {
        self.log.line(&Line::Changing(Change::put(&row)));
        self.registry.put_snapshot(&row)?;
        if row.durable {
            self.log.line(&Line::Promised);
        }
        self.rows.retain(|other| other.tag != row.tag);
        self.rows.push(row);
        Ok(())
    }

    /// As the engine does after an error.
    fn fail_unfinished(&mut self) {
        let places = [self.files.hot(), self.files.state()].map(|path| path.join("layers"));
        for entry in places.iter().flat_map(|place| fs::read_dir(place).unwrap()) {
            let path = entry.unwrap().path();
            assert!(path.extension().is_none_or(|end| end != "new"), "{path:?} was left");
        }
        let unfinished: Vec<SnapshotRow> = self.rows.iter().filter(is_writing).cloned().collect();
        for mut row in unfinished {
            row.status = SnapshotStatus::Failed;
            row.error = Some("no space".to_owned());
            if let Err(error) = self.put(row) {
                self.log.line(&Line::Refused(describe(&error)));
                // The row says `writing` for longer; nobody uses it.
                self.rows = self.registry.snapshots().unwrap();
            }
        }
        self.collect_all();
    }

    fn one(&mut self, wanted: impl Fn(&SnapshotRow) -> bool) -> Option<SnapshotRow> {
        let fitting: Vec<&SnapshotRow> = self.rows.iter().filter(|row| wanted(row)).collect();
        let at = self.dice.below(fitting.len());
        fitting.get(at).map(|row| (*row).clone())
    }

    /// A tag that nobody has, or only a failed snapshot.
    fn free_tag(&mut self) -> SnapshotTag {
        loop {
            let tag: SnapshotTag = format!("t{}", self.dice.below(30)).parse().unwrap();
            let taken = |row: &SnapshotRow| row.tag == tag && row.status != SnapshotStatus::Failed;
            if !self.rows.iter().any(taken) {
                return tag;
            }
        }
    }

    /// A template, or a branch over a snapshot.
    fn make(&mut self) -> Result<(), StoreError> {
        let below = self
            .one(is_ready)
            .filter(|row| row.manifest.layers.len() < 6 && !self.dice.clone().one_in(3));
        let tag = self.free_tag();
        let mut content = match &below {
            Some(row) => self.contents[&row.manifest.image_hash].clone(),
            None => Content { memory: vec![0; PAGES], ..Content::default() },
        };
        let (mut stored, mut zero) = (Vec::new(), Vec::new());
        for page in 0..PAGES {
            if self.dice.one_in(4) {
                content.memory[page] = if self.dice.one_in(5) { 0 } else { self.dice.roll() | 1 };
                let runs = if content.memory[page] == 0 { &mut zero } else { &mut stored };
                runs.push(PageRun::new(page as u64, 1));
            }
        }
        content.device = self.dice.roll();
        let overlay = OverlayId::random();
        content.disk.push((overlay.clone(), self.dice.roll()));
        let row = self.reserve(&tag, below.as_ref(), &content)?;
        self.write_overlay(&overlay, content.disk[content.disk.len() - 1].1)?;
        let expected = ByteCount::new((stored.len() * PAGE) as u64);
        let writer = LayerWriter::create(&self.files, memory_size(), expected)?;
        let file = writer.file().unwrap();
        for run in &stored {
            let page = usize::try_from(run.start.get()).unwrap();
            let bytes = page_bytes(content.memory[page], page);
            LayerWriter::write_pages(&file, PageIndex::new(run.start.get()), &bytes).unwrap();
        }
        let layers = match &below {
            None => vec![writer.seal_base()?.index.id],
            Some(row) => {
                let layers = row.manifest.layers.iter().map(|id| self.files.open_layer(id));
                let chain = Chain::new(&self.files, layers.collect::<Result<_, _>>()?)?;
                chain.extended(writer, stored, zero)?.ids()
            }
        };
        let overlays = content.disk.iter().map(|(id, _)| id.clone()).collect();
        self.seal(row, layers, overlays, content.device)
    }

    fn reserve(
        &mut self,
        tag: &SnapshotTag,
        below: Option<&SnapshotRow>,
        content: &Content,
    ) -> Result<SnapshotRow, StoreError> {
        let name = format!("content-{:016x}", self.dice.roll());
        self.log.line(&Line::Planned(name.clone(), content.clone()));
        self.contents.insert(name.clone(), content.clone());
        let row = blank_row(tag, name, below.map(|row| row.tag.clone()));
        self.put(row.clone())?;
        // It may have taken the place of a failed one.
        self.collect_all();
        Ok(row)
    }

    /// As a VMM does: nothing of it is flushed.
    fn write_overlay(&self, id: &OverlayId, number: u64) -> Result<(), StoreError> {
        let path = self.files.overlay(id);
        self.log.line(&Line::Making(path.clone()));
        fs::write(&path, overlay_bytes(number)).unwrap();
        self.log.line(&Line::Written(path));
        Ok(())
    }

    fn seal(
        &mut self,
        mut row: SnapshotRow,
        layers: Vec<LayerId>,
        overlays: Vec<OverlayId>,
        device: u64,
    ) -> Result<(), StoreError> {
        let top = layers.last().unwrap().clone();
        fs::write(self.files.hot_device_state(&top), file_bytes(device)).unwrap();
        row.manifest.device_state = Some(self.files.checksum_device_state(&top)?);
        row.manifest.layers = layers;
        row.manifest.overlays = overlays;
        row.status = SnapshotStatus::Ready;
        self.put(row)
    }

    fn publish(&mut self) -> Result<(), StoreError> {
        let fresh = |row: &SnapshotRow| is_ready(row) && !row.durable;
        let Some(mut row) = self.one(fresh) else { return Ok(()) };
        row.manifest.overlay_checksums = self.files.publish_parts(&row.manifest, &mut || ())?;
        row.durable = true;
        self.put(row)
    }

    fn compact(&mut self) -> Result<(), StoreError> {
        let Some(source) = self.one(is_ready) else { return Ok(()) };
        let tag = self.free_tag();
        let content = self.contents[&source.manifest.image_hash].clone();
        let row = self.reserve(&tag, None, &content)?;
        let layers = source.manifest.layers.iter().map(|id| self.files.open_layer(id));
        let layers = layers.collect::<Result<Vec<_>, _>>()?;
        let flat = flatten(&self.files, &layers.iter().collect::<Vec<_>>())?.index.id;
        self.seal(row, vec![flat], source.manifest.overlays, content.device)
    }

    /// By force: what was made over it stays.
    fn remove(&mut self) -> Result<(), StoreError> {
        let Some(row) = self.one(|_| true) else { return Ok(()) };
        let tag = &row.tag;
        let above = |other: &&SnapshotRow| other.manifest.parent_tag.as_ref() == Some(tag);
        let mut above: Vec<SnapshotRow> = self.rows.iter().filter(above).cloned().collect();
        for other in &mut above {
            other.manifest.parent_tag.clone_from(&row.manifest.parent_tag);
        }
        let put = above.iter().flat_map(|row| Change::put(row).put).collect();
        self.log.line(&Line::Changing(Change { removed: Some(tag.to_string()), put }));
        self.registry.remove_snapshot(tag, &above)?;
        self.log.line(&Line::Promised);
        self.rows.retain(|other| other.tag != *tag);
        for other in above {
            self.rows.retain(|row| row.tag != other.tag);
            self.rows.push(other);
        }
        self.collect_all();
        Ok(())
    }

    /// Removes what nothing lists.
    fn collect_all(&self) {
        let listed: FileSet = self.rows.iter().map(|row| FileSet::from(&row.manifest)).collect();
        let held = self.sandboxes().into_iter().flat_map(|row| row.overlays);
        let needed = listed.union(FileSet::new([], held));
        let (hot, state) = (self.files.hot(), self.files.state());
        let layers = ids(&hot.join("layers")).into_iter().chain(ids(&state.join("layers")));
        let found = FileSet::new(layers, ids(&state.join("overlays")));
        self.files.remove_files(&found.minus(&needed));
    }

    /// Uses a snapshot as a child does.
    fn open(&mut self) -> Result<(), StoreError> {
        let Some(row) = self.one(is_ready) else { return Ok(()) };
        self.files.mapping_plan(&row.manifest.layers)?;
        self.files.check_parts(&row.manifest)?;
        self.files.make_view(&row.manifest.layers)
    }

    fn sandboxes(&self) -> Vec<SandboxRow> {
        self.registry.sandboxes().unwrap()
    }

    /// A sandbox comes or goes, with an overlay of its own.
    fn sandbox(&mut self) -> Result<(), StoreError> {
        let known = self.sandboxes();
        if known.len() > 2 || !known.is_empty() && self.dice.one_in(2) {
            self.registry.remove_sandbox(&known[0].id)?;
            known[0].overlays.iter().for_each(|id| self.files.remove_overlay(id));
            return Ok(());
        }
        let overlay = OverlayId::random();
        let row = SandboxRow {
            id: SandboxId::random(),
            snapshot_tag: self.free_tag(),
            process: None,
            machine: None,
            state: SandboxState::Running,
            created_at: std::time::SystemTime::now(),
            overlays: vec![overlay.clone()],
            options: forkd_store::SandboxOptionsRow::default(),
        };
        self.registry.put_sandbox(&row)?;
        let number = self.dice.roll();
        self.write_overlay(&overlay, number)
    }
}

fn number_of(id: &LayerId) -> u64 {
    id.as_str().bytes().fold(0, |number, byte| mixed(number ^ u64::from(byte)))
}

fn is_ready(row: &SnapshotRow) -> bool {
    row.status == SnapshotStatus::Ready
}

fn is_writing(row: &&SnapshotRow) -> bool {
    row.status == SnapshotStatus::Writing
}

fn blank_row(tag: &SnapshotTag, content: String, parent: Option<SnapshotTag>) -> SnapshotRow {
    SnapshotRow {
        tag: tag.clone(),
        status: SnapshotStatus::Writing,
        durable: false,
        created_at: std::time::SystemTime::now(),
        manifest: SnapshotManifest {
            image: "none".to_owned(),
            image_hash: content,
            memory: memory_size(),
            vcpus: 1,
            layers: Vec::new(),
            overlays: Vec::new(),
            overlay_checksums: BTreeMap::new(),
            device_state: None,
            contents: forkd_store::KnownContents::default(),
            network_device: false,
            gateway_certificate: None,
            machine: MachineIdentity {
                vmm_version: "0".to_owned(),
                accelerator: "none".to_owned(),
                cpu_model: "none".to_owned(),
            },
            private: false,
            parent_tag: parent,
            branched_from: None,
        },
        figures: None,
        error: None,
        shared: false,
        limits: forkd_store::InheritedLimits::default(),
        network: None,
    }
}

/// Ids that files of a directory go by.
pub(crate) fn ids<Id: FromStr + Ord>(directory: &Path) -> BTreeSet<Id> {
    let names = fs::read_dir(directory).unwrap().map(|entry| entry.unwrap().file_name());
    names.filter_map(|name| name.to_str()?.split('.').next()?.parse().ok()).collect()
}

pub(crate) fn describe(error: &StoreError) -> String {
    let mut text = error.to_string();
    let mut cause = std::error::Error::source(error);
    while let Some(error) = cause {
        text = format!("{text}: {error}");
        cause = error.source();
    }
    text
}
