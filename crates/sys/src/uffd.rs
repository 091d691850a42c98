//! userfaultfd write protection.
//!
//! The `userfaultfd` crate needs libclang at build time and does not know the shared-memory
//! features, so the four calls that forkd uses are here. Numbers and layouts are those of
//! `include/uapi/linux/userfaultfd.h`.
//!
//! A [`Userfaultfd`] is made in the process whose memory it watches (the shim does that) and works
//! from the process that holds it: every ioctl acts on the creator's address space. Closing it
//! releases all protection and wakes every waiting thread.

use std::io;
use std::os::fd::{AsFd, AsRawFd, BorrowedFd, FromRawFd, OwnedFd};

use forkd_types::PAGE_BYTES;
use rustix::fs::{Mode, OFlags};
use rustix::io::Errno;
use rustix::mm::UserfaultfdFlags;

/// Kernel's `UFFD_API`.
const UFFD_API: u64 = 0xAA;
const UFFDIO_API: libc::c_ulong = 0xC018_AA3F;
const UFFDIO_REGISTER: libc::c_ulong = 0xC020_AA00;
const UFFDIO_WRITEPROTECT: libc::c_ulong = 0xC018_AA06;
const REGISTER_MODE_WP: u64 = 1 << 1;
const WRITEPROTECT_MODE_WP: u64 = 1 << 0;
const EVENT_PAGEFAULT: u8 = 0x12;
const PAGEFAULT_FLAG_WP: u64 = 1 << 1;

/// `UFFD_FEATURE_PAGEFAULT_FLAG_WP`: write-protect faults are reported (Linux 5.7).
pub const FEATURE_PAGEFAULT_FLAG_WP: u64 = 1 << 0;
/// `UFFD_FEATURE_WP_HUGETLBFS_SHMEM`: write protection works on shared memory (Linux 5.19).
pub const FEATURE_WP_SHMEM: u64 = 1 << 12;
/// `UFFD_FEATURE_WP_UNPOPULATED`: pages not yet present can be protected too (Linux 6.4).
pub const FEATURE_WP_UNPOPULATED: u64 = 1 << 13;

#[repr(C)]
struct UffdioApi {
    api: u64,
    features: u64,
    ioctls: u64,
}

#[repr(C)]
struct UffdioRegister {
    start: u64,
    length: u64,
    mode: u64,
    ioctls: u64,
}

#[repr(C)]
struct UffdioWriteprotect {
    start: u64,
    length: u64,
    mode: u64,
}

const _: () = assert!(size_of::<UffdioApi>() == 24);
const _: () = assert!(size_of::<UffdioRegister>() == 32);
const _: () = assert!(size_of::<UffdioWriteprotect>() == 24);

/// Bytes of one `struct uffd_msg`.
const MESSAGE_BYTES: usize = 32;
/// Messages fetched with one read.
const MESSAGES_PER_READ: usize = 128;

/// Why a userfaultfd cannot serve a live branch.
#[derive(Debug, thiserror::Error)]
pub enum UffdError {
    /// The kernel lacks a feature.
    #[error(
        "this kernel's userfaultfd cannot write-protect shared memory (needs Linux 5.19; offers \
         features {offered:#x})"
    )]
    MissingFeature {
        /// The features that the kernel offers.
        offered: u64,
    },
    /// A call failed.
    #[error("userfaultfd {call} failed")]
    Call {
        /// Which one.
        call: &'static str,
        /// The kernel's word.
        #[source]
        source: io::Error,
    },
}

/// `_IO(0xAA, 0)` on `/dev/userfaultfd`.
const USERFAULTFD_IOC_NEW: libc::c_ulong = 0xAA00;

/// Makes a userfaultfd over this process's memory that also sees faults taken in the kernel: KVM's
/// and those of system calls that write into guest RAM. The system call needs privilege or the
/// sysctl `vm.unprivileged_userfaultfd`; the device needs only its file permission.
///
/// # Errors
/// Why the system call was refused, when the device is refused too.
pub fn create() -> Result<OwnedFd, Errno> {
    let flags = UserfaultfdFlags::CLOEXEC | UserfaultfdFlags::NONBLOCK;
    // JUSTIFICATION: rustix's wrapper is unsafe as well, with the same reasoning.
    // SAFETY: the call only makes a descriptor; nothing is watched before `register`.
    let refused = match unsafe { rustix::mm::userfaultfd(flags) } {
        Ok(fd) => return Ok(fd),
        Err(errno) => errno,
    };
    let device = open_device().map_err(|_| refused)?;
    create_by(device.as_fd())
}

/// Opens `/dev/userfaultfd` (Linux 6.1).
///
/// # Errors
/// When it is not there, or this user may not open it.
pub fn open_device() -> Result<OwnedFd, Errno> {
    rustix::fs::open("/dev/userfaultfd", OFlags::RDWR | OFlags::CLOEXEC, Mode::empty())
}

/// Makes a userfaultfd over this process's memory, as [`create`] does, by an open
/// `/dev/userfaultfd`. Whoever opened it had to have the right to; this process need not.
///
/// # Errors
/// What the kernel says.
pub fn create_by(device: BorrowedFd<'_>) -> Result<OwnedFd, Errno> {
    let flags = UserfaultfdFlags::CLOEXEC | UserfaultfdFlags::NONBLOCK;
    // JUSTIFICATION: rustix does not know the device's request.
    // SAFETY: this request takes an integer argument and returns a new descriptor or -1.
    let made = unsafe { libc::ioctl(device.as_raw_fd(), USERFAULTFD_IOC_NEW, flags.bits()) };
    if made < 0 {
        return Err(Errno::from_io_error(&io::Error::last_os_error()).unwrap_or(Errno::IO));
    }
    // SAFETY: the kernel has just returned this descriptor to us; nobody else owns it.
    Ok(unsafe { OwnedFd::from_raw_fd(made) })
}

/// A userfaultfd, past its handshake, that delivers write faults.
#[derive(Debug)]
pub struct Userfaultfd {
    fd: OwnedFd,
    features: u64,
}

impl Userfaultfd {
    /// A userfaultfd over this process's own memory; for tests and for `doctor`.
    ///
    /// # Errors
    /// When the system does not permit it, or lacks a feature.
    pub fn for_this_process() -> Result<Self, UffdError> {
        let fd =
            create().map_err(|errno| UffdError::Call { call: "create", source: errno.into() })?;
        Self::handshake(fd)
    }

    /// Shakes hands on a fresh userfaultfd: write-protect faults and shared memory are demanded,
    /// unpopulated pages taken when they are to be had.
    ///
    /// # Errors
    /// [`UffdError::MissingFeature`] when the kernel cannot write-protect shared memory.
    pub fn handshake(fd: OwnedFd) -> Result<Self, UffdError> {
        let wanted = FEATURE_PAGEFAULT_FLAG_WP | FEATURE_WP_SHMEM;
        for features in [wanted | FEATURE_WP_UNPOPULATED, wanted] {
            let mut api = UffdioApi { api: UFFD_API, features, ioctls: 0 };
            match ioctl(fd.as_fd(), UFFDIO_API, &mut api) {
                Ok(()) => return Ok(Self { fd, features }),
                Err(error) if error.raw_os_error() == Some(libc::EINVAL) => {}
                Err(source) => return Err(UffdError::Call { call: "handshake", source }),
            }
        }
        let mut api = UffdioApi { api: UFFD_API, features: 0, ioctls: 0 };
        let offered = ioctl(fd.as_fd(), UFFDIO_API, &mut api).map(|()| api.features).unwrap_or(0);
        Err(UffdError::MissingFeature { offered })
    }

    /// Whether pages that are not present can be protected.
    #[must_use]
    pub fn protects_unpopulated(&self) -> bool {
        self.features & FEATURE_WP_UNPOPULATED != 0
    }

    /// Lets `[start, start + length)` of the watched process be write-protected.
    ///
    /// # Errors
    /// When part of the range is not mapped, or belongs to another userfaultfd.
    pub fn register(&self, start: u64, length: u64) -> Result<(), UffdError> {
        let mut request = UffdioRegister { start, length, mode: REGISTER_MODE_WP, ioctls: 0 };
        ioctl(self.fd.as_fd(), UFFDIO_REGISTER, &mut request)
            .map_err(|source| UffdError::Call { call: "register", source })
    }

    /// Write-protects a registered range: a thread that writes there waits until [`Self::release`].
    ///
    /// # Errors
    /// `ESRCH` when the process is gone.
    pub fn protect(&self, start: u64, length: u64) -> Result<(), UffdError> {
        self.write_protect(start, length, WRITEPROTECT_MODE_WP, "protect")
    }

    /// Clears the write protection of a range and wakes the threads that wait for it.
    ///
    /// # Errors
    /// `ESRCH` when the process is gone.
    pub fn release(&self, start: u64, length: u64) -> Result<(), UffdError> {
        self.write_protect(start, length, 0, "release")
    }

    fn write_protect(
        &self,
        start: u64,
        length: u64,
        mode: u64,
        call: &'static str,
    ) -> Result<(), UffdError> {
        let mut once = |start, length| loop {
            let mut request = UffdioWriteprotect { start, length, mode };
            match ioctl(self.fd.as_fd(), UFFDIO_WRITEPROTECT, &mut request) {
                // The address space is being changed (a mapping is replaced); the kernel asks to
                // try again, and doing the whole range again is harmless.
                Err(error) if error.raw_os_error() == Some(libc::EAGAIN) => {}
                other => return other,
            }
        };
        mapping_by_mapping(start, length, &mut once)
            .map_err(|source| UffdError::Call { call, source })
    }

    /// Appends the addresses of all waiting write faults to `addresses`, page-aligned.
    ///
    /// # Errors
    /// When the descriptor cannot be read.
    pub fn read_write_faults(&self, addresses: &mut Vec<u64>) -> Result<(), UffdError> {
        let mut buffer = [0u8; MESSAGE_BYTES * MESSAGES_PER_READ];
        loop {
            let got = match rustix::io::read(&self.fd, &mut buffer) {
                Ok(got) => got,
                Err(Errno::AGAIN) => return Ok(()),
                Err(Errno::INTR) => continue,
                Err(errno) => {
                    return Err(UffdError::Call { call: "read", source: errno.into() });
                }
            };
            for message in buffer[..got].chunks_exact(MESSAGE_BYTES) {
                addresses.extend(write_fault_address(message));
            }
            if got < buffer.len() {
                return Ok(());
            }
        }
    }
}

impl AsFd for Userfaultfd {
    fn as_fd(&self) -> BorrowedFd<'_> {
        self.fd.as_fd()
    }
}

/// The page address in one `struct uffd_msg`, if it tells of a write-protect fault.
fn write_fault_address(message: &[u8]) -> Option<u64> {
    let word =
        |at: usize| message.get(at..at + 8).and_then(|b| b.try_into().ok()).map(u64::from_ne_bytes);
    let (flags, address) = (word(8)?, word(16)?);
    (message[0] == EVENT_PAGEFAULT && flags & PAGEFAULT_FLAG_WP != 0).then_some(address & !0xFFF)
}

/// Makes a call for a range that may span several mappings. Before Linux 6.3 the kernel refuses
/// such a range with `ENOENT` and changes nothing; then each half is tried. Where nothing is
/// mapped, that is the error at the end.
fn mapping_by_mapping(
    start: u64,
    length: u64,
    once: &mut impl FnMut(u64, u64) -> io::Result<()>,
) -> io::Result<()> {
    match once(start, length) {
        Err(error) if error.raw_os_error() == Some(libc::ENOENT) && length > PAGE_BYTES => {
            let half = (length / 2).next_multiple_of(PAGE_BYTES);
            mapping_by_mapping(start, half, once)?;
            mapping_by_mapping(start + half, length - half, once)
        }
        other => other,
    }
}

fn ioctl<T>(fd: BorrowedFd<'_>, request: libc::c_ulong, argument: &mut T) -> io::Result<()> {
    // JUSTIFICATION: no crate offers these ioctls with the features that forkd needs.
    // SAFETY: the three request numbers used in this file take a pointer to the structure that the
    // callers pass (sizes asserted above), which the kernel reads and writes within its size; none
    // makes the kernel keep the pointer.
    let result = unsafe { libc::ioctl(fd.as_raw_fd(), request, std::ptr::from_mut(argument)) };
    if result == -1 { Err(io::Error::last_os_error()) } else { Ok(()) }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn request_numbers_are_those_of_the_kernel_header() {
        // _IOWR(0xAA, nr, size): direction 3, size in bits 16..30.
        let number = |nr: u64, size: usize| 3 << 30 | (size as u64) << 16 | 0xAA << 8 | nr;
        assert_eq!(UFFDIO_API, number(0x3F, size_of::<UffdioApi>()));
        assert_eq!(UFFDIO_REGISTER, number(0x00, size_of::<UffdioRegister>()));
        assert_eq!(UFFDIO_WRITEPROTECT, number(0x06, size_of::<UffdioWriteprotect>()));
    }

    /// Mappings of these lengths in pages, one after the other; a call may touch only one.
    fn protected(mappings: &[u64], start: u64, length: u64) -> io::Result<Vec<u64>> {
        let mut pages = Vec::new();
        mapping_by_mapping(start * PAGE_BYTES, length * PAGE_BYTES, &mut |start, length| {
            let (first, end) = (start / PAGE_BYTES, (start + length) / PAGE_BYTES);
            let mut from = 0;
            let is_in_one = mappings.iter().any(|mapping| {
                let range = from..=from + mapping;
                from += mapping;
                range.contains(&first) && range.contains(&end)
            });
            if !is_in_one {
                return Err(io::Error::from_raw_os_error(libc::ENOENT));
            }
            pages.extend(first..end);
            Ok(())
        })?;
        Ok(pages)
    }

    #[test]
    fn a_range_over_several_mappings_is_protected_once_and_whole_on_old_kernels() {
        for mappings in [&[100_u64][..], &[1, 99], &[50, 50], &[33, 1, 1, 13, 52]] {
            for (start, length) in [(0, 100), (3, 90), (32, 3), (0, 1)] {
                let pages = protected(mappings, start, length).unwrap();
                assert_eq!(pages, (start..start + length).collect::<Vec<_>>(), "{mappings:?}");
            }
        }
        let beyond = protected(&[10], 5, 10).unwrap_err();
        assert_eq!(beyond.raw_os_error(), Some(libc::ENOENT));
    }

    #[test]
    fn only_write_protect_faults_give_an_address() {
        let mut message = [0u8; MESSAGE_BYTES];
        message[0] = EVENT_PAGEFAULT;
        message[16..24].copy_from_slice(&0x7000_1234u64.to_ne_bytes());
        assert_eq!(write_fault_address(&message), None, "a missing-page fault is not ours");
        message[8..16].copy_from_slice(&PAGEFAULT_FLAG_WP.to_ne_bytes());
        assert_eq!(write_fault_address(&message), Some(0x7000_1000));
        message[0] = 0x13;
        assert_eq!(write_fault_address(&message), None, "a fork event is not a fault");
    }
}
