//! What the tests of this program share: a lab whose branches are copied in their pause, and one
//! branch with both checks.

use std::fmt;
use std::sync::Arc;

use forkd_engine::{DeletePolicy, EngineConfig, TemplateImage, TemplateRequest, describe};
use forkd_engine::{NoProgress, Snapshot};
use forkd_testkit::{Comparison, Guest, Lab, ReferenceProbe, Verdict};
use forkd_types::network::NetworkLeave;
use forkd_types::{BranchMode, ByteCount, MachineSize, SnapshotTag};
use tokio::sync::{Mutex, MutexGuard, OnceCell};

/// A lab with its probe and the template of all sources: two vCPUs and a disk.
pub(crate) struct Bench {
    pub(crate) lab: Lab,
    pub(crate) probe: Arc<ReferenceProbe>,
    template: SnapshotTag,
}

/// What both checks said about one branch.
pub(crate) struct Finding<'a> {
    pub(crate) snapshot: Snapshot,
    pub(crate) comparison: Comparison,
    /// The child that was asked, unless it did not come up.
    pub(crate) child: Option<Guest<'a>>,
    /// Its verdict, or why there is none.
    pub(crate) verdict: Result<Verdict, String>,
}

impl Bench {
    /// The bench, for one test at a time: a mutation that one asks for must not reach another.
    pub(crate) async fn take() -> MutexGuard<'static, Self> {
        static BENCH: OnceCell<Mutex<Bench>> = OnceCell::const_new();
        BENCH.get_or_init(async || Mutex::new(Self::new().await)).await.lock().await
    }

    async fn new() -> Self {
        let probe = Arc::new(ReferenceProbe::default());
        let hot = Lab::hot_directory();
        let with_probe = |config: &mut EngineConfig| {
            config.probe = Some(Arc::clone(&probe) as _);
            // Every other child is of a VMM that stood by.
            config.limits.standby = 1;
            config.network = NetworkLeave::Any;
        };
        let lab = Lab::with_config(&hot, with_probe).await;
        let template: SnapshotTag = "two-vcpus".parse().expect("a tag");
        let request = TemplateRequest {
            tag: template.clone(),
            image: TemplateImage::Named("python".to_owned()),
            size: MachineSize::new(ByteCount::from_mib(256), 2).expect("a size"),
            cpu: forkd_types::CpuModel::Host,
            warm: Vec::new(),
            shared: false,
            private: false,
        };
        let built = lab.engine.build_template(request, Arc::new(NoProgress)).await;
        built.expect("the template is built");
        Self { lab, probe, template }
    }

    /// A sandbox in which the witness writes.
    pub(crate) async fn source(&self, seed: u64) -> Guest<'_> {
        let guest = self.lab.one(&self.template).await;
        guest.start_witness(seed).await;
        guest
    }

    /// Branches `source`, compares the snapshot with the copy, and asks the witness in a child.
    pub(crate) async fn branch(&self, source: &Guest<'_>, mode: BranchMode) -> Finding<'_> {
        let snapshot = source.try_branch(mode).await.expect("the branch is taken");
        let comparison = self.probe.compare(&self.lab, &snapshot.tag);
        let (child, verdict) = match self.lab.engine.fork(&snapshot.tag, 1).await {
            Err(error) => (None, Err(format!("no child: {}", describe(&error)))),
            Ok(children) => {
                let child = Guest::new(&self.lab, children[0].id.clone());
                let verdict = child.ask_witness().await;
                (Some(child), verdict)
            }
        };
        Finding { snapshot, comparison, child, verdict }
    }

    /// Removes a snapshot and all that was made of it.
    pub(crate) async fn forget(&self, tag: &SnapshotTag) {
        let deleted = self.lab.engine.delete_snapshot(tag, DeletePolicy::Cascade).await;
        deleted.expect("the snapshot is removed");
    }
}

impl Finding<'_> {
    /// Whether both checks found one instant.
    pub(crate) fn is_one_instant(&self) -> bool {
        self.comparison.differing.is_empty() && self.verdict.as_ref().is_ok_and(|found| found.ok)
    }
}

impl fmt::Display for Finding<'_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Comparison { compared, differing } = &self.comparison;
        match &self.verdict {
            Ok(verdict) => writeln!(f, "the witness in the child: {}", verdict.text)?,
            Err(error) => writeln!(f, "no verdict: {error}")?,
        }
        let first = &differing[..differing.len().min(16)];
        write!(f, "differ from the copy: {} of {compared} pages {first:?}", differing.len())
    }
}
