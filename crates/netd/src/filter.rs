//! The system calls that a confined gateway may make, for all its threads. Everything else gets
//! `EPERM`.
//!
//! It may make sockets of the internet and pairs of streams, and open files; its root has none but
//! its own. It executes nothing, touches no other process, and connects to no socket of the host
//! by a path, because it can make none for that.

use forkd_sys::seccomp::{self, Error, Rules, when};
use seccompiler::SeccompCmpOp;

/// Which threads are filtered.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Filtered {
    /// All of this process.
    Process,
    /// The one that runs the gateway, and what it starts: for tests in one process with others.
    Thread,
    /// None.
    Nothing,
}

/// Allowed whatever their arguments.
const ALLOWED: &[i64] = &[
    // Logs, the list of resolvers, descriptors.
    libc::SYS_read,
    libc::SYS_write,
    libc::SYS_readv,
    libc::SYS_writev,
    libc::SYS_pread64,
    libc::SYS_pwrite64,
    libc::SYS_open,
    libc::SYS_openat,
    libc::SYS_rename,
    libc::SYS_renameat,
    libc::SYS_renameat2,
    libc::SYS_close,
    libc::SYS_stat,
    libc::SYS_fstat,
    libc::SYS_lstat,
    libc::SYS_newfstatat,
    libc::SYS_statx,
    libc::SYS_lseek,
    libc::SYS_ftruncate,
    libc::SYS_fcntl,
    libc::SYS_dup,
    // Memory.
    libc::SYS_mmap,
    libc::SYS_munmap,
    libc::SYS_mremap,
    libc::SYS_mprotect,
    libc::SYS_madvise,
    libc::SYS_brk,
    libc::SYS_membarrier,
    // Waiting.
    libc::SYS_futex,
    libc::SYS_poll,
    libc::SYS_ppoll,
    libc::SYS_epoll_create1,
    libc::SYS_epoll_ctl,
    libc::SYS_epoll_wait,
    libc::SYS_epoll_pwait,
    libc::SYS_epoll_pwait2,
    libc::SYS_eventfd2,
    libc::SYS_restart_syscall,
    // Sockets.
    libc::SYS_connect,
    libc::SYS_bind,
    libc::SYS_accept4,
    libc::SYS_recvfrom,
    libc::SYS_recvmsg,
    libc::SYS_sendto,
    libc::SYS_sendmsg,
    libc::SYS_getsockname,
    libc::SYS_getpeername,
    libc::SYS_getsockopt,
    libc::SYS_setsockopt,
    libc::SYS_shutdown,
    // Time.
    libc::SYS_clock_gettime,
    libc::SYS_clock_getres,
    libc::SYS_clock_nanosleep,
    libc::SYS_nanosleep,
    libc::SYS_gettimeofday,
    libc::SYS_time,
    // Threads and signals, in its own namespace of processes.
    libc::SYS_set_robust_list,
    libc::SYS_set_tid_address,
    libc::SYS_rseq,
    libc::SYS_sched_yield,
    libc::SYS_sched_getaffinity,
    libc::SYS_rt_sigaction,
    libc::SYS_rt_sigprocmask,
    libc::SYS_rt_sigreturn,
    libc::SYS_sigaltstack,
    libc::SYS_tgkill,
    libc::SYS_gettid,
    libc::SYS_getpid,
    libc::SYS_exit,
    libc::SYS_exit_group,
    libc::SYS_getrandom,
];

/// Of the internet; a raw socket needs a right that the gateway does not have.
const SOCKET_FAMILIES: [i32; 2] = [libc::AF_INET, libc::AF_INET6];

/// `FIONBIO`: not to block.
const NOT_TO_BLOCK: u64 = 0x5421;

/// The bits of a socket's kind that are not flags.
const SOCKET_KIND: u64 = 0xf;

/// Filters system calls from now on.
pub(crate) fn apply(filtered: Filtered) -> Result<(), Error> {
    for program in seccomp::programs(rules()?)? {
        match filtered {
            Filtered::Process => seccompiler::apply_filter_all_threads(&program)?,
            Filtered::Thread => seccompiler::apply_filter(&program)?,
            Filtered::Nothing => {}
        }
    }
    Ok(())
}

fn rules() -> Result<Rules, Error> {
    let mut rules = seccomp::rules(ALLOWED)?;
    let families: Result<Vec<_>, Error> = SOCKET_FAMILIES
        .iter()
        .map(|family| when(0, SeccompCmpOp::Eq, u64::try_from(*family)?))
        .collect();
    rules.insert(libc::SYS_socket, families?);
    // A pair of datagram sockets could be connected to others by their paths.
    let stream = u64::try_from(libc::SOCK_STREAM)?;
    let pair = when(1, SeccompCmpOp::MaskedEq(SOCKET_KIND), stream)?;
    rules.insert(libc::SYS_socketpair, vec![pair]);
    rules.insert(libc::SYS_ioctl, vec![when(1, SeccompCmpOp::Eq, NOT_TO_BLOCK)?]);
    let name = u64::try_from(libc::PR_SET_NAME)?;
    rules.insert(libc::SYS_prctl, vec![when(0, SeccompCmpOp::Eq, name)?]);
    Ok(rules)
}

#[cfg(test)]
mod tests {
    use std::fs::File;
    use std::io;
    use std::net::{TcpListener, TcpStream, UdpSocket};
    use std::os::unix::net::{UnixDatagram, UnixStream};
    use std::path::Path;
    use std::process::Command;
    use std::thread;

    use rustix::net::{AddressFamily, SocketFlags, SocketType};

    use super::*;

    fn unix_pair(kind: SocketType) -> io::Result<()> {
        let flags = SocketFlags::CLOEXEC;
        Ok(rustix::net::socketpair(AddressFamily::UNIX, kind, flags, None).map(drop)?)
    }

    /// What somebody would try who has taken over the gateway.
    fn attempts(folder: &Path) -> Vec<(&'static str, io::Result<()>)> {
        let own = rustix::process::getpid();
        let packet = || rustix::net::socket(AddressFamily::PACKET, SocketType::DGRAM, None);
        let signal = || rustix::process::kill_process(own, rustix::process::Signal::CONT);
        let listener = || {
            let socket = rustix::net::socket(AddressFamily::INET, SocketType::STREAM, None)?;
            rustix::net::listen(socket, 1)
        };
        vec![
            ("execute a program", Command::new("/bin/true").status().map(drop)),
            ("be a daemon's client", UnixDatagram::unbound().map(drop)),
            ("pair datagram sockets", unix_pair(SocketType::DGRAM)),
            ("see all packets", packet().map(drop).map_err(io::Error::from)),
            ("signal a process", signal().map_err(io::Error::from)),
            ("watch a process", {
                let flags = rustix::process::PidfdFlags::empty();
                rustix::process::pidfd_open(own, flags).map(drop).map_err(io::Error::from)
            }),
            ("listen", listener().map_err(io::Error::from)),
            (
                "list files",
                std::fs::read_dir("/").and_then(|mut list| list.next().transpose()).map(drop),
            ),
            ("make a folder", std::fs::create_dir(folder.join("made"))),
            ("remove a file", std::fs::remove_file("/nonexistent")),
            ("change a limit", {
                let limit = rustix::process::Rlimit { current: Some(0), maximum: Some(1 << 40) };
                rustix::process::setrlimit(rustix::process::Resource::Core, limit)
                    .map_err(io::Error::from)
            }),
        ]
    }

    #[test]
    fn a_filtered_gateway_connects_and_logs_and_can_do_nothing_else() {
        let server = TcpListener::bind("127.0.0.1:0").unwrap();
        let address = server.local_addr().unwrap();
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().to_owned();
        let filtered = thread::spawn(move || {
            let is_denied = |result: &io::Result<()>| {
                result.as_ref().is_err_and(|e| e.raw_os_error() == Some(libc::EPERM))
            };
            let before: Vec<_> =
                attempts(&path).into_iter().filter(|(_, it)| is_denied(it)).collect();
            assert!(before.iter().all(|(what, _)| *what == "see all packets"), "{before:?}");
            apply(Filtered::Thread).unwrap();
            for (what, result) in attempts(&path) {
                assert!(is_denied(&result), "{what}: {result:?}");
            }
            TcpStream::connect(address).unwrap();
            UdpSocket::bind("127.0.0.1:0").unwrap();
            UnixStream::pair().unwrap();
            File::open("/dev/null").unwrap();
            thread::spawn(|| {}).join().unwrap();
        });
        filtered.join().unwrap();
    }
}
