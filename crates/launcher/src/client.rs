//! The daemon's end: starts the launcher, and asks it for programs.

use std::io;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::os::unix::process::CommandExt as _;
use std::path::PathBuf;
use std::process::{Child, Command, Stdio};
use std::sync::{Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use forkd_sys::packet;
use rustix::io::retry_on_intr;
use rustix::net::{AddressFamily, SocketFlags, SocketType, socketpair, sockopt};
use rustix::process::{Pid, WaitId, WaitIdOptions};

use crate::error::{LaunchError, remedy};
use crate::job::{Answer, Job, PACKET_BYTES_MAX, Refusal, Request, Setup};

/// A program begins within milliseconds; a host that swaps needs longer.
const REPLY_DEADLINE: Duration = Duration::from_secs(20);

/// What a launcher is started with.
#[derive(Debug, Clone)]
pub struct LauncherConfig {
    /// The launcher's program.
    pub program: PathBuf,
    /// What its programs have in common.
    pub setup: Setup,
}

/// A launcher process. It ends when this is dropped; what it has started runs on.
#[derive(Debug)]
pub struct Launcher {
    config: LauncherConfig,
    own_ids: bool,
    connection: Mutex<Option<Connection>>,
}

#[derive(Debug)]
struct Connection {
    socket: OwnedFd,
    process: Child,
}

impl Launcher {
    /// Starts a launcher and waits until it is ready.
    ///
    /// # Errors
    /// When it cannot be started, or this host does not permit what it needs.
    pub fn start(config: LauncherConfig) -> Result<Self, LaunchError> {
        let (connection, own_ids) = connect(&config)?;
        Ok(Self { config, own_ids, connection: Mutex::new(Some(connection)) })
    }

    /// Whether its programs can have users and groups of their own.
    #[must_use]
    pub fn has_own_ids(&self) -> bool {
        self.own_ids
    }

    /// Starts a program, which is a child of this process, and returns when it has begun. A
    /// launcher that has died meanwhile is started again.
    ///
    /// # Errors
    /// Names the step that was refused; the program does not run then.
    pub fn launch(&self, job: Job, fds: &[BorrowedFd<'_>]) -> Result<Pid, LaunchError> {
        let mut slot = self.slot();
        let mut connection = match slot.take().and_then(Connection::if_alive) {
            Some(connection) => connection,
            None => connect(&self.config)?.0,
        };
        // Put back only if the two still understand each other.
        let answer = connection.ask(&Request::Start(job), fds)?;
        *slot = Some(connection);
        drop(slot);
        match answer {
            Answer::Started { pid } => Pid::from_raw(pid).ok_or_else(|| lost("named no process")),
            Answer::Refused(refusal) => Err(refused(refusal)),
            Answer::Ready { .. } => Err(lost("answered another question")),
        }
    }

    fn slot(&self) -> MutexGuard<'_, Option<Connection>> {
        self.connection.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

fn connect(config: &LauncherConfig) -> Result<(Connection, bool), LaunchError> {
    let spawn = |source: io::Error| LaunchError::Spawn { program: config.program.clone(), source };
    let (family, kind) = (AddressFamily::UNIX, SocketType::SEQPACKET);
    let (socket, theirs) = socketpair(family, kind, SocketFlags::CLOEXEC, None)
        .map_err(|errno| spawn(errno.into()))?;
    sockopt::set_socket_timeout(&socket, sockopt::Timeout::Recv, Some(REPLY_DEADLINE))
        .map_err(|errno| spawn(errno.into()))?;
    let process = Command::new(&config.program)
        .env_clear()
        .stdin(Stdio::from(theirs))
        .stdout(Stdio::null())
        // What is typed at the daemon's terminal is not for it.
        .process_group(0)
        .spawn()
        .map_err(spawn)?;
    let mut connection = Connection { socket, process };
    match connection.ask(&Request::Setup(config.setup.clone()), &[])? {
        Answer::Ready { own_ids } => Ok((connection, own_ids)),
        Answer::Refused(refusal) => Err(refused(refusal)),
        Answer::Started { .. } => Err(lost("answered another question")),
    }
}

impl Connection {
    fn ask(&mut self, request: &Request, fds: &[BorrowedFd<'_>]) -> Result<Answer, LaunchError> {
        let failed = |what: &str, error: &dyn std::error::Error| lost(&format!("{what}: {error}"));
        let bytes = serde_json::to_vec(request).map_err(|e| failed("was not asked", &e))?;
        // Of a socket with a deadline, a signal ends the wait whatever its handler says.
        retry_on_intr(|| packet::send(self.socket.as_fd(), &bytes, fds))
            .map_err(|e| failed("was not asked", &e))?;
        let mut buffer = vec![0; PACKET_BYTES_MAX];
        let (bytes, _) = retry_on_intr(|| packet::receive(self.socket.as_fd(), &mut buffer))
            .map_err(|e| failed("did not answer", &e))?;
        if bytes == 0 {
            return Err(lost("ended"));
        }
        serde_json::from_slice(&buffer[..bytes]).map_err(|e| failed("is another version", &e))
    }

    fn if_alive(mut self) -> Option<Self> {
        matches!(self.process.try_wait(), Ok(None)).then_some(self)
    }
}

impl Drop for Connection {
    fn drop(&mut self) {
        // It reads the end of its input; one that is stuck must not be waited for.
        self.process.kill().ok();
        self.process.wait().ok();
    }
}

fn lost(what: &str) -> LaunchError {
    LaunchError::Lost { what: what.to_owned() }
}

fn refused(refusal: Refusal) -> LaunchError {
    let Refusal { step, what, errno, ended } = refusal;
    if let Some(pid) = ended.and_then(Pid::from_raw) {
        rustix::process::waitid(WaitId::Pid(pid), WaitIdOptions::EXITED).ok();
    }
    let remedy = remedy(step, errno);
    let source = match errno {
        0 => io::Error::other("it failed"),
        errno => io::Error::from_raw_os_error(errno),
    };
    LaunchError::Refused { step, what, remedy, source }
}
