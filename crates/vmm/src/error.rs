//! What can go wrong with a VMM.

use std::io;
use std::path::PathBuf;
use std::time::Duration;

use forkd_launcher::LaunchError;
use forkd_sys::uffd::UffdError;
use forkd_types::ByteCount;

/// An operation on a VMM failed.
#[derive(Debug, thiserror::Error)]
pub enum VmmError {
    /// A file that the VM needs is not there.
    #[error("{what} `{}` does not exist", path.display())]
    MissingFile {
        /// What the file is.
        what: &'static str,
        /// Where it was looked for.
        path: PathBuf,
    },
    /// A file operation failed.
    #[error("{what} `{}`", path.display())]
    File {
        /// What was done.
        what: &'static str,
        /// To which file.
        path: PathBuf,
        /// The system's word.
        #[source]
        source: io::Error,
    },
    /// The VMM program could not be started.
    #[error("start VMM program `{program}`")]
    Spawn {
        /// The program.
        program: String,
        /// The system's word.
        #[source]
        source: io::Error,
    },
    /// The link of its network device could not be made.
    #[error("make a pair of sockets for the network device")]
    NetworkLink {
        /// The system's word.
        #[source]
        source: io::Error,
    },
    /// The VMM could not be confined, so it was not started.
    #[error("the VMM was not started, because it could not be confined")]
    Confine(#[from] LaunchError),
    /// Another process has the user that only this VMM may have.
    #[error("the VMM was not started, because another process has its user, {user}")]
    UserInUse {
        /// The user.
        user: u32,
    },
    /// The VMM process ended.
    #[error("the VMM is gone ({during}); its last words: {last_words}")]
    Gone {
        /// What was being done.
        during: String,
        /// End of the VMM's log.
        last_words: String,
    },
    /// The kernel has ended the VMM because of its memory limit.
    #[error(
        "it reached its memory limit of {} MiB, and the kernel ended its VMM; fork again with a \
         larger `memory_limit_mib` or with none",
        limit.get() >> 20
    )]
    MemoryLimitReached {
        /// The limit.
        limit: ByteCount,
    },
    /// The VMM refused a command.
    #[error("the VMM refused `{command}`: {description}")]
    Refused {
        /// The command.
        command: &'static str,
        /// The VMM's explanation.
        description: String,
    },
    /// The VMM did not answer in time.
    #[error("the VMM did not answer `{command}` within {deadline:?}")]
    Silent {
        /// The command.
        command: &'static str,
        /// How long it had.
        deadline: Duration,
    },
    /// What came from the monitor socket is not QMP.
    #[error("the VMM answered `{command}` with something that is not QMP: {shown}")]
    Garbage {
        /// The command, or `greeting`.
        command: &'static str,
        /// The beginning of what came, escaped.
        shown: String,
    },
    /// A monitor socket failed.
    #[error("monitor connection failed during `{command}`")]
    Monitor {
        /// The command.
        command: &'static str,
        /// The system's word.
        #[source]
        source: io::Error,
    },
    /// The shim could not do what was asked.
    #[error("the VMM's shim could not {what}")]
    Shim {
        /// What was asked.
        what: &'static str,
        /// The system's word.
        #[source]
        source: io::Error,
    },
    /// Guest RAM was not found in the VMM's address space.
    #[error("guest RAM `{}` is not mapped in the VMM (process {pid})", path.display())]
    NoGuestRam {
        /// The backing file.
        path: PathBuf,
        /// The VMM's process id.
        pid: i32,
    },
    /// The VMM says that its disk consists of other overlays than it was given.
    #[error("the VMM names disk overlays that it was not given: it has {named}, not {given}")]
    ForeignDisk {
        /// What it names, the lowest first.
        named: String,
        /// What was written down of it.
        given: String,
    },
    /// A disk overlay of a snapshot is open for writing.
    #[error(
        "disk overlay `{}` is open for writing after it was frozen: its VMM has not closed it",
        path.display()
    )]
    StillWritten {
        /// The overlay.
        path: PathBuf,
    },
    /// userfaultfd is not usable.
    #[error(transparent)]
    Userfaultfd(#[from] UffdError),
}

impl VmmError {
    /// What the host does not permit, and what would help, if this VMM could not be confined
    /// because of it.
    #[must_use]
    pub fn not_permitted(&self) -> Option<(String, &'static str)> {
        let Self::Confine(error) = self else { return None };
        error.not_permitted()
    }

    pub(crate) fn file(what: &'static str, path: impl Into<PathBuf>, source: io::Error) -> Self {
        Self::File { what, path: path.into(), source }
    }
}
