//! The library that is preloaded into the VMM process. It does what only that process can do:
//!
//! 1. create a userfaultfd (it watches the address space of its creator) and pass it out;
//! 2. map file ranges copy-on-write at fixed addresses over guest RAM;
//! 3. filter the system calls of a confined VMM, once it is loaded and before it has read anything;
//! 4. allow the daemon to read the memory of a VMM that is not confined where Yama would forbid it.
//!
//! It listens on a socket that the daemon made before it started the VMM; its number is in the
//! environment. Without that variable the library does nothing. It serves one connection after the
//! other for as long as the VMM lives, so a restarted daemon can connect again.
//!
//! Guarantees: a malformed request gets `EBADMSG` and changes nothing; an error of the kernel is
//! passed on; no request makes the VMM exit; a VMM that is to be confined and cannot be does not
//! begin.
//!
//! Does not do: decide anything. Addresses come from the daemon, which owns the VMM.

mod filter;
#[cfg(feature = "probe")]
mod probe;

use std::os::fd::{AsFd, BorrowedFd, FromRawFd, OwnedFd, RawFd};

use forkd_sys::shim_wire::{self, Mapping, Operation};
use forkd_sys::uffd;
use rustix::io::Errno;
use rustix::mm::{MapFlags, ProtFlags};
use rustix::net::{
    RecvAncillaryBuffer, RecvAncillaryMessage, RecvFlags, SendAncillaryBuffer,
    SendAncillaryMessage, SendFlags,
};

/// The exit code of a VMM that could not be confined.
const FAILURE: i32 = 1;

/// Runs when the dynamic linker loads the library, before the VMM's `main`.
// JUSTIFICATION: this is how a preloaded library gets control.
// SAFETY: entries of `.init_array` are called once, in order, with the C calling convention; the
// function has that convention and ignores the arguments that glibc passes.
#[used]
#[unsafe(link_section = ".init_array")]
static CONSTRUCTOR: extern "C" fn() = start;

extern "C" fn start() {
    let Some(listener) = listener_from_environment() else { return };
    spawn_without_signals(listener);
    if std::env::var_os(shim_wire::FILTER_VARIABLE).is_none() {
        // SAFETY: prctl with PR_SET_PTRACER takes two integers and touches no memory. On a kernel
        // without Yama it fails, and then nothing needs to be allowed.
        unsafe { libc::prctl(libc::PR_SET_PTRACER, libc::PR_SET_PTRACER_ANY, 0, 0, 0) };
        return;
    }
    if let Err(error) = filter::apply() {
        eprintln!("forkd-shim: system calls cannot be filtered: {error}");
        std::process::exit(FAILURE);
    }
}

fn listener_from_environment() -> Option<OwnedFd> {
    let number: RawFd = std::env::var(shim_wire::LISTEN_FD_VARIABLE).ok()?.parse().ok()?;
    // SAFETY: the daemon passes this descriptor to this process for this library; nothing else in
    // the process knows its number, so we are its only owner. A wrong number fails at `accept`.
    let listener = (number > 2).then(|| unsafe { OwnedFd::from_raw_fd(number) })?;
    rustix::io::fcntl_setfd(&listener, rustix::io::FdFlags::CLOEXEC).ok()?;
    Some(listener)
}

/// Starts the serving thread with every signal blocked: signals are the VMM's business, and one
/// that is delivered to this thread would not reach its own.
fn spawn_without_signals(listener: OwnedFd) {
    // SAFETY: both sets are plain data that the calls fill completely before they are read, and
    // changing the mask of the calling thread affects nothing else.
    unsafe {
        let mut all: libc::sigset_t = std::mem::zeroed();
        let mut before: libc::sigset_t = std::mem::zeroed();
        libc::sigfillset(&raw mut all);
        libc::pthread_sigmask(libc::SIG_SETMASK, &raw const all, &raw mut before);
        // A failed start shows to the daemon: its first request is never answered.
        drop(std::thread::Builder::new().name("forkd-shim".into()).spawn(move || serve(&listener)));
        libc::pthread_sigmask(libc::SIG_SETMASK, &raw const before, std::ptr::null_mut());
    }
}

fn serve(listener: &OwnedFd) {
    loop {
        match rustix::net::accept_with(listener, rustix::net::SocketFlags::CLOEXEC) {
            // Tests connect beside the daemon.
            #[cfg(feature = "probe")]
            Ok(connection) => drop(std::thread::spawn(move || serve_connection(&connection))),
            #[cfg(not(feature = "probe"))]
            Ok(connection) => serve_connection(&connection),
            Err(Errno::INTR | Errno::CONNABORTED) => {}
            Err(_) => return,
        }
    }
}

fn serve_connection(connection: &OwnedFd) {
    let mut packet = vec![0u8; shim_wire::REQUEST_BYTES_MAX];
    while let Ok((bytes, attached)) = receive(connection, &mut packet) {
        if bytes == 0 {
            return;
        }
        #[cfg(feature = "probe")]
        if let Some(answer) = probe::answer(&packet[..bytes]) {
            let told = rustix::net::send(connection, answer.as_bytes(), SendFlags::NOSIGNAL);
            if told.is_err() {
                return;
            }
            continue;
        }
        let result = answer(&packet[..bytes], attached.as_ref().map(AsFd::as_fd));
        if reply(connection, result).is_err() {
            return;
        }
    }
}

/// One packet and the descriptor that came with it.
fn receive(connection: &OwnedFd, packet: &mut [u8]) -> Result<(usize, Option<OwnedFd>), Errno> {
    let mut space = [std::mem::MaybeUninit::uninit(); rustix::cmsg_space!(ScmRights(1))];
    let mut ancillary = RecvAncillaryBuffer::new(&mut space);
    let mut buffers = [std::io::IoSliceMut::new(packet)];
    let received =
        rustix::net::recvmsg(connection, &mut buffers, &mut ancillary, RecvFlags::CMSG_CLOEXEC)?;
    let attached = ancillary.drain().find_map(|message| match message {
        RecvAncillaryMessage::ScmRights(mut fds) => fds.next(),
        _ => None,
    });
    Ok((received.bytes, attached))
}

fn answer(packet: &[u8], attached: Option<BorrowedFd<'_>>) -> Result<Option<OwnedFd>, Errno> {
    match (shim_wire::decode_request(packet), attached) {
        (Some((Operation::Userfaultfd, _)), device) => {
            device.map_or_else(uffd::create, uffd::create_by).map(Some)
        }
        (Some((Operation::Map, mappings)), Some(file)) => {
            #[cfg(feature = "probe")]
            probe::keep_layer(file);
            mappings.iter().try_for_each(|mapping| map_over(file, *mapping))?;
            Ok(None)
        }
        _ => Err(Errno::BADMSG),
    }
}

fn reply(connection: &OwnedFd, result: Result<Option<OwnedFd>, Errno>) -> Result<(), Errno> {
    let (number, created) = match result {
        Ok(created) => (0, created),
        Err(errno) => (errno.raw_os_error(), None),
    };
    let bytes = i32::to_ne_bytes(number);
    let mut space = [std::mem::MaybeUninit::uninit(); rustix::cmsg_space!(ScmRights(1))];
    let mut ancillary = SendAncillaryBuffer::new(&mut space);
    let created = created.as_ref().map(|fd| [fd.as_fd()]);
    if let Some(created) = &created {
        ancillary.push(SendAncillaryMessage::ScmRights(created));
    }
    let bytes = [std::io::IoSlice::new(&bytes)];
    rustix::net::sendmsg(connection, &bytes, &mut ancillary, SendFlags::NOSIGNAL).map(|_| ())
}

fn map_over(file: BorrowedFd<'_>, mapping: Mapping) -> Result<(), Errno> {
    let address = usize::try_from(mapping.address).map_err(|_| Errno::INVAL)?;
    let length = usize::try_from(mapping.length).map_err(|_| Errno::INVAL)?;
    if address == 0 || length == 0 || address % 4096 != 0 {
        return Err(Errno::INVAL);
    }
    // JUSTIFICATION: guest RAM must appear at the address where the VMM already has it.
    // SAFETY: the daemon asks for this only inside the VMM's guest RAM block, while no vCPU runs.
    // That memory is never the target of a Rust reference here, and to QEMU its content is data
    // that the guest may change at any time.
    let mapped = unsafe {
        rustix::mm::mmap(
            std::ptr::without_provenance_mut(address),
            length,
            ProtFlags::READ | ProtFlags::WRITE,
            MapFlags::PRIVATE | MapFlags::FIXED | MapFlags::NORESERVE,
            file,
            mapping.file_offset,
        )?
    };
    // Guest RAM does not belong into a core dump of the VMM; failing to say so harms nothing.
    // SAFETY: the range was mapped just now, and the advice does not change its content.
    unsafe { rustix::mm::madvise(mapped, length, rustix::mm::Advice::LinuxDontDump) }.ok();
    Ok(())
}
