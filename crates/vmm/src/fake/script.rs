//! What a fake VMM does when it is asked.

use std::collections::{BTreeMap, VecDeque};
use std::sync::{Mutex, MutexGuard, PoisonError};
use std::time::{Duration, Instant};

/// What a VMM can be asked for.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub enum Call {
    /// To start.
    Start,
    /// To be taken over.
    Adopt,
    /// For the descriptor that tells of its exit. A refusal gives one that tells nothing and cannot
    /// be watched.
    ExitWatch,
    /// For a userfaultfd.
    Userfaultfd,
    /// For the far end of its network device.
    NetworkLink,
    /// To put overlays below its blank one.
    PutOverlaysBelow,
    /// To take memory.
    Map,
    /// To take device state.
    Load,
    /// To let the vCPUs run, outside a pause window.
    Resume,
    /// To stop the vCPUs, outside a pause window.
    Pause,
    /// To open an overlay.
    AddOverlay,
    /// To close an overlay.
    RemoveOverlay,
    /// To close frozen overlays for writing.
    CloseFrozenOverlays,
    /// To merge frozen overlays.
    FlattenDisk,
    /// To write no larger files.
    LimitFiles,
    /// To answer again after a silence.
    Resync,
    /// To load the commands of the pause window.
    LoadPause,
    /// The window: to stop the vCPUs.
    Stop,
    /// The window: to write its device state.
    SaveDeviceState,
    /// The window: to freeze its disk.
    FreezeDisk,
    /// The window: to let the vCPUs run.
    WindowResume,
}

impl Call {
    /// All of them.
    pub const ALL: [Self; 21] = [
        Self::Start,
        Self::Adopt,
        Self::ExitWatch,
        Self::Userfaultfd,
        Self::NetworkLink,
        Self::PutOverlaysBelow,
        Self::Map,
        Self::Load,
        Self::Resume,
        Self::Pause,
        Self::AddOverlay,
        Self::RemoveOverlay,
        Self::CloseFrozenOverlays,
        Self::FlattenDisk,
        Self::LimitFiles,
        Self::Resync,
        Self::LoadPause,
        Self::Stop,
        Self::SaveDeviceState,
        Self::FreezeDisk,
        Self::WindowResume,
    ];

    pub(super) const fn name(self) -> &'static str {
        match self {
            Self::Start => "start",
            Self::Adopt => "adopt",
            Self::ExitWatch => "exit_watch",
            Self::Userfaultfd => "userfaultfd",
            Self::NetworkLink => "network_link",
            Self::PutOverlaysBelow => "put_overlays_below",
            Self::Map => "map",
            Self::Load => "load",
            Self::Resume => "resume",
            Self::Pause => "pause",
            Self::AddOverlay => "add_overlay",
            Self::RemoveOverlay => "remove_overlay",
            Self::CloseFrozenOverlays => "close_frozen_overlays",
            Self::FlattenDisk => "flatten_disk",
            Self::LimitFiles => "limit_files",
            Self::Resync => "resync",
            Self::LoadPause => "load_pause",
            Self::Stop => "stop",
            Self::SaveDeviceState => "save_device_state",
            Self::FreezeDisk => "freeze_disk",
            Self::WindowResume => "window_resume",
        }
    }
}

/// The longest time that a caller waits.
const HANG_MAX: Duration = Duration::from_secs(60);

/// What goes wrong with a call.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Fault {
    /// It takes so long.
    Delay(Duration),
    /// It is refused, and nothing is done.
    Refusal,
    /// There is no reply, until [`Script::speak`]; it is done then.
    Silence,
    /// The caller waits, until [`Script::speak`]; it is done then.
    Hang,
    /// The process dies of it.
    Death,
}

/// The faults to come, and the calls that there were.
#[derive(Debug, Default)]
pub struct Script {
    state: Mutex<State>,
}

#[derive(Debug, Default)]
struct State {
    faults: BTreeMap<Call, VecDeque<Fault>>,
    silent: bool,
    calls: Vec<Call>,
}

impl Script {
    fn lock(&self) -> MutexGuard<'_, State> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// The next such call that has no fault yet has this one.
    pub fn fault(&self, call: Call, fault: Fault) {
        self.lock().faults.entry(call).or_default().push_back(fault);
    }

    /// VMMs that fell silent answer again.
    pub fn speak(&self) {
        self.lock().silent = false;
    }

    /// The calls since this was asked last.
    pub fn take_calls(&self) -> Vec<Call> {
        std::mem::take(&mut self.lock().calls)
    }

    pub(super) fn is_silent(&self) -> bool {
        self.lock().silent
    }

    /// For a test that has failed and never says so, not for ever.
    pub(super) fn wait_until_it_speaks(&self) {
        let begun = Instant::now();
        while self.is_silent() && begun.elapsed() < HANG_MAX {
            std::thread::sleep(Duration::from_millis(1));
        }
    }

    /// A call is made: what goes wrong with it.
    pub(super) fn next(&self, call: Call) -> Option<Fault> {
        let mut state = self.lock();
        state.calls.push(call);
        let fault = state.faults.get_mut(&call).and_then(VecDeque::pop_front);
        state.silent |= matches!(fault, Some(Fault::Silence | Fault::Hang));
        fault
    }
}
