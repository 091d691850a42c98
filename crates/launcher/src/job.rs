//! What the daemon asks of the launcher, and what it answers.

use std::path::PathBuf;

use serde::{Deserialize, Serialize};

use crate::subordinate::SubordinateIds;

/// The longest packet: the files of a disk with many overlays are named in a job.
pub(crate) const PACKET_BYTES_MAX: usize = 160 << 10;

/// Whether what is mounted can be written.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Access {
    /// It cannot, whatever its owner and mode.
    ReadOnly,
    /// As its owner and mode say.
    ReadWrite,
}

/// What is mounted.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Mounted {
    /// Data: nothing there can be executed or is a device.
    Data,
    /// Programs and libraries.
    Programs,
    /// A device.
    Device,
}

/// A file or directory of the host that appears in the program's root.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct Bind {
    /// On the host.
    pub from: PathBuf,
    /// In the program's root, absolute.
    pub to: PathBuf,
    /// Whether it can be written there.
    pub access: Access,
    /// What it is.
    pub mounted: Mounted,
}

/// Where a [`Job`] can mount something.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Place {
    /// A file.
    File(PathBuf),
    /// A directory.
    Directory(PathBuf),
}

/// What the programs of one launcher have in common.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct Setup {
    /// An empty directory of the daemon's own, on which the root is built.
    pub root: PathBuf,
    /// What every program gets.
    pub binds: Vec<Bind>,
    /// Where jobs mount what is their own.
    pub places: Vec<Place>,
}

/// A descriptor of a program: the packet's `index`-th appears as `number`.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
pub struct Descriptor {
    /// Among those that come with the packet.
    pub index: usize,
    /// In the program.
    pub number: i32,
}

/// Who a program is.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct Ids {
    /// Its user.
    pub user: u32,
    /// Its group.
    pub group: u32,
    /// Groups besides. None: those of the daemon.
    pub groups: Option<Vec<u32>>,
}

/// Which users and groups of their own a launcher can give to programs.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum OwnIds {
    /// None: programs are whoever the daemon is.
    None,
    /// Any, and the daemon can give files away.
    Any,
    /// Those that the host's administrator has set aside for the daemon's user. Files stay the
    /// daemon's; [`Launcher::lend`](crate::Launcher::lend) lets a group of these use them.
    Subordinate(SubordinateIds),
}

/// A program to be started.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct Job {
    /// Its path in its root.
    pub program: PathBuf,
    /// What follows its name.
    pub arguments: Vec<String>,
    /// Its whole environment.
    pub environment: Vec<(String, String)>,
    /// Its descriptors, all of them.
    pub descriptors: Vec<Descriptor>,
    /// Among those that come with the packet, `cgroup.procs` of the cgroups that it enters.
    pub cgroups: Vec<usize>,
    /// What is mounted for it besides what all get.
    pub binds: Vec<Bind>,
    /// Whether it is in the network of the host, or in an empty one of its own.
    pub host_network: bool,
    /// Who it is; None: whoever the daemon is.
    pub ids: Option<Ids>,
    /// Descriptors that it can have; None: as many as the daemon.
    pub descriptors_max: Option<u64>,
    /// Threads that it can have. They are counted for its user, so only with [`Self::ids`].
    pub threads_max: u32,
    /// The largest file that it can write, in bytes. Writing beyond that fails with `EFBIG`.
    pub file_bytes_max: Option<u64>,
    /// How much sooner it is killed than others when the host is out of memory (`proc(5)`).
    pub oom_score_adj: i32,
}

/// What is done between the clone and the program, in this order.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Step {
    /// It enters its cgroups.
    Cgroups,
    /// It is killed before the daemon when the host is out of memory.
    OomScore,
    /// It has namespaces of its own for mounts, processes, IPC and host name, and for the network
    /// unless it is for the host's.
    Namespaces,
    /// What is its own is mounted in its root.
    Mounts,
    /// It leaves the host's file system.
    Root,
    /// It forgets the host's name.
    HostName,
    /// It cannot have more descriptors or threads, larger files, or core dumps.
    Limits,
    /// It has a user and a group of its own.
    Ids,
    /// It has a user namespace of its own, in which no other user exists.
    UserNamespace,
    /// It has no capabilities, and cannot get any.
    Capabilities,
    /// No program that it executes has more rights than it has.
    NoNewPrivileges,
    /// It reaches no abstract socket of the host, whose names are those of the network that it
    /// has. Linux 6.12 and later.
    AbstractSockets,
    /// The program begins.
    Program,
}

impl Step {
    /// All steps.
    pub const ALL: [Self; 13] = [
        Self::Cgroups,
        Self::OomScore,
        Self::Namespaces,
        Self::Mounts,
        Self::Root,
        Self::HostName,
        Self::Limits,
        Self::Ids,
        Self::UserNamespace,
        Self::Capabilities,
        Self::NoNewPrivileges,
        Self::AbstractSockets,
        Self::Program,
    ];
}

/// What the launcher is asked.
#[derive(Debug, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub(crate) enum Request {
    /// First of all, once. With subordinate ids it asks for its map before it is ready.
    Setup { setup: Setup, subordinate: Option<SubordinateIds> },
    /// Its map is written.
    Mapped,
    /// Start a program.
    Start(Job),
    /// Let a group use the file that comes along, as `mode` says.
    Lend { group: u32, mode: u32 },
    /// Instead of a set-up, and the only one: open the page tables of a process, from within the
    /// user namespace that comes along.
    OpenPageTables { pid: i32 },
}

/// What the launcher answers.
#[derive(Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub(crate) enum Answer {
    /// It is in its user namespace, which has no map yet.
    MapIds,
    /// The root is there.
    Ready { own_ids: OwnIds },
    /// It is done; what was to be opened comes along.
    Done,
    /// The program began, as this process.
    Started { pid: i32 },
    /// What was refused.
    Refused(Refusal),
}

/// What the system did not permit.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub(crate) struct Refusal {
    /// For which step; none while the launcher got ready.
    pub(crate) step: Option<Step>,
    /// What was tried.
    pub(crate) what: String,
    /// Why it failed, as the kernel numbers it; 0 if it has no number.
    pub(crate) errno: i32,
    /// The process that has ended because of it, for its parent to wait for.
    pub(crate) ended: Option<i32>,
}
