//! One interpreter's thread, and what waits for it.

use std::collections::VecDeque;
use std::os::fd::OwnedFd;
use std::path::PathBuf;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Mutex};
use std::time::{Duration, Instant};

use forkd_protocol::{EvalException, Reply, code};
use rustix::event::{EventfdFlags, PollFd, PollFlags, eventfd};

use super::interpreter::{Answer, Cell, Interpreter};
use super::wake::{clear, notify};
use crate::active::{Active, Refusal};
use crate::exec::wait_until;
use crate::pipes::Forwarded;
use crate::process::Processes;
use crate::sync::lock;
use crate::threads;

/// How long interrupted code has to end by itself before the interpreter is killed.
const INTERRUPT_GRACE: Duration = Duration::from_secs(2);

/// Until it is interrupted again. An interrupt has no effect while the interpreter takes the code
/// up, or is within the loop of its tasks.
const INTERRUPT_AGAIN: Duration = Duration::from_millis(500);

/// What is still taken of the output of background threads after the code ended.
const LATE_BYTES_MAX: usize = 1024 * 1024;

const SIGINT: i32 = 2;
const SIGKILL: i32 = 9;

/// A piece of code that waits for its turn.
pub(crate) struct Job {
    pub(crate) active: Arc<Active>,
    pub(crate) cell: Cell,
    pub(crate) deadline: Option<Instant>,
    /// Dropped when the job is done.
    pub(crate) running: Box<dyn Send>,
}

#[derive(Default)]
struct Queue {
    jobs: VecDeque<Job>,
    thread_runs: bool,
    /// Nothing is taken any more.
    closed: bool,
}

/// What the thread keeps between two pieces of code.
#[derive(Default)]
struct Kept {
    interpreter: Option<Interpreter>,
    /// The variables of earlier calls are gone, and the host has not been told.
    lost: bool,
    /// The renewal that the interpreter knows of.
    renewals: u64,
    /// The restart that it has seen.
    restarts: u64,
    /// How much code has come since that restart.
    count: u64,
}

/// The interpreter's thread and what waits for it.
pub(super) struct EvalService {
    queue: Mutex<Queue>,
    /// Readable when a job came or the interpreter ended.
    wake: Arc<OwnedFd>,
    processes: Arc<Processes>,
    /// Where the interpreter begins, if not in the default directory.
    directory: Option<PathBuf>,
    /// How often this machine has taken a new identity.
    renewals: Arc<AtomicU64>,
    /// How often the interpreter was told to begin anew, or to end.
    restarts: AtomicU64,
}

impl EvalService {
    pub(super) fn new(
        processes: Arc<Processes>,
        renewals: Arc<AtomicU64>,
        directory: Option<PathBuf>,
    ) -> std::io::Result<Arc<Self>> {
        let wake = Arc::new(eventfd(0, EventfdFlags::CLOEXEC | EventfdFlags::NONBLOCK)?);
        let (queue, restarts) = (Mutex::default(), AtomicU64::new(0));
        Ok(Arc::new(Self { queue, wake, processes, directory, renewals, restarts }))
    }

    /// Ends the interpreter and whatever runs in it. The next piece of code finds another.
    pub(super) fn restart(&self) {
        self.restarts.fetch_add(1, Ordering::Relaxed);
        notify(&self.wake);
    }

    /// As [`Self::restart`], and takes no more.
    pub(super) fn close(&self) {
        lock(&self.queue).closed = true;
        self.restart();
    }

    /// Queues a job; starts the thread with the first one.
    pub(super) fn submit(self: &Arc<Self>, job: Job) -> Result<(), Refusal> {
        let mut queue = lock(&self.queue);
        if queue.closed {
            return Err(unknown());
        }
        if !queue.thread_runs {
            let service = Arc::clone(self);
            threads::start("eval", 256 * 1024, move || service.work())
                .map_err(|error| Refusal::new(code::EVAL_FAILED, error.to_string()))?;
            queue.thread_runs = true;
        }
        queue.jobs.push_back(job);
        notify(&self.wake);
        Ok(())
    }

    fn work(&self) {
        let mut kept = Kept::default();
        loop {
            let wanted = self.restarts.load(Ordering::Relaxed);
            if std::mem::replace(&mut kept.restarts, wanted) != wanted {
                if let Some(running) = kept.interpreter.take() {
                    self.processes.signal_group(running.pid(), SIGKILL);
                    running.abandon();
                }
                kept.lost = false;
                kept.count = 0;
            }
            let ended = kept.interpreter.as_mut().is_some_and(|running| {
                running.discard_output();
                running.exit().is_some()
            });
            if ended {
                kept.interpreter = None;
                kept.lost = true;
            }
            let (job, closed) = {
                let mut queue = lock(&self.queue);
                (queue.jobs.pop_front(), queue.closed)
            };
            match job {
                Some(job) if closed => {
                    job.active.send(&unknown().into_reply(), || {});
                }
                Some(job) => self.run(&mut kept, job),
                None if closed => return,
                None => self.idle(kept.interpreter.as_ref()),
            }
        }
    }

    /// Waits for a job, for output to discard, or for the interpreter's end.
    fn idle(&self, interpreter: Option<&Interpreter>) {
        let mut fds = vec![PollFd::new(&*self.wake, PollFlags::IN)];
        if let Some(running) = interpreter {
            fds.extend(running.outputs().map(|pipe| PollFd::new(pipe, PollFlags::IN)));
        }
        wait_until(&mut fds, None);
        clear(&self.wake);
    }

    fn run(&self, kept: &mut Kept, job: Job) {
        kept.count += 1;
        let Job { active, cell, deadline, running } = job;
        if active.is_cancelled() {
            let refusal = Refusal::new(code::CANCELLED, "ended before its turn came");
            active.send(&refusal.into_reply(), || {});
            return;
        }
        if deadline.is_some_and(|at| Instant::now() >= at) {
            let error = "the time was over before the code running before it ended".to_owned();
            active.send(&done(Outcome::failed(error), true, false), || {});
            return;
        }
        let current = match kept.interpreter.take() {
            Some(current) => Ok(current),
            None => Interpreter::start(&self.processes, &self.wake, self.directory.as_deref()),
        };
        match current {
            Ok(mut current) => {
                let now = self.renewals.load(Ordering::Relaxed);
                let renewed = std::mem::replace(&mut kept.renewals, now) != now;
                if cell.displays {
                    let execution_count = kept.count;
                    active.send(&Reply::CellStarted { execution_count }, || {});
                }
                current.submit(&cell, renewed);
                let reply = Turn::new(self, &active, deadline, kept.restarts)
                    .follow(&mut current, std::mem::take(&mut kept.lost));
                if current.exit().is_none() {
                    kept.interpreter = Some(current);
                } else {
                    current.abandon();
                }
                active.send(&reply, || {});
            }
            Err(refusal) => active.send(&refusal.into_reply(), || {}),
        }
        drop(running);
    }
}

/// One piece of code being run.
struct Turn<'a> {
    active: &'a Active,
    service: &'a EvalService,
    /// The restart before it began.
    restarts: u64,
    phase: Phase,
    timed_out: bool,
    cancelled: bool,
    /// A part of the value for which the host has given no credit yet.
    held: Option<Reply>,
}

/// How far we went to make the code end.
#[derive(Clone, Copy, PartialEq, Eq)]
enum Phase {
    /// It has time.
    Running { until: Option<Instant> },
    /// It was interrupted, and has a little time to notice. It cannot before it has sent all of
    /// what it was showing then.
    Interrupted { again: Instant, until: Instant, showing: Option<u32> },
    /// The interpreter was killed.
    Killed,
}

impl<'a> Turn<'a> {
    fn new(
        service: &'a EvalService,
        active: &'a Active,
        deadline: Option<Instant>,
        restarts: u64,
    ) -> Self {
        Self {
            active,
            service,
            restarts,
            phase: Phase::Running { until: deadline },
            timed_out: false,
            cancelled: false,
            held: None,
        }
    }

    fn is_to_end(&self) -> bool {
        self.service.restarts.load(Ordering::Relaxed) != self.restarts
    }

    /// Runs to the end of the code or of the interpreter, forwarding output.
    fn follow(&mut self, interpreter: &mut Interpreter, lost: bool) -> Reply {
        let mut reply = None;
        let mut late_bytes = 0;
        loop {
            self.attend(interpreter);
            if reply.is_none() {
                reply = self.look(interpreter, lost);
            }
            let outcomes = interpreter.forward_output(self.active, || {});
            let moved: usize = outcomes
                .iter()
                .map(|outcome| if let Forwarded::Bytes(count) = outcome { *count } else { 0 })
                .sum();
            if let Some(reply) = &reply {
                late_bytes += moved;
                let blocked = outcomes.contains(&Forwarded::NoRoom);
                if self.active.is_stale()
                    || late_bytes >= LATE_BYTES_MAX
                    || (moved == 0 && !blocked)
                {
                    return reply.clone();
                }
            }
            if moved == 0 {
                self.wait(interpreter, outcomes.map(|outcome| outcome == Forwarded::NoRoom));
            }
        }
    }

    /// The answer or the interpreter's end, if there is one.
    fn look(&mut self, interpreter: &mut Interpreter, lost: bool) -> Option<Reply> {
        let timed_out = self.timed_out;
        if !self.send_held() {
            return None;
        }
        let mut answer = interpreter.exchange();
        while let Answer::Part(part) = answer {
            self.note_progress(&part);
            self.held = Some(part);
            if !self.send_held() {
                return None;
            }
            answer = interpreter.exchange();
        }
        match answer {
            Answer::Value(value) => return Some(done(Outcome::Value(value), timed_out, lost)),
            Answer::Nothing => return Some(done(Outcome::Nothing, timed_out, lost)),
            Answer::Error(exception, error) => {
                let raised = Outcome::Failed { error, exception: Some(exception) };
                return Some(done(raised, timed_out, lost));
            }
            Answer::Broken => {
                self.service.processes.signal_group(interpreter.pid(), SIGKILL);
            }
            Answer::Pending | Answer::Part(_) => {}
        }
        let exit = interpreter.exit()?;
        let how = match exit.signal {
            Some(signal) => format!("was ended by signal {signal}"),
            None => format!("ended with exit code {}", exit.code),
        };
        let why = match (self.phase, self.timed_out) {
            _ if self.is_to_end() => "the context was restarted or removed: ",
            (Phase::Killed, true) => "the time was over and the code did not stop: ",
            (Phase::Killed, false) => "the host ended the request: ",
            _ => "",
        };
        let error = format!("{why}the interpreter {how}; its variables are lost");
        Some(done(Outcome::failed(error), timed_out, true))
    }

    /// Code that was interrupted while it shows a value has its time from the last piece of that
    /// on: a value has megabytes, and a busy machine takes its time for them. What it shows after
    /// that is no reason to wait.
    fn note_progress(&mut self, part: &Reply) {
        if let (Phase::Interrupted { again, showing, .. }, Reply::EvalPart { display, .. }) =
            (self.phase, part)
            && showing.is_none_or(|showing| showing == *display)
        {
            let until = Instant::now() + INTERRUPT_GRACE;
            self.phase = Phase::Interrupted { again, until, showing: Some(*display) };
        }
    }

    /// Sends the part that waits, if the host allows it. False while it waits on.
    fn send_held(&mut self) -> bool {
        match self.held.take() {
            Some(part) if self.active.payload_room() < part.payload_bytes().unwrap_or(0) => {
                self.held = Some(part);
                false
            }
            Some(part) => {
                self.active.send(&part, || {});
                true
            }
            None => true,
        }
    }

    fn attend(&mut self, interpreter: &Interpreter) {
        let now = Instant::now();
        self.cancelled |= !self.active.take_signals().is_empty();
        if self.is_to_end() && self.phase != Phase::Killed {
            self.service.processes.signal_group(interpreter.pid(), SIGKILL);
            self.phase = Phase::Killed;
        }
        match self.phase {
            Phase::Running { until } => {
                let timed_out = until.is_some_and(|at| now >= at);
                if timed_out || self.cancelled {
                    self.timed_out = timed_out;
                    self.service.processes.signal_group(interpreter.pid(), SIGINT);
                    let (again, until) = (now + INTERRUPT_AGAIN, now + INTERRUPT_GRACE);
                    self.phase = Phase::Interrupted { again, until, showing: None };
                }
            }
            Phase::Interrupted { until, .. } if now >= until => {
                self.service.processes.signal_group(interpreter.pid(), SIGKILL);
                self.phase = Phase::Killed;
            }
            Phase::Interrupted { again, until, showing } if now >= again => {
                self.service.processes.signal_group(interpreter.pid(), SIGINT);
                self.phase = Phase::Interrupted { again: now + INTERRUPT_AGAIN, until, showing };
            }
            Phase::Interrupted { .. } | Phase::Killed => {}
        }
    }

    fn wait(&self, interpreter: &Interpreter, skip: [bool; 2]) {
        let mut fds = vec![
            PollFd::new(&*self.service.wake, PollFlags::IN),
            PollFd::from_borrowed_fd(self.active.wake_fd(), PollFlags::IN),
        ];
        if self.held.is_none() {
            fds.extend(interpreter.channel_poll());
        }
        for (pipe, skip) in interpreter.output_slots().into_iter().zip(skip) {
            if let (Some(pipe), false) = (pipe, skip) {
                fds.push(PollFd::new(pipe, PollFlags::IN));
            }
        }
        let until = match self.phase {
            Phase::Running { until } => until,
            Phase::Interrupted { again, until, .. } => Some(again.min(until)),
            Phase::Killed => None,
        };
        wait_until(&mut fds, until);
        clear(&self.service.wake);
        self.active.clear_wake();
    }
}

/// How code ended.
enum Outcome {
    Nothing,
    Value(String),
    Failed { error: String, exception: Option<EvalException> },
}

impl Outcome {
    /// Not by an exception of its own.
    fn failed(error: String) -> Self {
        Self::Failed { error, exception: None }
    }
}

fn done(outcome: Outcome, timed_out: bool, state_lost: bool) -> Reply {
    let (result, error, exception) = match outcome {
        Outcome::Nothing => (None, None, None),
        Outcome::Value(value) => (Some(value), None, None),
        Outcome::Failed { error, exception } => (None, Some(error), exception),
    };
    Reply::EvalDone { result, error, exception, timed_out, state_lost }
}

/// There is no such context, or not any more.
pub(super) fn unknown() -> Refusal {
    Refusal::new(code::CONTEXT_NOT_FOUND, "there is no such context")
}
