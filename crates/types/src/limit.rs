//! Every limit in one place: unit, reason, and the relations that must hold between them.
//! Configuration may lower a limit, never exceed it.

use std::time::Duration;

use crate::ByteCount;

/// Characters in a snapshot tag.
pub const TAG_CHARS_MAX: usize = 64;

/// Characters in the name of an owner.
pub const OWNER_CHARS_MAX: usize = 64;

/// Children that one request may start.
pub const CHILDREN_PER_REQUEST_MAX: u32 = 1000;

/// Children that are loaded at the same time; each costs a process start.
pub const CHILDREN_STARTING_MAX: usize = 4;

/// Guest RAM of one sandbox, MiB: below 32 the guest kernel does not boot.
pub const MEM_SIZE_MIB_MIN: u64 = 64;
/// Guest RAM of one sandbox, MiB.
pub const MEM_SIZE_MIB_MAX: u64 = 1 << 20;

/// Memory limit of one sandbox, MiB: an idle guest of the smallest image has less, so its child
/// starts.
pub const MEMORY_LIMIT_MIB_MIN: u64 = 64;
/// Memory limit of one sandbox, MiB: more than the largest guest and its VMM can come to have.
pub const MEMORY_LIMIT_MIB_MAX: u64 = 4 << 20;

/// What is kept of a guest's console, bytes: its end. A boot with all messages has 30 KiB.
pub const CONSOLE_BYTES: u64 = 1 << 20;

/// What is kept of what a VMM says, bytes: its end. A VMM that works says nothing.
pub const VMM_LOG_BYTES: u64 = 64 << 10;

/// Virtual CPUs of one sandbox.
pub const VCPUS_MAX: u32 = 64;

/// For a VMM to read the identity of a child from the guest agent's port, which is the first thing
/// that it does when the guest is let run, and for a guest with several vCPUs to take it. Then all
/// vCPUs run whether that was done or not.
pub const VCPUS_HELD_MAX: Duration = Duration::from_secs(1);

/// VMMs that stand by for sandboxes to come, unless another number is asked for: as many as are
/// started at the same time. Each has 11 MiB.
pub const STANDBY_DEFAULT: usize = CHILDREN_STARTING_MAX;
/// VMMs that can be asked to stand by.
pub const STANDBY_MAX: usize = 1024;

/// Threads of one VMM: QEMU has one for each virtual CPU, and up to 64 for its disks.
pub const VMM_THREADS_MAX: u32 = 512;

/// Descriptors of one VMM: QEMU needs two for each disk overlay, and has a few more.
pub const VMM_DESCRIPTORS_MAX: u64 = 1024;

/// What a VMM may have beside twice the RAM of its guest, if nothing less is asked for: an idle one
/// has a tenth of it, one that translates much code a third. Pages of the guest are charged once.
pub const VMM_MEMORY_OVERHEAD: ByteCount = ByteCount::from_mib(512);

/// Processors' time that a VMM may use beside that of its guest's virtual CPUs, in thousandths of a
/// processor.
pub const VMM_MILLICPUS_OVERHEAD: u32 = 1000;

/// What an overlay may have beside all of the disk's data: tables of the format take 1/7000.
pub const OVERLAY_OVERHEAD: ByteCount = ByteCount::from_mib(64);

/// The largest device state that is taken from a VMM; 64 virtual CPUs have 1 MiB.
pub const DEVICE_STATE_MAX: ByteCount = ByteCount::from_mib(64);

/// Mapped runs of one child: the kernel allows 65530 mappings a process (`vm.max_map_count`), of
/// which QEMU needs a few hundred.
pub const RUNS_MAPPED_MAX: usize = 16_384;

/// Mapped runs of one child once the view of its chain is made: as many as cost a child 2.5 ms.
pub const RUNS_PER_VIEW_MAX: usize = 1024;

/// Pages of a hole of a base that children map as zeros; smaller ones are filled: up to 124 KiB for
/// a mapping less.
pub const HOLE_PAGES_MIN: u64 = 32;

/// Layers whose indexes are read when a child starts; the runs of deeper chains are kept resolved.
pub const LAYERS_READ_AT_START_MAX: usize = 8;

/// Ancestors of one snapshot that a child maps directly. Disk overlays nest as deep.
pub const CHAIN_DEPTH_MAX: usize = 64;

/// Memory layers that a running sandbox's branches have added to its chain, from which on they are
/// merged.
pub const DELTAS_BEFORE_MERGE: usize = 16;

/// Layers of a running sandbox's chain from which on those that it has inherited are merged too.
pub const CHAIN_DEPTH_BEFORE_MERGE: usize = 32;

/// Layers whose hot copies are checked or made anew at the same time after a start.
pub const LAYERS_MADE_HOT_AT_ONCE: usize = 2;

/// Until a snapshot that could not be made durable, mostly for lack of space, is tried again.
pub const PUBLISH_RETRY: Duration = Duration::from_secs(10);

/// Overlays of a running sandbox's disk from which on they are merged.
pub const OVERLAYS_BEFORE_FLATTEN: usize = 16;

/// For merging the overlays of one disk. At the slowest seen rate (0.2 GB/s) this copies 120 GiB.
pub const FLATTEN_DEADLINE: Duration = Duration::from_secs(600);

/// Bytes copied between two looks at the fault queue: the longest that a faulting vCPU waits is one
/// such copy.
pub const SWEEP_CHUNK_BYTES: usize = 128 << 10;

/// How long the capture's thread works before it rests where processors are short: a thread of the
/// guest that it has displaced is off for about this long.
pub const SWEEP_BITE: Duration = Duration::from_micros(100);

/// How long it rests then.
pub const SWEEP_REST: Duration = Duration::from_micros(25);

/// Any single QMP reply outside the pause window.
pub const QMP_REPLY_DEADLINE: Duration = Duration::from_secs(10);

/// Any single QMP reply inside the pause window. A branch fails if its VMM is silent for longer.
pub const PAUSE_REPLY_DEADLINE: Duration = Duration::from_secs(5);

/// From process start to a usable QMP monitor; generous, because of hosts with many starts at once.
pub const VMM_START_DEADLINE: Duration = Duration::from_secs(60);

/// From power-on to the guest agent's first answer; generous, because emulation is slow.
pub const BOOT_DEADLINE: Duration = Duration::from_secs(120);

/// For the guest that is booted to see whether KVM works; on hardware it answers in under a second.
pub const KVM_PROBE_DEADLINE: Duration = Duration::from_secs(6);

/// For a child's guest agent to confirm its renewal.
pub const RENEW_DEADLINE: Duration = Duration::from_secs(10);

/// For the guest agent to take all bytes that were sent to it, before a pause.
pub const QUIESCE_DEADLINE: Duration = Duration::from_secs(2);

/// For the sweep of one branch. At the slowest seen rate (0.2 GB/s) this captures 60 GiB.
pub const SWEEP_DEADLINE: Duration = Duration::from_secs(300);

/// Command run before a template is frozen.
pub const WARM_DEADLINE: Duration = Duration::from_secs(600);

/// Default time limit of an exec.
pub const EXEC_TIMEOUT_DEFAULT: Duration = Duration::from_secs(30);
/// Longest time limit of an exec.
pub const EXEC_TIMEOUT_MAX: Duration = Duration::from_secs(24 * 3600);

/// Collected output of one exec; more is an error, never a silent cut.
pub const EXEC_OUTPUT_BYTES_MAX: usize = 64 << 20;

/// Background processes that the daemon knows of one sandbox; ended ones make room for new ones.
pub const PROCESSES_PER_SANDBOX_MAX: usize = 64;

/// Output that is kept of one background process, read or not.
pub const PROCESS_OUTPUT_BYTES_MAX: usize = 1 << 20;

/// Private networks of one owner. Their numbers are a part of their members' addresses.
pub const NETWORKS_PER_OWNER_MAX: usize = 64;

/// Members of one private network: as many as one request may start.
pub const NETWORK_MEMBERS_MAX: usize = 1000;

/// Private networks that one sandbox may be a member of.
pub const NETWORKS_PER_SANDBOX_MAX: usize = 16;

/// Lines, or characters of a line, of a terminal.
pub const TERMINAL_SIDE_MAX: u16 = 9999;

/// Longest that one request waits for a process's end.
pub const PROCESS_WAIT_MAX: Duration = Duration::from_secs(600);

/// Sandboxes that a daemon keeps at once unless it is told otherwise; each is a process.
pub const SANDBOXES_DEFAULT: usize = 4096;
/// Sandboxes that a daemon keeps at once.
pub const SANDBOXES_MAX: usize = 32_768;

/// Branches that are under way or wait at once unless the daemon is told otherwise.
pub const BRANCHES_AT_ONCE_DEFAULT: usize = 128;
/// Branches that are under way or wait at once: each holds a thread of the 512 that may block.
pub const BRANCHES_AT_ONCE_MAX: usize = 256;

/// Entries of a sandbox's metadata.
pub const METADATA_ENTRIES_MAX: usize = 32;
/// Bytes of one entry of a sandbox's metadata, key and value together.
pub const METADATA_ENTRY_BYTES_MAX: usize = 1024;

/// Longest time to live, and longest idle time, of a sandbox: a year.
pub const LIFETIME_MAX: Duration = Duration::from_secs(366 * 24 * 3600);

/// Operations that have ended and can still be asked for.
pub const OPERATIONS_ENDED_KEPT: usize = 256;

/// For one request to wait for an operation.
pub const OPERATION_WAIT_MAX: Duration = Duration::from_secs(3600);

/// Events that a reader can go back to.
pub const EVENTS_KEPT: usize = 4096;

/// Tokens for ports that a sandbox has at a time.
pub const PORT_TOKENS_MAX: usize = 64;

/// Longest time that a token for a port is valid.
pub const PORT_TOKEN_TTL_MAX: Duration = Duration::from_secs(30 * 24 * 3600);

/// Entries of a network log in one answer.
pub const NETWORK_LOG_ENTRIES_MAX: usize = 1000;

/// Body of one API request; file uploads are streamed and not counted here.
pub const REQUEST_BODY_BYTES_MAX: usize = 8 << 20;

/// Bodies of all requests together that are held in memory.
pub const BODIES_BYTES_MAX: usize = 256 << 20;

/// A file that is written in one request. It is passed on as it comes, so this bounds time, not
/// memory; the guest's disk is a closer bound.
pub const UPLOAD_BYTES_MAX: u64 = 16 << 30;

/// A file that is read piece by piece in one request. A guest can make one that never ends.
pub const DOWNLOAD_BYTES_MAX: u64 = 16 << 30;

/// What a file that is written holds in memory at once: a few pieces of a connection's buffer.
pub const UPLOAD_BYTES_HELD: usize = 1 << 20;

const _: () = assert!(UPLOAD_BYTES_HELD <= BODIES_BYTES_MAX);

/// An artifact that is imported. It is unpacked as it comes.
pub const ARTIFACT_BYTES_MAX: u64 = 1 << 40;

/// What an import holds in memory at once, mostly: two manifests and one part.
pub const ARTIFACT_BYTES_HELD: usize = 16 << 20;

const _: () = assert!(ARTIFACT_BYTES_HELD * ARTIFACTS_AT_ONCE <= BODIES_BYTES_MAX / 2);

/// Snapshots that are exported at a time, and snapshots that are imported.
pub const ARTIFACTS_AT_ONCE: usize = 4;

/// For a client that reads an export to take its next piece.
pub const EXPORT_STALL_MAX: Duration = Duration::from_secs(60);

/// Keys of other daemons that one trusts.
pub const TRUSTED_KEYS_MAX: usize = 256;

/// Free bytes that must remain in the hot directory after a reservation: a full tmpfs kills VMMs
/// with SIGBUS.
pub const HOT_RESERVE_BYTES: u64 = 64 << 20;

/// How long a VMM and a guest may take to answer. The defaults are the limits above; tests of
/// silence wait less.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Deadlines {
    /// [`QMP_REPLY_DEADLINE`].
    pub reply: Duration,
    /// [`PAUSE_REPLY_DEADLINE`].
    pub pause_reply: Duration,
    /// [`QUIESCE_DEADLINE`].
    pub quiesce: Duration,
}

impl Default for Deadlines {
    fn default() -> Self {
        Self {
            reply: QMP_REPLY_DEADLINE,
            pause_reply: PAUSE_REPLY_DEADLINE,
            quiesce: QUIESCE_DEADLINE,
        }
    }
}

const _: () = assert!(SWEEP_CHUNK_BYTES.is_multiple_of(4096));
const _: () = assert!(RUNS_MAPPED_MAX < 65_530 / 2);
const _: () = assert!(RUNS_PER_VIEW_MAX <= RUNS_MAPPED_MAX);
const _: () = assert!(PAUSE_REPLY_DEADLINE.as_millis() <= QMP_REPLY_DEADLINE.as_millis());
const _: () = assert!(OVERLAYS_BEFORE_FLATTEN < CHAIN_DEPTH_MAX);
const _: () = assert!(DELTAS_BEFORE_MERGE < CHAIN_DEPTH_BEFORE_MERGE);
const _: () = assert!(CHAIN_DEPTH_BEFORE_MERGE + DELTAS_BEFORE_MERGE <= CHAIN_DEPTH_MAX);
const _: () = assert!(MEM_SIZE_MIB_MIN < MEM_SIZE_MIB_MAX);
const _: () = assert!(MEMORY_LIMIT_MIB_MIN < MEMORY_LIMIT_MIB_MAX);
const _: () = assert!(MEMORY_LIMIT_MIB_MAX > 2 * MEM_SIZE_MIB_MAX);
const _: () = assert!(SANDBOXES_DEFAULT <= SANDBOXES_MAX);
const _: () = assert!(CHILDREN_PER_REQUEST_MAX as usize <= SANDBOXES_DEFAULT);
const _: () = assert!(BRANCHES_AT_ONCE_DEFAULT <= BRANCHES_AT_ONCE_MAX);
