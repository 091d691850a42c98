//! Pages that are written for others to tear.
//!
//! Words are atomic so that each store reaches memory, once and in the order of the program.

use std::sync::atomic::{AtomicU64, Ordering};

/// Words of a page.
pub(crate) const WORDS: usize = 512;

/// One page of RAM.
#[repr(C, align(4096))]
#[derive(Debug)]
pub(crate) struct Page([AtomicU64; WORDS]);

impl Page {
    /// The position of the last word.
    pub(crate) const TAIL: usize = WORDS - 1;

    pub(crate) fn get(&self, word: usize) -> u64 {
        self.0[word].load(Ordering::Relaxed)
    }

    pub(crate) fn set(&self, word: usize, value: u64) {
        self.0[word].store(value, Ordering::Relaxed);
    }

    pub(crate) fn fill(&self, value: u64) {
        (0..WORDS).for_each(|word| self.set(word, value));
    }

    /// The first word that is not `value`, with what it is.
    pub(crate) fn differs(&self, value: u64) -> Option<(usize, u64)> {
        (0..WORDS).map(|word| (word, self.get(word))).find(|(_, found)| *found != value)
    }
}

/// `count` pages of zeros.
pub(crate) fn pages(count: u64) -> Vec<Page> {
    (0..count).map(|_| Page(std::array::from_fn(|_| AtomicU64::new(0)))).collect()
}

/// A page's or word's number as a position in a list.
pub(crate) fn at(number: u64) -> usize {
    usize::try_from(number).expect("this is a 64-bit program")
}
