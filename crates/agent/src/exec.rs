//! Running a program for the host: input, output, signals, time limit, end.

use std::os::fd::OwnedFd;
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};
use std::sync::{Arc, Mutex};
use std::time::{Duration, Instant};

use forkd_protocol::{Keep, Reply, Request, code};
use rustix::event::{PollFd, PollFlags, Timespec, poll};
use rustix::fs::{OFlags, fchown, fcntl_setfl};
use rustix::pipe::{PipeFlags, pipe_with};
use rustix::process::Uid;
use rustix::termios::{Winsize, tcsetwinsize};

use crate::active::{Active, Input, Refusal};
use crate::environment::{self, Unresolved};
use crate::kept::{Backlog, End, KeptProgram, KeptPrograms};
use crate::pipes::{Forwarded, OutputPipe, Stream};
use crate::process::{Exit, Processes};
use crate::sync::lock;
use crate::terminal::{self, Terminal};
use crate::user::User;

/// How long output of background processes is still taken after the program itself ended.
const GRACE: Duration = Duration::from_millis(100);

/// What is taken at most after that; more than any pipe holds.
const GRACE_BYTES_MAX: usize = 1024 * 1024;

const SIGKILL: i32 = 9;

/// A program to run, as the host wants it.
pub(crate) struct Spec {
    pub(crate) args: Vec<String>,
    pub(crate) env: Vec<(String, String)>,
    pub(crate) cwd: Option<String>,
    /// `USER[:GROUP]`; the image's when absent.
    pub(crate) user: Option<String>,
    pub(crate) streams: Streams,
    pub(crate) timeout: Option<Duration>,
    /// It outlives its host under this name.
    pub(crate) keep: Option<Keep>,
}

impl Spec {
    /// What a request wants to be run, if that is what it wants.
    pub(crate) fn of(request: Request) -> Option<Self> {
        let (args, env, cwd, user, timeout_ms, keep, streams) = match request {
            Request::Exec {
                args,
                env,
                cwd,
                user,
                stdin_follows,
                timeout_ms,
                output_credit: _,
                keep,
            } => (args, env, cwd, user, timeout_ms, keep, Streams::Pipes { stdin_follows }),
            Request::Terminal {
                args,
                env,
                cwd,
                user,
                timeout_ms,
                output_credit: _,
                rows,
                cols,
                keep,
            } => {
                let streams = Streams::Terminal { size: terminal::size(rows, cols) };
                (args, env, cwd, user, timeout_ms, keep, streams)
            }
            _ => return None,
        };
        let timeout = timeout_ms.map(Duration::from_millis);
        Some(Self { args, env, cwd, user, streams, timeout, keep })
    }
}

/// What a program reads from and writes to.
#[derive(Clone, Copy)]
pub(crate) enum Streams {
    /// A pipe for each stream; the input is empty unless it follows.
    Pipes { stdin_follows: bool },
    /// One terminal for all.
    Terminal { size: Winsize },
}

/// Our ends of a program's streams.
struct Ends {
    stdout: OutputPipe,
    stderr: OutputPipe,
    stdin: Option<OwnedFd>,
    /// Our end of the terminal once more, to change its size.
    terminal: Option<OwnedFd>,
}

impl Ends {
    /// Makes the streams and gives the program its ends of them.
    fn make(streams: Streams, user: Option<&User>, command: &mut Command) -> std::io::Result<Self> {
        match streams {
            Streams::Pipes { stdin_follows } => Self::pipes(stdin_follows, command),
            Streams::Terminal { size } => Self::terminal(size, user, command),
        }
    }

    fn pipes(stdin_follows: bool, command: &mut Command) -> std::io::Result<Self> {
        let (stdout, stdout_end) = OutputPipe::new(Stream::Stdout)?;
        let (stderr, stderr_end) = OutputPipe::new(Stream::Stderr)?;
        let (stdin, stdin_end) = if stdin_follows {
            let (read_end, write_end) = pipe_with(PipeFlags::CLOEXEC)?;
            fcntl_setfl(&write_end, OFlags::NONBLOCK)?;
            (Some(write_end), Stdio::from(read_end))
        } else {
            (None, Stdio::null())
        };
        command.stdin(stdin_end).stdout(stdout_end).stderr(stderr_end);
        Ok(Self { stdout, stderr, stdin, terminal: None })
    }

    fn terminal(
        size: Winsize,
        user: Option<&User>,
        command: &mut Command,
    ) -> std::io::Result<Self> {
        let Terminal { ours, theirs } = Terminal::open(size)?;
        if let Some(user) = user {
            // As a login does: the program may open it once more, by its name.
            fchown(&theirs, Some(Uid::from_raw(user.id)), None)?;
        }
        command.stdin(theirs.try_clone()?).stdout(theirs.try_clone()?).stderr(theirs);
        Ok(Self {
            stdin: Some(ours.try_clone()?),
            terminal: Some(ours.try_clone()?),
            stdout: OutputPipe::of_terminal(ours),
            stderr: OutputPipe::absent(Stream::Stderr),
        })
    }
}

/// Runs the program to its end and reports everything. Returns the pipes that background processes
/// still hold.
pub(crate) fn run(
    active: &Arc<Active>,
    processes: &Arc<Processes>,
    kept: &KeptPrograms,
    mut spec: Spec,
) -> Vec<OutputPipe> {
    let program = spec.keep.take().map(|keep| kept.add(keep, active)).transpose();
    let run = program.and_then(|program| {
        let run = Run::start(active, processes, &spec, program.clone());
        if let (Err(_), Some(program)) = (&run, &program) {
            kept.remove(program);
        }
        run
    });
    match run {
        Ok(mut run) => {
            run.follow();
            if let Some(program) = run.kept.filter(|_| run.active.was_cancelled()) {
                kept.remove(&program);
            }
            vec![run.stdout, run.stderr]
        }
        Err(refusal) => {
            active.send(&refusal.into_reply(), || {});
            Vec::new()
        }
    }
}

struct Run {
    active: Arc<Active>,
    processes: Arc<Processes>,
    pid: i32,
    stdout: OutputPipe,
    stderr: OutputPipe,
    stdin: Option<OwnedFd>,
    terminal: Option<OwnedFd>,
    /// What tells the program of the end of its input, where closing it does not.
    end_of_input: Option<u8>,
    /// Taken from the host, not yet by the program.
    pending: Vec<u8>,
    deadline: Option<Instant>,
    timed_out: bool,
    exit: Arc<Mutex<Option<Exit>>>,
    exited: Option<(Exit, Instant)>,
    late_bytes: usize,
    /// It outlives its host.
    kept: Option<Arc<KeptProgram>>,
    /// What it has written while it had no host.
    backlog: Backlog,
    /// How many bytes of output were taken from it.
    written: u64,
}

impl Run {
    fn start(
        active: &Arc<Active>,
        processes: &Arc<Processes>,
        spec: &Spec,
        kept: Option<Arc<KeptProgram>>,
    ) -> Result<Self, Refusal> {
        let failed = |error: std::io::Error| {
            let name = spec.args.first().map_or("", String::as_str);
            Refusal::new(code::EXEC_FAILED, format!("cannot run {name:?}: {error}"))
        };
        let user = environment::user(spec.user.as_deref())
            .map_err(|problem| Refusal::new(code::USER_NOT_FOUND, problem))?;
        let mut command = prepare(spec, user.as_ref())?;
        let ends = Ends::make(spec.streams, user.as_ref(), &mut command).map_err(failed)?;
        let exit = Arc::new(Mutex::new(None));
        let (told, wake) = (Arc::clone(&exit), Arc::clone(active));
        let watcher = move |ended| {
            *lock(&told) = Some(ended);
            wake.notify();
        };
        let pid = match spec.streams {
            Streams::Pipes { .. } => processes.spawn(&mut command, watcher),
            Streams::Terminal { .. } => processes.spawn_on_terminal(&mut command, watcher),
        };
        let pid = pid.map_err(failed)?;
        // The command holds the program's ends of the pipes.
        drop(command);
        if let Some(kept) = &kept {
            kept.started(pid);
        }
        active.send(&Reply::Started { pid: pid.unsigned_abs() }, || {});
        if ends.stdin.is_some() {
            active.open_input();
        }
        Ok(Self {
            active: Arc::clone(active),
            processes: Arc::clone(processes),
            pid,
            end_of_input: ends.terminal.as_ref().map(|_| terminal::END_OF_INPUT),
            stdout: ends.stdout,
            stderr: ends.stderr,
            stdin: ends.stdin,
            terminal: ends.terminal,
            pending: Vec::new(),
            deadline: spec.timeout.and_then(|timeout| Instant::now().checked_add(timeout)),
            timed_out: false,
            exit,
            exited: None,
            late_bytes: 0,
            kept,
            backlog: Backlog::default(),
            written: 0,
        })
    }

    fn follow(&mut self) {
        loop {
            self.attend();
            self.feed();
            // What it wrote before comes first.
            let (stdout, stderr) = if self.give_backlog() {
                (self.forward(Stream::Stdout), self.forward(Stream::Stderr))
            } else {
                (Forwarded::NoRoom, Forwarded::NoRoom)
            };
            if let Some(exit) = self.is_over(stdout, stderr) {
                let end = End { exit, timed_out: self.timed_out, written: self.written };
                if self.kept.as_ref().is_none_or(|kept| kept.ended(end)) {
                    self.active.send(&end.into_reply(), || {});
                    return;
                }
            }
            if !matches!((stdout, stderr), (Forwarded::Bytes(_), _) | (_, Forwarded::Bytes(_))) {
                self.wait(stdout == Forwarded::NoRoom, stderr == Forwarded::NoRoom);
            }
        }
    }

    /// Turns to the host that goes on with the program, and sends what it wrote meanwhile as far as
    /// may be. False while more of that is to be sent.
    fn give_backlog(&mut self) -> bool {
        if self.kept.is_some() && self.active.take_follower() {
            let from = self.written - self.backlog.bytes();
            let takes_input = self.stdin.is_some() && self.active.input_is_open();
            self.active.send(&Reply::Followed { from, takes_input }, || {});
            if takes_input {
                self.active.open_input();
            }
        }
        if self.active.is_stale() {
            return true;
        }
        while !self.backlog.is_empty() {
            let room = self.active.payload_room();
            if room == 0 {
                return false;
            }
            if let Some((stream, data)) = self.backlog.take(room) {
                let (processes, pid, deadline) = (&self.processes, self.pid, self.deadline);
                let (active, timed_out) = (&self.active, &mut self.timed_out);
                active.send(&stream.reply(data), || {
                    *timed_out |= attend(active, processes, pid, deadline);
                });
            }
        }
        true
    }

    /// Nobody follows it, but somebody may.
    fn is_alone(&self) -> bool {
        self.kept.is_some() && self.active.is_stale() && !self.active.was_cancelled()
    }

    /// Signals, the time limit, and the program's end.
    fn attend(&mut self) {
        if let (Some(terminal), Some(size)) = (&self.terminal, self.active.take_size()) {
            // A terminal that all programs have left takes no size.
            tcsetwinsize(terminal, size).ok();
        }
        self.timed_out |= attend(&self.active, &self.processes, self.pid, self.deadline);
        if self.timed_out {
            self.deadline = None;
        }
        if self.exited.is_none()
            && let Some(exit) = *lock(&self.exit)
        {
            self.exited = Some((exit, Instant::now()));
            self.deadline = None;
        }
    }

    fn forward(&mut self, stream: Stream) -> Forwarded {
        let alone = self.is_alone();
        let pipe = match stream {
            Stream::Stdout => &mut self.stdout,
            Stream::Stderr => &mut self.stderr,
        };
        let outcome = if alone && self.exited.is_some_and(|(_, at)| at.elapsed() >= GRACE) {
            // Of others that it has left behind; what it wrote itself must not give way to it.
            return pipe.discard();
        } else if alone {
            let (outcome, data) = pipe.take();
            self.backlog.push(stream, &data);
            outcome
        } else {
            let (processes, pid, deadline) = (&self.processes, self.pid, self.deadline);
            let (active, timed_out) = (&self.active, &mut self.timed_out);
            pipe.forward(active, || {
                *timed_out |= attend(active, processes, pid, deadline);
            })
        };
        if let Forwarded::Bytes(count) = outcome {
            self.written += count as u64;
            if self.exited.is_some_and(|(_, at)| at.elapsed() >= GRACE) {
                self.late_bytes += count;
            }
        }
        outcome
    }

    /// The end, once the program ended and what it wrote has been sent.
    fn is_over(&self, stdout: Forwarded, stderr: Forwarded) -> Option<Exit> {
        let (exit, at) = self.exited?;
        let is_empty = |outcome| matches!(outcome, Forwarded::Nothing | Forwarded::Closed);
        let closed = !self.stdout.is_open() && !self.stderr.is_open();
        let grace_over = at.elapsed() >= GRACE
            && (is_empty(stdout) && is_empty(stderr) || self.late_bytes >= GRACE_BYTES_MAX);
        let all_sent = closed || grace_over;
        let is_over = if self.is_alone() {
            false
        } else {
            all_sent && self.backlog.is_empty() || self.active.is_stale()
        };
        is_over.then_some(exit)
    }

    /// Gives the program as much input as it takes now.
    fn feed(&mut self) {
        loop {
            if self.pending.is_empty() {
                match self.active.next_input() {
                    Input::Data(data) => self.pending = data,
                    // In a branch's child the program is left waiting: an end of its input would
                    // make it take half of it for the whole.
                    Input::Nothing | Input::Abandoned => return,
                    Input::End | Input::Lost => match self.end_of_input.take() {
                        Some(character) => self.pending.push(character),
                        None => {
                            self.stdin = None;
                            return;
                        }
                    },
                }
            }
            let Some(stdin) = &self.stdin else {
                // The program reads no more; the host shall not wait for it.
                self.pending.clear();
                continue;
            };
            match rustix::io::write(stdin, &self.pending) {
                Ok(count) => drop(self.pending.drain(..count)),
                Err(rustix::io::Errno::AGAIN) => return,
                Err(rustix::io::Errno::INTR) => {}
                // The program reads no more.
                Err(_) => self.stdin = None,
            }
        }
    }

    fn wait(&self, skip_stdout: bool, skip_stderr: bool) {
        let mut fds = vec![PollFd::from_borrowed_fd(self.active.wake_fd(), PollFlags::IN)];
        let outputs = [(&self.stdout, skip_stdout), (&self.stderr, skip_stderr)];
        for pipe in outputs.iter().filter(|(_, skip)| !skip).filter_map(|(pipe, _)| pipe.fd()) {
            fds.push(PollFd::new(pipe, PollFlags::IN));
        }
        if let (Some(stdin), false) = (&self.stdin, self.pending.is_empty()) {
            fds.push(PollFd::new(stdin, PollFlags::OUT));
        }
        let held_back = skip_stdout || skip_stderr || self.is_alone();
        let grace = self.exited.map(|(_, at)| at + GRACE);
        // Once it is over a host that allows nothing, or is to come, is waited for, not polled.
        let grace = grace.filter(|end| !held_back || *end > Instant::now());
        wait_until(&mut fds, self.deadline.into_iter().chain(grace).min());
        self.active.clear_wake();
    }
}

/// Delivers the host's signals and kills the group when its time is over, which it reports.
fn attend(active: &Active, processes: &Processes, pid: i32, deadline: Option<Instant>) -> bool {
    for signal in active.take_signals() {
        processes.signal_group(pid, signal);
    }
    deadline.is_some_and(|at| Instant::now() >= at) && processes.signal_group(pid, SIGKILL)
}

/// Polls, at the longest until `deadline`.
pub(crate) fn wait_until(fds: &mut [PollFd<'_>], deadline: Option<Instant>) {
    let timeout = deadline.map(|at| {
        // A little more, so that the deadline has passed when we look.
        let rest = at.saturating_duration_since(Instant::now()) + Duration::from_micros(100);
        Timespec {
            tv_sec: i64::try_from(rest.as_secs()).unwrap_or(i64::MAX),
            tv_nsec: i64::from(rest.subsec_nanos()),
        }
    });
    if poll(fds, timeout.as_ref()).is_err() {
        std::thread::sleep(Duration::from_millis(1));
    }
}

fn prepare(spec: &Spec, user: Option<&User>) -> Result<Command, Refusal> {
    let Some((program, arguments)) = spec.args.split_first() else {
        return Err(Refusal::new(code::BAD_REQUEST, "no program is named"));
    };
    let texts = spec.args.iter().chain(&spec.cwd);
    let variables = spec.env.iter().flat_map(|(name, value)| [name, value]);
    if texts.chain(variables).any(|text| text.contains('\0'))
        || spec.env.iter().any(|(name, _)| name.is_empty() || name.contains('='))
    {
        let message = "an argument, variable or directory has a character that is not allowed";
        return Err(Refusal::new(code::BAD_REQUEST, message));
    }
    let directory = match &spec.cwd {
        Some(directory) => PathBuf::from(directory),
        None => environment::default_directory(user),
    };
    if !directory.is_dir() {
        let message = format!("no such directory: {}", directory.display());
        return Err(Refusal::new(code::CWD_NOT_FOUND, message));
    }
    let mut environment = environment::variables(user, &spec.env);
    let names_kind = environment.iter().any(|(name, _)| name == terminal::KIND_DEFAULT.0);
    if matches!(spec.streams, Streams::Terminal { .. }) && !names_kind {
        let (name, value) = terminal::KIND_DEFAULT;
        environment.push((name.to_owned(), value.to_owned()));
    }
    let file = find(program, &environment, &directory)?;
    let mut command = Command::new(file);
    std::os::unix::process::CommandExt::arg0(&mut command, program);
    command.args(arguments).current_dir(directory).env_clear().envs(environment);
    environment::become_user(&mut command, user);
    Ok(command)
}

fn find(
    program: &str,
    environment: &[(String, String)],
    directory: &Path,
) -> Result<PathBuf, Refusal> {
    let path = environment.iter().find(|(name, _)| name == "PATH");
    let path = path.map_or(environment::PATH, |(_, value)| value.as_str());
    environment::resolve(program, path, directory).map_err(|why| match why {
        Unresolved::Missing => {
            Refusal::new(code::EXEC_NOT_FOUND, format!("no such program: {program}"))
        }
        Unresolved::NotExecutable => {
            Refusal::new(code::EXEC_DENIED, format!("not an executable file: {program}"))
        }
    })
}
