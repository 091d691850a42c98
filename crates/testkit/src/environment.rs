//! An engine for tests.

use std::cell::RefCell;
use std::future::Future;
use std::path::{Path, PathBuf};
use std::sync::{Arc, OnceLock};

use forkd_engine::{
    BranchProbe, Engine, EngineConfig, EngineError, HostFeatures, ImportRequest, IsolationPolicy,
    Limits, NoProgress, Snapshot, TemplateImage, TemplateRequest, Trust,
};
use forkd_types::limit::{self, Deadlines};
use forkd_types::network::NetworkLeave;
use forkd_types::{ByteCount, MachineSize, SandboxId, SnapshotTag};
use tempfile::TempDir;
use tokio::runtime::Runtime;
use tokio::sync::OnceCell;

use crate::guard::Guard;

thread_local! {
    /// The sandboxes of the shared lab that the test of this thread has made.
    static MADE: RefCell<Vec<(Engine, SandboxId)>> = const { RefCell::new(Vec::new()) };
}

/// Runs a test's future on the runtime that all tests of the program share: the engine's tasks live
/// there. Then the sandboxes go that the test has made in the shared lab: what runs in them would
/// take the processor from all tests after it.
pub fn block_on<T>(future: impl Future<Output = T>) -> T {
    static RUNTIME: OnceLock<Runtime> = OnceLock::new();
    let runtime = RUNTIME.get_or_init(|| Runtime::new().expect("a runtime"));
    let done = runtime.block_on(future);
    let made = MADE.with(RefCell::take);
    runtime.block_on(async {
        for (engine, id) in made {
            // The test may have removed it.
            engine.remove_sandbox(&id).await.ok();
        }
    });
    done
}

/// An engine on directories of its own. They are removed with it, and its VMs ended.
pub struct Lab {
    /// The engine.
    pub engine: Engine,
    config: EngineConfig,
    is_shared: bool,
    _guard: Option<Guard>,
}

pub(crate) fn required_path(variable: &str) -> PathBuf {
    let value = std::env::var_os(variable);
    let path = PathBuf::from(
        value.unwrap_or_else(|| panic!("{variable} is not set: run the tests with `make test`")),
    );
    assert!(path.exists(), "{variable} names {}, which does not exist", path.display());
    path
}

/// The template of `image` with so much memory that the test run has made once for all tests, if it
/// has: to import instead of building it once more.
#[must_use]
pub fn template_file(image: &str, mebibytes: u64) -> Option<PathBuf> {
    let folder = PathBuf::from(std::env::var_os("FORKD_TEST_TEMPLATES")?);
    let file = folder.join(format!("{image}-{mebibytes}.forkd"));
    file.exists().then_some(file)
}

/// The configuration of a test engine in the given directories.
fn config(state: &Path, hot: &Path, run: &Path) -> EngineConfig {
    EngineConfig {
        state_dir: state.to_owned(),
        hot_dir: hot.to_owned(),
        run_dir: run.to_owned(),
        image_dir: required_path("FORKD_IMAGE_DIR"),
        shim: required_path("FORKD_SHIM"),
        launcher: required_path("FORKD_SHIM").with_file_name("forkd-launcher"),
        gateway: required_path("FORKD_SHIM").with_file_name("forkd"),
        network: NetworkLeave::default(),
        upstream_ca: None,
        isolation: IsolationPolicy::Required,
        accelerator: std::env::var("FORKD_ACCEL")
            .unwrap_or_else(|_| "tcg".to_owned())
            .parse()
            .expect("FORKD_ACCEL is an accelerator"),
        qemu: std::env::var_os("FORKD_QEMU").map(PathBuf::from),
        features: HostFeatures::ALL,
        // Where the KVM tier runs, a guest boots as slowly as an emulated one.
        kvm_probe_deadline: limit::BOOT_DEADLINE,
        deadlines: Deadlines::default(),
        limits: Limits::default(),
        hot_budget: None,
        probe: None,
    }
}

impl Lab {
    /// The lab that all tests of a program share, with the templates `tiny` and `python` as they
    /// are asked for. It lives until the program ends.
    pub async fn shared() -> &'static Self {
        static LAB: OnceCell<Lab> = OnceCell::const_new();
        LAB.get_or_init(|| async { Self { is_shared: true, ..Self::new().await } }).await
    }

    /// A test has made this sandbox.
    pub(crate) fn made(&self, id: &SandboxId) {
        if self.is_shared {
            MADE.with_borrow_mut(|made| made.push((self.engine.clone(), id.clone())));
        }
    }

    /// A lab of the test's own.
    pub async fn new() -> Self {
        let hot = TempDir::with_prefix_in("forkd-hot-", "/dev/shm").expect("a hot directory");
        Self::with_hot(&hot.keep()).await
    }

    /// A lab whose hot directory is `hot`, which it removes at the end.
    pub async fn with_hot(hot: &Path) -> Self {
        Self::open(hot, |_| {}).await
    }

    /// A lab whose branches `probe` sees.
    pub async fn with_probe(probe: Arc<dyn BranchProbe>) -> Self {
        let hot = TempDir::with_prefix_in("forkd-hot-", "/dev/shm").expect("a hot directory");
        Self::open(&hot.keep(), |config| config.probe = Some(probe)).await
    }

    /// A lab whose captures may use only these features of the host.
    pub async fn with_features(features: HostFeatures) -> Self {
        let hot = TempDir::with_prefix_in("forkd-hot-", "/dev/shm").expect("a hot directory");
        Self::open(&hot.keep(), |config| config.features = features).await
    }

    /// A lab with a changed configuration. Its hot directory is `hot`, which it removes at the end.
    pub async fn with_config(hot: &Path, change: impl FnOnce(&mut EngineConfig)) -> Self {
        Self::open(hot, change).await
    }

    /// A second lab with a changed configuration in the directories of another one, whose engine
    /// must have ended. What it leaves, the other one removes.
    pub async fn in_directories(
        [state, hot, run]: [&Path; 3],
        change: impl FnOnce(&mut EngineConfig),
    ) -> Self {
        let mut config = config(state, hot, run);
        change(&mut config);
        let engine = Engine::open(config.clone()).await.expect("the engine opens");
        Self { engine, config, is_shared: false, _guard: None }
    }

    /// A directory for [`Lab::with_config`].
    #[must_use]
    pub fn hot_directory() -> PathBuf {
        TempDir::with_prefix_in("forkd-hot-", "/dev/shm").expect("a hot directory").keep()
    }

    async fn open(hot: &Path, change: impl FnOnce(&mut EngineConfig)) -> Self {
        let state = TempDir::with_prefix("forkd-state-").expect("a state directory").keep();
        let run = TempDir::with_prefix("fk-").expect("a run directory").keep();
        let guard = Guard::over(&run, &[hot.to_owned(), state.clone()]);
        let mut config = config(&state, hot, &run);
        change(&mut config);
        let engine = Engine::open(config.clone()).await.expect("the engine opens");
        Self { engine, config, is_shared: false, _guard: Some(guard) }
    }

    /// A lab with images of its own.
    pub async fn with_images(images: &Path) -> Self {
        let hot =
            TempDir::with_prefix_in("forkd-hot-", "/dev/shm").expect("a hot directory").keep();
        Self::open(&hot, |config| images.clone_into(&mut config.image_dir)).await
    }

    /// How the engine was configured; for tests that break something.
    #[must_use]
    pub fn config(&self) -> &EngineConfig {
        &self.config
    }

    /// The tag of a template of `image`. At the first call it is built, or copied from the one that
    /// the test run has made.
    pub async fn template(&self, image: &str, mebibytes: u64) -> SnapshotTag {
        let tag: SnapshotTag = format!("{image}-{mebibytes}").parse().expect("a tag");
        static BUILDING: tokio::sync::Mutex<()> = tokio::sync::Mutex::const_new(());
        let _one_at_a_time = BUILDING.lock().await;
        if self.engine.snapshot(&tag).is_err() {
            let made = match template_file(image, mebibytes) {
                Some(file) => self.import(&tag, &file).await,
                None => self.build(&tag, image, mebibytes).await,
            };
            made.expect("the template is made");
        }
        tag
    }

    async fn import(&self, tag: &SnapshotTag, file: &Path) -> Result<Snapshot, EngineError> {
        let file = std::fs::File::open(file).expect("the test run's template");
        let request = ImportRequest { tag: Some(tag.clone()), trust: Trust::Once };
        self.engine.import_snapshot(request, file).await
    }

    /// Builds a template.
    ///
    /// # Errors
    /// What the engine says.
    pub async fn build(
        &self,
        tag: &SnapshotTag,
        image: &str,
        mebibytes: u64,
    ) -> Result<Snapshot, EngineError> {
        let request = TemplateRequest {
            tag: tag.clone(),
            image: TemplateImage::Named(image.to_owned()),
            size: MachineSize::new(ByteCount::from_mib(mebibytes), 1).expect("a size"),
            cpu: forkd_types::CpuModel::Host,
            warm: Vec::new(),
            shared: false,
            private: false,
        };
        self.engine.build_template(request, Arc::new(NoProgress)).await
    }
}
