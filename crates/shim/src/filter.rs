//! The system calls that a confined VMM may make, for all its threads: a list of what QEMU's
//! `microvm` machine uses with the devices that it is given. Everything else gets `EPERM`.
//!
//! QEMU's own filter (`-sandbox on`) comes on top of it: that one lists what is denied, so it lets
//! through what a newer kernel adds.

use forkd_sys::seccomp::{self, Error, Rules, when};
use seccompiler::{SeccompCmpArgLen, SeccompCmpOp, SeccompCondition, SeccompRule};

/// Allowed whatever their arguments.
const ALLOWED: &[i64] = &[
    // Files and descriptors.
    libc::SYS_read,
    libc::SYS_write,
    libc::SYS_readv,
    libc::SYS_writev,
    libc::SYS_pread64,
    libc::SYS_pwrite64,
    libc::SYS_preadv,
    libc::SYS_pwritev,
    libc::SYS_preadv2,
    libc::SYS_pwritev2,
    libc::SYS_open,
    libc::SYS_openat,
    libc::SYS_close,
    libc::SYS_close_range,
    libc::SYS_stat,
    libc::SYS_fstat,
    libc::SYS_lstat,
    libc::SYS_newfstatat,
    libc::SYS_statx,
    libc::SYS_statfs,
    libc::SYS_fstatfs,
    libc::SYS_access,
    libc::SYS_faccessat,
    libc::SYS_faccessat2,
    libc::SYS_readlink,
    libc::SYS_readlinkat,
    libc::SYS_getcwd,
    libc::SYS_getdents64,
    libc::SYS_lseek,
    libc::SYS_fcntl,
    libc::SYS_flock,
    libc::SYS_dup,
    libc::SYS_dup2,
    libc::SYS_dup3,
    libc::SYS_pipe2,
    libc::SYS_fallocate,
    libc::SYS_ftruncate,
    libc::SYS_fsync,
    libc::SYS_fdatasync,
    libc::SYS_sync_file_range,
    libc::SYS_copy_file_range,
    libc::SYS_fadvise64,
    libc::SYS_umask,
    // Memory.
    libc::SYS_mmap,
    libc::SYS_munmap,
    libc::SYS_mremap,
    libc::SYS_mprotect,
    libc::SYS_madvise,
    libc::SYS_mincore,
    libc::SYS_brk,
    libc::SYS_memfd_create,
    libc::SYS_membarrier,
    // For a kernel without `/dev/userfaultfd`; it asks for a right that a VMM does not have.
    libc::SYS_userfaultfd,
    // Waiting.
    libc::SYS_futex,
    libc::SYS_poll,
    libc::SYS_ppoll,
    libc::SYS_select,
    libc::SYS_pselect6,
    libc::SYS_epoll_create1,
    libc::SYS_epoll_ctl,
    libc::SYS_epoll_wait,
    libc::SYS_epoll_pwait,
    libc::SYS_epoll_pwait2,
    libc::SYS_eventfd2,
    libc::SYS_restart_syscall,
    // Sockets that it was given; it cannot make any.
    libc::SYS_accept,
    libc::SYS_accept4,
    libc::SYS_recvfrom,
    libc::SYS_recvmsg,
    libc::SYS_recvmmsg,
    libc::SYS_sendto,
    libc::SYS_sendmsg,
    libc::SYS_getsockname,
    libc::SYS_getpeername,
    libc::SYS_getsockopt,
    libc::SYS_setsockopt,
    libc::SYS_shutdown,
    libc::SYS_listen,
    // Time.
    libc::SYS_clock_gettime,
    libc::SYS_clock_getres,
    libc::SYS_clock_nanosleep,
    libc::SYS_nanosleep,
    libc::SYS_gettimeofday,
    libc::SYS_time,
    libc::SYS_timer_create,
    libc::SYS_timer_settime,
    libc::SYS_timer_gettime,
    libc::SYS_timer_getoverrun,
    libc::SYS_timer_delete,
    libc::SYS_timerfd_create,
    libc::SYS_timerfd_settime,
    libc::SYS_timerfd_gettime,
    // Threads and signals, in its own namespace of processes.
    libc::SYS_set_robust_list,
    libc::SYS_set_tid_address,
    libc::SYS_rseq,
    libc::SYS_sched_yield,
    libc::SYS_sched_getaffinity,
    libc::SYS_sched_getparam,
    libc::SYS_sched_getscheduler,
    libc::SYS_rt_sigaction,
    libc::SYS_rt_sigprocmask,
    libc::SYS_rt_sigreturn,
    libc::SYS_rt_sigtimedwait,
    libc::SYS_rt_sigpending,
    libc::SYS_rt_sigsuspend,
    libc::SYS_sigaltstack,
    libc::SYS_signalfd4,
    libc::SYS_tgkill,
    libc::SYS_gettid,
    libc::SYS_getpid,
    libc::SYS_getppid,
    libc::SYS_getuid,
    libc::SYS_geteuid,
    libc::SYS_getgid,
    libc::SYS_getegid,
    libc::SYS_getrusage,
    libc::SYS_exit,
    libc::SYS_exit_group,
    libc::SYS_arch_prctl,
    // The host, as far as it is seen.
    libc::SYS_uname,
    libc::SYS_sysinfo,
    libc::SYS_getrandom,
    // More filters: they can only take away.
    libc::SYS_seccomp,
];

/// Requests to descriptors, exactly these.
const IOCTLS: &[u64] = &[
    0x5421, // FIONBIO
    0x541b, // FIONREAD
    0x5451, // FIOCLEX
    0x5401, // TCGETS: whether its output is a terminal
    0xaa00, // USERFAULTFD_IOC_NEW, for the branch
];
/// `KVMIO` of `linux/kvm.h`: the second byte of every request to KVM.
const KVM: u64 = 0xae00;
const IOCTL_KIND: u64 = 0xff00;

/// `prctl` with these first arguments.
const PRCTLS: &[u64] = &[
    15, // PR_SET_NAME
    16, // PR_GET_NAME
    22, // PR_SET_SECCOMP
    29, // PR_SET_TIMERSLACK
    38, // PR_SET_NO_NEW_PRIVS
    39, // PR_GET_NO_NEW_PRIVS
];

/// Filters the system calls of every thread of this process, from now on.
pub(crate) fn apply() -> Result<(), Error> {
    for program in seccomp::programs(rules()?)? {
        seccompiler::apply_filter_all_threads(&program)?;
    }
    Ok(())
}

fn rules() -> Result<Rules, Error> {
    let mut rules = seccomp::rules(ALLOWED)?;
    let mut ioctls = vec![when(1, SeccompCmpOp::MaskedEq(IOCTL_KIND), KVM)?];
    for request in IOCTLS {
        ioctls.push(when(1, SeccompCmpOp::Eq, *request)?);
    }
    rules.insert(libc::SYS_ioctl, ioctls);
    let prctls: Result<Vec<_>, Error> =
        PRCTLS.iter().map(|option| when(0, SeccompCmpOp::Eq, *option)).collect();
    rules.insert(libc::SYS_prctl, prctls?);
    // Asked for a limit, not given one.
    rules.insert(libc::SYS_prlimit64, vec![when_pointer(2, 0)?]);
    Ok(rules)
}

fn when_pointer(argument: u8, value: u64) -> Result<SeccompRule, Error> {
    let length = SeccompCmpArgLen::Qword;
    let condition = SeccompCondition::new(argument, length, SeccompCmpOp::Eq, value)?;
    Ok(SeccompRule::new(vec![condition])?)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_filters_are_programs_that_the_kernel_can_take() {
        let programs = seccomp::programs(rules().unwrap()).unwrap();
        assert!(programs.iter().all(|program| (2..4096).contains(&program.len())));
    }

    #[test]
    fn what_reaches_other_processes_or_other_files_is_not_on_the_list() {
        let rules = rules().unwrap();
        for number in [
            libc::SYS_execve,
            libc::SYS_execveat,
            libc::SYS_fork,
            libc::SYS_vfork,
            libc::SYS_socket,
            libc::SYS_connect,
            libc::SYS_bind,
            libc::SYS_ptrace,
            libc::SYS_process_vm_readv,
            libc::SYS_process_vm_writev,
            libc::SYS_kill,
            libc::SYS_tkill,
            libc::SYS_pidfd_open,
            libc::SYS_mount,
            libc::SYS_unshare,
            libc::SYS_setns,
            libc::SYS_setuid,
            libc::SYS_setresuid,
            libc::SYS_fchmod,
            libc::SYS_fchown,
            libc::SYS_bpf,
            libc::SYS_keyctl,
            libc::SYS_io_uring_setup,
            libc::SYS_perf_event_open,
            libc::SYS_unlink,
            libc::SYS_rename,
            libc::SYS_symlink,
            libc::SYS_chroot,
            libc::SYS_pivot_root,
        ] {
            assert!(!rules.contains_key(&number), "system call {number} is allowed");
        }
    }
}
