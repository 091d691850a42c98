//! What the guest answers. A field is never renamed or reused, and a new one gets a default: old
//! agents live on in old snapshots.

use serde::{Deserialize, Serialize};

use crate::part::{
    Attributes, ChangeDetail, ChangedEntry, EvalContext, EvalException, HookReport, LinkTarget,
};
#[cfg(doc)]
use crate::{Keep, code};

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
        /// Extended attributes that were asked for, by their whole names: text, and no more of it
        /// than [`ATTRIBUTES_BYTES_MAX`](crate::ATTRIBUTES_BYTES_MAX).
        #[serde(default)]
        attributes: Attributes,
        /// Of a symbolic link: where it leads, if that was asked for.
        #[serde(default)]
        link: Option<LinkTarget>,
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
        /// More of what has happened.
        #[serde(default)]
        detail: ChangeDetail,
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
