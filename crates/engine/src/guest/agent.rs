//! The handle: one method for each thing that a guest agent does.

use std::sync::Arc;
use std::time::{Duration, SystemTime};

use forkd_protocol::{
    Attributes, FileOwner, HookReport, PROTOCOL_MAX, PROTOCOL_MIN, Reply, Request,
};
use tokio::net::UnixStream;

use super::GuestError;
use super::call::{Call, Deadline};
use super::connection::{Connection, LinkCounters, Tasks};
use super::exec::{ExecOutput, ExecRequest, ExecStream};
use super::quiesce::{QuiesceGuard, quiesce};

/// How much longer than the guest's own time limit we wait for it to report that it is over.
pub(super) const REPORT_MARGIN: Duration = Duration::from_secs(10);

const ENTROPY_BYTES: usize = 64;

/// More hooks than any image has: the failed ones are logged.
const HOOKS_MAX: usize = 256;
/// The end of the name of a hook that may fail.
const OPTIONAL_HOOK: &str = ".optional";
/// As a file name on Linux.
const HOOK_NAME_BYTES_MAX: usize = 255;

/// What an agent says of its guest. All of it comes from the guest.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Facts {
    /// The version that both sides speak.
    pub protocol: u32,
    /// Version of the agent's build.
    pub agent_version: String,
    /// As `uname -r`.
    pub kernel_release: String,
    /// Of the kernel; equal in all children of one boot.
    pub boot_id: String,
    /// The root file system is a disk and not the initramfs.
    pub has_root_disk: bool,
    /// A `python3` is in the path.
    pub python: bool,
    /// The agent is PID 1.
    pub is_init: bool,
    /// How many connections the agent has greeted, this one included.
    pub epoch: u64,
}

/// Answer to a ping.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Pulse {
    /// Since the guest's boot.
    pub uptime: Duration,
    /// How many connections the agent has greeted.
    pub epoch: u64,
    /// Requests under way in the guest.
    pub requests_running: u32,
    /// Stretches of our stream that the agent could not read.
    pub frames_rejected: u64,
}

/// Where and how a file is written.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct FileWrite {
    /// Absolute path in the guest.
    pub path: String,
    /// Permission bits; of an existing file they stay as they are when absent.
    pub mode: Option<u32>,
    /// Add to the end and do not replace.
    pub append: bool,
    /// Create missing directories above it.
    pub create_parents: bool,
    /// To whom the file belongs, and the directories that are created. Without it they are the
    /// superuser's, and a file that is replaced stays whose it was.
    pub owner: Option<FileOwner>,
    /// Extended attributes that the file gets, by their whole names. Older agents do not look.
    pub attributes: Attributes,
}

impl FileWrite {
    /// Replaces or creates the file at `path`.
    #[must_use]
    pub fn new(path: impl Into<String>) -> Self {
        let path = path.into();
        let (owner, attributes) = (None, Attributes::new());
        Self { path, mode: None, append: false, create_parents: false, owner, attributes }
    }
}

/// Who a sandbox is. The wall clock and the entropy are taken by [`GuestAgent::begin_renewal`]
/// itself, as late as possible, and never used twice.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Identity {
    /// Id of the sandbox.
    pub instance_id: String,
    /// Host name.
    pub hostname: String,
    /// 32 lower-case hexadecimal digits.
    pub machine_id: String,
}

/// Proof that a guest took its new identity.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Renewal {
    /// How far the guest's wall clock was moved, in nanoseconds.
    pub clock_step_ns: i64,
    /// The image's own hooks, in order, with their exit codes.
    pub hooks: Vec<HookReport>,
}

/// A connection to the agent of one guest. Cheap to clone; the connection ends with the last clone.
#[derive(Clone)]
pub struct GuestAgent {
    connection: Arc<Connection>,
    tasks: Arc<Tasks>,
}

impl GuestAgent {
    /// Takes over a connected socket. Nothing is sent before [`GuestAgent::hello`]. Must be called
    /// inside a Tokio runtime.
    ///
    /// # Errors
    /// [`GuestError::Entropy`] when the host gives no random numbers.
    pub fn connect(stream: UnixStream) -> Result<Self, GuestError> {
        // The upper half is left free so that ids do not wrap.
        let first_id = random_u64()? >> 1;
        let (connection, tasks) = Connection::start(stream, first_id);
        Ok(Self { connection, tasks: Arc::new(tasks) })
    }

    /// Greets the agent; must succeed before anything else is asked. The guest may still be
    /// booting: the greeting waits for it. Greeting again starts anew: requests under way fail.
    ///
    /// # Errors
    /// See [`GuestError`]; [`GuestError::Protocol`] when there is no common version.
    pub async fn hello(&self, within: Duration) -> Result<Facts, GuestError> {
        let (mut call, greeting) = self.greeting(Deadline::after(within))?;
        call.begin(&greeting)?;
        // A greeting cannot be cancelled.
        call.finish();
        facts(call).await
    }

    /// A greeting that is to be sent.
    fn greeting(&self, deadline: Deadline) -> Result<(Call, Request), GuestError> {
        let nonce = random_u64()?;
        let call = self.call("hello", deadline)?;
        self.connection.expect_welcome(call.id(), nonce);
        let (protocol_min, protocol_max) = (PROTOCOL_MIN, PROTOCOL_MAX);
        Ok((call, Request::Hello { protocol_min, protocol_max, nonce }))
    }

    /// Asks for a sign of life.
    ///
    /// # Errors
    /// See [`GuestError`].
    pub async fn ping(&self, within: Duration) -> Result<Pulse, GuestError> {
        let reply = self.ask("ping", Request::Ping {}, within).await?;
        let Reply::Pong { uptime_ns, epoch, requests_running, frames_rejected } = reply else {
            return Err(GuestError::unexpected("ping", "reply"));
        };
        let uptime = Duration::from_nanos(uptime_ns);
        Ok(Pulse { uptime, epoch, requests_running, frames_rejected })
    }

    /// Runs a program and collects what it writes. Dropping the future kills the program.
    ///
    /// # Errors
    /// See [`GuestError`]; a program that fails or runs out of time is no error.
    pub async fn exec(&self, request: ExecRequest) -> Result<ExecOutput, GuestError> {
        self.exec_stream(request)?.collect().await
    }

    /// Runs a program and follows it.
    ///
    /// # Errors
    /// See [`GuestError`].
    pub fn exec_stream(&self, request: ExecRequest) -> Result<ExecStream, GuestError> {
        self.check_user(request.user.as_deref())?;
        let deadline = Deadline::after(request.timeout.saturating_add(REPORT_MARGIN));
        let mut call = self.call("exec", deadline)?;
        let stdin_follows = !request.stdin.is_empty();
        call.begin(&Request::Exec {
            args: request.args,
            env: request.env,
            cwd: request.cwd,
            user: request.user,
            stdin_follows,
            timeout_ms: Some(millis(request.timeout)),
            output_credit: call.window(),
            keep: None,
        })?;
        if stdin_follows {
            call.set_input(request.stdin);
        }
        Ok(ExecStream::new(call))
    }

    /// Refuses a user to an agent that would run the program as another one.
    pub(super) fn check_user(&self, user: Option<&str>) -> Result<(), GuestError> {
        if user.is_none() || self.connection.heeds_users() {
            return Ok(());
        }
        let message = "programs cannot run as another user";
        Err(GuestError::remote(forkd_protocol::code::UNSUPPORTED, message))
    }

    /// How many programs the agent kept when it was greeted; `None` when it keeps none, ever.
    pub(super) fn kept(&self) -> Option<u32> {
        self.connection.kept()
    }

    pub(super) fn has_contexts(&self) -> bool {
        self.connection.has_contexts()
    }

    /// Sets the guest's wall clock to that of the host.
    ///
    /// # Errors
    /// See [`GuestError`].
    pub async fn set_clock(&self, within: Duration) -> Result<(), GuestError> {
        let mut call = self.call("set clock", Deadline::after(within))?;
        call.begin(&Request::SetClock { wall_clock_unix_ns: unix_ns(SystemTime::now()) })?;
        match call.next().await? {
            Reply::Done {} => {
                call.finish();
                Ok(())
            }
            other => Err(call.unexpected(&other)),
        }
    }

    /// Greets the agent and gives the guest a new identity, the right time and fresh entropy, all
    /// in one piece: a guest that does not run yet finds it there when it does. Comes back when the
    /// kernel has all of it, which is all that one can wait for: QEMU reads a port only once the
    /// guest was let run. [`Renewing::confirmed`] waits for the guest. A guest that does not
    /// confirm must not be handed out.
    ///
    /// # Errors
    /// See [`GuestError`].
    pub async fn begin_renewal(
        &self,
        identity: Identity,
        within: Duration,
    ) -> Result<Renewing, GuestError> {
        let deadline = Deadline::after(within);
        let (hello, greeting) = self.greeting(deadline)?;
        let mut entropy = vec![0; ENTROPY_BYTES];
        getrandom::fill(&mut entropy)
            .map_err(|error| GuestError::Entropy { reason: error.to_string() })?;
        let mut renew = self.call("renew", deadline)?;
        let renewal = Request::Renew {
            instance_id: identity.instance_id.clone(),
            hostname: identity.hostname,
            machine_id: identity.machine_id,
            wall_clock_unix_ns: unix_ns(SystemTime::now()),
            entropy,
            // A hook that hangs is reported as such before the renewal as a whole fails.
            hook_timeout_ms: Some(millis(within / 2).max(1)),
            announce: true,
        };
        let sent = renew.begin_behind((&hello, &greeting), &renewal)?;
        let sent = tokio::time::timeout_at(deadline.instant(), sent).await;
        // A lost connection is told by the replies, which do not come.
        sent.map_err(|_| deadline.timeout("renew"))?.ok();
        Ok(Renewing { instance_id: identity.instance_id, hello, renew })
    }

    /// Says nothing more to the guest: requests that are given up are not ended there, and its
    /// programs are whoever's who comes next.
    pub fn leave(&self) {
        self.connection.leave();
    }

    /// Asks the guest to end itself. A connection that closes meanwhile is what is wanted.
    ///
    /// # Errors
    /// See [`GuestError`].
    pub async fn power_off(&self, within: Duration) -> Result<(), GuestError> {
        match self.ask("power off", Request::PowerOff {}, within).await {
            Ok(Reply::PoweringOff {}) | Err(GuestError::Closed { .. }) => Ok(()),
            Ok(_) => Err(GuestError::unexpected("power off", "reply")),
            Err(error) => Err(error),
        }
    }

    /// Stops all writing to the guest and waits until the VMM has read what was written. Requests
    /// made meanwhile wait for the guard to be dropped; their time runs.
    ///
    /// # Errors
    /// [`GuestError::Timeout`] when the VMM does not read; [`GuestError::Closed`].
    pub async fn quiesce(&self, within: Duration) -> Result<QuiesceGuard, GuestError> {
        quiesce(&self.connection, within).await
    }

    /// Whether the VMM has read everything that was written to the guest. Also if that cannot be
    /// known any more.
    #[must_use]
    pub fn is_read(&self) -> bool {
        forkd_sys::socket::unread_by_peer(&self.connection.stream)
            .map_or(true, |unread| unread == 0)
    }

    /// What this connection dropped so far.
    #[must_use]
    pub fn counters(&self) -> LinkCounters {
        self.connection.counters()
    }

    pub(super) fn call(&self, what: &'static str, deadline: Deadline) -> Result<Call, GuestError> {
        Call::new(&self.connection, &self.tasks, what, deadline)
    }

    /// A request with exactly one reply.
    pub(super) async fn ask(
        &self,
        what: &'static str,
        request: Request,
        within: Duration,
    ) -> Result<Reply, GuestError> {
        let mut call = self.call(what, Deadline::after(within))?;
        call.begin(&request)?;
        let reply = call.next().await?;
        call.finish();
        Ok(reply)
    }
}

/// A guest that was told who it is, and has not confirmed it.
#[must_use = "only a guest that has confirmed it may be handed out"]
pub struct Renewing {
    instance_id: String,
    hello: Call,
    renew: Call,
}

impl Renewing {
    /// Whether the guest has said that its identity is in effect, or has failed.
    #[must_use]
    pub fn is_answered(&self) -> bool {
        self.renew.is_answered()
    }

    /// Waits until the guest says that all of its identity is in effect.
    ///
    /// # Errors
    /// See [`GuestError`]; [`GuestError::HookFailed`] when a hook that must not fail did.
    pub async fn confirmed(mut self) -> Result<Renewal, GuestError> {
        facts(self.hello).await?;
        let mut reply = self.renew.next().await?;
        if reply == (Reply::IdentityInEffect {}) {
            reply = self.renew.next().await?;
        }
        self.renew.finish();
        match reply {
            Reply::Renewed { instance_id, clock_step_ns, hooks }
                if instance_id == self.instance_id =>
            {
                let told = hooks.len() <= HOOKS_MAX
                    && hooks.iter().all(|hook| hook.name.len() <= HOOK_NAME_BYTES_MAX);
                if !told {
                    let reason = "too many hooks, or too long names".to_owned();
                    return Err(GuestError::Protocol { what: "renew", reason });
                }
                let failed =
                    |hook: &&HookReport| hook.exit_code != 0 && !hook.name.ends_with(OPTIONAL_HOOK);
                if let Some(HookReport { name, exit_code }) = hooks.iter().find(failed) {
                    return Err(GuestError::hook(name, *exit_code));
                }
                Ok(Renewal { clock_step_ns, hooks })
            }
            Reply::Renewed { .. } => Err(GuestError::Protocol {
                what: "renew",
                reason: "another identity was confirmed".to_owned(),
            }),
            other => Err(self.renew.unexpected(&other)),
        }
    }
}

/// The answer to a greeting.
async fn facts(mut hello: Call) -> Result<Facts, GuestError> {
    let reply = hello.next().await?;
    let Reply::Welcome {
        protocol,
        nonce: _,
        agent_version,
        kernel_release,
        boot_id,
        has_root_disk,
        python,
        is_init,
        epoch,
        users: _,
        contexts: _,
        kept: _,
    } = reply
    else {
        return Err(hello.unexpected(&reply));
    };
    if !(PROTOCOL_MIN..=PROTOCOL_MAX).contains(&protocol) {
        let reason = format!("version {protocol} was not offered");
        return Err(GuestError::Protocol { what: "hello", reason });
    }
    Ok(Facts {
        protocol,
        agent_version,
        kernel_release,
        boot_id,
        has_root_disk,
        python,
        is_init,
        epoch,
    })
}

fn random_u64() -> Result<u64, GuestError> {
    getrandom::u64().map_err(|error| GuestError::Entropy { reason: error.to_string() })
}

pub(super) fn millis(duration: Duration) -> u64 {
    u64::try_from(duration.as_millis()).unwrap_or(u64::MAX)
}

fn unix_ns(time: SystemTime) -> i64 {
    let since = time.duration_since(SystemTime::UNIX_EPOCH).unwrap_or_default();
    i64::try_from(since.as_nanos()).unwrap_or(i64::MAX)
}
