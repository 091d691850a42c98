//! One connection: the reader task, the writer task and the table that says which reply is whose.

use std::collections::HashMap;
use std::io;
use std::sync::atomic::{AtomicBool, AtomicU64, AtomicUsize, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, OnceLock, PoisonError};
use std::time::Duration;

use forkd_protocol::{
    CREDIT_OVERHEAD_BYTES, FRAME_BYTES_MAX, FrameDecoder, Reply, Request, credit_cost,
    decode_reply, encode_request,
};
use tokio::net::UnixStream;
use tokio::sync::{mpsc, oneshot};

use super::budget::{Budget, Held, window};
use super::{GuestError, OUTPUT_WINDOW_BYTES, REQUESTS_MAX};

const READ_BYTES: usize = 64 * 1024;

/// After a read that had nothing for anybody: a guest that sends only such gets no more than a
/// small part of a processor.
const REST: Duration = Duration::from_millis(1);

/// Replies that one request can have waiting: its credit in the smallest frames, and those few
/// that need no credit.
const REPLIES_MAX: usize = (OUTPUT_WINDOW_BYTES / CREDIT_OVERHEAD_BYTES) as usize + 64;

/// Frames that may wait for a guest that does not read, in bytes. Requests end at their deadlines,
/// but their frames stay in the queue.
const QUEUE_BYTES_MAX: usize = 4 * 1024 * 1024;

/// What went over a connection besides what was asked for. All of these only ever grow.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct LinkCounters {
    /// Stretches of the stream that were no frame. One or two are normal after a branch.
    pub frames_rejected: u64,
    /// Replies that no request was waiting for.
    pub replies_unrouted: u64,
}

#[derive(Debug, Default)]
struct Counters {
    frames_rejected: AtomicU64,
    replies_unrouted: AtomicU64,
}

/// Whole frames on their way out, written together.
struct Outgoing {
    frames: Vec<u8>,
    /// Told when the kernel has all of them.
    written: Option<oneshot::Sender<()>>,
}

/// A reply that waits to be taken, and what it holds.
pub(super) struct Arrived {
    pub(super) reply: Reply,
    _held: Held,
}

/// Where the replies of one request go.
struct Route {
    replies: mpsc::Sender<Arrived>,
    /// Credit that the agent has left.
    credit: Arc<Mutex<u64>>,
    /// Why the route was closed before its last reply.
    failure: Arc<OnceLock<GuestError>>,
}

/// The receiving end of a route.
pub(super) struct Inbox {
    pub(super) replies: mpsc::Receiver<Arrived>,
    /// The credit that the request begins with.
    pub(super) window: u64,
    pub(super) credit: Arc<Mutex<u64>>,
    pub(super) failure: Arc<OnceLock<GuestError>>,
}

/// How far the handshake is. Until it is done, what arrives was meant for somebody else.
#[derive(Clone, Copy, PartialEq, Eq)]
enum Greeting {
    Silent,
    Waiting {
        id: u64,
        nonce: u64,
    },
    /// The agent heeds the `user` of a program, or does not know of it; so with the interpreter
    /// for code, and with programs to be kept, of which it had so many.
    Done {
        users: bool,
        contexts: bool,
        kept: Option<u32>,
    },
}

struct Routes {
    by_id: HashMap<u64, Route>,
    greeting: Greeting,
    closed: Option<GuestError>,
}

/// What the handle, the calls and both tasks share.
pub(super) struct Connection {
    routes: Mutex<Routes>,
    /// Bounded by `queued_bytes`.
    outgoing: mpsc::UnboundedSender<Outgoing>,
    queued_bytes: AtomicUsize,
    /// Nothing more is queued.
    left: AtomicBool,
    /// Held while a frame is written, and by a `QuiesceGuard`.
    pub(super) gate: Arc<tokio::sync::Mutex<()>>,
    pub(super) stream: UnixStream,
    next_id: AtomicU64,
    counters: Counters,
    without_credit: Arc<Budget>,
    pub(super) collected: Arc<Budget>,
}

/// Ends a connection's tasks when the last handle goes away.
pub(super) struct Tasks(Vec<tokio::task::JoinHandle<()>>);

impl Drop for Tasks {
    fn drop(&mut self) {
        for task in &self.0 {
            task.abort();
        }
    }
}

pub(super) fn lock<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}

impl Connection {
    /// Starts both tasks. Ids start at `first_id`, so that late replies to another connection's
    /// requests do not meet ours.
    pub(super) fn start(stream: UnixStream, first_id: u64) -> (Arc<Self>, Tasks) {
        let (outgoing, queue) = mpsc::unbounded_channel();
        let connection = Arc::new(Self {
            routes: Mutex::new(Routes {
                by_id: HashMap::new(),
                greeting: Greeting::Silent,
                closed: None,
            }),
            outgoing,
            queued_bytes: AtomicUsize::new(0),
            left: AtomicBool::new(false),
            gate: Arc::new(tokio::sync::Mutex::new(())),
            stream,
            next_id: AtomicU64::new(first_id.max(1)),
            counters: Counters::default(),
            without_credit: Budget::for_replies(),
            collected: Budget::for_collected(),
        });
        let reader = tokio::spawn(read_replies(Arc::clone(&connection)));
        let writer = tokio::spawn(write_frames(Arc::clone(&connection), queue));
        (connection, Tasks(vec![reader, writer]))
    }

    /// Registers a new request.
    pub(super) fn open(&self, what: &'static str) -> Result<(u64, Inbox), GuestError> {
        let id = self.next_id.fetch_add(1, Ordering::Relaxed);
        let (sender, replies) = mpsc::channel(REPLIES_MAX);
        let failure = Arc::new(OnceLock::new());
        let mut routes = lock(&self.routes);
        let window = window(routes.by_id.len());
        let credit = Arc::new(Mutex::new(window));
        if let Some(error) = &routes.closed {
            return Err(error.clone());
        }
        if routes.by_id.len() >= REQUESTS_MAX as usize {
            return Err(GuestError::Remote {
                code: forkd_protocol::code::BUSY.to_owned(),
                message: format!("{what}: {REQUESTS_MAX} requests are under way"),
            });
        }
        routes.by_id.insert(
            id,
            Route { replies: sender, credit: Arc::clone(&credit), failure: Arc::clone(&failure) },
        );
        Ok((id, Inbox { replies, window, credit, failure }))
    }

    /// Forgets a request. Replies that still come for it are dropped and counted.
    pub(super) fn close(&self, id: u64) {
        lock(&self.routes).by_id.remove(&id);
    }

    /// From now on only a `Welcome` with this nonce counts. Requests under way are lost: the agent
    /// discards their output.
    pub(super) fn expect_welcome(&self, id: u64, nonce: u64) {
        let mut routes = lock(&self.routes);
        routes.greeting = Greeting::Waiting { id, nonce };
        routes.by_id.retain(|&other, route| {
            if other != id {
                fail(route, GuestError::Closed { reason: "superseded by a new hello".into() });
            }
            other == id
        });
    }

    /// Whether the agent, once it was greeted, runs programs as the user that a request names.
    pub(super) fn heeds_users(&self) -> bool {
        matches!(lock(&self.routes).greeting, Greeting::Done { users: true, .. })
    }

    /// Whether the agent, once it was greeted, has interpreters besides the one.
    pub(super) fn has_contexts(&self) -> bool {
        matches!(lock(&self.routes).greeting, Greeting::Done { contexts: true, .. })
    }

    /// How many programs the agent kept when it was greeted; `None` when it keeps none, ever.
    pub(super) fn kept(&self) -> Option<u32> {
        match lock(&self.routes).greeting {
            Greeting::Done { kept, .. } => kept,
            Greeting::Silent | Greeting::Waiting { .. } => None,
        }
    }

    /// Queues a frame; with a receiver that is told when the kernel has taken all of it.
    pub(super) fn send(
        &self,
        what: &'static str,
        id: u64,
        request: &Request,
    ) -> Result<oneshot::Receiver<()>, GuestError> {
        let mut frame = Vec::new();
        append(&mut frame, what, id, request)?;
        // Ending a request is always worth a few bytes more, and there are only so many requests.
        let limit = match request {
            Request::Cancel {} => 2 * QUEUE_BYTES_MAX,
            _ => QUEUE_BYTES_MAX,
        };
        self.queue(what, frame, limit)
    }

    /// Queues two frames that the agent gets in one piece.
    pub(super) fn send_both(
        &self,
        what: &'static str,
        requests: [(u64, &Request); 2],
    ) -> Result<oneshot::Receiver<()>, GuestError> {
        let mut frames = Vec::new();
        for (id, request) in requests {
            append(&mut frames, what, id, request)?;
        }
        self.queue(what, frames, QUEUE_BYTES_MAX)
    }

    fn queue(
        &self,
        what: &'static str,
        frames: Vec<u8>,
        limit: usize,
    ) -> Result<oneshot::Receiver<()>, GuestError> {
        let bytes = frames.len();
        if self.left.load(Ordering::Relaxed) {
            return Err(GuestError::Closed { reason: "the daemon has left it".to_owned() });
        }
        if self.queued_bytes.fetch_add(bytes, Ordering::Relaxed) + bytes > limit {
            self.queued_bytes.fetch_sub(bytes, Ordering::Relaxed);
            return Err(GuestError::NotReading { what, limit: limit as u64 });
        }
        let (written, receiver) = oneshot::channel();
        self.outgoing
            .send(Outgoing { frames, written: Some(written) })
            .map_err(|_| self.closed_reason())?;
        Ok(receiver)
    }

    /// Sends nothing more.
    pub(super) fn leave(&self) {
        self.left.store(true, Ordering::Relaxed);
    }

    /// Why the connection ended.
    pub(super) fn closed_reason(&self) -> GuestError {
        lock(&self.routes)
            .closed
            .clone()
            .unwrap_or_else(|| GuestError::Closed { reason: "the writer has ended".to_owned() })
    }

    pub(super) fn counters(&self) -> LinkCounters {
        LinkCounters {
            frames_rejected: self.counters.frames_rejected.load(Ordering::Relaxed),
            replies_unrouted: self.counters.replies_unrouted.load(Ordering::Relaxed),
        }
    }

    /// Fails every request, now and later.
    fn shut(&self, reason: String) {
        let error = GuestError::Closed { reason };
        let mut routes = lock(&self.routes);
        if routes.closed.is_none() {
            routes.closed = Some(error.clone());
        }
        for (_, route) in routes.by_id.drain() {
            fail(&route, error.clone());
        }
    }

    /// Hands a reply to its request. Gives whether somebody has waited for it.
    fn route(&self, id: u64, reply: Reply) -> bool {
        let mut routes = lock(&self.routes);
        let accepted = routes.accepts(id, &reply);
        let Some(route) = routes.by_id.get(&id).filter(|_| accepted) else {
            self.counters.replies_unrouted.fetch_add(1, Ordering::Relaxed);
            return false;
        };
        let mut held = Held::nothing(&self.without_credit);
        let overrun = match reply.payload_bytes() {
            None => !held.add(reply.bytes_without_credit() as u64),
            Some(bytes) => {
                let mut credit = lock(&route.credit);
                let rest = credit.checked_sub(credit_cost(bytes));
                *credit = rest.unwrap_or(0);
                rest.is_none()
            }
        };
        if overrun || route.replies.try_send(Arrived { reply, _held: held }).is_err() {
            let error = GuestError::Protocol {
                what: "reply",
                reason: "more replies than were allowed".to_owned(),
            };
            fail(route, error);
            routes.by_id.remove(&id);
        }
        true
    }
}

impl Routes {
    /// Whether a reply may count, given how far the handshake is.
    fn accepts(&mut self, id: u64, reply: &Reply) -> bool {
        match (self.greeting, reply) {
            (
                Greeting::Waiting { id: ours, nonce },
                Reply::Welcome { nonce: echoed, users, contexts, kept, .. },
            ) => {
                let fits = id == ours && nonce == *echoed;
                if fits {
                    self.greeting =
                        Greeting::Done { users: *users, contexts: *contexts, kept: *kept };
                }
                fits
            }
            (Greeting::Waiting { id: ours, .. }, Reply::Error { .. }) => id == ours,
            (Greeting::Done { .. }, reply) => !matches!(reply, Reply::Welcome { .. }),
            (Greeting::Silent | Greeting::Waiting { .. }, _) => false,
        }
    }
}

/// Adds the frame of a request.
fn append(
    frames: &mut Vec<u8>,
    what: &'static str,
    id: u64,
    request: &Request,
) -> Result<(), GuestError> {
    if matches!(request, Request::Hello { .. }) {
        // Ends whatever half frame the agent holds from another connection.
        frames.push(forkd_protocol::DELIMITER);
    }
    encode_request(id, request, frames)
        .map_err(|_| GuestError::RequestTooLarge { what, limit: FRAME_BYTES_MAX as u64 })
}

/// Closes a route with a reason. The first reason stays.
fn fail(route: &Route, error: GuestError) {
    route.failure.get_or_init(|| error);
}

async fn read_replies(connection: Arc<Connection>) {
    let mut decoder = FrameDecoder::new();
    let mut buffer = vec![0; READ_BYTES];
    let reason = loop {
        let (mut events, mut wanted) = (0_u32, 0_u32);
        match read_some(&connection.stream, &mut buffer).await {
            Ok(0) => break "the VM closed it".to_owned(),
            Ok(count) => decoder.feed(&buffer[..count], |event| {
                let understood = event
                    .ok()
                    .and_then(|frame| Some((frame.request_id, decode_reply(frame.message).ok()?)));
                events += 1;
                match understood {
                    Some((id, reply)) => wanted += u32::from(connection.route(id, reply)),
                    None => {
                        connection.counters.frames_rejected.fetch_add(1, Ordering::Relaxed);
                    }
                }
            }),
            Err(error) => break error.to_string(),
        }
        // A guest that floods us must not keep this thread from others.
        if events > 0 && wanted == 0 {
            tokio::time::sleep(REST).await;
        } else {
            tokio::task::yield_now().await;
        }
    };
    connection.shut(reason);
}

async fn read_some(stream: &UnixStream, buffer: &mut [u8]) -> io::Result<usize> {
    loop {
        stream.readable().await?;
        match stream.try_read(buffer) {
            Err(error) if error.kind() == io::ErrorKind::WouldBlock => {}
            result => return result,
        }
    }
}

async fn write_frames(connection: Arc<Connection>, mut queue: mpsc::UnboundedReceiver<Outgoing>) {
    while let Some(outgoing) = queue.recv().await {
        let open = connection.gate.lock().await;
        let result = write_all(&connection.stream, &outgoing.frames).await;
        connection.queued_bytes.fetch_sub(outgoing.frames.len(), Ordering::Relaxed);
        drop(open);
        if let Err(error) = result {
            connection.shut(error.to_string());
            return;
        }
        if let Some(written) = outgoing.written {
            // The caller may have gone; the frame is out all the same.
            written.send(()).ok();
        }
    }
}

async fn write_all(stream: &UnixStream, mut bytes: &[u8]) -> io::Result<()> {
    while !bytes.is_empty() {
        stream.writable().await?;
        match stream.try_write(bytes) {
            Ok(0) => return Err(io::ErrorKind::WriteZero.into()),
            Ok(count) => bytes = &bytes[count..],
            Err(error) if error.kind() == io::ErrorKind::WouldBlock => {}
            Err(error) => return Err(error),
        }
    }
    Ok(())
}
