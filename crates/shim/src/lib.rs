//! The library that is preloaded into the VMM process. It does what only that process can do:
//!
//! 1. create a userfaultfd (it watches the address space of its creator) and pass it out;
//! 2. map file ranges copy-on-write, and ranges of zeros, at fixed addresses over guest RAM;
//! 3. filter the system calls of a confined VMM, once it is loaded and before it has read anything;
//! 4. hold the far end of the network device and pass it out, so that a link lives exactly as
//!    long as its VMM;
//! 5. keep the vCPUs of a child from running guest code until the VMM has read its identity, and
//!    all but the first until the guest has taken it;
//! 6. allow the daemon to read the memory of a VMM that is not confined where Yama would forbid it.
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
mod vcpus;

use std::os::fd::{AsFd, BorrowedFd, FromRawFd, OwnedFd, RawFd};
use std::sync::Arc;

use forkd_sys::shim_wire::{self, Mapping, Request};
use forkd_sys::{packet, uffd};
use rustix::io::Errno;
use rustix::mm::{MapFlags, ProtFlags};

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
    let listener = from_environment(shim_wire::LISTEN_FD_VARIABLE);
    let is_vmm = listener.is_some();
    let link = from_environment(shim_wire::LINK_FD_VARIABLE);
    if let Some(listener) = listener {
        save_memory();
        spawn_without_signals(Serving { listener, link });
    }
    if std::env::var_os(shim_wire::FILTER_VARIABLE).is_none() {
        if !is_vmm {
            return;
        }
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

/// Before the VMM allocates anything: of every page that it has, each sandbox has its own.
fn save_memory() {
    // QEMU asks for huge pages for translated code, of which a child may need little. Guest RAM
    // loses nothing: pages that a guest writes are copied one by one. Where this fails, the VMM
    // takes more memory and works.
    rustix::thread::disable_transparent_huge_pages(true).ok();
    // SAFETY: sets a number of the C library's, before any other thread runs.
    unsafe { libc::mallopt(libc::M_ARENA_MAX, 1) };
}

/// What the library has for as long as the VMM lives.
struct Serving {
    listener: OwnedFd,
    /// The far end of the network device, if there is one.
    link: Option<OwnedFd>,
}

fn from_environment(variable: &str) -> Option<OwnedFd> {
    let number: RawFd = std::env::var(variable).ok()?.parse().ok()?;
    // SAFETY: the daemon passes this descriptor to this process for this library; nothing else in
    // the process knows its number, so we are its only owner. A wrong number fails where it is
    // used.
    let descriptor = (number > 2).then(|| unsafe { OwnedFd::from_raw_fd(number) })?;
    rustix::io::fcntl_setfd(&descriptor, rustix::io::FdFlags::CLOEXEC).ok()?;
    Some(descriptor)
}

/// Starts the serving thread with every signal blocked: signals are the VMM's business, and one
/// that is delivered to this thread would not reach its own.
fn spawn_without_signals(serving: Serving) {
    // SAFETY: both sets are plain data that the calls fill completely before they are read, and
    // changing the mask of the calling thread affects nothing else.
    unsafe {
        let mut all: libc::sigset_t = std::mem::zeroed();
        let mut before: libc::sigset_t = std::mem::zeroed();
        libc::sigfillset(&raw mut all);
        libc::pthread_sigmask(libc::SIG_SETMASK, &raw const all, &raw mut before);
        // A failed start shows to the daemon: its first request is never answered.
        drop(std::thread::Builder::new().name("forkd-shim".into()).spawn(move || serve(serving)));
        libc::pthread_sigmask(libc::SIG_SETMASK, &raw const before, std::ptr::null_mut());
    }
}

fn serve(serving: Serving) {
    let serving = Arc::new(serving);
    loop {
        let flags = rustix::net::SocketFlags::CLOEXEC;
        match rustix::net::accept_with(&serving.listener, flags) {
            // Tests connect beside the daemon.
            #[cfg(feature = "probe")]
            Ok(connection) => {
                let serving = Arc::clone(&serving);
                drop(std::thread::spawn(move || serving.serve(&connection)));
            }
            #[cfg(not(feature = "probe"))]
            Ok(connection) => serving.serve(&connection),
            Err(Errno::INTR | Errno::CONNABORTED) => {}
            Err(_) => return,
        }
    }
}

impl Serving {
    fn serve(&self, connection: &OwnedFd) {
        let mut buffer = vec![0u8; shim_wire::REQUEST_BYTES_MAX];
        loop {
            let answered = match packet::receive(connection, &mut buffer) {
                Ok((0, _)) => return,
                Ok((bytes, attached)) => {
                    self.serve_packet(connection, &buffer[..bytes], attached.first())
                }
                Err(Errno::MSGSIZE) => reply(connection, Err(Errno::BADMSG)),
                Err(errno) => Err(errno),
            };
            if answered.is_err() {
                return;
            }
        }
    }

    fn serve_packet(
        &self,
        connection: &OwnedFd,
        packet: &[u8],
        attached: Option<&OwnedFd>,
    ) -> Result<(), Errno> {
        #[cfg(feature = "probe")]
        if let Some(answer) = probe::answer(packet) {
            return packet::send(connection, answer.as_bytes(), &[]);
        }
        reply(connection, self.answer(packet, attached.map(AsFd::as_fd)))
    }

    fn answer(
        &self,
        packet: &[u8],
        attached: Option<BorrowedFd<'_>>,
    ) -> Result<Option<OwnedFd>, Errno> {
        match (shim_wire::decode_request(packet), attached) {
            (Some(Request::Userfaultfd), device) => {
                device.map_or_else(uffd::create, uffd::create_by).map(Some)
            }
            (Some(Request::Map(mappings)), Some(file)) => {
                #[cfg(feature = "probe")]
                probe::keep_layer(file);
                mappings.iter().try_for_each(|mapping| map_over(Some(file), *mapping))?;
                Ok(None)
            }
            (Some(Request::MapZeros(mappings)), None) => {
                mappings.iter().try_for_each(|mapping| map_over(None, *mapping))?;
                Ok(None)
            }
            (Some(Request::NetworkLink), None) => {
                let link = self.link.as_ref().ok_or(Errno::NODEV)?;
                rustix::io::fcntl_dupfd_cloexec(link, 0).map(Some)
            }
            (Some(Request::HoldVcpus(threads)), None) => vcpus::hold(&threads).map(|()| None),
            (Some(Request::ReleaseVcpus), None) => vcpus::release().map(|()| None),
            (Some(Request::ReleaseVcpu(thread)), None) => vcpus::release_one(thread).map(|()| None),
            _ => Err(Errno::BADMSG),
        }
    }
}

fn reply(connection: &OwnedFd, result: Result<Option<OwnedFd>, Errno>) -> Result<(), Errno> {
    let (number, created) = match result {
        Ok(created) => (0, created),
        Err(errno) => (errno.raw_os_error(), None),
    };
    let created: Vec<_> = created.iter().map(AsFd::as_fd).collect();
    packet::send(connection, &i32::to_ne_bytes(number), &created)
}

/// Maps the file, or zeros if there is none.
fn map_over(file: Option<BorrowedFd<'_>>, mapping: Mapping) -> Result<(), Errno> {
    let address = usize::try_from(mapping.address).map_err(|_| Errno::INVAL)?;
    let length = usize::try_from(mapping.length).map_err(|_| Errno::INVAL)?;
    if address == 0 || length == 0 || address % 4096 != 0 {
        return Err(Errno::INVAL);
    }
    let at = std::ptr::without_provenance_mut(address);
    let protection = ProtFlags::READ | ProtFlags::WRITE;
    let flags = MapFlags::PRIVATE | MapFlags::FIXED | MapFlags::NORESERVE;
    // JUSTIFICATION: guest RAM must appear at the address where the VMM already has it.
    // SAFETY: the daemon asks for this only inside the VMM's guest RAM block, while no vCPU runs.
    // That memory is never the target of a Rust reference here, and to QEMU its content is data
    // that the guest may change at any time.
    let mapped = unsafe {
        match file {
            Some(file) => {
                rustix::mm::mmap(at, length, protection, flags, file, mapping.file_offset)?
            }
            None => rustix::mm::mmap_anonymous(at, length, protection, flags)?,
        }
    };
    // Guest RAM does not belong into a core dump of the VMM; failing to say so harms nothing.
    // SAFETY: the range was mapped just now, and the advice does not change its content.
    unsafe { rustix::mm::madvise(mapped, length, rustix::mm::Advice::LinuxDontDump) }.ok();
    Ok(())
}
