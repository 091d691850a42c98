//! The VMM process: start with its sockets already listening, watch, kill.

use std::ffi::OsString;
use std::fs::{self, File};
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::os::unix::net::UnixListener;
use std::os::unix::process::CommandExt;
use std::os::unix::process::ExitStatusExt as _;
use std::path::{Path, PathBuf};
use std::process::{Command, ExitStatus, Stdio};
use std::thread;
use std::time::Duration;

use command_fds::{CommandFdExt, FdMapping};
use forkd_sys::{confine, shim_wire};
use forkd_types::ByteCount;
use rustix::event::{PollFd, PollFlags};
use rustix::fs::{Gid, Uid};
use rustix::net::{AddressFamily, SocketAddrUnix, SocketFlags, SocketType, sockopt};
use rustix::process::{Pid, PidfdFlags, Resource, Rlimit, Signal, WaitId, WaitIdOptions};

use super::args::{self, Listeners};
use super::jail;
use super::launcher::launch;
use super::monitor::Role;
use crate::cgroup::Cgroup;
use crate::output::{self, Output};
use crate::shim_client::ShimNumbers;
use crate::{Jail, KeptOutput, OwnUser, VmSpec, VmmError, VmmTools};

/// First descriptor number handed to the VMM; 0 to 2 are its standard streams.
const FIRST_FD: i32 = 3;
/// The end of its output that goes into an error.
const LAST_WORDS_BYTES: usize = 600;
/// What the kernel holds of frames that were sent and not read: several of the longest.
const LINK_BUFFER_BYTES: usize = 512 << 10;
/// A process that ends closes its sockets a moment before it can be waited for.
const EXIT_DEADLINE: Duration = Duration::from_millis(500);
/// A killed process is gone within microseconds, unless the host is out of memory.
const KILL_DEADLINE: Duration = Duration::from_secs(10);

/// A running VMM. Dropping it kills the process and collects it, unless it is released.
#[derive(Debug)]
pub(crate) struct Process {
    /// False for a process that another daemon has started: its exit status goes to init.
    is_child: bool,
    pid: Pid,
    pidfd: OwnedFd,
    output: Output,
    /// Goes after the process.
    cgroup: Option<Cgroup>,
    released: bool,
}

/// The socket of the shim in a VM's directory.
pub(crate) fn shim_socket(directory: &Path) -> PathBuf {
    directory.join("shim.sock")
}

impl Process {
    /// Starts the VMM of `spec`. Its sockets are listening before it runs, so that connecting never
    /// races with its start, and they keep their names, so that another daemon can find them.
    pub(crate) fn start(spec: &VmSpec, tools: &VmmTools) -> Result<Self, VmmError> {
        let (output, ends) = Output::make(spec)?;
        let mut sockets = vec![OwnedFd::from(listen(&spec.agent_socket())?), ends.console];
        for role in Role::ALL {
            sockets.push(listen(&spec.directory.join(role.socket_name()))?.into());
        }
        sockets.push(listen_seqpacket(&shim_socket(&spec.directory))?);
        let link = spec.network_device.then(network_link).transpose()?;
        let has_link = link.is_some();
        sockets.extend(link.into_iter().flatten());
        let numbers: Vec<i32> = (FIRST_FD..).take(sockets.len()).collect();
        let mut monitors = [0; Role::COUNT];
        monitors.copy_from_slice(&numbers[2..2 + Role::COUNT]);
        let shim_number = numbers[2 + Role::COUNT];
        let network = has_link.then_some(shim_number + 1);
        let listeners = Listeners { agent: numbers[0], console: numbers[1], network, monitors };

        let cgroup = spec.confinement.cgroup.as_ref().map(Cgroup::make).transpose()?;
        let entrances = cgroup.as_ref().map(Cgroup::entrances).transpose()?.unwrap_or_default();
        let start = Beginning {
            arguments: args::arguments(spec, listeners, tools.abilities),
            descriptors: sockets.into_iter().zip(numbers).collect(),
            shim: ShimNumbers { socket: shim_number, link: has_link.then_some(shim_number + 2) },
            standard: ends.standard,
            entrances,
        };
        let pid = match &spec.confinement.jail {
            Some(jail) => start.confined(spec, jail, tools)?,
            None => start.unconfined(spec, tools)?,
        };
        // The child has not been waited for, so its number cannot mean another process yet.
        let pidfd = rustix::process::pidfd_open(pid, PidfdFlags::empty()).map_err(|errno| {
            VmmError::Spawn { program: tools.program.display().to_string(), source: errno.into() }
        })?;
        Ok(Self { is_child: true, pid, pidfd, output, cgroup, released: false })
    }

    /// The running process `pid`, which another daemon has started with `spec`.
    pub(crate) fn adopt(pid: Pid, spec: &VmSpec) -> Result<Self, VmmError> {
        let pidfd = rustix::process::pidfd_open(pid, PidfdFlags::empty()).map_err(|errno| {
            let last_words = format!("{errno}; {}", tail(&output::vmm_output(&spec.directory)));
            VmmError::Gone { during: "before it was taken over".to_owned(), last_words }
        })?;
        let output = Output::connect(spec).unwrap_or_else(|error| {
            tracing::warn!(%error, "a VMM that is taken over cannot be listened to");
            Output::of_before(spec)
        });
        let cgroup = spec.confinement.cgroup.as_ref().map(Cgroup::adopt);
        Ok(Self { is_child: false, pid, pidfd, output, cgroup, released: false })
    }

    /// Leaves the process alone: it lives on.
    pub(crate) fn release(mut self) {
        self.released = true;
        if let Some(cgroup) = &mut self.cgroup {
            cgroup.release();
        }
    }

    /// Leaves the process alone after an attempt to take it over. Gives what went wrong.
    pub(crate) fn abandon(mut self, during: &str, error: VmmError) -> VmmError {
        let error = self.explain(during, error);
        self.release();
        error
    }

    pub(crate) fn pid(&self) -> Pid {
        self.pid
    }

    /// Becomes readable when the process ends.
    pub(crate) fn exit_fd(&self) -> BorrowedFd<'_> {
        self.pidfd.as_fd()
    }

    /// Whether the process has ended.
    pub(crate) fn has_exited(&self) -> bool {
        self.exited_within(Duration::ZERO)
    }

    fn exited_within(&self, time: Duration) -> bool {
        wait_until_readable(&self.pidfd, time)
    }

    /// How the process ended, if it has and that can be known. It stays a zombie.
    fn exit_status(&self) -> Option<ExitStatus> {
        let options = WaitIdOptions::EXITED | WaitIdOptions::NOHANG | WaitIdOptions::NOWAIT;
        let this = WaitId::PidFd(self.pidfd.as_fd());
        let status = rustix::process::waitid(this, options).ok().flatten()?;
        // As `wait(2)` encodes it.
        let code = status.exit_status().map(|code| (code & 0xff) << 8);
        Some(ExitStatus::from_raw(code.or(status.terminating_signal())?))
    }

    /// The end of what the VMM wrote, with how it ended, for errors.
    pub(crate) fn last_words(&mut self) -> String {
        let status = match self.exit_status() {
            Some(status) => format!("{status}"),
            None if self.has_exited() => "exit status unknown: an earlier daemon's".to_owned(),
            None => "still running".to_owned(),
        };
        format!("{status}; {}", tail(&self.output.of_the_vmm()))
    }

    /// What is kept of the guest's console.
    pub(crate) fn console(&self) -> Result<KeptOutput, VmmError> {
        self.output.of_the_console()
    }

    /// An error for what `error` did to this process: a lost connection to a process that has ended
    /// is reported as its end.
    pub(crate) fn explain(&mut self, during: &str, error: VmmError) -> VmmError {
        if is_lost(&error) { self.exit_error(during).unwrap_or(error) } else { error }
    }

    /// Whether `error` is that the process has ended or ends at once: the connection is closed
    /// before the last of its threads is gone.
    pub(crate) fn is_its_end(&self, error: &VmmError) -> bool {
        is_lost(error) && self.exited_within(EXIT_DEADLINE)
    }

    /// The end of this process as an error, if it has ended or ends at once.
    pub(crate) fn exit_error(&mut self, during: &str) -> Option<VmmError> {
        if !self.exited_within(EXIT_DEADLINE) {
            return None;
        }
        let reached =
            self.memory_limit_reached().map(|limit| VmmError::MemoryLimitReached { limit });
        Some(reached.unwrap_or_else(|| VmmError::Gone {
            during: during.to_owned(),
            last_words: self.last_words(),
        }))
    }

    /// The memory limit that the process was ended for.
    pub(crate) fn memory_limit_reached(&self) -> Option<ByteCount> {
        self.cgroup.as_ref().and_then(Cgroup::memory_limit_reached)
    }

    /// Changes the size of files that the process may write, up to what it was started with. Its
    /// filter lets it ask for limits, and not change them.
    pub(crate) fn limit_files(
        &self,
        most: ByteCount,
        own: Option<OwnUser>,
    ) -> Result<(), VmmError> {
        let limits = format!("/proc/{}/limits", self.pid.as_raw_nonzero());
        let limited = fs::read_to_string(&limits).and_then(|text| {
            // More than that needs a privilege.
            let maximum = largest_file(&text);
            let current = maximum.map_or(most.get(), |maximum| maximum.min(most.get()));
            let limit = Rlimit { current: Some(current), maximum };
            let set = || Ok(rustix::process::prlimit(Some(self.pid), Resource::Fsize, limit)?);
            match own {
                Some(OwnUser { user, lent_to: None }) => on_behalf_of(user, set),
                // The namespace that it is in is that of this process's user.
                Some(OwnUser { lent_to: Some(_), .. }) | None => set(),
            }
        });
        limited.map(drop).map_err(|source| VmmError::file("limit the VMM in", limits, source))
    }

    /// Kills the process and waits until it is gone.
    pub(crate) fn kill(&mut self) {
        if let Err(errno) = rustix::process::pidfd_send_signal(&self.pidfd, Signal::KILL)
            && errno != rustix::io::Errno::SRCH
        {
            tracing::error!(pid = self.pid.as_raw_nonzero(), %errno, "cannot kill a VMM");
        }
        if self.exited_within(KILL_DEADLINE) {
            // Collects the exit status, so that no zombie remains.
            let this = WaitId::PidFd(self.pidfd.as_fd());
            let reaped = rustix::process::waitid(this, WaitIdOptions::EXITED);
            let was_child = std::mem::take(&mut self.is_child);
            // One that was adopted is our child only if it was released in this very process.
            if let (true, Err(errno)) = (was_child, reaped) {
                tracing::error!(pid = self.pid.as_raw_nonzero(), %errno, "cannot reap a VMM");
            }
        } else {
            tracing::error!(pid = self.pid.as_raw_nonzero(), "a killed VMM does not end");
        }
    }
}

impl Drop for Process {
    fn drop(&mut self) {
        if !self.released {
            self.kill();
        }
    }
}

/// What a VMM begins with, confined or not.
struct Beginning {
    arguments: Vec<OsString>,
    /// Its descriptors besides the standard streams, and their numbers.
    descriptors: Vec<(OwnedFd, i32)>,
    shim: ShimNumbers,
    /// Standard output and standard error.
    standard: OwnedFd,
    /// Where it enters its cgroups.
    entrances: Vec<File>,
}

impl Beginning {
    /// Starts a VMM that may do what this process may do.
    fn unconfined(self, spec: &VmSpec, tools: &VmmTools) -> Result<Pid, VmmError> {
        let program = tools.program.display().to_string();
        let failed = |source| VmmError::Spawn { program: program.clone(), source };
        let mut command = Command::new(&tools.program);
        command
            .args(self.arguments)
            .env("LD_PRELOAD", &tools.shim)
            .envs(self.shim.variables())
            .stdin(Stdio::null())
            .stdout(self.standard.try_clone().map_err(failed)?)
            .stderr(self.standard)
            // A group of its own: what is typed at the daemon's terminal is not for the VMs.
            .process_group(0);
        for entrance in self.entrances {
            confine::enter_cgroup(&mut command, entrance);
        }
        if spec.confinement.own_network {
            confine::leave_network(&mut command);
        }
        let mappings = self.descriptors.into_iter();
        let mappings = mappings.map(|(parent_fd, child_fd)| FdMapping { parent_fd, child_fd });
        command
            .fd_mappings(mappings.collect())
            .map_err(|error| failed(std::io::Error::other(error)))?;
        let child = command.spawn().map_err(failed)?;
        let pid = i32::try_from(child.id()).ok().and_then(Pid::from_raw);
        pid.ok_or_else(|| failed(std::io::ErrorKind::Other.into()))
    }

    /// Starts a VMM that reaches nothing but its own files.
    fn confined(self, spec: &VmSpec, jail: &Jail, tools: &VmmTools) -> Result<Pid, VmmError> {
        let program = tools.program.display().to_string();
        let failed = |source| VmmError::Spawn { program: program.clone(), source };
        let launcher = tools.launcher.as_ref().ok_or_else(|| {
            failed(std::io::Error::other("there is no launcher to confine it with"))
        })?;
        jail::require_free(jail)?;
        jail::hand_over(spec, jail, launcher)?;
        let null = File::open("/dev/null").map_err(failed)?;
        let standard = self.standard.as_fd();
        let mut descriptors = vec![(null.as_fd(), 0), (standard, 1), (standard, 2)];
        descriptors.extend(self.descriptors.iter().map(|(fd, number)| (fd.as_fd(), *number)));
        let job = jail::job(spec, jail, tools, self.arguments, self.shim)?;
        Ok(launch(launcher, job, &descriptors, &self.entrances)?)
    }
}

/// Whether `fd` becomes readable within that time, as that of a process does when it ends.
pub(super) fn wait_until_readable(fd: &OwnedFd, time: Duration) -> bool {
    let mut fds = [PollFd::new(fd, PollFlags::IN)];
    let timeout = rustix::event::Timespec {
        tv_sec: i64::try_from(time.as_secs()).unwrap_or(i64::MAX),
        tv_nsec: i64::from(time.subsec_nanos()),
    };
    matches!(rustix::event::poll(&mut fds, Some(&timeout)), Ok(ready) if ready > 0)
}

/// VMMs that were started with directories below `run_dir`, whoever started them.
pub(super) fn processes_in(run_dir: &Path) -> Vec<Pid> {
    let entries = fs::read_dir("/proc").into_iter().flatten().flatten();
    let numbers = entries.filter_map(|entry| entry.file_name().to_str()?.parse().ok());
    numbers.filter_map(Pid::from_raw).filter(|pid| is_vmm_in(*pid, run_dir)).collect()
}

/// The shim's variable tells a VMM from another program that has such a path as an argument.
fn is_vmm_in(pid: Pid, run_dir: &Path) -> bool {
    let read = |file| fs::read(format!("/proc/{}/{file}", pid.as_raw_nonzero()));
    let has = |text: Vec<u8>, wanted: &[u8]| text.windows(wanted.len()).any(|part| part == wanted);
    let directory = format!("{}/sb-", run_dir.display());
    if !has(read("cmdline").unwrap_or_default(), directory.as_bytes()) {
        return false;
    }
    match read("environ") {
        Ok(text) => has(text, format!("{}=", shim_wire::LISTEN_FD_VARIABLE).as_bytes()),
        // One with a user of its own, which this process's is not; what it has mapped tells as
        // much, and nobody but the owner of its namespace may see that.
        Err(_) => has(read("maps").unwrap_or_default(), jail::SHIM.as_bytes()),
    }
}

fn listen(path: &Path) -> Result<UnixListener, VmmError> {
    UnixListener::bind(path).map_err(|source| VmmError::file("listen on", path, source))
}

/// Both ends of a network link: the VMM's and the far one. One datagram is one frame. Neither end
/// ever waits for the other: a VMM that did would not answer its monitors.
fn network_link() -> Result<[OwnedFd; 2], VmmError> {
    let failed = |errno: rustix::io::Errno| VmmError::NetworkLink { source: errno.into() };
    let (family, kind) = (AddressFamily::UNIX, SocketType::DGRAM);
    let flags = SocketFlags::CLOEXEC | SocketFlags::NONBLOCK;
    let (near, far) = rustix::net::socketpair(family, kind, flags, None).map_err(failed)?;
    for end in [&near, &far] {
        sockopt::set_socket_send_buffer_size(end, LINK_BUFFER_BYTES).map_err(failed)?;
    }
    Ok([near, far])
}

fn listen_seqpacket(path: &Path) -> Result<OwnedFd, VmmError> {
    let open = || -> rustix::io::Result<OwnedFd> {
        let (family, kind) = (AddressFamily::UNIX, SocketType::SEQPACKET);
        let socket = rustix::net::socket_with(family, kind, SocketFlags::CLOEXEC, None)?;
        rustix::net::bind(&socket, &SocketAddrUnix::new(path)?)?;
        rustix::net::listen(&socket, 1)?;
        Ok(socket)
    };
    open().map_err(|errno| VmmError::file("listen on", path, errno.into()))
}

/// Does `work` on a thread whose real user and group are these, which the kernel asks for where
/// limits of another process are changed. Otherwise that takes `CAP_SYS_RESOURCE`, which a root of
/// a container lacks. All that the thread may do stays the same, and it ends with the work.
fn on_behalf_of<T: Send>(
    user: u32,
    work: impl FnOnce() -> std::io::Result<T> + Send,
) -> std::io::Result<T> {
    let worker = || {
        rustix::thread::set_thread_res_gid(Gid::from_raw(user), None, None)?;
        rustix::thread::set_thread_res_uid(Uid::from_raw(user), None, None)?;
        work()
    };
    let died = |_| Err(std::io::Error::other("the thread died"));
    thread::scope(|scope| scope.spawn(worker).join().unwrap_or_else(died))
}

/// The hard limit for the size of files in `/proc/PID/limits`. None where there is none.
fn largest_file(limits: &str) -> Option<u64> {
    let line = limits.lines().find_map(|line| line.strip_prefix("Max file size"))?;
    line.split_whitespace().nth(1)?.parse().ok()
}

/// The end of what a VMM has written, as one line.
fn tail(output: &[u8]) -> String {
    let end = &output[output.len().saturating_sub(LAST_WORDS_BYTES)..];
    String::from_utf8_lossy(end).trim().escape_debug().to_string()
}

/// Whether `error` is that of a connection that is closed.
fn is_lost(error: &VmmError) -> bool {
    matches!(error, VmmError::Monitor { .. } | VmmError::Shim { .. })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_hard_limit_for_files_is_read_as_the_kernel_writes_it() {
        let line =
            |limits: &str| format!("Max cpu time  1  2  seconds\nMax file size {limits} bytes\n");
        assert_eq!(largest_file(&line("  7      4096 ")), Some(4096));
        assert_eq!(largest_file(&line("  unlimited unlimited ")), None);
        let own = std::fs::read_to_string("/proc/self/limits").unwrap();
        assert_eq!(largest_file(&own), rustix::process::getrlimit(Resource::Fsize).maximum);
    }
}
