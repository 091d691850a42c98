//! What a VMM that was taken over would try, tried by the library in the real VMM: for tests, which
//! ask for it over the library's own socket.
//!
//! A question is a line `name argument`; the answer is `ok` with what was found, or `refused` with
//! the error. Never part of a library that is shipped.

use std::fs::{self, File, OpenOptions};
use std::io::{self, Write as _};
use std::net::TcpStream;
use std::os::fd::{AsRawFd as _, BorrowedFd, OwnedFd};
use std::os::linux::net::SocketAddrExt as _;
use std::os::unix::fs::{FileExt as _, PermissionsExt as _};
use std::os::unix::net::{SocketAddr, UnixStream};
use std::process::Command;
use std::sync::{Mutex, PoisonError};

use forkd_sys::remote::RemoteMemory;
use rustix::process::{Pid, Signal};

/// How a question begins.
const MARK: &[u8] = b"probe ";
/// Threads that are asked for at most.
const THREADS_MAX: usize = 2000;

/// A layer's descriptor, which a hostile VMM would keep.
static LAYER: Mutex<Option<OwnedFd>> = Mutex::new(None);

/// Keeps the descriptor of a layer that is being mapped.
pub(crate) fn keep_layer(file: BorrowedFd<'_>) {
    *LAYER.lock().unwrap_or_else(PoisonError::into_inner) = file.try_clone_to_owned().ok();
}

/// The answer, if the packet is a question.
pub(crate) fn answer(packet: &[u8]) -> Option<String> {
    let question = std::str::from_utf8(packet.strip_prefix(MARK)?).ok()?;
    let (name, argument) = question.split_once(' ').unwrap_or((question, ""));
    Some(match ask(name, argument) {
        Ok(found) => format!("ok {found}"),
        Err(error) => format!("refused {error}"),
    })
}

fn ask(name: &str, argument: &str) -> io::Result<String> {
    let done = |_| String::new();
    match name {
        "connect" => UnixStream::connect(argument).map(drop).map(done),
        "connect_abstract" => {
            let address = SocketAddr::from_abstract_name(argument)?;
            UnixStream::connect_addr(&address).map(drop).map(done)
        }
        "connect_tcp" => TcpStream::connect(argument).map(drop).map(done),
        "read" => fs::read(argument).map(|bytes| bytes.len().to_string()),
        "open_for_writing" => OpenOptions::new().write(true).open(argument).map(drop).map(done),
        "create" => File::create(argument).map(drop).map(done),
        "list" => {
            let entries = fs::read_dir(argument)?;
            let mut names: Vec<_> =
                entries.flatten().map(|e| e.file_name().to_string_lossy().into_owned()).collect();
            names.sort();
            Ok(names.join(" "))
        }
        "host_name" => Ok(rustix::system::uname().nodename().to_string_lossy().into_owned()),
        "read_memory" => {
            let (pid, address) = argument.split_once(' ').ok_or(io::ErrorKind::InvalidInput)?;
            let memory = RemoteMemory::of(process(pid)?);
            let address = address.parse().map_err(io::Error::other)?;
            memory.read(address, &mut [0; 16]).map(done)
        }
        "signal" => {
            let pid = process(argument)?;
            Ok(rustix::process::kill_process(pid, Signal::CONT).map(done)?)
        }
        "execute" => Command::new(argument).status().map(|status| status.to_string()),
        "system_call" => system_call(argument).map(done),
        "threads" => Ok(threads().to_string()),
        "spin" => spin(argument).map(done),
        "take_memory" => take_memory(argument).map(done),
        "extend" => extend(argument).map(done),
        "layer_mode" => layer(|file| file.set_permissions(fs::Permissions::from_mode(0o666))),
        "layer_write" => layer(|file| file.write_all_at(b"torn", 0)),
        "layer_reopen" => layer(|file| {
            let path = format!("/proc/self/fd/{}", file.as_raw_fd());
            OpenOptions::new().write(true).open(path)?.write_all(b"torn")
        }),
        _ => Err(io::Error::other("no such probe")),
    }
}

fn process(text: &str) -> io::Result<Pid> {
    text.parse().ok().and_then(Pid::from_raw).ok_or_else(|| io::ErrorKind::InvalidInput.into())
}

fn layer(attempt: impl FnOnce(&File) -> io::Result<()>) -> io::Result<String> {
    let layer = LAYER.lock().unwrap_or_else(PoisonError::into_inner);
    let file = layer.as_ref().ok_or(io::ErrorKind::NotFound)?.try_clone()?;
    attempt(&File::from(file)).map(|()| String::new())
}

/// Makes a system call with arguments that it cannot do anything with. Succeeds if it was looked at
/// at all.
fn system_call(number: &str) -> io::Result<()> {
    let number: libc::c_long = number.parse().map_err(io::Error::other)?;
    // SAFETY: with null pointers and -1 for descriptors the kernel refuses what it looks at.
    let result = unsafe { libc::syscall(number, -1, 0, 0, 0, 0, 0) };
    let error = io::Error::last_os_error();
    if result == -1 && error.raw_os_error() == Some(libc::EPERM) { Err(error) } else { Ok(()) }
}

/// Starts so many threads that never rest.
fn spin(count: &str) -> io::Result<()> {
    for _ in 0..number(count)? {
        let small = std::thread::Builder::new().stack_size(64 << 10);
        small.spawn(|| {
            loop {
                std::hint::spin_loop();
            }
        })?;
    }
    Ok(())
}

/// Uses so many MiB of memory, for good.
fn take_memory(mebibytes: &str) -> io::Result<()> {
    let bytes = vec![1u8; number(mebibytes)? << 20];
    std::mem::forget(bytes);
    Ok(())
}

/// Writes the byte of a file with which it is so many MiB long.
fn extend(argument: &str) -> io::Result<()> {
    let (path, mebibytes) = argument.split_once(' ').ok_or(io::ErrorKind::InvalidInput)?;
    let file = OpenOptions::new().write(true).open(path)?;
    file.write_all_at(b"x", ((number(mebibytes)? as u64) << 20) - 1)
}

fn number(text: &str) -> io::Result<usize> {
    text.parse().map_err(io::Error::other)
}

/// How many threads can be made.
fn threads() -> usize {
    let (stop, wait) = std::sync::mpsc::channel::<()>();
    let wait = std::sync::Arc::new(Mutex::new(wait));
    let begin = || {
        let wait = std::sync::Arc::clone(&wait);
        let small = std::thread::Builder::new().stack_size(64 << 10);
        small.spawn(move || wait.lock().map(|wait| wait.recv().ok()).ok().flatten())
    };
    let made: Vec<_> = (0..THREADS_MAX).map_while(|_| begin().ok()).collect();
    drop(stop);
    let count = made.len();
    made.into_iter().for_each(|thread| drop(thread.join()));
    count
}
