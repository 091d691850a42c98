//! Python for the host: one persistent interpreter, one piece of code at a time.
//!
//! A thread of its own owns the interpreter. It is started with the first piece of code; its state
//! lives in guest memory and so in every child. Output between two pieces of code is discarded. The
//! first piece of code after a renewal finds random generators that were seeded anew.

mod interpreter;
mod wake;

use std::collections::VecDeque;
use std::os::fd::OwnedFd;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Mutex};
use std::time::{Duration, Instant};

use forkd_protocol::{Reply, code};
use rustix::event::{EventfdFlags, PollFd, PollFlags, eventfd};

use crate::active::{Active, Refusal};
use crate::exec::wait_until;
use crate::pipes::Forwarded;
use crate::process::Processes;
use crate::sync::lock;
use interpreter::{Answer, Interpreter};
use wake::{clear, notify};

/// How long interrupted code has to end by itself before the interpreter is killed.
const INTERRUPT_GRACE: Duration = Duration::from_secs(1);

/// What is still taken of the output of background threads after the code ended.
const LATE_BYTES_MAX: usize = 1024 * 1024;

const SIGINT: i32 = 2;
const SIGKILL: i32 = 9;

/// A piece of code that waits for its turn.
pub(crate) struct Job {
    pub(crate) active: Arc<Active>,
    pub(crate) code: String,
    /// The value is wanted in all its forms.
    pub(crate) parts: bool,
    pub(crate) deadline: Option<Instant>,
    /// Dropped when the job is done.
    pub(crate) running: Box<dyn Send>,
}

#[derive(Default)]
struct Queue {
    jobs: VecDeque<Job>,
    thread_runs: bool,
}

/// The interpreter's thread and what waits for it.
pub(crate) struct EvalService {
    queue: Mutex<Queue>,
    /// Readable when a job came or the interpreter ended.
    wake: Arc<OwnedFd>,
    processes: Arc<Processes>,
    /// How often this machine has taken a new identity.
    renewals: AtomicU64,
}

impl EvalService {
    pub(crate) fn new(processes: Arc<Processes>) -> std::io::Result<Arc<Self>> {
        let wake = Arc::new(eventfd(0, EventfdFlags::CLOEXEC | EventfdFlags::NONBLOCK)?);
        Ok(Arc::new(Self {
            queue: Mutex::new(Queue::default()),
            wake,
            processes,
            renewals: AtomicU64::new(0),
        }))
    }

    /// The machine has a new identity. What the interpreter's random generators hold, others have
    /// too.
    pub(crate) fn machine_was_renewed(&self) {
        self.renewals.fetch_add(1, Ordering::Relaxed);
    }

    /// Queues a job; starts the thread with the first one.
    pub(crate) fn submit(self: &Arc<Self>, job: Job) -> Result<(), Refusal> {
        let mut queue = lock(&self.queue);
        if !queue.thread_runs {
            let service = Arc::clone(self);
            std::thread::Builder::new()
                .name("eval".to_owned())
                .stack_size(256 * 1024)
                .spawn(move || service.work())
                .map_err(|error| Refusal::new(code::EVAL_FAILED, error.to_string()))?;
            queue.thread_runs = true;
        }
        queue.jobs.push_back(job);
        notify(&self.wake);
        Ok(())
    }

    fn work(&self) {
        let mut interpreter: Option<Interpreter> = None;
        // The variables of earlier calls are gone, and the host has not been told.
        let mut lost = false;
        // The renewal that the interpreter knows of.
        let mut known = 0;
        loop {
            let ended = interpreter.as_mut().is_some_and(|running| {
                running.discard_output();
                running.exit().is_some()
            });
            if ended {
                interpreter = None;
                lost = true;
            }
            let Some(job) = lock(&self.queue).jobs.pop_front() else {
                self.idle(interpreter.as_ref());
                continue;
            };
            self.run(&mut interpreter, &mut lost, &mut known, job);
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

    fn run(
        &self,
        interpreter: &mut Option<Interpreter>,
        lost: &mut bool,
        known: &mut u64,
        job: Job,
    ) {
        let Job { active, code, parts, deadline, running } = job;
        if active.is_cancelled() {
            let refusal = Refusal::new(code::CANCELLED, "ended before its turn came");
            active.send(&refusal.into_reply(), || {});
            return;
        }
        if deadline.is_some_and(|at| Instant::now() >= at) {
            let error = "the time was over before the code running before it ended".to_owned();
            active.send(&done(None, Some(error), true, false), || {});
            return;
        }
        let current = match interpreter.take() {
            Some(current) => Ok(current),
            None => Interpreter::start(&self.processes, &self.wake),
        };
        match current {
            Ok(mut current) => {
                let now = self.renewals.load(Ordering::Relaxed);
                let renewed = std::mem::replace(known, now) != now;
                current.submit(&code, parts, renewed);
                let reply = Turn::new(&active, &self.processes, deadline, &self.wake)
                    .follow(&mut current, std::mem::take(lost));
                if current.exit().is_none() {
                    *interpreter = Some(current);
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
    processes: &'a Processes,
    wake: &'a OwnedFd,
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
    /// It was interrupted, and has a little time to notice.
    Interrupted { until: Instant },
    /// The interpreter was killed.
    Killed,
}

impl<'a> Turn<'a> {
    fn new(
        active: &'a Active,
        processes: &'a Processes,
        deadline: Option<Instant>,
        wake: &'a OwnedFd,
    ) -> Self {
        let phase = Phase::Running { until: deadline };
        Self { active, processes, wake, phase, timed_out: false, cancelled: false, held: None }
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
            self.held = Some(part);
            if !self.send_held() {
                return None;
            }
            answer = interpreter.exchange();
        }
        match answer {
            Answer::Value(value) => return Some(done(Some(value), None, timed_out, lost)),
            Answer::Nothing => return Some(done(None, None, timed_out, lost)),
            Answer::Error(error) => return Some(done(None, Some(error), timed_out, lost)),
            Answer::Broken => {
                self.processes.signal_group(interpreter.pid(), SIGKILL);
            }
            Answer::Pending | Answer::Part(_) => {}
        }
        let exit = interpreter.exit()?;
        let how = match exit.signal {
            Some(signal) => format!("was ended by signal {signal}"),
            None => format!("ended with exit code {}", exit.code),
        };
        let why = match (self.phase, self.timed_out) {
            (Phase::Killed, true) => "the time was over and the code did not stop: ",
            (Phase::Killed, false) => "the host ended the request: ",
            _ => "",
        };
        let error = format!("{why}the interpreter {how}; its variables are lost");
        Some(done(None, Some(error), timed_out, true))
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
        match self.phase {
            Phase::Running { until } => {
                let timed_out = until.is_some_and(|at| now >= at);
                if timed_out || self.cancelled {
                    self.timed_out = timed_out;
                    self.processes.signal_group(interpreter.pid(), SIGINT);
                    self.phase = Phase::Interrupted { until: now + INTERRUPT_GRACE };
                }
            }
            Phase::Interrupted { until } if now >= until => {
                self.processes.signal_group(interpreter.pid(), SIGKILL);
                self.phase = Phase::Killed;
            }
            Phase::Interrupted { .. } | Phase::Killed => {}
        }
    }

    fn wait(&self, interpreter: &Interpreter, skip: [bool; 2]) {
        let mut fds = vec![
            PollFd::new(self.wake, PollFlags::IN),
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
            Phase::Interrupted { until } => Some(until),
            Phase::Killed => None,
        };
        wait_until(&mut fds, until);
        clear(self.wake);
        self.active.clear_wake();
    }
}

fn done(result: Option<String>, error: Option<String>, timed_out: bool, state_lost: bool) -> Reply {
    Reply::EvalDone { result, error, timed_out, state_lost }
}
