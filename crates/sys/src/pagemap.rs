//! Which pages of another process's mapping are private to it.
//!
//! In a private file mapping, a page that was written is anonymous; a page that was not still
//! belongs to the file. In a private mapping of zeros, a page that was only read is the kernel's
//! page of zeros. So the private pages *are* the pages written since the mapping was made: no dirty
//! log is needed from the VMM or from KVM.
//!
//! `PAGEMAP_SCAN` (Linux 6.7, `Documentation/admin-guide/mm/pagemap.rst`) answers in ranges; older
//! kernels have only `/proc/PID/pagemap`, one word a page, in which a page of zeros that was read
//! looks like a private one. Swapped-out pages count as private: only anonymous pages of such a
//! mapping go to swap (a tmpfs page in swap has no page-table entry here).

use std::fs::File;
use std::io;
use std::os::fd::AsRawFd;
use std::os::unix::fs::FileExt;

use rustix::process::Pid;

/// `_IOWR('f', 16, struct pm_scan_arg)`.
const PAGEMAP_SCAN: libc::c_ulong = 0xC060_6610;
const PAGE_IS_FILE: u64 = 1 << 2;
const PAGE_IS_PRESENT: u64 = 1 << 3;
const PAGE_IS_SWAPPED: u64 = 1 << 4;
const PAGE_IS_PFNZERO: u64 = 1 << 5;

/// In a `/proc/PID/pagemap` word: page is present, swapped, file-backed or shared.
const WORD_PRESENT: u64 = 1 << 63;
const WORD_SWAPPED: u64 = 1 << 62;
const WORD_FILE: u64 = 1 << 61;

const PAGE: u64 = forkd_types::PAGE_BYTES;

#[repr(C)]
#[derive(Default)]
struct PmScanArg {
    size: u64,
    flags: u64,
    start: u64,
    end: u64,
    walk_end: u64,
    vec: u64,
    vec_len: u64,
    max_pages: u64,
    category_inverted: u64,
    category_mask: u64,
    category_anyof_mask: u64,
    return_mask: u64,
}

#[repr(C)]
#[derive(Clone, Copy, Default)]
struct PageRegion {
    start: u64,
    end: u64,
    categories: u64,
}

const _: () = assert!(size_of::<PmScanArg>() == 96);
const _: () = assert!(size_of::<PageRegion>() == 24);

/// How private pages are found on this kernel.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum ScanMethod {
    /// The `PAGEMAP_SCAN` ioctl: ranges, and page tables that are not there are skipped.
    Ioctl,
    /// One word a page from `/proc/PID/pagemap`.
    Words,
}

/// Whether entries that are not present count.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Swapped {
    /// They do: a page in swap is private.
    Included,
    /// They do not. The marker of a write-protected page that is not there looks like one in swap.
    Excluded,
}

/// A half-open range of addresses.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct AddressRange {
    /// First byte.
    pub start: u64,
    /// First byte after it.
    pub end: u64,
}

/// Scans one process's page tables; keeps its buffers, so that a scan in the pause window does not
/// allocate.
#[derive(Debug)]
pub struct PrivatePageScanner {
    file: File,
    method: ScanMethod,
    regions: Vec<PageRegion>,
    words: Vec<u8>,
}

/// Ranges returned by one call.
const REGIONS_PER_CALL: usize = 16 * 1024;
/// Bytes of pagemap words read at once: 8 per page, so 256 MiB of memory a read.
const WORDS_BYTES_PER_READ: usize = 512 << 10;

impl std::fmt::Debug for PageRegion {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "{:#x}-{:#x}", self.start, self.end)
    }
}

/// Opens the page tables of a process.
///
/// # Errors
/// When `/proc/PID/pagemap` cannot be opened: its owner is the process's user.
pub fn page_tables(pid: Pid) -> io::Result<File> {
    File::open(format!("/proc/{}/pagemap", pid.as_raw_nonzero()))
}

impl PrivatePageScanner {
    /// A scanner of process `pid`, with the best method of this kernel.
    ///
    /// # Errors
    /// When `/proc/PID/pagemap` cannot be opened.
    pub fn of(pid: Pid) -> io::Result<Self> {
        Ok(Self::with(page_tables(pid)?))
    }

    /// The same of the process whose page tables are open.
    #[must_use]
    pub fn with(page_tables: File) -> Self {
        let mut scanner = Self::with_method(page_tables, ScanMethod::Ioctl);
        if !scanner.has_ioctl() {
            scanner = Self::with_method(scanner.file, ScanMethod::Words);
        }
        scanner
    }

    /// A scanner that uses `method` whatever the kernel offers; for tests of the fallback.
    #[must_use]
    pub fn with_method(page_tables: File, method: ScanMethod) -> Self {
        let mut scanner =
            Self { file: page_tables, method, regions: Vec::new(), words: Vec::new() };
        scanner.reserve();
        scanner
    }

    /// The method in use.
    #[must_use]
    pub fn method(&self) -> ScanMethod {
        self.method
    }

    fn reserve(&mut self) {
        match self.method {
            ScanMethod::Ioctl => self.regions = vec![PageRegion::default(); REGIONS_PER_CALL],
            ScanMethod::Words => self.words = vec![0; WORDS_BYTES_PER_READ],
        }
    }

    fn has_ioctl(&self) -> bool {
        let mut argument = PmScanArg { size: 96, ..PmScanArg::default() };
        argument.category_mask = PAGE_IS_PRESENT;
        argument.return_mask = PAGE_IS_PRESENT;
        self.ioctl(&mut argument).is_ok()
    }

    /// Appends the private pages of `range` to `found`, as maximal ranges in ascending order.
    ///
    /// # Errors
    /// `ESRCH` when the process is gone.
    pub fn scan(
        &mut self,
        range: AddressRange,
        swapped: Swapped,
        found: &mut Vec<AddressRange>,
    ) -> io::Result<()> {
        match self.method {
            ScanMethod::Ioctl => self.scan_ioctl(range, swapped, found),
            ScanMethod::Words => self.scan_words(range, swapped, found),
        }
    }

    fn scan_ioctl(
        &mut self,
        range: AddressRange,
        swapped: Swapped,
        found: &mut Vec<AddressRange>,
    ) -> io::Result<()> {
        let mut at = range.start;
        while at < range.end {
            let mut argument = PmScanArg {
                size: 96,
                start: at,
                end: range.end,
                vec: self.regions.as_mut_ptr().addr() as u64,
                vec_len: self.regions.len() as u64,
                // Private: not file-backed, not the page of zeros that all processes share, and
                // present or swapped.
                category_inverted: PAGE_IS_FILE | PAGE_IS_PFNZERO,
                category_mask: PAGE_IS_FILE | PAGE_IS_PFNZERO,
                category_anyof_mask: match swapped {
                    Swapped::Included => PAGE_IS_PRESENT | PAGE_IS_SWAPPED,
                    Swapped::Excluded => PAGE_IS_PRESENT,
                },
                return_mask: PAGE_IS_PRESENT,
                ..PmScanArg::default()
            };
            let count = self.ioctl(&mut argument)?;
            for region in &self.regions[..count] {
                push(found, AddressRange { start: region.start, end: region.end });
            }
            if argument.walk_end <= at {
                return Err(io::Error::other("PAGEMAP_SCAN made no progress"));
            }
            at = argument.walk_end;
        }
        Ok(())
    }

    fn ioctl(&self, argument: &mut PmScanArg) -> io::Result<usize> {
        // JUSTIFICATION: no crate offers PAGEMAP_SCAN.
        // SAFETY: the argument has the size that it states; `vec` is null with length 0 or points
        // to `self.regions`, whose `vec_len` elements the caller does not touch during the call.
        let result = unsafe {
            libc::ioctl(self.file.as_raw_fd(), PAGEMAP_SCAN, std::ptr::from_mut(argument))
        };
        usize::try_from(result).map_err(|_| io::Error::last_os_error())
    }

    fn scan_words(
        &mut self,
        range: AddressRange,
        swapped: Swapped,
        found: &mut Vec<AddressRange>,
    ) -> io::Result<()> {
        let mut at = range.start;
        while at < range.end {
            let pages = usize::try_from((range.end - at) / PAGE).map_err(io::Error::other)?;
            let bytes = self.words.len().min(pages * 8);
            self.file.read_exact_at(&mut self.words[..bytes], at / PAGE * 8)?;
            for word in self.words[..bytes].chunks_exact(8) {
                let word = word.try_into().map_or(0, u64::from_ne_bytes);
                if is_private(word, swapped) {
                    push(found, AddressRange { start: at, end: at + PAGE });
                }
                at += PAGE;
            }
        }
        Ok(())
    }
}

fn is_private(word: u64, swapped: Swapped) -> bool {
    let there = match swapped {
        Swapped::Included => WORD_PRESENT | WORD_SWAPPED,
        Swapped::Excluded => WORD_PRESENT,
    };
    word & there != 0 && word & WORD_FILE == 0
}

fn push(found: &mut Vec<AddressRange>, next: AddressRange) {
    match found.last_mut() {
        Some(last) if last.end == next.start => last.end = next.end,
        _ => found.push(next),
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use rustix::mm::{MapFlags, ProtFlags};

    /// A private mapping of a file of `pages` pages, with every third page written.
    fn sparse_private_mapping(file: &File, pages: u64) -> (u64, Vec<AddressRange>) {
        let bytes = usize::try_from(pages * PAGE).unwrap();
        file.set_len(pages * PAGE).unwrap();
        // SAFETY: a fresh mapping at an address of the kernel's choice touches nothing of ours.
        let base = unsafe {
            let protection = ProtFlags::READ | ProtFlags::WRITE;
            rustix::mm::mmap(std::ptr::null_mut(), bytes, protection, MapFlags::PRIVATE, file, 0)
        }
        .unwrap();
        let mut expected = Vec::new();
        for page in 0..pages {
            let offset = usize::try_from(page * PAGE).unwrap();
            // SAFETY: `offset` lies within the mapping made above, which nothing else refers to.
            let byte = unsafe { base.cast::<u8>().add(offset) };
            // SAFETY: as above; reading maps the file's page, writing makes a private one.
            unsafe {
                if page % 3 == 0 {
                    byte.write_volatile(1);
                    let start = base.addr() as u64 + page * PAGE;
                    expected.push(AddressRange { start, end: start + PAGE });
                } else {
                    byte.read_volatile();
                }
            }
        }
        (base.addr() as u64, expected)
    }

    #[test]
    fn both_methods_find_exactly_the_written_pages_of_a_private_mapping() {
        let file = tempfile::tempfile_in("/dev/shm").unwrap();
        let (base, expected) = sparse_private_mapping(&file, 1000);
        let range = AddressRange { start: base, end: base + 1000 * PAGE };
        let me = rustix::process::getpid();
        let mut ran = 0;
        for method in [ScanMethod::Ioctl, ScanMethod::Words] {
            let mut scanner = PrivatePageScanner::with_method(page_tables(me).unwrap(), method);
            if method == ScanMethod::Ioctl && !scanner.has_ioctl() {
                continue;
            }
            let mut found = Vec::new();
            scanner.scan(range, Swapped::Included, &mut found).unwrap();
            assert_eq!(found, expected, "{method:?}");
            ran += 1;
        }
        assert!(ran >= 1);
    }

    #[test]
    fn a_page_of_zeros_that_was_only_read_is_not_private() {
        let me = rustix::process::getpid();
        let mut scanner = PrivatePageScanner::of(me).unwrap();
        if scanner.method() != ScanMethod::Ioctl {
            return;
        }
        let file = tempfile::tempfile_in("/dev/shm").unwrap();
        file.set_len(10 * PAGE).unwrap();
        let length = forkd_types::ByteCount::new(10 * PAGE);
        let mapping = crate::mapping::PrivateMapping::of(&file, length).unwrap();
        mapping.map_zeros(forkd_types::PageRun::new(2, 6)).unwrap();
        for page in 0..10 {
            let page = forkd_types::PageIndex::new(page);
            assert_eq!(mapping.load(page, 0), 0);
            if [3, 4, 9].contains(&page.get()) {
                mapping.store(page, 0, 0);
            }
        }
        let (start, mut found) = (mapping.address(), Vec::new());
        let range = AddressRange { start, end: start + 10 * PAGE };
        scanner.scan(range, Swapped::Included, &mut found).unwrap();
        let pages = |from, to| AddressRange { start: start + from * PAGE, end: start + to * PAGE };
        assert_eq!(found, [pages(3, 5), pages(9, 10)]);
    }

    #[test]
    fn swapped_pages_count_as_private_and_file_pages_do_not() {
        let included = |word| is_private(word, Swapped::Included);
        assert!(included(WORD_PRESENT) && included(WORD_SWAPPED));
        assert!(!included(WORD_PRESENT | WORD_FILE) && !included(0));
        assert!(!is_private(WORD_SWAPPED, Swapped::Excluded));
    }
}
