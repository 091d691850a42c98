//! The launcher process: takes jobs from its standard input, a socket, until the daemon closes it.

use std::fs::File;
use std::io::{self, Read as _};
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::path::{Path, PathBuf};
use std::process::ExitCode;

use forkd_sys::clone::{self, Namespaces};
use forkd_sys::packet;
use rustix::pipe::{PipeFlags, pipe_with};

use crate::job::{Answer, Job, PACKET_BYTES_MAX, Refusal, Request, Setup, Step};
use crate::root::{self, Failed, failed};
use crate::standing::Standing;
use crate::steps;
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
        let answer = match (serde_json::from_slice(&buffer[..bytes])?, &root) {
            (Request::Setup(setup), None) => match get_ready(&setup) {
                Ok(own_ids) => {
                    root = Some(setup.root);
                    Answer::Ready { own_ids }
                }
                Err(Failed { what, source }) => refused(None, what, &source),
            },
            (Request::Start(mut job), Some(root)) => {
                without.take_from(&mut job);
                start(&job, fds, root, without)
            }
            _ => return Err(io::ErrorKind::InvalidInput.into()),
        };
        packet::send(socket, &serde_json::to_vec(&answer)?, &[])?;
    }
}

fn refused(step: Option<Step>, what: String, source: &io::Error) -> Answer {
    Answer::Refused(Refusal { step, what, errno: source.raw_os_error().unwrap_or(0), ended: None })
}

/// Enters a mount namespace and builds the root in it; without privileges, in a user namespace in
/// which this user has them. Tells whether programs can have ids of their own.
fn get_ready(setup: &Setup) -> Result<bool, Failed> {
    let privileged = Standing::of_process() == Standing::Privileged;
    if privileged {
        clone::unshare(Namespaces::NEWNS).map_err(failed("create a mount namespace"))?;
    } else {
        let (uid, gid) = (rustix::process::geteuid(), rustix::process::getegid());
        clone::unshare(Namespaces::NEWUSER | Namespaces::NEWNS)
            .map_err(failed("create a user namespace"))?;
        let write = |file: &str, text: String| {
            std::fs::write(file, text).map_err(failed(format!("write `{file}`")))
        };
        write("/proc/self/setgroups", "deny".to_owned())?;
        write("/proc/self/uid_map", format!("{0} {0} 1", uid.as_raw()))?;
        write("/proc/self/gid_map", format!("{0} {0} 1", gid.as_raw()))?;
    }
    rustix::process::umask(rustix::fs::Mode::from_raw_mode(0o022));
    root::build(setup)?;
    rustix::process::umask(rustix::fs::Mode::from_raw_mode(0o077));
    Ok(privileged)
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
            Err(error) => refused(None, "start a process".to_owned(), &error.into()),
        },
        Err(Failed { what, source }) => refused(Some(Step::Namespaces), what, &source),
    }
}
