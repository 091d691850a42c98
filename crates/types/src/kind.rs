//! Kinds of things that are told of over the wire.

use std::str::FromStr;

use crate::name::{Named as _, named};

named! {
    /// What an operation does.
    OperationKind {
        /// Builds a template.
        Template = "template",
        /// Makes a snapshot of a running sandbox.
        Branch = "branch",
        /// Makes a snapshot that depends on no other.
        Compact = "compact",
        /// Writes a snapshot as one file, for another daemon.
        Export = "export",
        /// Makes a snapshot of such a file.
        Import = "import",
        /// Puts a snapshot into a registry.
        Push = "push",
        /// Makes a snapshot of what a registry has.
        Pull = "pull",
        /// Makes a snapshot durable.
        Publish = "publish",
        /// Merges layers or overlays of a running sandbox.
        Flatten = "flatten",
        /// After a start: makes missing hot copies from durable ones, and checks what is there.
        Restore = "restore",
    }
}

named! {
    /// What executes a guest's instructions. Device state is bound to it.
    Accelerator {
        /// The host's virtualisation hardware.
        Kvm = "kvm",
        /// Emulation: works everywhere, slower.
        Tcg = "tcg",
    }
}

impl Accelerator {
    /// Whether its authors call it a boundary for guests that are not trusted. QEMU's security
    /// policy leaves emulation out.
    #[must_use]
    pub const fn is_security_boundary(self) -> bool {
        match self {
            Self::Kvm => true,
            Self::Tcg => false,
        }
    }
}

named! {
    /// What guests see as their processor. Snapshots start where it is the same.
    CpuModel or Host {
        /// All that the host's processor has, or all that can be emulated.
        Host = "host",
        /// x86-64-v2, as the psABI defines it: processors since about 2009.
        V2 = "x86-64-v2",
        /// x86-64-v3: those since about 2015, with AVX2.
        V3 = "x86-64-v3",
    }
}

/// A word that is no CPU model.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[error("`{0}` is not a CPU model: use `host`, `x86-64-v2` or `x86-64-v3`")]
pub struct UnknownCpuModel(String);

impl FromStr for CpuModel {
    type Err = UnknownCpuModel;

    fn from_str(word: &str) -> Result<Self, UnknownCpuModel> {
        Self::from_name(word).ok_or_else(|| UnknownCpuModel(word.chars().take(32).collect()))
    }
}

named! {
    /// How far a VMM is kept from its host.
    Isolation or None {
        /// Not: it may do what the daemon's user may do.
        None = "none",
        /// It sees its own files alone, in namespaces of its own, and can make few system calls.
        /// Its user is the daemon's.
        Namespaces = "namespaces",
        /// As `namespaces`, and it has a user of its own.
        Full = "full",
    }
}

named! {
    /// Whether as many VMMs stand by as should, or why not.
    StandbyStatus or Off {
        /// None may: the daemon was started so.
        Off = "off",
        /// None is wanted: no sandbox was started in a while.
        NoDemand = "no_demand",
        /// As many as there may be.
        Full = "full",
        /// More are being started.
        Starting = "starting",
        /// More are started once no start and no branch is under way.
        Busy = "busy",
        /// The host has too little memory left.
        ShortOfMemory = "short_of_memory",
        /// The last one could not be started. It is tried again with the next sandbox.
        Failed = "failed",
    }
}

named! {
    /// What a thing of a guest's file system is.
    FileKind {
        /// A file with content.
        File = "file",
        /// A directory.
        Directory = "directory",
        /// A symbolic link.
        Symlink = "symlink",
        /// A device, a socket or a pipe.
        Other = "other",
    }
}

named! {
    /// What became of a connection, or of another exchange of packets.
    FlowOutcome {
        /// It was allowed and has ended.
        Ended = "ended",
        /// It was allowed, but the other end could not be reached or broke off.
        Failed = "failed",
        /// It was refused.
        Refused = "refused",
    }
}

named! {
    /// What an event tells: what it is about, a dot, and what happened to it.
    EventType {
        /// A sandbox was handed out.
        SandboxStarted = "sandbox.started",
        /// A sandbox has another state, or another reason for it.
        SandboxState = "sandbox.state",
        /// The VMM of a sandbox is gone although nobody asked for it.
        SandboxDead = "sandbox.dead",
        /// The network gateway has refused what a sandbox wanted to reach: the first time at once,
        /// then at most every 10 s. The log of its network tells what it was.
        SandboxRefused = "sandbox.refused",
        /// A sandbox was removed.
        SandboxRemoved = "sandbox.removed",
        /// The tag of a snapshot was taken.
        SnapshotWriting = "snapshot.writing",
        /// Sandboxes can start from a snapshot.
        SnapshotReady = "snapshot.ready",
        /// A snapshot is on disk.
        SnapshotDurable = "snapshot.durable",
        /// A snapshot cannot be used.
        SnapshotFailed = "snapshot.failed",
        /// A snapshot was removed.
        SnapshotRemoved = "snapshot.removed",
        /// An operation has begun.
        OperationStarted = "operation.started",
        /// An operation is at another step, or has more of it done.
        OperationProgress = "operation.progress",
        /// An operation is over, whatever its result.
        OperationEnded = "operation.ended",
        /// The reader has missed events.
        Lost = "lost",
    }
}
