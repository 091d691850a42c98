//! One request under way: its replies, its credit, its input.

use std::sync::Arc;
use std::time::Duration;

use forkd_protocol::{CREDIT_OVERHEAD_BYTES, DATA_BYTES_MAX, Reply, Request, credit_cost};
use tokio::sync::{mpsc, oneshot};
use tokio::time::Instant;

use super::GuestError;
use super::budget::Collected;
use super::connection::{Connection, Inbox, Tasks, lock};

/// A point in time with the wait that it came from, for the error text.
#[derive(Debug, Clone, Copy)]
pub(super) struct Deadline {
    at: Instant,
    within: Duration,
    /// Counted again from each piece of input that the agent had room for.
    renews: bool,
}

impl Deadline {
    pub(super) fn after(within: Duration) -> Self {
        // A wait that the clock cannot express is as good as a year.
        let year = Duration::from_secs(365 * 24 * 3600);
        Self { at: Instant::now() + within.min(year), within, renews: false }
    }

    /// For what takes as long as its input, and gets on.
    pub(super) fn since_progress(within: Duration) -> Self {
        Self { renews: true, ..Self::after(within) }
    }

    /// For what may take as long as it likes, and ends otherwise.
    pub(super) fn never() -> Self {
        Self::after(Duration::MAX)
    }

    pub(super) fn instant(&self) -> Instant {
        self.at
    }

    pub(super) fn timeout(&self, what: &'static str) -> GuestError {
        GuestError::Timeout { what, deadline: self.within }
    }
}

/// A registered request. Dropping it before its last reply tells the agent to end it.
pub(super) struct Call {
    connection: Arc<Connection>,
    /// Keeps the connection alive while the call is.
    _tasks: Arc<Tasks>,
    inbox: Inbox,
    id: u64,
    what: &'static str,
    deadline: Deadline,
    /// Payload taken since credit was last given.
    taken: u64,
    input: Option<Input>,
    finished: bool,
}

/// The next piece of a request's input.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct InputPiece {
    /// The bytes.
    pub data: Vec<u8>,
    /// Nothing follows.
    pub eof: bool,
}

/// Input on its way to the agent: as much as it allowed, one chunk at a time.
struct Input {
    data: Vec<u8>,
    /// Where more comes from once all of `data` is with the agent.
    source: Option<mpsc::Receiver<InputPiece>>,
    sent: usize,
    /// Of all pieces.
    sent_in_all: u64,
    credit: u64,
    in_flight: Option<oneshot::Receiver<()>>,
    /// The input ends after `data`.
    ends: bool,
    eof_sent: bool,
}

impl Input {
    fn new(data: Vec<u8>, source: Option<mpsc::Receiver<InputPiece>>) -> Self {
        let ends = source.is_none();
        let (sent, sent_in_all, credit) = (0, 0, 0);
        Self { data, source, sent, sent_in_all, credit, in_flight: None, ends, eof_sent: false }
    }

    /// What to wait for until more can be sent.
    async fn change(&mut self) {
        if let Some(in_flight) = &mut self.in_flight {
            // An error means that the connection is closed, which the replies tell.
            in_flight.await.ok();
            self.in_flight = None;
            return;
        }
        let piece = match &mut self.source {
            Some(source) if self.sent == self.data.len() && !self.ends => source.recv().await,
            _ => None,
        };
        match piece {
            Some(InputPiece { data, eof }) => {
                self.data = data;
                self.sent = 0;
                self.ends = eof;
            }
            None => std::future::pending().await,
        }
    }
}

/// What can be sent for a request without having it.
pub(super) struct CallLink {
    connection: Arc<Connection>,
    what: &'static str,
    id: u64,
}

impl CallLink {
    pub(super) fn send_size(&self, rows: u16, cols: u16) -> Result<(), GuestError> {
        self.connection.send(self.what, self.id, &Request::Resize { rows, cols }).map(drop)
    }

    pub(super) fn send_signal(&self, signal: i32) -> Result<(), GuestError> {
        self.connection.send(self.what, self.id, &Request::Kill { signal }).map(drop)
    }
}

impl Call {
    /// Registers a request and gives its id to `prepare` before anything is sent.
    pub(super) fn new(
        connection: &Arc<Connection>,
        tasks: &Arc<Tasks>,
        what: &'static str,
        deadline: Deadline,
    ) -> Result<Self, GuestError> {
        let (id, inbox) = connection.open(what)?;
        Ok(Self {
            connection: Arc::clone(connection),
            _tasks: Arc::clone(tasks),
            inbox,
            id,
            what,
            deadline,
            taken: 0,
            input: None,
            // Nothing to end before something was sent.
            finished: true,
        })
    }

    pub(super) fn id(&self) -> u64 {
        self.id
    }

    /// Sends the request itself. Gives a receiver that is told when the kernel has all of it.
    pub(super) fn begin(&mut self, request: &Request) -> Result<oneshot::Receiver<()>, GuestError> {
        let written = self.connection.send(self.what, self.id, request)?;
        self.finished = false;
        Ok(written)
    }

    /// As [`Call::begin`], with the request of `first` before it: the agent gets both in one piece.
    pub(super) fn begin_behind(
        &mut self,
        first: (&Self, &Request),
        request: &Request,
    ) -> Result<oneshot::Receiver<()>, GuestError> {
        let requests = [(first.0.id, first.1), (self.id, request)];
        let written = self.connection.send_both(self.what, requests)?;
        self.finished = false;
        Ok(written)
    }

    /// The credit to give in the request.
    pub(super) fn window(&self) -> u64 {
        self.inbox.window
    }

    /// Where its output is collected.
    pub(super) fn collected(&self) -> Collected {
        Collected::new(&self.connection.collected)
    }

    pub(super) fn set_deadline(&mut self, deadline: Deadline) {
        self.deadline = deadline;
    }

    pub(super) fn link(&self) -> CallLink {
        CallLink { connection: Arc::clone(&self.connection), what: self.what, id: self.id }
    }

    /// Gives the whole input that the request announced.
    pub(super) fn set_input(&mut self, data: Vec<u8>) {
        self.input = Some(Input::new(data, None));
    }

    /// The input that the request announced comes in pieces. The next one is taken when the agent
    /// has all of the one before.
    pub(super) fn open_input(&mut self, source: mpsc::Receiver<InputPiece>) {
        self.input = Some(Input::new(Vec::new(), Some(source)));
    }

    /// How much input the agent was sent.
    pub(super) fn input_sent(&self) -> u64 {
        self.input.as_ref().map_or(0, |input| input.sent_in_all)
    }

    /// The next reply; errors of the agent are errors here. Sends input meanwhile, and allows more
    /// output. Safe to cancel.
    pub(super) async fn next(&mut self) -> Result<Reply, GuestError> {
        let reply = self.next_on_credit().await?;
        self.give_credit()?;
        Ok(reply)
    }

    /// As [`Call::next`], but allows no more output; see [`Call::give_credit`].
    pub(super) async fn next_on_credit(&mut self) -> Result<Reply, GuestError> {
        loop {
            self.advance_input()?;
            let reply = tokio::select! {
                biased;
                reply = self.inbox.replies.recv() => reply,
                () = change(self.input.as_mut()) => continue,
                () = tokio::time::sleep_until(self.deadline.instant()) => {
                    return Err(self.deadline.timeout(self.what));
                }
            };
            match reply.map(|arrived| arrived.reply) {
                None => return Err(self.lost()),
                Some(Reply::Credit { bytes }) => {
                    if let Some(input) = &mut self.input {
                        input.credit = input.credit.saturating_add(bytes);
                    }
                }
                Some(Reply::Error { code, message }) => {
                    self.finish();
                    return Err(GuestError::remote(&code, &message));
                }
                Some(reply) => {
                    self.taken += reply.payload_bytes().map_or(0, credit_cost);
                    return Ok(reply);
                }
            }
        }
    }

    /// Whether a reply has come that nobody has taken, or none will come.
    pub(super) fn is_answered(&self) -> bool {
        !self.inbox.replies.is_empty() || self.inbox.replies.is_closed()
    }

    /// The last reply has come: nothing is left to be ended.
    pub(super) fn finish(&mut self) {
        self.finished = true;
    }

    pub(super) fn unexpected(&self, reply: &Reply) -> GuestError {
        GuestError::unexpected(self.what, kind_of(reply))
    }

    pub(super) fn send_signal(&self, signal: i32) -> Result<(), GuestError> {
        self.connection.send(self.what, self.id, &Request::Kill { signal }).map(drop)
    }

    fn lost(&mut self) -> GuestError {
        match self.inbox.failure.get() {
            Some(GuestError::Protocol { reason, .. }) => {
                GuestError::Protocol { what: self.what, reason: reason.clone() }
            }
            Some(error) => error.clone(),
            None => self.connection.closed_reason(),
        }
    }

    /// Allows as much more output as was taken, once it is worth a message.
    pub(super) fn give_credit(&mut self) -> Result<(), GuestError> {
        if self.taken < self.inbox.window / 2 {
            return Ok(());
        }
        let bytes = std::mem::take(&mut self.taken);
        *lock(&self.inbox.credit) += bytes;
        self.connection.send(self.what, self.id, &Request::Credit { bytes }).map(drop)
    }

    fn advance_input(&mut self) -> Result<(), GuestError> {
        let Some(input) = &mut self.input else { return Ok(()) };
        let room = input.credit.saturating_sub(CREDIT_OVERHEAD_BYTES);
        if input.eof_sent || input.in_flight.is_some() || input.credit < CREDIT_OVERHEAD_BYTES {
            return Ok(());
        }
        let rest = &input.data[input.sent..];
        if rest.is_empty() && !input.ends {
            return Ok(());
        }
        let count = rest.len().min(DATA_BYTES_MAX).min(usize::try_from(room).unwrap_or(usize::MAX));
        if count == 0 && !rest.is_empty() {
            return Ok(());
        }
        let eof = input.ends && count == rest.len();
        let message = Request::Input { data: rest[..count].to_vec(), eof };
        input.sent += count;
        input.sent_in_all += count as u64;
        input.credit = input.credit.saturating_sub(credit_cost(count));
        input.eof_sent = eof;
        input.in_flight = Some(self.connection.send(self.what, self.id, &message)?);
        if self.deadline.renews {
            self.deadline = Deadline::since_progress(self.deadline.within);
        }
        Ok(())
    }
}

impl Drop for Call {
    fn drop(&mut self) {
        self.connection.close(self.id);
        if !self.finished {
            // When this fails the connection is gone, and the agent discards the output anyway.
            drop(self.connection.send(self.what, self.id, &Request::Cancel {}));
        }
    }
}

/// Waits for a change of the input; for ever when there is none.
async fn change(input: Option<&mut Input>) {
    match input {
        Some(input) => input.change().await,
        None => std::future::pending().await,
    }
}

fn kind_of(reply: &Reply) -> &'static str {
    match reply {
        Reply::Welcome { .. } => "welcome",
        Reply::Pong { .. } => "pong",
        Reply::Started { .. } => "started",
        Reply::Kept { .. } => "kept",
        Reply::Followed { .. } => "followed",
        Reply::Stdout { .. } => "stdout",
        Reply::Stderr { .. } => "stderr",
        Reply::Credit { .. } => "credit",
        Reply::Exited { .. } => "exited",
        Reply::CellStarted { .. } => "cell_started",
        Reply::Contexts { .. } => "contexts",
        Reply::EvalPart { .. } => "eval_part",
        Reply::EvalDone { .. } => "eval_done",
        Reply::FileData { .. } => "file_data",
        Reply::FileEnd { .. } => "file_end",
        Reply::Written { .. } => "written",
        Reply::Entry { .. } => "entry",
        Reply::Done {} => "done",
        Reply::Watching {} => "watching",
        Reply::Change { .. } => "change",
        Reply::KeptWatch { .. } => "kept_watch",
        Reply::Usage { .. } => "usage",
        Reply::Port { .. } => "port",
        Reply::PortOpened { .. } => "port_opened",
        Reply::IdentityInEffect {} => "identity_in_effect",
        Reply::Renewed { .. } => "renewed",
        Reply::PoweringOff {} => "powering_off",
        Reply::Error { .. } => "error",
    }
}
