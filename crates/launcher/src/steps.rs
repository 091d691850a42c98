//! What the copy of the launcher does to itself before it becomes the program.

use std::ffi::OsStr;
use std::fs::File;
use std::io::Write as _;
use std::os::fd::{AsFd as _, OwnedFd};
use std::os::unix::process::CommandExt as _;
use std::path::Path;
use std::process::Command;

use command_fds::{CommandFdExt as _, FdMapping};
use forkd_sys::clone::{self, Namespaces};
use forkd_sys::confine;
use landlock::{Ruleset, RulesetAttr as _, RulesetError, Scope};
use rustix::process::{Resource, Rlimit};
use rustix::thread::{CapabilitySet, CapabilitySets, Gid, Uid};

use crate::job::{Ids, Job, Refusal, Step};
use crate::root::{self, Failed, failed};
use crate::without::Without;

/// The last capability that Linux 6 knows has number 40; the kernel refuses what it does not know.
const CAPABILITIES: u32 = 64;
/// What a program sees as the name of its host.
const HOST_NAME: &[u8] = b"vmm";

/// The namespaces of [`Step::Namespaces`].
pub(crate) fn namespaces(job: &Job, without: &Without) -> Namespaces {
    if without.step(Step::Namespaces) {
        // Mounts and the root need one.
        return Namespaces::NEWNS;
    }
    let network = if job.host_network { Namespaces::empty() } else { Namespaces::NEWNET };
    network | Namespaces::NEWNS | Namespaces::NEWPID | Namespaces::NEWIPC | Namespaces::NEWUTS
}

/// Takes every step of `job` in its order. Comes back only with what was refused.
pub(crate) fn take(
    job: &Job,
    fds: &mut [Option<OwnedFd>],
    root: &Path,
    without: &Without,
) -> Refusal {
    let mut at = Step::Cgroups;
    let refused = (|| {
        for step in Step::ALL {
            at = step;
            if step == Step::Root {
                root::enter(root, !without.step(step))?;
            } else if !without.step(step) {
                run(step, job, fds, root)?;
            }
        }
        Ok::<(), Failed>(())
    })();
    match refused {
        Ok(()) => {
            Refusal { step: None, what: "start the program".to_owned(), errno: 0, ended: None }
        }
        Err(Failed { what, source }) => {
            Refusal { step: Some(at), what, errno: source.raw_os_error().unwrap_or(0), ended: None }
        }
    }
}

fn run(step: Step, job: &Job, fds: &mut [Option<OwnedFd>], root: &Path) -> Result<(), Failed> {
    match step {
        Step::Cgroups => job.cgroups.iter().try_for_each(|index| enter_cgroup(fds, *index)),
        Step::OomScore => std::fs::write("/proc/self/oom_score_adj", job.oom_score_adj.to_string())
            .map_err(failed("set the score for a host without memory")),
        // They came with the clone.
        Step::Namespaces | Step::Root => Ok(()),
        Step::Mounts => job.binds.iter().try_for_each(|bind| root::mount(root, bind)),
        Step::HostName => {
            rustix::system::sethostname(HOST_NAME).map_err(failed("set the name of the host"))
        }
        Step::Limits => set_limits(job),
        Step::Ids => job.ids.as_ref().map_or(Ok(()), take_ids),
        Step::UserNamespace => {
            clone::unshare(Namespaces::NEWUSER).map_err(failed("create a user namespace"))
        }
        Step::Capabilities => drop_capabilities(),
        Step::NoNewPrivileges => rustix::thread::set_no_new_privs(true)
            .map_err(failed("give up the right to new privileges")),
        Step::AbstractSockets => leave_abstract_sockets(),
        Step::Program => Err(execute(job, fds)),
    }
}

fn enter_cgroup(fds: &[Option<OwnedFd>], index: usize) -> Result<(), Failed> {
    let what = "enter a cgroup";
    let fd = fds.get(index).and_then(Option::as_ref).ok_or_else(|| no_descriptor(index))?;
    // The process that writes.
    rustix::io::write(fd.as_fd(), b"0").map(drop).map_err(failed(what))
}

fn no_descriptor(index: usize) -> Failed {
    Failed {
        what: format!("use descriptor {index}, which did not come"),
        source: std::io::ErrorKind::InvalidInput.into(),
    }
}

fn set_limits(job: &Job) -> Result<(), Failed> {
    let limit = |resource, most: Option<u64>, what: &str| {
        // Never above what this process has: that needs a privilege.
        let had = rustix::process::getrlimit(resource).maximum;
        let most = [most, had].into_iter().flatten().min();
        rustix::process::setrlimit(resource, Rlimit { current: most, maximum: most })
            .map_err(failed(format!("limit {what}")))
    };
    limit(Resource::Nofile, job.descriptors_max, "descriptors")?;
    limit(Resource::Core, Some(0), "core dumps")?;
    // Other processes of the same user would count too.
    let threads = job.ids.as_ref().map(|_| job.threads_max.into());
    limit(Resource::Nproc, threads, "threads")?;
    limit(Resource::Fsize, job.file_bytes_max, "the size of files")?;
    confine::fail_writes_beyond_limit().map_err(failed("ignore the signal for large files"))
}

fn take_ids(ids: &Ids) -> Result<(), Failed> {
    let (uid, gid) = (Uid::from_raw(ids.user), Gid::from_raw(ids.group));
    let what = || format!("become user {}", ids.user);
    if let Some(groups) = &ids.groups {
        let groups: Vec<Gid> = groups.iter().map(|&group| Gid::from_raw(group)).collect();
        rustix::thread::set_thread_groups(&groups).map_err(failed(what()))?;
    }
    rustix::thread::set_thread_res_gid(gid, gid, gid).map_err(failed(what()))?;
    rustix::thread::set_thread_res_uid(uid, uid, uid).map_err(failed(what()))
}

fn drop_capabilities() -> Result<(), Failed> {
    let what = "give up capabilities";
    for number in 0..CAPABILITIES {
        let capability = CapabilitySet::from_bits_retain(1 << number);
        match rustix::thread::remove_capability_from_bounding_set(capability) {
            // The kernel knows no more.
            Err(rustix::io::Errno::INVAL) => break,
            other => other.map_err(failed(what))?,
        }
    }
    let none = CapabilitySet::empty();
    let none = CapabilitySets { effective: none, permitted: none, inheritable: none };
    rustix::thread::clear_ambient_capability_set().map_err(failed(what))?;
    rustix::thread::set_capabilities(None, none).map_err(failed(what))
}

/// Sockets of the host's network can be reached by their abstract names, unless Landlock says
/// otherwise. A kernel that does not know this is no obstacle: the pairs of datagram sockets that a
/// program is given are all that it could use for it.
fn leave_abstract_sockets() -> Result<(), Failed> {
    let confine = || {
        let ruleset = Ruleset::default().scope(Scope::AbstractUnixSocket)?.create()?;
        ruleset.restrict_self().map(drop)
    };
    confine().map_err(|error: RulesetError| Failed {
        what: "leave abstract sockets of the host".to_owned(),
        source: std::io::Error::other(error),
    })
}

/// Becomes the program; comes back only if that fails.
fn execute(job: &Job, fds: &mut [Option<OwnedFd>]) -> Failed {
    let what = format!("execute `{}`", job.program.display());
    let mut mappings = Vec::new();
    for descriptor in &job.descriptors {
        let fd = fds.get_mut(descriptor.index).and_then(Option::take);
        let Some(parent_fd) = fd else { return no_descriptor(descriptor.index) };
        mappings.push(FdMapping { parent_fd, child_fd: descriptor.number });
    }
    let mut command = Command::new(&job.program);
    command
        .process_group(0)
        .args(job.arguments.iter().map(OsStr::new))
        .env_clear()
        .envs(job.environment.iter().map(|(name, value)| (name, value)));
    if let Err(error) = command.fd_mappings(mappings) {
        return Failed { what, source: std::io::Error::other(error) };
    }
    // The launcher's standard streams too, unless they are given.
    if let Err(source) = clone::close_on_exec_from(0) {
        return Failed { what, source };
    }
    Failed { what, source: command.exec() }
}

/// Tells the launcher what was refused, over the pipe that closes when the program begins.
pub(crate) fn tell(refusal: &Refusal, pipe: OwnedFd) {
    // Without a reader nobody wants to know.
    if let Ok(text) = serde_json::to_vec(refusal) {
        File::from(pipe).write_all(&text).ok();
    }
}
