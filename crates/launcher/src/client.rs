//! The daemon's end: starts the launcher, and asks it for programs.

use std::fs::File;
use std::io;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::os::unix::process::CommandExt as _;
use std::path::PathBuf;
use std::process::{Child, Command, Stdio};
use std::sync::{Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use forkd_sys::{packet, user_namespace};
use rustix::io::retry_on_intr;
use rustix::net::{AddressFamily, SocketFlags, SocketType, socketpair, sockopt};
use rustix::process::{Pid, WaitId, WaitIdOptions};

use crate::error::{LaunchError, remedy};
use crate::job::{Answer, Job, OwnIds, PACKET_BYTES_MAX, Refusal, Request, Setup};
use crate::standing::Standing;
use crate::subordinate::{NoSubordinateIds, SubordinateIds};

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
    own_ids: OwnIds,
    why_no_ids: Option<NoSubordinateIds>,
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
        let found = match Standing::of_process() {
            Standing::Ordinary => SubordinateIds::find().map(Some),
            Standing::Privileged | Standing::BareRoot => Ok(None),
        };
        let (wanted, why_no_ids) = match found {
            Ok(ids) => (ids, None),
            Err(why) => (None, Some(why)),
        };
        let (connected, why_no_ids) = match connect(&config, wanted) {
            // A namespace takes one map only, so another is needed without these ids.
            Err(ConnectError::Map(why)) => (connect(&config, None), Some(why)),
            other => (other, why_no_ids),
        };
        let (connection, own_ids) = connected?;
        Ok(Self { config, own_ids, why_no_ids, connection: Mutex::new(Some(connection)) })
    }

    /// Which users and groups of their own its programs can have.
    #[must_use]
    pub fn own_ids(&self) -> OwnIds {
        self.own_ids
    }

    /// Why its programs cannot have ids that were set aside for the daemon's user, who is neither
    /// root nor as good as root.
    #[must_use]
    pub fn why_no_ids(&self) -> Option<&NoSubordinateIds> {
        self.why_no_ids.as_ref()
    }

    /// Starts a program, which is a child of this process, and returns when it has begun. A
    /// launcher that has died meanwhile is started again.
    ///
    /// # Errors
    /// Names the step that was refused; the program does not run then.
    pub fn launch(&self, job: Job, fds: &[BorrowedFd<'_>]) -> Result<Pid, LaunchError> {
        match self.ask(&Request::Start(job), fds)? {
            Answer::Started { pid } => Pid::from_raw(pid).ok_or_else(|| lost("named no process")),
            other => Err(unexpected(other)),
        }
    }

    /// Lets a group among [`OwnIds::Subordinate`] use a file or directory of this process's user,
    /// as `mode` says. Its owner takes it back by changing the mode.
    ///
    /// # Errors
    /// When the kernel refuses it.
    pub fn lend(&self, file: BorrowedFd<'_>, group: u32, mode: u32) -> Result<(), LaunchError> {
        match self.ask(&Request::Lend { group, mode }, &[file])? {
            Answer::Done => Ok(()),
            other => Err(unexpected(other)),
        }
    }

    /// Opens the page tables of a program with such ids, whichever launcher of this process's user
    /// has started it. A process of its own does it: only within the user namespace of that
    /// launcher is it permitted, and none leads there from this one's.
    ///
    /// # Errors
    /// When there is no such process, or it is not this user's.
    pub fn open_page_tables(&self, pid: Pid) -> Result<File, LaunchError> {
        let namespace = user_namespace::parent_of(pid)
            .map_err(|error| lost(&format!("finds no namespace of process {pid:?}: {error}")))?;
        let mut connection = Connection::start(&self.config)?;
        let request = Request::OpenPageTables { pid: pid.as_raw_nonzero().get() };
        let (answer, mut opened) = connection.ask_for(&request, &[namespace.as_fd()])?;
        match (answer, opened.pop()) {
            (Answer::Done, Some(file)) => Ok(file.into()),
            (Answer::Done, None) => Err(lost("opened nothing")),
            (other, _) => Err(unexpected(other)),
        }
    }

    fn ask(&self, request: &Request, fds: &[BorrowedFd<'_>]) -> Result<Answer, LaunchError> {
        let mut slot = self.slot();
        let mut connection = match slot.take().and_then(Connection::if_alive) {
            Some(connection) => connection,
            None => self.connect_again()?,
        };
        // Put back only if the two still understand each other.
        let answer = connection.ask(request, fds)?;
        *slot = Some(connection);
        Ok(answer)
    }

    /// Another process in the place of one that has died, which can do the same.
    fn connect_again(&self) -> Result<Connection, LaunchError> {
        let ids = match self.own_ids {
            OwnIds::Subordinate(ids) => Some(ids),
            OwnIds::None | OwnIds::Any => None,
        };
        let (connection, own_ids) = connect(&self.config, ids)?;
        if own_ids != self.own_ids {
            return Err(lost("has other ids for programs than before"));
        }
        Ok(connection)
    }

    fn slot(&self) -> MutexGuard<'_, Option<Connection>> {
        self.connection.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

/// Why a launcher is not ready.
enum ConnectError {
    /// Ids cannot be mapped for it.
    Map(NoSubordinateIds),
    Launch(LaunchError),
}

impl From<LaunchError> for ConnectError {
    fn from(error: LaunchError) -> Self {
        Self::Launch(error)
    }
}

impl From<ConnectError> for LaunchError {
    fn from(error: ConnectError) -> Self {
        match error {
            ConnectError::Map(why) => lost(&format!("has no ids for programs any more: {why}")),
            ConnectError::Launch(error) => error,
        }
    }
}

fn connect(
    config: &LauncherConfig,
    subordinate: Option<SubordinateIds>,
) -> Result<(Connection, OwnIds), ConnectError> {
    let mut connection = Connection::start(config)?;
    let setup = Request::Setup { setup: config.setup.clone(), subordinate };
    let mut answer = connection.ask(&setup, &[])?;
    if let (Answer::MapIds, Some(ids)) = (&answer, subordinate) {
        ids.map(connection.process.id()).map_err(ConnectError::Map)?;
        answer = connection.ask(&Request::Mapped, &[])?;
    }
    match answer {
        Answer::Ready { own_ids } => Ok((connection, own_ids)),
        other => Err(unexpected(other).into()),
    }
}

impl Connection {
    /// A launcher that has not been asked for anything.
    fn start(config: &LauncherConfig) -> Result<Self, LaunchError> {
        let program = || config.program.clone();
        let spawn = |source: io::Error| LaunchError::Spawn { program: program(), source };
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
        Ok(Self { socket, process })
    }

    fn ask(&mut self, request: &Request, fds: &[BorrowedFd<'_>]) -> Result<Answer, LaunchError> {
        self.ask_for(request, fds).map(|(answer, _)| answer)
    }

    /// The answer, with what comes along.
    fn ask_for(
        &mut self,
        request: &Request,
        fds: &[BorrowedFd<'_>],
    ) -> Result<(Answer, Vec<OwnedFd>), LaunchError> {
        let failed = |what: &str, error: &dyn std::error::Error| lost(&format!("{what}: {error}"));
        let bytes = serde_json::to_vec(request).map_err(|e| failed("was not asked", &e))?;
        // Of a socket with a deadline, a signal ends the wait whatever its handler says.
        retry_on_intr(|| packet::send(self.socket.as_fd(), &bytes, fds))
            .map_err(|e| failed("was not asked", &e))?;
        let mut buffer = vec![0; PACKET_BYTES_MAX];
        let (bytes, opened) = retry_on_intr(|| packet::receive(self.socket.as_fd(), &mut buffer))
            .map_err(|e| failed("did not answer", &e))?;
        if bytes == 0 {
            return Err(lost("ended"));
        }
        let answer = serde_json::from_slice(&buffer[..bytes]);
        answer.map(|answer| (answer, opened)).map_err(|e| failed("is another version", &e))
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

fn unexpected(answer: Answer) -> LaunchError {
    match answer {
        Answer::Refused(refusal) => refused(refusal),
        _ => lost("answered another question"),
    }
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
