//! What the host sends. A field is never renamed or reused: old agents live on in old snapshots. A
//! new field gets a default, a new kind is answered with [`code::UNSUPPORTED`] by those who do not
//! know it.

use serde::{Deserialize, Serialize};

use crate::part::{Attributes, FileOwner, Keep};
#[cfg(doc)]
use crate::{Reply, code};

/// What the host sends.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Request {
    /// Opens the conversation and starts a new epoch. Answered by [`Reply::Welcome`].
    Hello {
        /// Oldest version that the host understands.
        protocol_min: u32,
        /// Newest version that the host understands.
        protocol_max: u32,
        /// Random; tells this `Hello`'s `Welcome` from one meant for another connection.
        nonce: u64,
    },
    /// Answered at once by [`Reply::Pong`].
    Ping {},
    /// Runs a program. Answered by `Started`, then `Stdout` and `Stderr`, at last `Exited`; or by
    /// `Error`.
    Exec {
        /// Program and arguments.
        args: Vec<String>,
        /// Added to the agent's default environment.
        #[serde(default)]
        env: Vec<(String, String)>,
        /// Working directory; the agent's default when absent.
        #[serde(default)]
        cwd: Option<String>,
        /// `USER[:GROUP]`, names or numbers, as whom it runs; the image's user when absent. Only
        /// for agents whose `Welcome` says `users`: others ignore it.
        #[serde(default)]
        user: Option<String>,
        /// `Input` messages follow; otherwise standard input is empty.
        #[serde(default)]
        stdin_follows: bool,
        /// The process group is killed after this time; never when absent.
        #[serde(default)]
        timeout_ms: Option<u64>,
        /// Credit for output.
        #[serde(default)]
        output_credit: u64,
        /// It outlives this conversation: another host finds it by this name. Only for agents whose
        /// `Welcome` says `kept`: others ignore it.
        #[serde(default)]
        keep: Option<Keep>,
    },
    /// Runs a program on a terminal of its own. As `Exec`; `Input` follows, whose end is the
    /// terminal's character for it, and all output is `Stdout`.
    Terminal {
        /// Program and arguments.
        args: Vec<String>,
        /// Added to the agent's default environment.
        #[serde(default)]
        env: Vec<(String, String)>,
        /// Working directory; the agent's default when absent.
        #[serde(default)]
        cwd: Option<String>,
        /// `USER[:GROUP]`, names or numbers, as whom it runs; the image's user when absent. Only
        /// for agents whose `Welcome` says `users`: others ignore it.
        #[serde(default)]
        user: Option<String>,
        /// The process group is killed after this time; never when absent.
        #[serde(default)]
        timeout_ms: Option<u64>,
        /// Credit for output.
        #[serde(default)]
        output_credit: u64,
        /// Lines of the terminal.
        rows: u16,
        /// Characters of a line.
        cols: u16,
        /// It outlives this conversation: another host finds it by this name. Only for agents whose
        /// `Welcome` says `kept`: others ignore it.
        #[serde(default)]
        keep: Option<Keep>,
    },
    /// Changes the size of a running `Terminal`. Has no reply.
    Resize {
        /// Lines of the terminal.
        rows: u16,
        /// Characters of a line.
        cols: u16,
    },
    /// The next bytes of the input of a running `Exec`, `Terminal` or `WriteFile`. Consumes
    /// credit.
    Input {
        /// The bytes; at most [`crate::DATA_BYTES_MAX`].
        #[serde(with = "serde_bytes")]
        data: Vec<u8>,
        /// Nothing follows.
        eof: bool,
    },
    /// Allows more output of a running request.
    Credit {
        /// How much more.
        bytes: u64,
    },
    /// Sends a signal to the process group of a running `Exec` or `Terminal`. An `Eval` is
    /// interrupted as if its time were over, and a file transfer or a watch ended, whatever the
    /// signal. Has no reply of its own; the request goes on to its own last reply.
    Kill {
        /// Signal number.
        signal: i32,
    },
    /// Ends a request that the host has forgotten: programs are killed, code is interrupted, and
    /// nothing more is sent for it. Has no reply.
    Cancel {},
    /// Which programs are kept, the oldest first. Answered by `Kept` for each, at last `Done`.
    ListKept {
        /// Credit for output.
        #[serde(default)]
        output_credit: u64,
    },
    /// Goes on with a kept program that no host of this epoch follows. Answered by `Followed`, then
    /// as its `Exec` or `Terminal`; or by `Error`.
    Follow {
        /// Its name.
        name: String,
        /// Credit for output.
        #[serde(default)]
        output_credit: u64,
    },
    /// Keeps a program no longer; one that runs is killed. Answered by `Done`, whether it was there
    /// or not.
    Forget {
        /// Its name.
        name: String,
    },
    /// Runs Python code in a persistent interpreter. Answered by `CellStarted` if displays are
    /// wanted, by `Stdout` and `Stderr`, by `EvalPart` if wanted, at last `EvalDone`; or by
    /// `Error`.
    Eval {
        /// Statements or an expression.
        code: String,
        /// The code is interrupted after this time; never when absent.
        #[serde(default)]
        timeout_ms: Option<u64>,
        /// Credit for output.
        #[serde(default)]
        output_credit: u64,
        /// The last expression's value is wanted in all forms that it has.
        #[serde(default)]
        parts: bool,
        /// What the code shows by `display` is wanted too, and figures that it has made.
        #[serde(default)]
        displays: bool,
        /// The interpreter; the one that is always there when absent. This and what follows only
        /// for agents whose `Welcome` says `contexts`: others ignore it.
        #[serde(default)]
        context: Option<String>,
        /// The interpreter's environment while this code runs.
        #[serde(default)]
        env: Vec<(String, String)>,
    },
    /// Makes an interpreter besides that which is always there. Answered by `Contexts` with it; or
    /// by `Error`.
    MakeContext {
        /// Its working directory; the agent's default when absent.
        #[serde(default)]
        cwd: Option<String>,
    },
    /// Answered by `Contexts` with all of them, the oldest first.
    ListContexts {},
    /// Ends an interpreter with whatever runs in it. Answered by `Done`; or by `Error`.
    EndContext {
        /// Which.
        context: String,
        /// It is there again, without variables. Only this can be done with the one that is always
        /// there.
        restart: bool,
    },
    /// Sets the wall clock, which stood still while the machine was paused. Answered by `Done`; or
    /// by `Error`.
    SetClock {
        /// Nanoseconds since 1970.
        wall_clock_unix_ns: i64,
    },
    /// Answered by `FileData`, at last `FileEnd`; or by `Error`.
    ReadFile {
        /// Absolute path.
        path: String,
        /// First byte wanted.
        #[serde(default)]
        offset: u64,
        /// Most bytes wanted; up to the end when absent.
        #[serde(default)]
        length: Option<u64>,
        /// Credit for output.
        #[serde(default)]
        output_credit: u64,
    },
    /// Followed by `Input`; answered by `Credit`, at last `Written`; or by `Error`.
    WriteFile {
        /// Absolute path.
        path: String,
        /// Permission bits of a new file; an existing file keeps its own when absent.
        #[serde(default)]
        mode: Option<u32>,
        /// Add to the end and do not replace.
        #[serde(default)]
        append: bool,
        /// Create missing directories above it.
        #[serde(default)]
        create_parents: bool,
        /// To whom the file belongs, and the directories that are created. Without it they are the
        /// superuser's, and a file that is replaced stays whose it was. Older agents do not look.
        #[serde(default)]
        owner: Option<FileOwner>,
        /// Extended attributes that the file gets, by their whole names. Older agents do not look.
        #[serde(default)]
        attributes: Attributes,
    },
    /// What is in a directory. Answered by `Entry` for each, at last `Done`; or by `Error`.
    ListFiles {
        /// Absolute path.
        path: String,
        /// Each is told with those extended attributes whose names begin so. Older agents do not
        /// tell them.
        #[serde(default)]
        attributes: Option<String>,
        /// Symbolic links are told with where they lead. Older agents do not tell it.
        #[serde(default)]
        links: bool,
        /// Credit for output.
        #[serde(default)]
        output_credit: u64,
    },
    /// Answered by one `Entry`, for a symbolic link that of the link; or by `Error`.
    StatFile {
        /// Absolute path.
        path: String,
        /// As in `ListFiles`.
        #[serde(default)]
        attributes: Option<String>,
        /// As in `ListFiles`.
        #[serde(default)]
        links: bool,
        /// Credit for output.
        #[serde(default)]
        output_credit: u64,
    },
    /// Removes a file, a symbolic link or a directory. Answered by `Done`; or by `Error`.
    RemoveFile {
        /// Absolute path.
        path: String,
        /// A directory with all that is in it; otherwise only an empty one.
        #[serde(default)]
        recursive: bool,
    },
    /// Creates a directory and missing ones above it; one that is there is fine. Answered by
    /// `Done`; or by `Error`.
    MakeDirectory {
        /// Absolute path.
        path: String,
        /// To whom what is created belongs; without it to the superuser. Older agents do not look.
        #[serde(default)]
        owner: Option<FileOwner>,
    },
    /// Tells of changes to a file or in a directory. Answered by `Watching`, then `Change` until
    /// it is ended, or by `Done` when the path itself is gone; or by `Error`.
    WatchFiles {
        /// Absolute path.
        path: String,
        /// What is below the directory's directories too.
        #[serde(default)]
        recursive: bool,
        /// What has changed is told with what it is then. Older agents do not.
        #[serde(default)]
        entries: bool,
        /// Refused where the path is on a file system of the network: what others change there is
        /// never told. Older agents do not look.
        #[serde(default)]
        local_only: bool,
        /// Credit for output.
        #[serde(default)]
        output_credit: u64,
    },
    /// Watches as `WatchFiles` with `entries`, and keeps what changes until it is asked for: also
    /// by another host, and in a branch's child. Answered by `Done`; or by `Error`.
    KeepWatch {
        /// The name, and what the host wants to find with it again.
        keep: Keep,
        /// Absolute path.
        path: String,
        /// What is below the directory's directories too.
        #[serde(default)]
        recursive: bool,
        /// As in `WatchFiles`.
        #[serde(default)]
        local_only: bool,
    },
    /// What a kept watch has seen since it was asked last, with all that was done before this
    /// request. Answered by `KeptWatch`, then `Change` for each, at last `Done`; or by `Error`,
    /// such as when the path itself is gone and nothing else is left to be told.
    TakeChanges {
        /// Its name.
        name: String,
        /// Credit for output.
        #[serde(default)]
        output_credit: u64,
    },
    /// Ends a kept watch. Answered by `Done`; or by `Error`.
    EndWatch {
        /// Its name.
        name: String,
    },
    /// What the machine's programs use of it. Answered by `Usage`; or by `Error`.
    AskUsage {},
    /// Which TCP ports are listened on. Answered by `Port` for each, at last `Done`.
    ListPorts {
        /// Credit for output.
        #[serde(default)]
        output_credit: u64,
    },
    /// Connects to a server that listens on the guest's loopback address only, and passes one
    /// connection of the gateway on to it. Answered by `PortOpened`; or by `Error`.
    OpenPort {
        /// The server's port.
        port: u16,
    },
    /// Takes a new identity. Answered by [`Reply::Renewed`] only when every part of it took effect.
    Renew {
        /// Identity of the sandbox.
        instance_id: String,
        /// Host name.
        hostname: String,
        /// 32 lower-case hexadecimal digits.
        machine_id: String,
        /// Wall clock, nanoseconds since the Unix epoch.
        wall_clock_unix_ns: i64,
        /// Seed for the kernel's random generator.
        #[serde(with = "serde_bytes")]
        entropy: Vec<u8>,
        /// Time limit of each hook.
        #[serde(default)]
        hook_timeout_ms: Option<u64>,
        /// Send [`Reply::IdentityInEffect`] before hooks are run, if there are any.
        #[serde(default)]
        announce: bool,
    },
    /// Ends the machine. Answered by [`Reply::PoweringOff`] when possible.
    PowerOff {},
}
