//! Taking requests from the link and giving each to whoever does it.

use std::collections::HashMap;
use std::process::ExitCode;
use std::sync::atomic::{AtomicU32, AtomicU64, Ordering};
use std::sync::{Arc, Mutex};
use std::time::{Duration, Instant};

use forkd_protocol::{
    DecodeError, Frame, FrameDecoder, FrameError, PROTOCOL_MAX, PROTOCOL_MIN, REQUESTS_MAX, Reply,
    Request, code, decode_request,
};
use rustix::time::{ClockId, clock_gettime};

use crate::active::{Active, Refusal};
use crate::eval::{Cell, Contexts, Job};
use crate::identity::Identity;
use crate::kept::{Followed, KeptPrograms};
use crate::kept_watch::KeptWatches;
use crate::link::Link;
use crate::outbox::Outbox;
use crate::pipes::{OutputPipe, drain};
use crate::process::Processes;
use crate::renew::{self, Renewer, Taken};
use crate::sync::lock;
use crate::usage::Usage;
use crate::{
    environment, exec, files, hooks, log, ports, power, relay, terminal, threads, tree, watch,
};

const REQUEST_STACK_BYTES: usize = 256 * 1024;

const READ_BYTES: usize = 32 * 1024;

/// What this process is to the machine.
pub(crate) enum Standing {
    /// PID 1: the machine's identity and life are ours.
    Init {
        /// The root file system is a disk.
        has_root_disk: bool,
        /// Gives the machine an identity. None when it cannot, which its log tells.
        renewer: Option<Renewer>,
    },
    /// A program among others: the machine is not ours to change.
    Guest,
}

struct Server {
    standing: Standing,
    facts: Facts,
    outbox: Arc<Outbox>,
    processes: Arc<Processes>,
    contexts: Contexts,
    kept: Arc<KeptPrograms>,
    watches: KeptWatches,
    usage: Usage,
    table: Mutex<HashMap<u64, Arc<Active>>>,
    running: AtomicU32,
    frames_rejected: AtomicU64,
}

/// What a greeting is answered with, besides the greeting's own. Nothing of it changes.
struct Facts {
    kernel_release: String,
    boot_id: String,
    python: bool,
}

impl Facts {
    fn read() -> Self {
        let boot_id = std::fs::read_to_string("/proc/sys/kernel/random/boot_id");
        Self {
            kernel_release: rustix::system::uname().release().to_string_lossy().into_owned(),
            boot_id: boot_id.unwrap_or_default().trim_end().to_owned(),
            python: environment::python().is_some(),
        }
    }
}

/// What came over the link: a request with its id, or something that is no frame.
type Arrived = Result<(u64, Result<Request, DecodeError>), FrameError>;

/// A request's place in the table and in the count; both end with it.
struct Running {
    server: Arc<Server>,
    active: Arc<Active>,
}

impl Drop for Running {
    fn drop(&mut self) {
        // Under the id that it has now: a kept program gets another one from each follower.
        lock(&self.server.table).retain(|_, entry| !Arc::ptr_eq(entry, &self.active));
        self.server.running.fetch_sub(1, Ordering::Relaxed);
    }
}

/// Serves the link for ever. Returns only when the threads that it needs cannot be started.
pub(crate) fn serve(link: Arc<dyn Link>, standing: Standing) -> ExitCode {
    match start(&link, standing) {
        Ok(server) => server.read_from(&*link),
        Err(error) => {
            log::failure(&format!("cannot start: {error}"));
            ExitCode::FAILURE
        }
    }
}

fn start(link: &Arc<dyn Link>, standing: Standing) -> std::io::Result<Arc<Server>> {
    let processes = Processes::start()?;
    let contexts = Contexts::new(Arc::clone(&processes))?;
    let outbox = Arc::new(Outbox::default());
    let (queue, port) = (Arc::clone(&outbox), Arc::clone(link));
    threads::start("writer", 64 * 1024, move || {
        // Where it may not, a child with several CPUs starts late.
        threads::stay_on_first_cpu().ok();
        queue.write_to(&*port);
    })?;
    Ok(Arc::new(Server {
        standing,
        facts: Facts::read(),
        outbox,
        processes,
        contexts,
        kept: Arc::default(),
        watches: KeptWatches::default(),
        usage: Usage::default(),
        table: Mutex::new(HashMap::new()),
        running: AtomicU32::new(0),
        frames_rejected: AtomicU64::new(0),
    }))
}

impl Server {
    fn read_from(self: &Arc<Self>, link: &dyn Link) -> ! {
        let mut decoder = FrameDecoder::new();
        let mut buffer = vec![0; READ_BYTES];
        let mut arrived: Vec<Arrived> = Vec::new();
        loop {
            let count = link.read(&mut buffer);
            decoder.feed(&buffer[..count], |event| {
                arrived
                    .push(event.map(|Frame { request_id, message }| {
                        (request_id, decode_request(message))
                    }));
            });
            let mut taken = self.wake_as_child(&arrived);
            for event in arrived.drain(..) {
                match event {
                    Ok((id, request)) => self.take(id, request, &mut taken),
                    Err(error) => {
                        self.frames_rejected.fetch_add(1, Ordering::Relaxed);
                        self.refuse(0, Refusal::new(code::BAD_FRAME, error.to_string()));
                    }
                }
            }
        }
    }

    /// Takes the identity that a child finds behind a greeting when it wakes, if there is one.
    ///
    /// It comes before the greeting, for which this thread may have to wait: for a lock that
    /// another one held at the branch point. While it waits, programs run.
    fn wake_as_child(&self, arrived: &[Arrived]) -> Option<Result<Taken, Refusal>> {
        let Standing::Init { renewer: Some(renewer), .. } = &self.standing else { return None };
        let identity = arrived.windows(2).find_map(|pair| match pair {
            [Ok((_, Ok(Request::Hello { .. }))), Ok((_, Ok(request)))] => identity_of(request),
            _ => None,
        });
        identity.map(|identity| renewer.take(&identity))
    }

    fn refuse(&self, id: u64, refusal: Refusal) {
        self.outbox.push_direct(id, &refusal.into_reply());
    }

    /// Does what was asked, with the outcome of a renewal that was done already.
    fn take(
        self: &Arc<Self>,
        id: u64,
        request: Result<Request, DecodeError>,
        taken: &mut Option<Result<Taken, Refusal>>,
    ) {
        let outcome = match request {
            Ok(request) => match identity_of(&request) {
                Some(identity) => self.renew(id, &identity, taken.take()),
                None => self.dispatch(id, request),
            },
            Err(error @ DecodeError::UnknownKind { .. }) => {
                Err(Refusal::new(code::UNSUPPORTED, error.to_string()))
            }
            Err(error @ DecodeError::Malformed { .. }) => {
                Err(Refusal::new(code::BAD_MESSAGE, error.to_string()))
            }
        };
        if let Err(refusal) = outcome {
            self.refuse(id, refusal);
        }
    }

    fn dispatch(self: &Arc<Self>, id: u64, request: Request) -> Result<(), Refusal> {
        if !matches!(request, Request::Hello { .. }) {
            self.require_hello()?;
        }
        match request {
            Request::Hello { protocol_min, protocol_max, nonce } => {
                self.hello(id, protocol_min..=protocol_max, nonce)
            }
            Request::Ping {} => {
                self.pong(id);
                Ok(())
            }
            Request::Input { data, eof } => match self.find(id) {
                Some(active) => active.add_input(data, eof),
                // The request ended meanwhile; that is no mistake of the host.
                None => Ok(()),
            },
            Request::Credit { bytes } => {
                if let Some(active) = self.find(id) {
                    active.add_credit(bytes);
                }
                Ok(())
            }
            Request::Kill { signal } => {
                if let Some(active) = self.find(id) {
                    active.add_signal(signal);
                }
                Ok(())
            }
            Request::Resize { rows, cols } => {
                if let Some(active) = self.find(id) {
                    active.set_size(terminal::size(rows, cols));
                }
                Ok(())
            }
            Request::Cancel {} => {
                if let Some(active) = self.find(id) {
                    active.cancel();
                }
                Ok(())
            }
            Request::Follow { name, output_credit } => self.follow(id, &name, output_credit),
            other => self.begin(id, other),
        }
    }

    fn require_hello(&self) -> Result<(), Refusal> {
        if self.outbox.epoch() == 0 {
            return Err(Refusal::new(code::BAD_REQUEST, "say hello first"));
        }
        Ok(())
    }

    /// Takes a new identity at once, unless it was `taken`: a thread of its own would cost more
    /// than the rest. Only hooks get one, because they take as long as they like.
    fn renew(
        self: &Arc<Self>,
        id: u64,
        identity: &Identity,
        taken: Option<Result<Taken, Refusal>>,
    ) -> Result<(), Refusal> {
        self.require_hello()?;
        let Standing::Init { renewer, .. } = &self.standing else {
            return Err(not_init());
        };
        let renewer = renewer.as_ref().ok_or_else(|| {
            Refusal::new(
                code::RENEW_FAILED,
                "this machine could not prepare for it when it started",
            )
        })?;
        // Before anybody can ask for code to be run in what is a child now.
        self.contexts.machine_was_renewed();
        self.kept.machine_was_renewed();
        let taken = taken.unwrap_or_else(|| renewer.take(identity));
        let Taken { clock_step_ns, hooks } = taken?;
        let confirm =
            move |instance_id, hooks| Reply::Renewed { instance_id, clock_step_ns, hooks };
        if hooks.is_empty() {
            self.outbox.push_direct(id, &confirm(identity.instance_id.clone(), Vec::new()));
            return Ok(());
        }
        if identity.announce {
            self.outbox.push_direct(id, &Reply::IdentityInEffect {});
        }
        let running = self.enter(id, 0)?;
        let identity = identity.clone();
        in_thread("hooks", move || {
            let reports = hooks::run(&running.server.processes, &identity, &hooks);
            running.active.send(&confirm(identity.instance_id, reports), || {});
        })
    }

    /// Starts a new epoch: older requests are forgotten, and their output with them.
    fn hello(
        &self,
        id: u64,
        offered: std::ops::RangeInclusive<u32>,
        nonce: u64,
    ) -> Result<(), Refusal> {
        let epoch = self.outbox.begin_epoch();
        for (_, active) in lock(&self.table).drain() {
            active.abandon();
        }
        let protocol = PROTOCOL_MAX.min(*offered.end());
        if protocol < PROTOCOL_MIN.max(*offered.start()) {
            let message = format!(
                "no common version: the host speaks {} to {}, the agent {PROTOCOL_MIN} to \
                 {PROTOCOL_MAX}",
                offered.start(),
                offered.end()
            );
            return Err(Refusal::new(code::UNSUPPORTED, message));
        }
        let Facts { kernel_release, boot_id, python } = &self.facts;
        let welcome = Reply::Welcome {
            protocol,
            nonce,
            agent_version: env!("CARGO_PKG_VERSION").to_owned(),
            kernel_release: kernel_release.clone(),
            boot_id: boot_id.clone(),
            has_root_disk: matches!(self.standing, Standing::Init { has_root_disk: true, .. }),
            python: *python,
            is_init: matches!(self.standing, Standing::Init { .. }),
            epoch,
            users: true,
            contexts: true,
            kept: Some(self.kept.count()),
        };
        self.outbox.push_direct(id, &welcome);
        Ok(())
    }

    fn pong(&self, id: u64) {
        let uptime = clock_gettime(ClockId::Boottime);
        let seconds = u64::try_from(uptime.tv_sec).unwrap_or(0);
        let nanos = u64::try_from(uptime.tv_nsec).unwrap_or(0);
        let pong = Reply::Pong {
            uptime_ns: seconds.saturating_mul(1_000_000_000).saturating_add(nanos),
            epoch: self.outbox.epoch(),
            requests_running: self.running.load(Ordering::Relaxed),
            frames_rejected: self.frames_rejected.load(Ordering::Relaxed),
        };
        self.outbox.push_direct(id, &pong);
    }

    fn find(&self, id: u64) -> Option<Arc<Active>> {
        lock(&self.table).get(&id).cloned()
    }

    /// Enters a request in the table, or says why not.
    fn enter(self: &Arc<Self>, id: u64, output_credit: u64) -> Result<Running, Refusal> {
        let mut table = lock(&self.table);
        if table.contains_key(&id) {
            return Err(under_way(id));
        }
        if self.running.load(Ordering::Relaxed) >= REQUESTS_MAX {
            let message = format!("{REQUESTS_MAX} requests are under way");
            return Err(Refusal::new(code::BUSY, message));
        }
        let epoch = self.outbox.epoch();
        let active = Active::new(id, epoch, output_credit, Arc::clone(&self.outbox))
            .map_err(|error| Refusal::new(code::BUSY, error.to_string()))?;
        let active = Arc::new(active);
        table.insert(id, Arc::clone(&active));
        self.running.fetch_add(1, Ordering::Relaxed);
        Ok(Running { server: Arc::clone(self), active })
    }

    /// Goes on with a kept program.
    fn follow(&self, id: u64, name: &str, output_credit: u64) -> Result<(), Refusal> {
        let program = self.kept.find(name)?;
        let mut table = lock(&self.table);
        if table.contains_key(&id) {
            return Err(under_way(id));
        }
        match program.follow(id, self.outbox.epoch(), output_credit)? {
            Followed::Runs(active) => {
                table.insert(id, active);
            }
            Followed::Ended(end) => {
                let followed = Reply::Followed { from: end.written, takes_input: false };
                self.outbox.push_direct(id, &followed);
                self.outbox.push_direct(id, &end.into_reply());
            }
        }
        Ok(())
    }

    fn begin(self: &Arc<Self>, id: u64, request: Request) -> Result<(), Refusal> {
        let output_credit = match &request {
            Request::Exec { output_credit, .. }
            | Request::Terminal { output_credit, .. }
            | Request::Eval { output_credit, .. }
            | Request::ReadFile { output_credit, .. }
            | Request::ListFiles { output_credit, .. }
            | Request::StatFile { output_credit, .. }
            | Request::WatchFiles { output_credit, .. }
            | Request::TakeChanges { output_credit, .. }
            | Request::ListKept { output_credit }
            | Request::ListPorts { output_credit } => *output_credit,
            _ => 0,
        };
        let running = self.enter(id, output_credit)?;
        if let Request::Eval { code, timeout_ms, output_credit: _, parts, displays, context, env } =
            request
        {
            let active = Arc::clone(&running.active);
            let deadline = limit(timeout_ms).and_then(|limit| Instant::now().checked_add(limit));
            let cell = Cell { code, parts, displays, env };
            let job = Job { active, cell, deadline, running: Box::new(running) };
            return self.contexts.submit(context.as_deref(), job);
        }
        in_thread("request", move || {
            let leftover = perform(&running, request);
            drop(running);
            drain(leftover);
        })
    }
}

fn under_way(id: u64) -> Refusal {
    Refusal::new(code::DUPLICATE_ID, format!("request {id} is under way"))
}

/// The identity that a request gives.
fn identity_of(request: &Request) -> Option<Identity> {
    let Request::Renew {
        instance_id,
        hostname,
        machine_id,
        wall_clock_unix_ns,
        entropy,
        hook_timeout_ms,
        announce,
    } = request
    else {
        return None;
    };
    Some(Identity {
        instance_id: instance_id.clone(),
        hostname: hostname.clone(),
        machine_id: machine_id.clone(),
        wall_clock_unix_ns: *wall_clock_unix_ns,
        entropy: entropy.clone(),
        hook_timeout: limit(*hook_timeout_ms),
        announce: *announce,
    })
}

fn in_thread(name: &str, work: impl FnOnce() + Send + 'static) -> Result<(), Refusal> {
    threads::start(name, REQUEST_STACK_BYTES, work)
        .map_err(|error| Refusal::new(code::BUSY, format!("no thread: {error}")))
}

/// Does a request on its own thread. Returns pipes that programs in the background still hold.
fn perform(running: &Running, request: Request) -> Vec<OutputPipe> {
    let Running { server, active } = running;
    match request {
        request @ (Request::Exec { .. } | Request::Terminal { .. }) => {
            if let Some(spec) = exec::Spec::of(request) {
                return exec::run(active, &server.processes, &server.kept, spec);
            }
        }
        Request::ListKept { output_credit: _ } => server.kept.list(active),
        Request::Forget { name } => {
            server.kept.forget(&name);
            answer(active, Ok(Reply::Done {}));
        }
        Request::ReadFile { path, offset, length, output_credit: _ } => {
            files::read(active, &files::ReadSpec { path, offset, length });
        }
        Request::WriteFile { path, mode, append, create_parents, owner, attributes } => {
            let spec = files::WriteSpec { path, mode, append, create_parents, owner, attributes };
            files::write(active, &spec, || server.watches.look());
        }
        Request::ListFiles { path, attributes, links, output_credit: _ } => {
            tree::list(active, &path, tree::Wanted { attributes: attributes.as_deref(), links });
        }
        Request::StatFile { path, attributes, links, output_credit: _ } => {
            tree::stat(active, &path, tree::Wanted { attributes: attributes.as_deref(), links });
        }
        Request::RemoveFile { path, recursive } => tree::remove(active, &path, recursive),
        Request::MakeDirectory { path, owner } => {
            tree::make_directory(active, &path, owner.as_ref(), || server.watches.look());
        }
        Request::WatchFiles { path, recursive, entries, local_only, output_credit: _ } => {
            watch::watch(active, &path, watch::Extent { recursive, entries, local_only });
        }
        Request::KeepWatch { keep, path, recursive, local_only } => {
            let extent = watch::Extent { recursive, entries: true, local_only };
            answer(active, server.watches.keep(keep, &path, extent));
        }
        Request::TakeChanges { name, output_credit: _ } => server.watches.tell(active, &name),
        Request::EndWatch { name } => answer(active, server.watches.end(&name)),
        Request::AskUsage {} => server.usage.tell(active),
        Request::ListPorts { output_credit: _ } => ports::list(active),
        Request::OpenPort { port } => relay::open(active, port),
        Request::SetClock { wall_clock_unix_ns } => {
            // Elsewhere it would be the clock of another's machine.
            let set = match server.standing {
                Standing::Init { .. } => renew::step_clock(wall_clock_unix_ns),
                Standing::Guest => Err(not_init()),
            };
            answer(active, set.map(|()| Reply::Done {}));
        }
        Request::MakeContext { cwd } => answer(active, server.contexts.make(cwd)),
        Request::ListContexts {} => answer(active, Ok(server.contexts.list())),
        Request::EndContext { context, restart } => {
            answer(active, server.contexts.end(&context, restart));
        }
        Request::PowerOff {} if matches!(server.standing, Standing::Guest) => {
            answer(active, Err(not_init()));
        }
        Request::PowerOff {} => power::off(active, &server.outbox),
        // Done by the reader thread or by the interpreter's.
        Request::Hello { .. }
        | Request::Ping {}
        | Request::Input { .. }
        | Request::Credit { .. }
        | Request::Kill { .. }
        | Request::Cancel {}
        | Request::Resize { .. }
        | Request::Follow { .. }
        | Request::Renew { .. }
        | Request::Eval { .. } => {}
    }
    Vec::new()
}

fn answer(active: &Active, answer: Result<Reply, Refusal>) {
    active.send(&answer.unwrap_or_else(Refusal::into_reply), || {});
}

fn not_init() -> Refusal {
    Refusal::new(code::NOT_INIT, "this agent is not the first process of its machine")
}

fn limit(milliseconds: Option<u64>) -> Option<Duration> {
    milliseconds.map(Duration::from_millis)
}
