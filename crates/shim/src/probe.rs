//! What a VMM that was taken over would try, tried by the library in the real VMM: for tests, which
//! ask for it over the library's own socket.
//!
//! A question is a line `name argument`; the answer is `ok` with what was found, `refused` with the
//! error, or `ended` if a filter has ended the thread that tried. Never part of a library that is
//! shipped.

use std::fs::{self, File, OpenOptions};
use std::io;
use std::net::TcpStream;
use std::os::fd::{AsRawFd as _, BorrowedFd, OwnedFd, RawFd};
use std::os::linux::net::SocketAddrExt as _;
use std::os::unix::fs::{FileExt as _, MetadataExt as _, PermissionsExt as _};
use std::os::unix::net::{SocketAddr, UnixStream};
use std::process::Command;
use std::sync::{Mutex, PoisonError, mpsc};
use std::time::Duration;

use forkd_sys::remote::RemoteMemory;
use rustix::process::{Pid, Signal, WaitOptions};

/// How a question begins.
const MARK: &[u8] = b"probe ";
/// How often it is looked whether the thread that tries is still there.
const LOOK_EVERY: Duration = Duration::from_millis(20);
/// What is written where nothing may be written.
const TORN: &[u8] = b"torn";
/// Threads that are asked for at most.
const THREADS_MAX: usize = 2000;

/// Numbers of descriptors are smaller.
const DESCRIPTORS_MAX: RawFd = 1024;

/// A layer's descriptor, which a hostile VMM would keep.
static LAYER: Mutex<Option<OwnedFd>> = Mutex::new(None);

/// Keeps the descriptor of a layer that is being mapped.
pub(crate) fn keep_layer(file: BorrowedFd<'_>) {
    *LAYER.lock().unwrap_or_else(PoisonError::into_inner) = file.try_clone_to_owned().ok();
}

/// The answer, if the packet is a question.
pub(crate) fn answer(packet: &[u8]) -> Option<String> {
    let question = std::str::from_utf8(packet.strip_prefix(MARK)?).ok()?.to_owned();
    let (threads, begun) = mpsc::channel();
    let (answers, answered) = mpsc::channel();
    // A filter may end the thread that tries, and nothing of it is dropped then.
    std::thread::spawn(move || {
        threads.send(rustix::thread::gettid()).ok();
        let (name, argument) = question.split_once(' ').unwrap_or((&question, ""));
        answers.send(match ask(name, argument) {
            Ok(found) => format!("ok {found}"),
            Err(error) => format!("refused {error}"),
        })
    });
    let thread = begun.recv().ok()?;
    loop {
        match answered.recv_timeout(LOOK_EVERY) {
            Ok(answer) => return Some(answer),
            Err(_) if is_gone(thread) => {
                return Some(answered.try_recv().unwrap_or_else(|_| "ended".to_owned()));
            }
            Err(_) => {}
        }
    }
}

fn is_gone(thread: Pid) -> bool {
    let process = rustix::process::getpid().as_raw_nonzero().get();
    // SAFETY: signal 0 is sent to nobody; it only tells whether the thread is there.
    let found =
        unsafe { libc::syscall(libc::SYS_tgkill, process, thread.as_raw_nonzero().get(), 0) };
    found == -1
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
        "write_memory" => {
            let (pid, address) = argument.split_once(' ').ok_or(io::ErrorKind::InvalidInput)?;
            write_memory(process(pid)?, number(address)?).map(done)
        }
        "trace" => trace(process(argument)?).map(done),
        "signal" => {
            let pid = process(argument)?;
            Ok(rustix::process::kill_process(pid, Signal::CONT).map(done)?)
        }
        "execute" => Command::new(argument).status().map(|status| status.to_string()),
        "make_process" => make_process(argument).map(done),
        "system_call" => system_call(argument).map(done),
        "threads" => Ok(threads().to_string()),
        "spin" => spin(argument).map(done),
        "take_memory" => take_memory(argument).map(done),
        "extend" => extend(argument).map(done),
        "keep_writable" => keep_writable().map(|count| count.to_string()),
        "write_descriptors" => write_descriptors(argument).map(|count| count.to_string()),
        "layer_mode" => layer(|file| file.set_permissions(fs::Permissions::from_mode(0o666))),
        "layer_write" => layer(|file| file.write_all_at(TORN, 0)),
        "layer_reopen" => reopen_layer().map(done),
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

/// Opens the layer once more, for writing, and keeps that descriptor in the place of the first.
fn reopen_layer() -> io::Result<()> {
    let mut layer = LAYER.lock().unwrap_or_else(PoisonError::into_inner);
    let path =
        format!("/proc/self/fd/{}", layer.as_ref().ok_or(io::ErrorKind::NotFound)?.as_raw_fd());
    *layer = Some(OpenOptions::new().write(true).open(path)?.into());
    Ok(())
}

/// Copies of the descriptors of this process that are files open for writing.
fn writable() -> Vec<File> {
    let is_writable = |number: &RawFd| {
        // SAFETY: it only asks for flags; a number that means nothing is an error.
        let flags = unsafe { libc::fcntl(*number, libc::F_GETFL) };
        flags != -1 && flags & libc::O_ACCMODE != libc::O_RDONLY
    };
    // All of them first: a copy is one more.
    let numbers: Vec<RawFd> = (0..DESCRIPTORS_MAX).filter(is_writable).collect();
    let copies = numbers.into_iter().filter_map(|number| {
        // SAFETY: it was open just now, and what took its place meanwhile is a descriptor as well.
        let descriptor = unsafe { BorrowedFd::borrow_raw(number) };
        descriptor.try_clone_to_owned().ok().map(File::from)
    });
    copies.filter(|file| file.metadata().is_ok_and(|metadata| metadata.is_file())).collect()
}

/// Keeps a copy of each of them for good. Gives how many those are.
fn keep_writable() -> io::Result<usize> {
    let files = writable();
    let count = files.len();
    std::mem::forget(files);
    Ok(count)
}

/// Writes to the file with that inode through each of them, behind its end. Fails if none is of it.
fn write_descriptors(inode: &str) -> io::Result<usize> {
    let inode = number(inode)? as u64;
    let is_it = |file: &File| file.metadata().is_ok_and(|metadata| metadata.ino() == inode);
    let files: Vec<File> = writable().into_iter().filter(is_it).collect();
    for file in &files {
        file.write_all_at(TORN, file.metadata()?.len())?;
    }
    if files.is_empty() { Err(io::ErrorKind::NotFound.into()) } else { Ok(files.len()) }
}

/// Writes a few bytes into the memory of another process.
fn write_memory(pid: Pid, address: usize) -> io::Result<()> {
    let local = libc::iovec { iov_base: TORN.as_ptr().cast_mut().cast(), iov_len: TORN.len() };
    let at = std::ptr::without_provenance_mut(address);
    let remote = libc::iovec { iov_base: at, iov_len: TORN.len() };
    let pid = pid.as_raw_nonzero().get();
    // SAFETY: the kernel only reads what `local` describes; the remote address means something in
    // the other process alone, which the test offers for this.
    let written =
        unsafe { libc::process_vm_writev(pid, &raw const local, 1, &raw const remote, 1, 0) };
    if written == -1 { Err(io::Error::last_os_error()) } else { Ok(()) }
}

/// Begins to trace a process, stops it, and lets it go.
fn trace(pid: Pid) -> io::Result<()> {
    let request = |request: libc::c_uint| {
        let null = std::ptr::null_mut::<libc::c_void>();
        // SAFETY: none of these requests reads or writes memory of this process.
        let result = unsafe { libc::ptrace(request, pid.as_raw_nonzero().get(), null, null) };
        if result == -1 { Err(io::Error::last_os_error()) } else { Ok(()) }
    };
    request(libc::PTRACE_SEIZE)?;
    request(libc::PTRACE_INTERRUPT)?;
    // It is let go when it has stopped.
    rustix::process::waitpid(Some(pid), WaitOptions::empty())?;
    request(libc::PTRACE_DETACH)
}

/// Makes a process with this system call and these flags, if it takes any. The process ends at
/// once.
fn make_process(argument: &str) -> io::Result<()> {
    let (call, flags) = argument.split_once(' ').ok_or(io::ErrorKind::InvalidInput)?;
    let (call, flags) = (number(call)?, number(flags)?);
    let result: isize;
    // JUSTIFICATION: after `vfork` the child has its parent's stack until it ends, so it may not
    // even return from a function.
    // SAFETY: the child is told by a zero and ends within these instructions, which touch no
    // memory; for its parent this is a system call like others.
    unsafe {
        std::arch::asm!(
            "syscall",
            "test rax, rax",
            "jnz 2f",
            "mov eax, {exit}",
            "xor edi, edi",
            "syscall",
            "2:",
            exit = const libc::SYS_exit_group,
            inlateout("rax") call => result,
            inlateout("rdi") flags => _,
            in("rsi") 0,
            in("rdx") 0,
            in("r10") 0,
            in("r8") 0,
            lateout("rcx") _,
            lateout("r11") _,
        );
    }
    let result = i32::try_from(result).map_err(io::Error::other)?;
    match Pid::from_raw(result) {
        Some(pid) if result > 0 => {
            Ok(rustix::process::waitpid(Some(pid), WaitOptions::empty()).map(drop)?)
        }
        _ => Err(io::Error::from_raw_os_error(-result)),
    }
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
    let (stop, wait) = mpsc::channel::<()>();
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
