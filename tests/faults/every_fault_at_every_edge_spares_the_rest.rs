//! Goal: whatever breaks at whatever edge of a branch, the source runs (or is dead, if it was
//! killed), the snapshot is `failed` with the reason, or ready and right where the fault comes too
//! late to matter, nothing is left behind, and the next branch works.
//!
//! Method: the table says what a branch must give for each fault at each edge; [`Scene::play`]
//! checks the rest, which is the same everywhere. Breaks when a phase has no way back.

use forkd_testkit::block_on;
use forkd_types::BranchPhase;

use crate::scene::{ALONE, Fault, Outcome, Scene, Source};

use Outcome::{Durable, Failed, Ready, ReadyOr};

/// Outcomes in the order of [`BranchPhase::ALL`].
type Row = [Outcome; 9];

#[rustfmt::skip]
const HOT_FULL: Row = [
    Failed("are needed in"),            // prepare
    Failed("xen-save-devices-state"),   // pause
    Failed("xen-save-devices-state"),   // save_device_state
    Failed("No space left on device"),  // freeze_disk
    Failed("No space left on device"),  // protect
    Failed("No space left on device"),  // resume
    Failed("No space left on device"),  // sweep
    Failed("No space left on device"),  // seal
    Durable,                            // publish
];

#[rustfmt::skip]
const DISK_FULL: Row = [
    // The overlay was made after the previous branch.
    ReadyOr("full"),                    // prepare
    ReadyOr("full"),                    // pause
    ReadyOr("full"),                    // save_device_state
    ReadyOr("full"),                    // freeze_disk
    ReadyOr("full"),                    // protect
    ReadyOr("full"),                    // resume
    ReadyOr("full"),                    // sweep
    ReadyOr("full"),                    // seal
    Ready,                              // publish
];

const VMM_KILLED: Row = [
    Failed("the VMM is gone"),
    Failed("the VMM is gone"),
    Failed("the VMM is gone"),
    Failed("the VMM is gone"),
    Failed("the VMM is gone"),
    Failed("the VMM is gone"),
    Failed("the VMM is gone"),
    Durable,
    Durable,
];

const REFUSAL: Row = [
    Failed("refused at prepare"),
    Failed("refused at pause"),
    Failed("refused at save_device_state"),
    Failed("refused at freeze_disk"),
    Failed("refused at protect"),
    Failed("refused at resume"),
    Failed("refused at sweep"),
    Failed("refused at seal"),
    Ready,
];

#[rustfmt::skip]
const SILENCE: Row = [
    Failed("did not answer `stop`"),
    Failed("did not answer `stop`"),
    Failed("did not answer `xen-save-devices-state`"),
    // Asked for with the device state, so the VMM may have answered before it was struck.
    Failed("did not answer `"),
    Failed("did not answer `cont`"),
    Failed("did not answer `cont`"),
    // Nobody can tell whether it still writes to the disk of the snapshot.
    Failed("did not answer `blockdev-reopen`"),
    Failed("did not answer `blockdev-reopen`"),
    Durable,                            // publish
];

/// No phase needs the guest agent to answer.
const AGENT_DEAD: Row = [Durable; 9];

fn play(fault: Fault, row: Row) {
    block_on(async {
        let _alone = ALONE.lock().await;
        let scene = Scene::set(fault).await;
        let mut source: Option<Source<'_>> = None;
        for (phase, wanted) in BranchPhase::ALL.into_iter().zip(row) {
            let used = match source.take() {
                Some(source) => source,
                None => scene.source().await,
            };
            if scene.play(&used, fault, phase, wanted).await {
                source = Some(used);
            }
        }
    });
}

#[test]
fn no_space_in_the_hot_directory() {
    play(Fault::HotFull, HOT_FULL);
}

#[test]
fn no_space_in_the_state_directory() {
    play(Fault::DiskFull, DISK_FULL);
}

#[test]
fn a_killed_vmm() {
    play(Fault::VmmKilled, VMM_KILLED);
}

#[test]
fn a_refusal_of_the_vmm() {
    play(Fault::Refusal, REFUSAL);
}

#[test]
fn a_silent_vmm() {
    play(Fault::Silence, SILENCE);
}

#[test]
fn a_dead_guest_agent() {
    play(Fault::AgentDead, AGENT_DEAD);
}
