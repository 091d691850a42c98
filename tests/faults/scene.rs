//! A source to break things around, the ways to break them, and what must hold after each.

use std::fs;
use std::path::PathBuf;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex};
use std::time::{Duration, Instant};

use forkd_engine::guest::ExecRequest;
use forkd_engine::{BranchProbe, Engine, EngineError, ProbedBranch, VmmError};
use forkd_testkit::{Guest, KeptFull, Lab, SOON, SmallTmpfs};
use forkd_types::limit::Deadlines;
use forkd_types::{BranchPhase, SandboxId, SandboxState, SnapshotStatus, SnapshotTag};
use rustix::process::{Pid, Signal, kill_process};

/// Tests of this program count descriptors of the process: one at a time.
pub(crate) static ALONE: tokio::sync::Mutex<()> = tokio::sync::Mutex::const_new(());

/// What breaks.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Fault {
    /// Not one page is left in the hot directory.
    HotFull,
    /// Not one block is left in the state directory.
    DiskFull,
    /// The VMM is killed.
    VmmKilled,
    /// The VMM refuses what the phase asks for.
    Refusal,
    /// The VMM is stopped and does not answer.
    Silence,
    /// The guest agent stands still and answers nobody, for [`AGENT_DEAD_SECONDS`].
    AgentDead,
}

/// How long a dead guest agent stays dead, by the guest's clock.
const AGENT_DEAD_SECONDS: &str = "2";

/// Breaks something once, at the edge that it was set to.
#[derive(Default)]
pub(crate) struct Saboteur {
    blow: Mutex<Option<Blow>>,
    /// The blow has been dealt to its end.
    struck: AtomicBool,
    /// The file system that it filled.
    full: Mutex<Option<KeptFull>>,
}

#[derive(Clone)]
struct Blow {
    fault: Fault,
    phase: BranchPhase,
    vmm: Pid,
    /// The file that fills a file system.
    filler: PathBuf,
    agent: AgentSwitch,
}

/// Makes the guest agent of one sandbox stand still.
#[derive(Clone)]
pub(crate) struct AgentSwitch {
    engine: Engine,
    sandbox: SandboxId,
    runtime: tokio::runtime::Handle,
}

impl AgentSwitch {
    /// For the agent of `guest`, in which [`FREEZER`] runs.
    pub(crate) fn of(lab: &Lab, guest: &Guest<'_>) -> Self {
        let runtime = tokio::runtime::Handle::current();
        Self { engine: lab.engine.clone(), sandbox: guest.id.clone(), runtime }
    }

    /// Asks for it, once the agent can be asked.
    fn turn_off(&self, seconds: &str) {
        let (engine, sandbox) = (self.engine.clone(), self.sandbox.clone());
        let command = format!("echo {seconds} > /tmp/die");
        self.runtime.spawn(async move {
            // Its answer may not come: the agent is dead then.
            engine.exec(&sandbox, ExecRequest::new(["/bin/sh", "-c", &command])).await.ok();
        });
    }

    /// How often the agent has been stopped.
    fn stops(&self) -> usize {
        let log = self.engine.console_log(&self.sandbox).unwrap();
        String::from_utf8_lossy(&log.bytes).matches(AGENT_STOPPED).count()
    }

    /// Waits until the agent has been stopped once more than `before` times.
    async fn wait_dead(&self, before: usize) {
        let begun = Instant::now();
        while self.stops() <= before {
            assert!(begun.elapsed() < SOON, "the guest agent was not stopped");
            tokio::time::sleep(Duration::from_millis(5)).await;
        }
    }

    /// Stops the agent now.
    pub(crate) async fn kill(&self, seconds: &str) {
        let before = self.stops();
        self.turn_off(seconds);
        self.wait_dead(before).await;
    }

    /// Waits until the agent answers.
    pub(crate) async fn wait_alive(&self) {
        let begun = Instant::now();
        while let Err(error) = self.engine.ping(&self.sandbox).await {
            assert!(begun.elapsed() < SOON, "the guest agent does not answer: {error}");
        }
    }
}

/// What the guest's console says of it.
const AGENT_STOPPED: &str = "the agent stands still";

/// Stops PID 1 for as many seconds as the pipe `/tmp/die` says. It cannot be stopped by a signal,
/// but as the only member of a cgroup, together with what it starts later. So who wrote into the
/// pipe may stand still before it has closed it; the next reader then finds the pipe's end.
pub(crate) const FREEZER: &str = "mkdir -p /tmp/cg; mount -t cgroup2 none /tmp/cg; \
    mkdir /tmp/cg/agent; mkfifo /tmp/die; \
    setsid sh -c 'while :; do read n < /tmp/die || continue; \
    echo 1 > /tmp/cg/agent/cgroup.freeze; \
    until grep -q \"frozen 1\" /tmp/cg/agent/cgroup.events; do :; done; \
    echo the agent stands still > /dev/console; sleep $n; \
    echo 0 > /tmp/cg/agent/cgroup.freeze; \
    done' < /dev/null > /dev/null 2>&1 & \
    echo 1 > /tmp/cg/agent/cgroup.procs";

impl Saboteur {
    fn strike(&self, phase: BranchPhase) -> Result<(), EngineError> {
        let blow = self.blow.lock().unwrap().take_if(|blow| blow.phase == phase);
        let Some(blow) = blow else { return Ok(()) };
        let dealt = self.deal(blow, phase);
        self.struck.store(true, Ordering::Release);
        dealt
    }

    fn deal(&self, blow: Blow, phase: BranchPhase) -> Result<(), EngineError> {
        match blow.fault {
            Fault::HotFull | Fault::DiskFull => {
                *self.full.lock().unwrap() = Some(SmallTmpfs::keep_full(&blow.filler));
            }
            Fault::VmmKilled => {
                kill_process(blow.vmm, Signal::KILL).unwrap();
                let begun = Instant::now();
                // It is gone if its end has been collected already.
                while !matches!(state_of(blow.vmm), None | Some('Z')) {
                    assert!(begun.elapsed() < SOON, "the VMM does not end");
                    std::thread::sleep(Duration::from_millis(1));
                }
            }
            Fault::Silence => kill_process(blow.vmm, Signal::STOP).unwrap(),
            Fault::AgentDead => {
                // From the pause to the resume nothing is sent to the agent.
                if (BranchPhase::Pause..=BranchPhase::Resume).contains(&phase) {
                    blow.agent.turn_off(AGENT_DEAD_SECONDS);
                } else {
                    blow.agent.runtime.block_on(blow.agent.kill(AGENT_DEAD_SECONDS));
                }
            }
            Fault::Refusal => {
                let description = format!("refused at {phase}");
                return Err(VmmError::Refused { command: "fault", description }.into());
            }
        }
        Ok(())
    }

    /// Readies a blow for the next branch.
    fn prepare(&self, blow: Blow) {
        self.struck.store(false, Ordering::Release);
        *self.blow.lock().unwrap() = Some(blow);
    }

    fn has_struck(&self) -> bool {
        self.struck.load(Ordering::Acquire)
    }
}

impl std::fmt::Debug for Saboteur {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Saboteur").finish_non_exhaustive()
    }
}

impl BranchProbe for Saboteur {
    fn before(&self, phase: BranchPhase, _: &ProbedBranch<'_>) -> Result<(), EngineError> {
        self.strike(phase)
    }

    fn before_publish(&self, _: &SnapshotTag) -> Result<(), EngineError> {
        self.strike(BranchPhase::Publish)
    }
}

/// The letter in `/proc/PID/stat`.
fn state_of(pid: Pid) -> Option<char> {
    let stat = fs::read_to_string(format!("/proc/{}/stat", pid.as_raw_nonzero())).ok()?;
    stat.rsplit_once(')')?.1.trim_start().chars().next()
}

/// What a branch must give when something breaks.
#[derive(Debug, Clone, Copy)]
pub(crate) enum Outcome {
    /// An error with these words; the snapshot is `failed` for the same reason.
    Failed(&'static str),
    /// A snapshot that is ready and durable: the fault does not matter any more.
    Durable,
    /// A snapshot that is ready, and not durable.
    Ready,
    /// Either `Failed` with these words or `Ready`: the registry may have room for a row.
    ReadyOr(&'static str),
}

/// A lab whose branches can be sabotaged, and a source with content to compare.
pub(crate) struct Scene {
    pub(crate) lab: Lab,
    saboteur: Arc<Saboteur>,
    /// The small file system, where one is to be filled.
    small: Option<SmallTmpfs>,
    image: (&'static str, u64),
    fault: Fault,
}

/// A source that has been branched once, so that all that is made only once is there.
pub(crate) struct Source<'a> {
    pub(crate) guest: Guest<'a>,
    vmm: Pid,
    digest: String,
    descriptors: usize,
}

const DIGEST: &str = "md5sum < /tmp/dirt; md5sum < /srv/dirt";
/// It counts in memory: a host without space fails the guest's journal, and its file system is
/// read-only from then on. Each step starts a program, which is much for an emulated processor.
const PREPARE: &str = "mkdir -p /srv; dd if=/dev/urandom of=/tmp/dirt bs=1M count=4 2>/dev/null; \
    dd if=/dev/urandom of=/srv/dirt bs=64k count=4 2>/dev/null; sync; \
    setsid sh -c 'n=0; while :; do n=$((n+1)); echo $n > /run/n; sleep 0.1; done' \
    < /dev/null > /dev/null 2>&1 &";

impl Scene {
    /// A scene for `fault`.
    pub(crate) async fn set(fault: Fault) -> Self {
        let saboteur = Arc::new(Saboteur::default());
        let small = match fault {
            Fault::HotFull | Fault::DiskFull => Some(SmallTmpfs::mount(768)),
            _ => None,
        };
        let hot = match &small {
            Some(tmpfs) if fault == Fault::HotFull => tmpfs.path().to_owned(),
            _ => Lab::hot_directory(),
        };
        let lab = Lab::with_config(&hot, |config| {
            config.probe = Some(Arc::clone(&saboteur) as Arc<dyn BranchProbe>);
            if let Some(tmpfs) = small.as_ref().filter(|_| fault == Fault::DiskFull) {
                tmpfs.path().clone_into(&mut config.state_dir);
            }
            if fault == Fault::Silence {
                config.deadlines = Deadlines {
                    reply: Duration::from_secs(3),
                    pause_reply: Duration::from_secs(3),
                    ..Deadlines::default()
                };
            }
        });
        let lab = lab.await;
        // Only a fault that has to do with disks needs one.
        let image = match fault {
            Fault::HotFull => ("tiny", 128),
            _ => ("python", 256),
        };
        Self { lab, saboteur, small, image, fault }
    }

    pub(crate) async fn source(&self) -> Source<'_> {
        let template = self.lab.template(self.image.0, self.image.1).await;
        self.lab.wait_durable(&template).await;
        let guest = self.lab.one(&template).await;
        guest.sh(PREPARE).await;
        if self.fault == Fault::AgentDead {
            guest.sh(FREEZER).await;
        }
        let digest = guest.sh(DIGEST).await;
        let first = guest.branch().await;
        self.lab.wait_durable(&first.tag).await;
        let pid = self.lab.engine.sandbox(&guest.id).unwrap().pid.unwrap();
        let vmm = i32::try_from(pid).ok().and_then(Pid::from_raw).unwrap();
        // Also makes SQLite open what it keeps for the next time.
        assert_eq!(self.lab.leftovers(), Vec::<PathBuf>::new());
        let descriptors = self.lab.descriptor_count();
        Source { guest, vmm, digest, descriptors }
    }

    /// Breaks `fault` at the edge of `phase` in a branch of `source`, and checks everything.
    /// Returns whether the source still runs.
    pub(crate) async fn play(
        &self,
        source: &Source<'_>,
        fault: Fault,
        phase: BranchPhase,
        wanted: Outcome,
    ) -> bool {
        let cell = format!("{fault:?} before {phase}");
        let filler = self.small.as_ref().map(|tmpfs| tmpfs.path().join("filler"));
        let agent = AgentSwitch::of(&self.lab, &source.guest);
        let stops = if fault == Fault::AgentDead { agent.stops() } else { 0 };
        let (vmm, place) = (source.vmm, filler.clone().unwrap_or_default());
        let blow = Blow { fault, phase, vmm, filler: place, agent: agent.clone() };
        self.saboteur.prepare(blow);
        let tag: SnapshotTag = format!("{fault:?}-{phase}").to_lowercase().parse().unwrap();
        let begun = Instant::now();
        let branched = source.guest.try_branch_as(&tag).await;
        assert!(begun.elapsed() < SOON, "{cell}: took {:?}", begun.elapsed());
        self.check_snapshot(&cell, &tag, branched, wanted).await;
        if let Some(filler) = filler {
            self.saboteur.full.lock().unwrap().take();
            fs::remove_file(filler).unwrap();
        }
        match fault {
            Fault::Silence => self.check_silent(&cell, source, phase).await,
            Fault::AgentDead => {
                agent.wait_dead(stops).await;
                agent.wait_alive().await;
            }
            _ => {}
        }
        let alive = fault != Fault::VmmKilled;
        if alive {
            // Before the next branch, which may write over what this one has left.
            self.check_leftovers(&cell).await;
            self.check_running(&cell, source).await;
        } else {
            self.lab.wait_state(&source.guest.id, SandboxState::Dead).await;
            let error = self.lab.engine.sandbox(&source.guest.id).unwrap().error.unwrap();
            assert!(error.contains("signal: 9"), "{cell}: {error}");
            source.guest.clone().remove().await;
        }
        if self.lab.engine.snapshot(&tag).unwrap().status == SnapshotStatus::Ready {
            self.check_child(&cell, source, &tag).await;
        }
        self.check_leftovers(&cell).await;
        assert_eq!(self.lab.vmm_count(), usize::from(alive), "{cell}: processes");
        if alive {
            self.check_descriptors(&cell, source).await;
        }
        alive
    }

    async fn check_snapshot(
        &self,
        cell: &str,
        tag: &SnapshotTag,
        branched: Result<forkd_engine::Snapshot, EngineError>,
        wanted: Outcome,
    ) {
        let status = |name: &str| {
            let found = self.lab.engine.snapshot(tag).unwrap();
            assert_eq!(found.status.name(), name, "{cell}");
            found.error.unwrap_or_default()
        };
        match (wanted, branched) {
            (Outcome::Failed(words) | Outcome::ReadyOr(words), Err(error)) => {
                let reason = status("failed");
                assert!(reason.contains(words), "{cell}: {error}: {reason}");
                assert!(reason.contains(&error.to_string()), "{cell}: {error}: {reason}");
            }
            (Outcome::Durable, Ok(_)) => {
                status("ready");
                self.lab.wait_durable(tag).await;
            }
            (Outcome::Ready | Outcome::ReadyOr(_), Ok(_)) => {
                let begun = Instant::now();
                while !self.saboteur.has_struck() {
                    assert!(begun.elapsed() < SOON, "{cell}: not struck");
                    tokio::time::sleep(Duration::from_millis(5)).await;
                }
                tokio::time::sleep(Duration::from_millis(300)).await;
                status("ready");
                assert!(!self.lab.engine.snapshot(tag).unwrap().durable, "{cell}");
            }
            (wanted, got) => panic!("{cell}: {wanted:?} was expected, not {got:?}"),
        }
        assert!(self.saboteur.has_struck(), "{cell}: not struck");
    }

    /// A source whose VMM is silent is shown as such until the VMM answers again.
    async fn check_silent(&self, cell: &str, source: &Source<'_>, phase: BranchPhase) {
        if phase < BranchPhase::Sweep {
            // The branch is answered before the source is looked at.
            let begun = Instant::now();
            let error = loop {
                let shown = self.lab.engine.sandbox(&source.guest.id).unwrap();
                assert_eq!(shown.state, SandboxState::Branching, "{cell}");
                if let Some(error) = shown.error {
                    break error;
                }
                assert!(begun.elapsed() < SOON, "{cell}: nothing is said of the source");
                tokio::time::sleep(Duration::from_millis(20)).await;
            };
            assert!(error.contains("has not confirmed that it runs"), "{cell}: {error}");
            let error = source.guest.try_branch_as(&"while-silent".parse().unwrap()).await;
            let error = error.unwrap_err().to_string();
            assert!(error.contains("did not answer"), "{cell}: {error}");
        }
        kill_process(source.vmm, Signal::CONT).unwrap();
        self.lab.wait_state(&source.guest.id, SandboxState::Running).await;
        assert_eq!(self.lab.engine.sandbox(&source.guest.id).unwrap().error, None, "{cell}");
    }

    /// The source counts on, and its next branch gives a right child.
    async fn check_running(&self, cell: &str, source: &Source<'_>) {
        let guest = &source.guest;
        self.lab.wait_state(&guest.id, SandboxState::Running).await;
        let count = async || guest.sh("cat /run/n").await.parse::<u64>().unwrap_or_default();
        let (before, begun) = (count().await, Instant::now());
        while count().await <= before {
            assert!(begun.elapsed() < SOON, "{cell}: the guest stands still");
        }
        assert_eq!(guest.sh(DIGEST).await, source.digest, "{cell}: the source");
        let next = guest.branch().await;
        self.lab.wait_durable(&next.tag).await;
        self.check_child(cell, source, &next.tag).await;
    }

    async fn check_child(&self, cell: &str, source: &Source<'_>, tag: &SnapshotTag) {
        let child = self.lab.one(tag).await;
        assert_eq!(child.sh(DIGEST).await, source.digest, "{cell}: child of {tag}");
        child.remove().await;
    }

    /// What the source makes for its next branch belongs to nobody for a moment.
    async fn check_leftovers(&self, cell: &str) {
        let begun = Instant::now();
        loop {
            let found = self.lab.leftovers();
            if found.is_empty() {
                return;
            }
            assert!(begun.elapsed() < SOON, "{cell}: {found:?} belong to nobody");
            tokio::time::sleep(Duration::from_millis(20)).await;
        }
    }

    /// Sockets of a removed child are closed by tasks that end a moment later.
    async fn check_descriptors(&self, cell: &str, source: &Source<'_>) {
        let begun = Instant::now();
        while self.lab.descriptor_count() > source.descriptors {
            let now = self.lab.descriptor_count();
            assert!(begun.elapsed() < SOON, "{cell}: {now} after {}", source.descriptors);
            tokio::time::sleep(Duration::from_millis(20)).await;
        }
    }
}
