//! Goal: a gateway that dies or stands still at any edge of a branch costs the branch nothing but
//! time: it succeeds, its pause does not wait for the gateway, and the source runs on. Connections
//! of the former gateway end with a reset in the source and in its children, and new ones work.
//!
//! Method: SIGKILL and SIGSTOP at each edge, and while children start. The source has an idle
//! connection, whose end it can learn only by being told. Nobody continues a stopped gateway: the
//! daemon replaces it. Breaks when something in the pause window waits for the gateway, when
//! nobody knows which connections there were, or when a gateway that is silent is kept.

use std::sync::{Arc, Mutex};
use std::time::{Duration, Instant};

use forkd_engine::{BranchProbe, EngineError, ProbedBranch};
use forkd_testkit::{Guest, Lab, SOON, block_on, gateway_in};
use forkd_types::BranchPhase;
use forkd_types::network::NetworkLeave;
use forkd_vmm::Vm;
use rustix::process::{Pid, Signal, kill_process};

use crate::connections;
use crate::scene::ALONE;

/// A stopped gateway is silent for longer before the daemon gives it up.
const PAUSE_MAX: Duration = Duration::from_secs(3);
const CHILDREN: u32 = 2;

/// When it strikes.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Edge {
    Before(BranchPhase),
    /// The guest runs, and frames for it are still held.
    AfterResume,
    /// A child is being started.
    Children,
}

const EDGES: [Edge; 6] = [
    // Nothing is held yet.
    Edge::Before(BranchPhase::Prepare),
    // Frames are held, and the guest runs.
    Edge::Before(BranchPhase::Pause),
    Edge::Before(BranchPhase::SaveDeviceState),
    Edge::AfterResume,
    Edge::Before(BranchPhase::Seal),
    Edge::Children,
];

#[derive(Debug, Default)]
struct Saboteur(Mutex<Option<(Edge, Signal, Pid)>>);

impl Saboteur {
    fn strike(&self, edge: Edge) {
        let blow = self.0.lock().unwrap().take_if(|(at, ..)| *at == edge);
        if let Some((_, signal, gateway)) = blow {
            kill_process(gateway, signal).unwrap();
        }
    }
}

impl BranchProbe for Saboteur {
    fn before(&self, phase: BranchPhase, _: &ProbedBranch<'_>) -> Result<(), EngineError> {
        self.strike(Edge::Before(phase));
        Ok(())
    }

    fn after_resume(&self, _: &ProbedBranch<'_>, _: &mut dyn Vm) -> Result<(), EngineError> {
        self.strike(Edge::AfterResume);
        Ok(())
    }
}

/// The source, a branch that the gateway leaves, and the children.
async fn play(lab: &Lab, saboteur: &Arc<Saboteur>, source: &Guest<'_>, edge: Edge, signal: Signal) {
    let cell = format!("{signal:?} {edge:?}");
    let run_dir = lab.config().run_dir.clone();
    let gateway = gateway_in(&run_dir).expect("a gateway");
    source.eval("idle = dial()").await;
    *saboteur.0.lock().unwrap() = Some((edge, signal, gateway));
    let watcher = (edge == Edge::Children).then(|| {
        let (engine, saboteur) = (lab.engine.clone(), Arc::clone(saboteur));
        let before = engine.sandboxes().len();
        std::thread::spawn(move || {
            while engine.sandboxes().len() == before {
                std::thread::sleep(Duration::from_millis(1));
            }
            saboteur.strike(edge);
        })
    });
    let begun = Instant::now();
    let (tag, children) = source.branch_into(CHILDREN).await;
    let taken = begun.elapsed();
    if let Some(watcher) = watcher {
        watcher.join().unwrap();
    }
    assert!(saboteur.0.lock().unwrap().is_none(), "{cell}: not struck");
    assert!(taken < SOON, "{cell}: took {taken:?}");
    let pause = lab.engine.snapshot(&tag).unwrap().branch.unwrap().pause;
    assert!(pause < PAUSE_MAX, "{cell}: paused for {pause:?}");
    connections::wait_until_they_work(source, &cell).await;
    assert_ne!(gateway_in(&run_dir), Some(gateway), "{cell}: it is still there");
    for guest in children.iter().chain([source]) {
        assert_eq!(guest.eval("ends(idle)").await, "'ECONNRESET'", "{cell}: {}", guest.id);
        connections::wait_until_they_work(guest, &cell).await;
    }
    #[expect(clippy::print_stdout, reason = "figures are for people")]
    {
        println!("{cell}: branched into {CHILDREN} in {taken:?}, pause {pause:?}");
    }
    for child in children {
        child.remove().await;
    }
}

fn play_all(signal: Signal) {
    block_on(async {
        let _alone = ALONE.lock().await;
        let saboteur = Arc::new(Saboteur::default());
        let probe = Arc::clone(&saboteur) as Arc<dyn BranchProbe>;
        let lab = Lab::with_config(&Lab::hot_directory(), |config| {
            config.probe = Some(probe);
            config.network = NetworkLeave::Any;
        })
        .await;
        let source = lab.python().await;
        connections::allow(&lab, &source, connections::serve()).await;
        for edge in EDGES {
            play(&lab, &saboteur, &source, edge, signal).await;
        }
    });
}

#[test]
fn a_gateway_that_is_killed() {
    play_all(Signal::KILL);
}

#[test]
fn a_gateway_that_stands_still() {
    play_all(Signal::STOP);
}
