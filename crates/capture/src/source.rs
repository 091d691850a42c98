//! The memory that captures are taken from.

use std::sync::Arc;

use forkd_sys::remote::RemoteMemory;
use forkd_sys::uffd::{UffdError, Userfaultfd};
use forkd_types::{PAGE_BYTES, PageCount, PageIndex, PageRun};

/// Guest RAM inside the VMM.
#[derive(Clone)]
pub(crate) struct Source {
    pub(crate) memory: RemoteMemory,
    /// Where guest RAM begins in that memory.
    pub(crate) address: u64,
    /// Bytes of guest RAM.
    pub(crate) length: u64,
    /// Absent where pages cannot be protected.
    pub(crate) uffd: Option<Arc<Userfaultfd>>,
}

impl Source {
    pub(crate) fn pages(&self) -> PageCount {
        PageCount::new(self.length / PAGE_BYTES)
    }

    pub(crate) fn all(&self) -> PageRun {
        PageRun { start: PageIndex::new(0), count: self.pages() }
    }

    /// The address of `page` in the VMM.
    pub(crate) fn address_of(&self, page: PageIndex) -> u64 {
        self.address + page.byte_offset()
    }

    /// Does nothing where pages cannot be protected.
    pub(crate) fn protect(&self, run: PageRun) -> Result<(), UffdError> {
        self.uffd
            .as_ref()
            .map_or(Ok(()), |uffd| uffd.protect(self.address_of(run.start), run.bytes().get()))
    }

    /// Does nothing where pages cannot be protected.
    pub(crate) fn release(&self, run: PageRun) -> Result<(), UffdError> {
        self.uffd
            .as_ref()
            .map_or(Ok(()), |uffd| uffd.release(self.address_of(run.start), run.bytes().get()))
    }
}
