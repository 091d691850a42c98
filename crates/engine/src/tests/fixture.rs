//! An engine on fake VMs, with one template.

use std::cell::Cell;
use std::fs;
use std::sync::{Arc, Once};
use std::time::Duration;

use forkd_store::{FileSet, watch_failpoints};
use forkd_types::{
    BranchMode, ByteCount, MachineSize, PageIndex, SandboxId, SandboxState, SnapshotTag,
};
use forkd_vmm::fake::{FakeDriver, Script};

use crate::fake::{self, Guests, IMAGE, Ports};
use crate::{
    Branch, BranchProbe, BranchRequest, Engine, EngineConfig, EngineError, Limits, NoProgress,
    Sandbox, TemplateImage, TemplateRequest, Wait,
};

/// Longest wait for something that must happen soon; never reached when all is well.
const SOON: Duration = Duration::from_secs(30);
/// The page that tests write.
pub(super) const PAGE: PageIndex = PageIndex::new(7);
const MEMORY: ByteCount = ByteCount::from_mib(64);

thread_local! {
    /// After so many, rows of sandboxes that this thread writes are refused, as by a full disk.
    static ROWS_LEFT: Cell<Option<u32>> = const { Cell::new(None) };
}

/// While this exists, no sandbox can be written down by this thread. In a test on one thread that
/// is all that is not blocking work.
pub(super) struct NoRows;

impl NoRows {
    pub(super) fn begin() -> Self {
        Self::after(0)
    }

    /// After so many rows.
    pub(super) fn after(rows: u32) -> Self {
        static WATCH: Once = Once::new();
        WATCH.call_once(|| {
            watch_failpoints(|point| match point {
                forkd_store::Failpoint::RowChanging("sandbox") => match ROWS_LEFT.get() {
                    Some(0) => Err(std::io::Error::from(std::io::ErrorKind::StorageFull)),
                    left => {
                        ROWS_LEFT.set(left.map(|left| left - 1));
                        Ok(())
                    }
                },
                _ => Ok(()),
            });
        });
        ROWS_LEFT.set(Some(rows));
        Self
    }
}

impl Drop for NoRows {
    fn drop(&mut self) {
        ROWS_LEFT.set(None);
    }
}

/// Directories, fake VMs, and an engine on them.
pub(super) struct Fixture {
    pub(super) engine: Engine,
    pub(super) driver: Arc<FakeDriver>,
    pub(super) guests: Arc<Guests>,
    pub(super) ports: Arc<Ports>,
    pub(super) config: EngineConfig,
    _directory: tempfile::TempDir,
}

/// What a test wants other than usual.
#[derive(Default)]
pub(super) struct Wishes {
    pub(super) limits: Limits,
    pub(super) probe: Option<Arc<dyn BranchProbe>>,
    /// Guests have a disk of this size.
    pub(super) disk: Option<ByteCount>,
    /// What guests see as the host's processor.
    pub(super) cpu_model: Option<&'static str>,
}

impl Fixture {
    /// With the template `t`.
    pub(super) async fn new() -> Self {
        Self::with(Wishes::default()).await
    }

    pub(super) async fn with(wishes: Wishes) -> Self {
        let directory = tempfile::tempdir_in("/dev/shm").unwrap();
        let config = fake::config(directory.path(), wishes.limits).unwrap();
        if let Some(disk) = wishes.disk {
            give_disk(&config, disk);
        }
        let config = EngineConfig { probe: wishes.probe, kvm_probe_deadline: SOON, ..config };
        let guests = Arc::new(Guests::default());
        let served = Arc::clone(&guests);
        let driver = FakeDriver::new(move |port| fake::serve(&served, &port));
        let ports = Arc::new(Ports::default());
        let cpu_model = wishes.cpu_model.unwrap_or("none");
        let engine = fake::open_on(&config, cpu_model, &driver, &ports).await.unwrap();
        engine.build_template(template("t"), Arc::new(NoProgress)).await.unwrap();
        Self { engine, driver, guests, ports, config, _directory: directory }
    }

    pub(super) fn script(&self) -> &Script {
        self.driver.script()
    }

    /// One child of `t`.
    pub(super) async fn child(&self) -> Sandbox {
        self.engine.fork(&tag("t"), 1).await.unwrap().remove(0)
    }

    /// A branch that copies before the resume: what it needs is there on every host.
    pub(super) async fn branch(&self, id: &SandboxId, name: &str) -> Result<Branch, EngineError> {
        self.engine.branch(id, request(name)).await
    }

    /// The process of a sandbox.
    pub(super) fn pid(&self, id: &SandboxId) -> u32 {
        self.engine.sandbox(id).unwrap().pid.expect("it has a VM")
    }

    pub(super) fn state(&self, id: &SandboxId) -> SandboxState {
        self.engine.sandbox(id).unwrap().state
    }

    /// The word that a sandbox's guest has in the page that tests write.
    pub(super) fn word(&self, id: &SandboxId) -> u64 {
        self.driver.read(self.pid(id), PAGE).expect("it has RAM")
    }

    pub(super) fn write(&self, id: &SandboxId, value: u64) {
        self.driver.write(self.pid(id), PAGE, value);
    }

    /// Waits until something holds.
    pub(super) async fn until(&self, what: &str, holds: impl Fn() -> bool) {
        let wait = async {
            while !holds() {
                tokio::time::sleep(Duration::from_millis(1)).await;
            }
        };
        tokio::time::timeout(SOON, wait).await.unwrap_or_else(|_| panic!("not in time: {what}"));
    }

    /// Another engine on the same directories and VMs. The present one has let go of them, or is
    /// taken for dead.
    pub(super) async fn next_engine(&mut self) {
        self.engine = fake::open(&self.config, &self.driver, &self.ports).await.unwrap();
    }

    /// The layers and overlays that lie in the store.
    pub(super) fn files(&self) -> FileSet {
        let names = |directory: &str| {
            let entries = fs::read_dir(self.config.hot_dir.join(directory)).into_iter().flatten();
            let names = entries.flatten().map(|entry| entry.file_name());
            names.filter_map(|name| name.to_str().map(str::to_owned)).collect::<Vec<_>>()
        };
        let layers = names("layers").into_iter();
        FileSet::new(layers.filter_map(|name| name.split('.').next()?.parse().ok()), [])
    }

    /// Panics where something is left of sandboxes that there are no more.
    pub(super) fn assert_nothing_left(&self) {
        assert_eq!(self.engine.sandboxes(), []);
        assert_eq!(self.driver.living(), 0, "VMs");
        for directory in [&self.config.run_dir, &self.config.hot_dir.join("vms")] {
            let left: Vec<_> = fs::read_dir(directory).into_iter().flatten().flatten().collect();
            assert!(left.is_empty(), "{left:?}");
        }
        assert!(self.engine.claimed_by_sandboxes().is_empty());
    }
}

/// Gives the image a disk.
fn give_disk(config: &EngineConfig, disk: ByteCount) {
    let path = config.image_dir.join(IMAGE).join("image.json");
    let text = fs::read_to_string(&path).unwrap();
    let fields = format!(r#""root_disk":"disk","root_disk_bytes":{}}}"#, disk.get());
    fs::write(path, text.replace('}', &format!(",{fields}"))).unwrap();
}

pub(super) fn tag(name: &str) -> SnapshotTag {
    name.parse().unwrap()
}

/// A template that asks for nothing special.
pub(super) fn template(name: &str) -> TemplateRequest {
    let (tag, image) = (tag(name), TemplateImage::Named(IMAGE.to_owned()));
    let size = MachineSize::new(MEMORY, 1).unwrap();
    let cpu = forkd_types::CpuModel::Host;
    TemplateRequest { tag, image, size, cpu, warm: Vec::new(), shared: false, private: false }
}

pub(super) fn request(name: &str) -> BranchRequest {
    let (mode, wait) = (BranchMode::Diff, Wait::UntilReady);
    BranchRequest {
        tag: Some(tag(name)),
        mode,
        children: 0,
        network: None,
        join: None,
        private: false,
        wait,
    }
}
