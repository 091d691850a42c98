//! Bytes and pages. Pages are 4 KiB everywhere in forkd: that is the unit in which x86 guests dirty
//! memory, whatever page size the host backs it with.

use std::fmt;
use std::ops::{Add, AddAssign, Sub};

use serde::{Deserialize, Serialize};

/// Bytes in one page.
pub const PAGE_BYTES: u64 = 4096;

/// Why a number is not a usable size.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum SizeError {
    /// Guest memory must consist of whole pages.
    #[error("{0} bytes is not a multiple of the page size, {PAGE_BYTES}")]
    NotWholePages(u64),
    /// The value does not fit into the target type.
    #[error("{0} is too large")]
    TooLarge(u64),
}

macro_rules! count_type {
    ($(#[$doc:meta])* $name:ident) => {
        $(#[$doc])*
        #[derive(Debug, Clone, Copy, Default, PartialEq, Eq, PartialOrd, Ord, Hash)]
        #[derive(Serialize, Deserialize)]
        #[serde(transparent)]
        pub struct $name(u64);

        impl $name {
            /// Zero.
            pub const ZERO: Self = Self(0);

            /// Wraps a plain number.
            #[must_use]
            pub const fn new(value: u64) -> Self {
                Self(value)
            }

            /// The plain number.
            #[must_use]
            pub const fn get(self) -> u64 {
                self.0
            }

            /// The plain number for indexing; forkd runs on 64-bit hosts only.
            #[must_use]
            #[expect(clippy::cast_possible_truncation, reason = "usize is 64 bits, checked below")]
            pub const fn as_usize(self) -> usize {
                self.0 as usize
            }
        }
    };
}

const _: () = assert!(usize::BITS == 64, "forkd supports 64-bit hosts only");

count_type!(
    /// A number of bytes.
    ByteCount
);
count_type!(
    /// A number of pages.
    PageCount
);
count_type!(
    /// The position of a page in guest RAM: page `i` covers the bytes `[4096 i, 4096 (i + 1))` of
    /// the VMM's RAM block. Below 3 GiB this is the guest-physical page number.
    PageIndex
);

macro_rules! arithmetic {
    ($name:ident) => {
        impl Add for $name {
            type Output = Self;
            fn add(self, other: Self) -> Self {
                Self(self.0 + other.0)
            }
        }
        impl Sub for $name {
            type Output = Self;
            fn sub(self, other: Self) -> Self {
                Self(self.0 - other.0)
            }
        }
        impl AddAssign for $name {
            fn add_assign(&mut self, other: Self) {
                self.0 += other.0;
            }
        }
        impl std::iter::Sum for $name {
            fn sum<I: Iterator<Item = Self>>(items: I) -> Self {
                items.fold(Self::ZERO, |a, b| a + b)
            }
        }
    };
}

arithmetic!(ByteCount);
arithmetic!(PageCount);

impl ByteCount {
    /// `mebibytes` MiB.
    #[must_use]
    pub const fn from_mib(mebibytes: u64) -> Self {
        Self(mebibytes << 20)
    }

    /// As mebibytes, for people.
    #[must_use]
    #[expect(clippy::cast_precision_loss, reason = "shown to people with one decimal")]
    pub fn as_mib(self) -> f64 {
        self.0 as f64 / f64::from(1 << 20)
    }

    /// The number of pages that these bytes are.
    ///
    /// # Errors
    /// When it is not a whole number of pages.
    pub const fn pages(self) -> Result<PageCount, SizeError> {
        if self.0.is_multiple_of(PAGE_BYTES) {
            Ok(PageCount(self.0 / PAGE_BYTES))
        } else {
            Err(SizeError::NotWholePages(self.0))
        }
    }
}

impl fmt::Display for ByteCount {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        if self.0 >= 1 << 20 {
            write!(f, "{:.1} MiB", self.as_mib())
        } else {
            write!(f, "{} B", self.0)
        }
    }
}

impl PageCount {
    /// The bytes in these pages.
    #[must_use]
    pub const fn bytes(self) -> ByteCount {
        ByteCount(self.0 * PAGE_BYTES)
    }
}

impl PageIndex {
    /// The page that contains the byte at `offset` of guest RAM.
    #[must_use]
    pub const fn containing(offset: u64) -> Self {
        Self(offset / PAGE_BYTES)
    }

    /// Offset of the page's first byte in guest RAM.
    #[must_use]
    pub const fn byte_offset(self) -> u64 {
        self.0 * PAGE_BYTES
    }
}

/// Consecutive pages of guest RAM; never empty in a normalised list.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, Serialize, Deserialize)]
pub struct PageRun {
    /// The first page.
    pub start: PageIndex,
    /// How many pages.
    pub count: PageCount,
}

impl PageRun {
    /// The run `[start, start + count)`, in pages.
    #[must_use]
    pub const fn new(start: u64, count: u64) -> Self {
        Self { start: PageIndex(start), count: PageCount(count) }
    }

    /// The first page after the run.
    #[must_use]
    pub const fn end(self) -> PageIndex {
        PageIndex(self.start.0 + self.count.0)
    }

    /// Bytes in the run.
    #[must_use]
    pub const fn bytes(self) -> ByteCount {
        self.count.bytes()
    }

    /// Whether `page` lies in the run.
    #[must_use]
    pub const fn contains(self, page: PageIndex) -> bool {
        self.start.0 <= page.0 && page.0 < self.start.0 + self.count.0
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn bytes_become_pages_only_when_whole() {
        assert_eq!(ByteCount::from_mib(1).pages(), Ok(PageCount::new(256)));
        assert_eq!(ByteCount::new(5000).pages(), Err(SizeError::NotWholePages(5000)));
    }

    #[test]
    fn a_run_contains_its_pages_and_not_its_end() {
        let run = PageRun::new(3, 2);
        assert!(run.contains(PageIndex::new(3)) && run.contains(PageIndex::new(4)));
        assert!(!run.contains(run.end()) && !run.contains(PageIndex::new(2)));
        assert_eq!(run.bytes(), ByteCount::new(2 * PAGE_BYTES));
    }
}
