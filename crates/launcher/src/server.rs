//! The launcher process: takes jobs from its standard input, a socket, until the daemon closes it.

use std::fs::File;
use std::io::{self, Read as _};
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::path::{Path, PathBuf};
use std::process::ExitCode;

use forkd_sys::clone::{self, Namespaces};
use forkd_sys::{packet, pagemap, user_namespace};
use rustix::fs::{Gid, Mode};
use rustix::pipe::{PipeFlags, pipe_with};
use rustix::process::Pid;

use crate::job::{Answer, Job, OwnIds, PACKET_BYTES_MAX, Refusal, Request, Setup, Step};
use crate::root::{self, Failed, failed};
use crate::standing::Standing;
use crate::steps;
use crate::subordinate::{SubordinateIds, is_mapped};
use crate::without::Without;

/// After the standard streams, of which the first is the socket.
const FIRST_FD: u32 = 3;

/// Serves one daemon. With the arguments `--without STEP`, a step is left out, or a filter that the
/// program sets: for tests, which show that each of them is needed. No daemon gives any.
#[must_use]
pub fn run(arguments: impl Iterator<Item = String>) -> ExitCode {
    let input = io::stdin();
    let served = Without::parse(arguments)
        .and_then(|without| clone::close_on_exec_from(FIRST_FD).map(|()| without))
        .and_then(|without| serve(input.as_fd(), &without));
    match served {
        Ok(()) => ExitCode::SUCCESS,
        Err(error) => {
            // Who starts it by hand is told what it is.
            let mut words = io::stderr();
            let _told = io::Write::write_fmt(
                &mut words,
                format_args!(
                    "forkd-launcher: the daemon starts it; its input is a socket: {error}\n"
                ),
            );
            ExitCode::FAILURE
        }
    }
}

fn serve(socket: BorrowedFd<'_>, without: &Without) -> io::Result<()> {
    let mut buffer = vec![0; PACKET_BYTES_MAX];
    let mut root: Option<PathBuf> = None;
    loop {
        let (bytes, fds) = packet::receive(socket, &mut buffer)?;
        if bytes == 0 {
            return Ok(());
        }
        let mut opened: Option<File> = None;
        let answer = match (serde_json::from_slice(&buffer[..bytes])?, &root) {
            (Request::Setup { setup, subordinate }, None) => {
                match get_ready(&setup, subordinate, || be_mapped(socket)) {
                    Ok(own_ids) => {
                        root = Some(setup.root);
                        Answer::Ready { own_ids }
                    }
                    Err(failed) => refused(None, failed),
                }
            }
            (Request::Start(mut job), Some(root)) => {
                without.take_from(&mut job);
                start(&job, fds, root, without)
            }
            (Request::Lend { group, mode }, Some(_)) => match lend(&fds, group, mode) {
                Ok(()) => Answer::Done,
                Err(failed) => refused(None, failed),
            },
            (Request::OpenPageTables { pid }, None) => match open_page_tables(&fds, pid) {
                Ok(file) => {
                    opened = Some(file);
                    Answer::Done
                }
                Err(failed) => refused(None, failed),
            },
            _ => return Err(io::ErrorKind::InvalidInput.into()),
        };
        let opened: Vec<BorrowedFd<'_>> = opened.iter().map(AsFd::as_fd).collect();
        packet::send(socket, &serde_json::to_vec(&answer)?, &opened)?;
    }
}

/// Has the daemon write the map of the user namespace that this process has just made: programs
/// that can are of no use within.
fn be_mapped(socket: BorrowedFd<'_>) -> io::Result<()> {
    packet::send(socket, &serde_json::to_vec(&Answer::MapIds)?, &[])?;
    let mut buffer = [0; 64];
    let (bytes, _) = packet::receive(socket, &mut buffer)?;
    match serde_json::from_slice(&buffer[..bytes])? {
        Request::Mapped => Ok(()),
        _ => Err(io::ErrorKind::InvalidInput.into()),
    }
}

/// Lets a group use a file of the daemon's. The owner stays the same, who alone may change what
/// others may do.
fn lend(fds: &[OwnedFd], group: u32, mode: u32) -> Result<(), Failed> {
    let what = || format!("lend a file to group {group}");
    let [file] = fds else { return Err(no_file(what())) };
    rustix::fs::fchown(file, None, Some(Gid::from_raw(group))).map_err(failed(what()))?;
    rustix::fs::fchmod(file, Mode::from_raw_mode(mode)).map_err(failed(what()))
}

/// They belong to a user that the daemon is not. This process may open them where the daemon's user
/// owns the namespace.
fn open_page_tables(fds: &[OwnedFd], pid: i32) -> Result<File, Failed> {
    let what = || format!("open the page tables of process {pid}");
    let ([namespace], Some(pid)) = (fds, Pid::from_raw(pid)) else { return Err(no_file(what())) };
    user_namespace::enter(namespace).map_err(failed("enter a user namespace"))?;
    pagemap::page_tables(pid).map_err(failed(what()))
}

fn no_file(what: String) -> Failed {
    Failed { what, source: io::ErrorKind::InvalidInput.into() }
}

fn refused(step: Option<Step>, failed: Failed) -> Answer {
    let Failed { what, source } = failed;
    Answer::Refused(Refusal { step, what, errno: source.raw_os_error().unwrap_or(0), ended: None })
}

/// Enters a mount namespace and builds the root in it; without privileges, in a user namespace in
/// which this user has them. Tells which ids of their own programs can have.
fn get_ready(
    setup: &Setup,
    subordinate: Option<SubordinateIds>,
    be_mapped: impl FnOnce() -> io::Result<()>,
) -> Result<OwnIds, Failed> {
    let own_ids = match (Standing::of_process(), subordinate) {
        (Standing::Privileged, _) => OwnIds::Any,
        (_, Some(ids)) => OwnIds::Subordinate(ids),
        (_, None) => OwnIds::None,
    };
    if own_ids == OwnIds::Any {
        clone::unshare(Namespaces::NEWNS).map_err(failed("create a mount namespace"))?;
    } else {
        // Read before: within, nobody has a number until there is a map.
        let (uid, gid) = (rustix::process::geteuid(), rustix::process::getegid());
        clone::unshare(Namespaces::NEWUSER | Namespaces::NEWNS)
            .map_err(failed("create a user namespace"))?;
        match own_ids {
            OwnIds::Subordinate(ids) => {
                be_mapped().map_err(failed("have ids mapped"))?;
                if !is_mapped(ids) {
                    return Err(no_file("have ids mapped".to_owned()));
                }
            }
            OwnIds::None | OwnIds::Any => map_oneself(uid.as_raw(), gid.as_raw())?,
        }
    }
    rustix::process::umask(Mode::from_raw_mode(0o022));
    root::build(setup)?;
    rustix::process::umask(Mode::from_raw_mode(0o077));
    Ok(own_ids)
}

fn map_oneself(uid: u32, gid: u32) -> Result<(), Failed> {
    let write = |file: &str, text: String| {
        std::fs::write(file, text).map_err(failed(format!("write `{file}`")))
    };
    write("/proc/self/setgroups", "deny".to_owned())?;
    write("/proc/self/uid_map", format!("{uid} {uid} 1"))?;
    write("/proc/self/gid_map", format!("{gid} {gid} 1"))
}

/// Starts a program and waits until it begins.
fn start(job: &Job, fds: Vec<OwnedFd>, root: &Path, without: &Without) -> Answer {
    let begun = (|| {
        let (reader, writer) = pipe_with(PipeFlags::CLOEXEC).map_err(failed("make a pipe"))?;
        let mut fds: Vec<Option<OwnedFd>> = fds.into_iter().map(Some).collect();
        let namespaces = steps::namespaces(job, without);
        let mut pipe = Some(writer);
        let pid = clone::start_sibling(namespaces, || {
            let refusal = steps::take(job, &mut fds, root, without);
            if let Some(pipe) = pipe.take() {
                steps::tell(&refusal, pipe);
            }
            1
        })
        .map_err(failed("create namespaces"))?;
        drop(pipe);
        let mut refusal = Vec::new();
        File::from(reader).read_to_end(&mut refusal).map_err(failed("read a pipe"))?;
        Ok::<_, Failed>((pid, refusal))
    })();
    match begun {
        Ok((pid, refusal)) if refusal.is_empty() => {
            Answer::Started { pid: pid.as_raw_nonzero().get() }
        }
        Ok((pid, refusal)) => match serde_json::from_slice(&refusal) {
            Ok(refusal) => {
                Answer::Refused(Refusal { ended: Some(pid.as_raw_nonzero().get()), ..refusal })
            }
            Err(error) => {
                refused(None, Failed { what: "start a process".to_owned(), source: error.into() })
            }
        },
        Err(failed) => refused(Some(Step::Namespaces), failed),
    }
}
