//! The messages. A field is never renamed or reused: old agents live on in old snapshots. A new
//! field gets a default, a new kind is answered with [`code::UNSUPPORTED`] by those who do not know
//! it.

use serde::{Deserialize, Serialize};

use crate::part::{ChangedEntry, EvalContext, EvalException, FileOwner, HookReport, Keep};

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
    },
    /// What is in a directory. Answered by `Entry` for each, at last `Done`; or by `Error`.
    ListFiles {
        /// Absolute path.
        path: String,
        /// Credit for output.
        #[serde(default)]
        output_credit: u64,
    },
    /// Answered by one `Entry`, for a symbolic link that of the link; or by `Error`.
    StatFile {
        /// Absolute path.
        path: String,
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

/// What the agent sends.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Reply {
    /// Answer to `Hello`.
    Welcome {
        /// The version that both sides speak from now on.
        protocol: u32,
        /// Of the `Hello`.
        nonce: u64,
        /// Version of the agent's build.
        agent_version: String,
        /// As `uname -r`.
        kernel_release: String,
        /// Of the kernel; equal in all children of one boot.
        boot_id: String,
        /// The root file system is a disk and not the initramfs.
        has_root_disk: bool,
        /// A `python3` is in the path.
        python: bool,
        /// The agent is PID 1: `Renew` and `PowerOff` work.
        #[serde(default)]
        is_init: bool,
        /// Counts the `Hello`s that this agent has heard.
        #[serde(default)]
        epoch: u64,
        /// `Exec` and `Terminal` heed their `user`.
        #[serde(default)]
        users: bool,
        /// There are `MakeContext`, `ListContexts` and `EndContext`; `Eval` heeds its `context`.
        #[serde(default)]
        contexts: bool,
        /// How many programs are kept; absent where none is: `Exec` and `Terminal` ignore `keep`.
        #[serde(default)]
        kept: Option<u32>,
    },
    /// Answer to `Ping`.
    Pong {
        /// Since the guest's boot, suspended time included.
        uptime_ns: u64,
        /// The current epoch.
        epoch: u64,
        /// Requests under way.
        #[serde(default)]
        requests_running: u32,
        /// Stretches of the incoming stream that were dropped since the agent started.
        #[serde(default)]
        frames_rejected: u64,
    },
    /// The program runs.
    Started {
        /// Process id in the guest.
        pid: u32,
    },
    /// A kept program. Consumes credit for its texts.
    Kept {
        /// Its name.
        name: String,
        /// Of the [`Keep`] that it was started with.
        record: String,
        /// Process id in the guest.
        pid: u32,
        /// The machine has taken another identity since the program was started.
        inherited: bool,
    },
    /// The kept program is followed from here on.
    Followed {
        /// How many bytes it wrote before those that follow now.
        from: u64,
        /// It takes `Input`.
        takes_input: bool,
    },
    /// Standard output of an `Exec` or `Eval`. Consumes credit.
    Stdout {
        /// The bytes.
        #[serde(with = "serde_bytes")]
        data: Vec<u8>,
    },
    /// Standard error of an `Exec` or `Eval`. Consumes credit.
    Stderr {
        /// The bytes.
        #[serde(with = "serde_bytes")]
        data: Vec<u8>,
    },
    /// Allows more `Input`.
    Credit {
        /// How much more.
        bytes: u64,
    },
    /// The program ended.
    Exited {
        /// Its exit code, or 128 + signal.
        exit_code: i32,
        /// The signal that ended it.
        #[serde(default)]
        signal: Option<i32>,
        /// It was killed because its time was over.
        timed_out: bool,
    },
    /// The code's turn has come.
    CellStarted {
        /// How much code its interpreter has run, with this.
        execution_count: u64,
    },
    /// Interpreters.
    Contexts {
        /// Those.
        contexts: Vec<EvalContext>,
    },
    /// A form of a value, or a piece of one: of the last expression's, or of one that the code
    /// shows. Consumes credit for media type and bytes.
    EvalPart {
        /// Its media type.
        mime: String,
        /// The bytes.
        #[serde(with = "serde_bytes")]
        data: Vec<u8>,
        /// The next `EvalPart` goes on with this form.
        #[serde(default)]
        more: bool,
        /// Which value: 0, that of the last expression; the others are counted from 1.
        #[serde(default)]
        display: u32,
        /// Nothing more follows of this value.
        #[serde(default)]
        last: bool,
    },
    /// The Python code ended.
    EvalDone {
        /// `repr` of the last expression, unless that is `None`.
        #[serde(default)]
        result: Option<String>,
        /// Traceback, or what happened to the interpreter.
        #[serde(default)]
        error: Option<String>,
        /// The exception, if it was one.
        #[serde(default)]
        exception: Option<EvalException>,
        /// It was interrupted because its time was over.
        #[serde(default)]
        timed_out: bool,
        /// The interpreter ended, now or since the last `Eval`: the variables of earlier calls are
        /// gone.
        #[serde(default)]
        state_lost: bool,
    },
    /// Bytes of a file. Consumes credit.
    FileData {
        /// The bytes.
        #[serde(with = "serde_bytes")]
        data: Vec<u8>,
    },
    /// The whole of what was wanted has been sent.
    FileEnd {
        /// Bytes sent in all.
        bytes: u64,
    },
    /// The file is in place.
    Written {
        /// Bytes written.
        bytes: u64,
    },
    /// A file, directory or other thing of the file system. Consumes credit for its texts.
    Entry {
        /// Last part of its path.
        name: String,
        /// `file`, `directory`, `symlink`, or another word for anything else.
        kind: String,
        /// Size of a file's content.
        bytes: u64,
        /// Permission bits.
        mode: u32,
        /// Seconds since the Unix epoch.
        modified_unix_s: i64,
        /// The user that it belongs to: a name, or a number where there is none. Older agents do
        /// not say.
        #[serde(default)]
        owner: Option<String>,
        /// The group, likewise.
        #[serde(default)]
        group: Option<String>,
    },
    /// What was asked for is done.
    Done {},
    /// From now on every change is told.
    Watching {},
    /// Something has changed. Consumes credit for its texts.
    Change {
        /// `created`, `modified`, `removed`, `renamed`; any other word: changes were missed.
        kind: String,
        /// Absolute path; of a renamed one the new path.
        path: String,
        /// The old path of a renamed one.
        #[serde(default)]
        from: Option<String>,
        /// What is at the path, if that was asked for and something is.
        #[serde(default)]
        entry: Option<ChangedEntry>,
    },
    /// A kept watch, whose changes follow. Consumes credit for its text.
    KeptWatch {
        /// Of the [`Keep`] that it was made with.
        record: String,
    },
    /// What the machine's programs use of it.
    Usage {
        /// Processors.
        cpus: u32,
        /// Of the time of all processors, in thousandths: what was not idle since somebody asked
        /// last, or in the last fraction of a second.
        cpu_permille: u32,
        /// Memory, in bytes.
        memory: u64,
        /// What programs could not have of it.
        memory_used: u64,
        /// What files have of it that could be read again.
        memory_cached: u64,
        /// The root file system, in bytes; 0 if it is none of a size.
        disk: u64,
        /// What is taken of it.
        disk_used: u64,
    },
    /// A TCP port that is listened on. Consumes credit for its texts.
    Port {
        /// The address that it is listened on.
        address: String,
        /// The port.
        port: u16,
        /// The process that listens, if that is known.
        #[serde(default)]
        pid: Option<u32>,
        /// The name of its program.
        #[serde(default)]
        program: Option<String>,
    },
    /// The gateway may connect, once and within seconds.
    PortOpened {
        /// To this port, on the guest's own address.
        port: u16,
    },
    /// The new identity is in effect, and hooks run. [`Reply::Renewed`] follows.
    IdentityInEffect {},
    /// The new identity is in effect, and all hooks have run.
    Renewed {
        /// Of the request.
        instance_id: String,
        /// How far the wall clock was moved.
        #[serde(default)]
        clock_step_ns: i64,
        /// What ran in `/etc/forkd/on-fork.d/`, in order.
        #[serde(default)]
        hooks: Vec<HookReport>,
    },
    /// The machine ends now.
    PoweringOff {},
    /// The request failed; nothing else follows for it. With id 0: a frame was not understood.
    Error {
        /// One of [`code`].
        code: String,
        /// For people.
        message: String,
    },
}
