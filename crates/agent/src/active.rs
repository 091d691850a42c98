//! A request under way: what its thread and the reader thread tell each other.

use std::collections::VecDeque;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::sync::{Arc, Mutex};
use std::time::Duration;

use forkd_protocol::{
    CREDIT_OVERHEAD_BYTES, DATA_BYTES_MAX, INPUT_WINDOW_BYTES, Reply, code, credit_cost,
};
use rustix::event::{EventfdFlags, PollFd, PollFlags, Timespec, eventfd, poll};
use rustix::termios::Winsize;

use crate::outbox::{Outbox, Pushed};
use crate::sync::lock;

const SIGKILL: i32 = 9;

/// How long a reply waits for room before its thread looks at signals and deadlines again.
const PATIENCE: Duration = Duration::from_millis(50);

/// Why a request ends without a result.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct Refusal {
    /// One of `forkd_protocol::code`.
    pub(crate) code: &'static str,
    /// For people.
    pub(crate) message: String,
}

impl Refusal {
    pub(crate) fn new(code: &'static str, message: impl Into<String>) -> Self {
        Self { code, message: message.into() }
    }

    pub(crate) fn into_reply(self) -> Reply {
        let mut message = self.message;
        truncate(&mut message, 16 * 1024);
        Reply::Error { code: self.code.to_owned(), message }
    }
}

/// Cuts a text at a character boundary.
pub(crate) fn truncate(text: &mut String, bytes_max: usize) {
    if text.len() > bytes_max {
        let end = (0..=bytes_max).rev().find(|&at| text.is_char_boundary(at)).unwrap_or(0);
        text.truncate(end);
        text.push_str("...");
    }
}

/// The next piece of a request's input.
#[derive(Debug, PartialEq, Eq)]
pub(crate) enum Input {
    /// Bytes.
    Data(Vec<u8>),
    /// Nothing has come yet.
    Nothing,
    /// Nothing comes any more, and the host said so.
    End,
    /// Nothing comes any more, because the host broke the rules or ended the request.
    Lost,
    /// Nothing comes any more, because the host is another one since a branch.
    Abandoned,
}

/// The request as which the host knows it.
#[derive(Debug, Clone, Copy, Default)]
struct Binding {
    id: u64,
    epoch: u64,
}

#[derive(Default)]
struct State {
    binding: Binding,
    /// A host of a later epoch goes on with it, with this credit, once its thread has seen it.
    follower: Option<(Binding, u64)>,
    output_credit: u64,
    input: VecDeque<Vec<u8>>,
    input_allowed: u64,
    input_taken: u64,
    input_ended: bool,
    input_lost: bool,
    signals: Vec<i32>,
    /// The size that the terminal shall have.
    size: Option<Winsize>,
    stale: bool,
    cancelled: bool,
}

/// One request under way.
pub(crate) struct Active {
    outbox: Arc<Outbox>,
    state: Mutex<State>,
    /// Readable when something changed.
    wake: OwnedFd,
}

impl Active {
    pub(crate) fn new(
        id: u64,
        epoch: u64,
        output_credit: u64,
        outbox: Arc<Outbox>,
    ) -> std::io::Result<Self> {
        let wake = eventfd(0, EventfdFlags::CLOEXEC | EventfdFlags::NONBLOCK)?;
        let binding = Binding { id, epoch };
        let state = Mutex::new(State { binding, output_credit, ..State::default() });
        Ok(Self { outbox, state, wake })
    }

    // The reader thread's side.

    pub(crate) fn add_credit(&self, bytes: u64) {
        let mut state = lock(&self.state);
        let credit = match &mut state.follower {
            Some((_, credit)) => credit,
            None => &mut state.output_credit,
        };
        *credit = credit.saturating_add(bytes);
        drop(state);
        self.notify();
    }

    pub(crate) fn add_signal(&self, signal: i32) {
        let mut state = lock(&self.state);
        // A host that sends more signals than anybody can take sends noise.
        if state.signals.len() < 16 {
            state.signals.push(signal);
        }
        drop(state);
        self.notify();
    }

    pub(crate) fn set_size(&self, size: Winsize) {
        lock(&self.state).size = Some(size);
        self.notify();
    }

    /// Takes input from the host; more than was allowed loses the input as a whole.
    pub(crate) fn add_input(&self, data: Vec<u8>, eof: bool) -> Result<(), Refusal> {
        let mut state = lock(&self.state);
        if state.input_ended || state.input_lost {
            return Ok(());
        }
        let rest = state.input_allowed.checked_sub(credit_cost(data.len()));
        let result = match rest {
            Some(rest) => {
                state.input_allowed = rest;
                if !data.is_empty() {
                    state.input.push_back(data);
                }
                state.input_ended = eof;
                Ok(())
            }
            None => {
                state.input_lost = true;
                state.input.clear();
                Err(Refusal::new(code::INPUT_OVERRUN, "more input than was allowed"))
            }
        };
        drop(state);
        self.notify();
        result
    }

    /// The epoch is over: nothing is sent any more, but the work goes on.
    pub(crate) fn abandon(&self) {
        let mut state = lock(&self.state);
        state.stale = true;
        state.follower = None;
        drop(state);
        self.notify();
    }

    /// The request `id` of a later epoch goes on with it, see [`Active::take_follower`]. False
    /// when somebody waits for it already, or it was ended.
    pub(crate) fn rebind(&self, id: u64, epoch: u64, output_credit: u64) -> bool {
        let mut state = lock(&self.state);
        if !state.stale || state.cancelled || state.follower.is_some() {
            return false;
        }
        state.follower = Some((Binding { id, epoch }, output_credit));
        drop(state);
        self.notify();
        true
    }

    /// Whether a host goes on with it of whom its thread does not know.
    pub(crate) fn has_follower(&self) -> bool {
        lock(&self.state).follower.is_some()
    }

    /// The host has forgotten the request: nothing is sent any more, and the work ends.
    pub(crate) fn cancel(&self) {
        let mut state = lock(&self.state);
        state.stale = true;
        state.follower = None;
        state.cancelled = true;
        state.signals.push(SIGKILL);
        drop(state);
        self.notify();
    }

    // The request thread's side.

    /// Readable when something changed; see [`Active::clear_wake`].
    pub(crate) fn wake_fd(&self) -> BorrowedFd<'_> {
        self.wake.as_fd()
    }

    /// Makes the wake-up unreadable until the next change.
    pub(crate) fn clear_wake(&self) {
        // "Would block" means that it is clear already.
        rustix::io::read(&self.wake, &mut [0u8; 8]).ok();
    }

    /// Wakes the request's thread.
    pub(crate) fn notify(&self) {
        // A full counter is readable, which is all that matters.
        rustix::io::write(&self.wake, &1u64.to_ne_bytes()).ok();
    }

    /// Waits for a change.
    pub(crate) fn wait(&self) {
        let mut fds = [PollFd::new(&self.wake, PollFlags::IN)];
        if poll(&mut fds, None::<&Timespec>).is_err() {
            std::thread::sleep(Duration::from_millis(1));
        }
        self.clear_wake();
    }

    /// Turns to the host that goes on with it. False when there is none.
    pub(crate) fn take_follower(&self) -> bool {
        let mut state = lock(&self.state);
        let Some((binding, credit)) = state.follower.take() else { return false };
        state.binding = binding;
        state.output_credit = credit;
        state.stale = false;
        true
    }

    /// The host has forgotten it.
    pub(crate) fn was_cancelled(&self) -> bool {
        lock(&self.state).cancelled
    }

    /// Nobody waits for this request's output any more.
    pub(crate) fn is_stale(&self) -> bool {
        lock(&self.state).stale
    }

    /// Signals that the host sent since the last look.
    pub(crate) fn take_signals(&self) -> Vec<i32> {
        std::mem::take(&mut lock(&self.state).signals)
    }

    /// The size that the host wants since the last look.
    pub(crate) fn take_size(&self) -> Option<Winsize> {
        lock(&self.state).size.take()
    }

    /// The host ended the request, or forgot it.
    pub(crate) fn is_cancelled(&self) -> bool {
        let state = lock(&self.state);
        state.stale || !state.signals.is_empty()
    }

    /// Payload bytes that may be sent now; all when nobody listens, because they are discarded.
    pub(crate) fn payload_room(&self) -> usize {
        let state = lock(&self.state);
        if state.stale {
            return DATA_BYTES_MAX;
        }
        let room = state.output_credit.saturating_sub(CREDIT_OVERHEAD_BYTES);
        usize::try_from(room).unwrap_or(usize::MAX).min(DATA_BYTES_MAX)
    }

    /// Sends a reply as soon as the host allows it. False when the request was ended instead.
    pub(crate) fn send_when_allowed(&self, reply: &Reply) -> bool {
        let bytes = reply.payload_bytes().unwrap_or(0);
        while self.payload_room() < bytes && !self.is_cancelled() {
            self.wait();
        }
        if self.is_cancelled() {
            return false;
        }
        self.send(reply, || {});
        true
    }

    /// Queues a reply and waits for room, `attend` being called from time to time meanwhile.
    /// Discards it when nobody waits for it.
    pub(crate) fn send(&self, reply: &Reply, mut attend: impl FnMut()) {
        let Binding { id, epoch } = {
            let mut state = lock(&self.state);
            if let Some(bytes) = reply.payload_bytes() {
                state.output_credit = state.output_credit.saturating_sub(credit_cost(bytes));
            }
            state.binding
        };
        while !self.is_stale() && self.outbox.push(epoch, id, reply, PATIENCE) == Pushed::Full {
            attend();
        }
    }

    /// Allows the host to send input, as much as there is room for beside what waits.
    pub(crate) fn open_input(&self) {
        let mut state = lock(&self.state);
        let waiting: u64 = state.input.iter().map(|data| credit_cost(data.len())).sum();
        let bytes = INPUT_WINDOW_BYTES.saturating_sub(waiting);
        state.input_allowed = bytes;
        drop(state);
        self.send(&Reply::Credit { bytes }, || {});
    }

    /// Whether input may still come.
    pub(crate) fn input_is_open(&self) -> bool {
        let state = lock(&self.state);
        !state.input_ended && !state.input_lost
    }

    /// Takes the next piece of input and allows more.
    pub(crate) fn next_input(&self) -> Input {
        let mut state = lock(&self.state);
        let Some(data) = state.input.pop_front() else {
            return match &*state {
                State { input_ended: true, .. } => Input::End,
                State { input_lost: true, .. } | State { cancelled: true, .. } => Input::Lost,
                State { stale: true, .. } => Input::Abandoned,
                _ => Input::Nothing,
            };
        };
        state.input_taken += credit_cost(data.len());
        let grant = if state.input_taken >= INPUT_WINDOW_BYTES / 2 && !state.input_ended {
            let grant = std::mem::take(&mut state.input_taken);
            state.input_allowed += grant;
            grant
        } else {
            0
        };
        drop(state);
        if grant > 0 {
            self.send(&Reply::Credit { bytes: grant }, || {});
        }
        Input::Data(data)
    }

    /// Waits for the next piece of input.
    pub(crate) fn wait_input(&self) -> Input {
        loop {
            match self.next_input() {
                Input::Nothing if self.is_cancelled() => return Input::Lost,
                Input::Nothing => self.wait(),
                piece => return piece,
            }
        }
    }
}
