//! The processes of one sandbox.

use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::{Duration, SystemTime};

use forkd_types::ProcessId;
use forkd_types::limit::PROCESSES_PER_SANDBOX_MAX;
use tokio::sync::watch;

use super::kept::{KeptProgram, Record};
use super::process::{OutputReader, Process, ProcessView};
use super::supervise::{HOLD, supervise};
use super::{ProcessError, ProcessRequest, TerminalSize};
use crate::guest::call::Call;
use crate::guest::{GuestAgent, GuestError, InputPiece};

/// Why a process that was removed is gone, for its readers.
const REMOVED: &str = "the process was removed";
/// The processes that were started and are not forgotten. Ended ones are forgotten, oldest first,
/// when others need their place.
pub struct ProcessTable {
    state: Mutex<State>,
    /// How long the beginning of a character waits for its rest.
    hold: Duration,
    /// How many guests are asked what they keep.
    asking: watch::Sender<usize>,
}

/// A guest is to be asked which programs of an earlier conversation it keeps.
#[must_use]
pub(crate) struct Asking(watch::Sender<usize>);

impl Drop for Asking {
    fn drop(&mut self) {
        self.0.send_modify(|count| *count -= 1);
    }
}

impl Default for ProcessTable {
    fn default() -> Self {
        Self::with_hold(HOLD)
    }
}

#[derive(Default)]
struct State {
    /// In the order of their start.
    processes: Vec<Arc<Process>>,
    /// Places for processes that are being started.
    reserved: usize,
}

/// A place in the table for a process that is being started.
struct Place<'a>(&'a ProcessTable);

impl Drop for Place<'_> {
    fn drop(&mut self) {
        self.0.lock().reserved -= 1;
    }
}

impl ProcessTable {
    /// An empty table. The beginning of a character waits for its rest for `hold`, where the two
    /// come apart.
    #[must_use]
    pub fn with_hold(hold: Duration) -> Self {
        Self { state: Mutex::default(), hold, asking: watch::Sender::new(0) }
    }

    fn lock(&self) -> MutexGuard<'_, State> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Starts a program that goes on after this returns. Dropping the future before it does kills
    /// the program. Must be called inside a Tokio runtime.
    ///
    /// # Errors
    /// See [`ProcessError`].
    pub async fn start(
        &self,
        agent: &GuestAgent,
        request: ProcessRequest,
    ) -> Result<ProcessView, ProcessError> {
        let place = self.reserve()?;
        let audience = request.audience;
        let (id, record) = (ProcessId::random(), Record::of(&request, SystemTime::now()));
        let keep = agent.kept().map(|_| record.keep(&id));
        let started = agent.start_process(request, keep).await?;
        let process = Process::new(&started, id, record, false);
        process.expect(audience);
        self.supervise(&process, started.call);
        drop(place);
        self.lock().processes.push(Arc::clone(&process));
        Ok(process.view())
    }

    fn supervise(&self, process: &Arc<Process>, call: Call) {
        let supervisor = tokio::spawn(supervise(Arc::clone(process), call, self.hold));
        process.supervised_by(supervisor.abort_handle());
    }

    /// Until what this gives is dropped, [`ProcessTable::settled`] waits.
    pub(crate) fn asking(&self) -> Asking {
        self.asking.send_modify(|count| *count += 1);
        Asking(self.asking.clone())
    }

    /// Waits until the programs of a guest are known that it had before we came.
    pub async fn settled(&self) {
        // The sender is ours.
        self.asking.subscribe().wait_for(|count| *count == 0).await.ok();
    }

    /// Goes on with the programs that a guest keeps from an earlier conversation. One that is
    /// in the table already is replaced: it is known from before a rollback. Must be called inside
    /// a Tokio runtime.
    ///
    /// # Errors
    /// See [`GuestError`]. Programs that could not be followed are left out.
    pub async fn follow_kept(&self, agent: &GuestAgent) -> Result<(), GuestError> {
        for program in agent.list_kept().await? {
            let started = match agent.follow_kept(&program).await {
                Ok(started) => started,
                Err(GuestError::Remote { code, message }) => {
                    tracing::debug!(process = %program.id, code, message, "not followed");
                    continue;
                }
                Err(error) => return Err(error),
            };
            let KeptProgram { id, inherited, record, .. } = program;
            let process = Process::new(&started, id, record, inherited);
            self.supervise(&process, started.call);
            let mut state = self.lock();
            match state.processes.iter_mut().find(|known| known.id() == process.id()) {
                // Lost to us with the conversation that it was part of.
                Some(known) => *known = process,
                None => state.processes.push(process),
            }
        }
        Ok(())
    }

    fn reserve(&self) -> Result<Place<'_>, ProcessError> {
        let mut state = self.lock();
        while state.processes.len() + state.reserved >= PROCESSES_PER_SANDBOX_MAX {
            let ended = state.processes.iter().position(|process| process.has_ended());
            let Some(oldest) = ended else {
                return Err(ProcessError::TooMany { limit: PROCESSES_PER_SANDBOX_MAX });
            };
            state.processes.remove(oldest);
        }
        state.reserved += 1;
        drop(state);
        Ok(Place(self))
    }

    fn get(&self, id: &ProcessId) -> Result<Arc<Process>, ProcessError> {
        let state = self.lock();
        let found = state.processes.iter().find(|process| process.id() == id).cloned();
        found.ok_or_else(|| ProcessError::Unknown { id: id.clone() })
    }

    /// Whether any process runs that was started here. A server that came with the snapshot is no
    /// use of the sandbox.
    pub(crate) fn has_running(&self) -> bool {
        let state = self.lock();
        state.processes.iter().any(|process| !process.is_inherited() && !process.has_ended())
    }

    /// All processes, oldest first.
    #[must_use]
    pub fn list(&self) -> Vec<ProcessView> {
        self.lock().processes.iter().map(|process| process.view()).collect()
    }

    /// One process.
    ///
    /// # Errors
    /// [`ProcessError::Unknown`].
    pub fn view(&self, id: &ProcessId) -> Result<ProcessView, ProcessError> {
        self.get(id).map(|process| process.view())
    }

    /// Waits for a process to end, at the longest for `within`.
    ///
    /// # Errors
    /// [`ProcessError::Unknown`].
    pub async fn wait(
        &self,
        id: &ProcessId,
        within: Duration,
    ) -> Result<ProcessView, ProcessError> {
        let process = self.get(id)?;
        // What it is now is the answer, whether it has ended or not.
        tokio::time::timeout(within, process.ended()).await.ok();
        Ok(process.view())
    }

    /// Follows the output of a process from the offset `from` on, or from the oldest kept byte.
    ///
    /// # Errors
    /// [`ProcessError::Unknown`], [`ProcessError::PastTheEnd`].
    pub fn read(&self, id: &ProcessId, from: Option<u64>) -> Result<OutputReader, ProcessError> {
        self.get(id)?.read(from)
    }

    /// Gives a program input, all of it or nothing.
    ///
    /// # Errors
    /// See [`ProcessError`].
    pub async fn give_input(&self, id: &ProcessId, piece: InputPiece) -> Result<(), ProcessError> {
        self.get(id)?.give_input(piece).await
    }

    /// Sends a signal to a program's process group.
    ///
    /// # Errors
    /// See [`ProcessError`].
    pub fn signal(&self, id: &ProcessId, signal: i32) -> Result<(), ProcessError> {
        self.get(id)?.signal(signal)
    }

    /// Changes the size of a process's terminal.
    ///
    /// # Errors
    /// See [`ProcessError`].
    pub fn resize(&self, id: &ProcessId, size: TerminalSize) -> Result<(), ProcessError> {
        self.get(id)?.resize(size)
    }

    /// Kills a process if it runs, and forgets it.
    ///
    /// # Errors
    /// [`ProcessError::Unknown`].
    pub fn remove(&self, id: &ProcessId) -> Result<(), ProcessError> {
        let process = self.get(id)?;
        self.lock().processes.retain(|other| other.id() != id);
        process.give_up(REMOVED);
        Ok(())
    }

    /// The VM is gone: no process runs any more. What they wrote can still be read.
    pub fn end_all(&self, reason: &str) {
        let processes = self.lock().processes.clone();
        for process in processes {
            if !process.has_ended() {
                process.give_up(reason);
            }
        }
    }
}
