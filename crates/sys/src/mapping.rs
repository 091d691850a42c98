//! A private mapping of a file, as a VMM has it of a memory layer. Tests and `doctor` use it as a
//! stand-in for guest RAM; the daemon itself never maps guest memory.

use std::fs::File;
use std::io;
use std::sync::atomic::{AtomicU64, Ordering};

use forkd_types::{ByteCount, PAGE_BYTES, PageIndex, PageRun};
use rustix::mm::{MapFlags, ProtFlags};

/// A copy-on-write view of a file, usable from several threads: all access is atomic and word-wise.
#[derive(Debug)]
pub struct PrivateMapping {
    address: usize,
    length: usize,
}

impl PrivateMapping {
    /// Maps the first `length` bytes of `file`.
    ///
    /// # Errors
    /// When the length is not a positive number of pages, or the system refuses.
    pub fn of(file: &File, length: ByteCount) -> io::Result<Self> {
        let pages = length.pages().map_err(io::Error::other)?;
        let length = pages.bytes().as_usize();
        // SAFETY: a fresh mapping at an address of the kernel's choice touches nothing of ours.
        let base = unsafe {
            rustix::mm::mmap(
                std::ptr::null_mut(),
                length,
                ProtFlags::READ | ProtFlags::WRITE,
                MapFlags::PRIVATE,
                file,
                0,
            )
        }?;
        Ok(Self { address: base.expose_provenance(), length })
    }

    /// Maps zeros over `run`, as a VMM has them where no layer stores a page.
    ///
    /// # Errors
    /// When the run is empty or outside the mapping, or the system refuses.
    pub fn map_zeros(&self, run: PageRun) -> io::Result<()> {
        if run.count.get() == 0 || run.end().byte_offset() > self.length as u64 {
            return Err(io::ErrorKind::InvalidInput.into());
        }
        let length = run.bytes().as_usize();
        let at = usize::try_from(run.start.byte_offset()).map_err(io::Error::other)?;
        let address = std::ptr::with_exposed_provenance_mut(self.address + at);
        // SAFETY: the range lies within this live mapping (checked above), of which no reference is
        // handed out: every access goes through an atomic that lives for one call.
        unsafe {
            rustix::mm::mmap_anonymous(
                address,
                length,
                ProtFlags::READ | ProtFlags::WRITE,
                MapFlags::PRIVATE | MapFlags::FIXED,
            )
        }?;
        Ok(())
    }

    /// Address of the first byte.
    #[must_use]
    pub fn address(&self) -> u64 {
        self.address as u64
    }

    /// Size in bytes.
    #[must_use]
    pub fn length(&self) -> ByteCount {
        ByteCount::new(self.length as u64)
    }

    /// The `word`-th 8-byte word of a page.
    ///
    /// # Panics
    /// When the page or the word is outside the mapping.
    #[must_use]
    pub fn load(&self, page: PageIndex, word: usize) -> u64 {
        self.word(page, word).load(Ordering::Relaxed)
    }

    /// Writes the `word`-th 8-byte word of a page. Waits while the page is write-protected.
    ///
    /// # Panics
    /// When the page or the word is outside the mapping.
    pub fn store(&self, page: PageIndex, word: usize, value: u64) {
        self.word(page, word).store(value, Ordering::Relaxed);
    }

    fn word(&self, page: PageIndex, word: usize) -> &AtomicU64 {
        let words_per_page = usize::try_from(PAGE_BYTES / 8).unwrap_or(usize::MAX);
        let at = usize::try_from(page.byte_offset()).unwrap_or(usize::MAX);
        assert!(at < self.length && word < words_per_page, "outside the mapping");
        let pointer = std::ptr::with_exposed_provenance_mut::<u64>(self.address + at + word * 8);
        // JUSTIFICATION: other threads write the same memory while it is write-protected and read.
        // SAFETY: the address is inside the live mapping (asserted above), aligned to 8, and every
        // access from Rust goes through atomics.
        unsafe { AtomicU64::from_ptr(pointer) }
    }
}

impl Drop for PrivateMapping {
    fn drop(&mut self) {
        let base = std::ptr::with_exposed_provenance_mut(self.address);
        // SAFETY: this is the mapping made in `of`; no reference into it outlives `self`.
        if let Err(errno) = unsafe { rustix::mm::munmap(base, self.length) } {
            debug_assert!(false, "munmap of our own mapping failed: {errno}");
        }
    }
}
