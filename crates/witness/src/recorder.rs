//! The thread that writes numbered records to disk, each with `fsync`.
//!
//! Record `n` goes to slot `n % 32` of one file, in this order: the slot is read past the page
//! cache and must hold record `n - 32`; the record is written; `fdatasync` returns; memory
//! remembers the record. So at any instant the disk holds what memory remembers, but for the one
//! record under way. A disk of a later instant has slots that are too new, one of an earlier
//! instant such that are too old; both are found when the slot is next written, or by the check,
//! which reads all slots past the cache and, with the caches dropped, through it.

use std::fs::{self, File, OpenOptions};
use std::io;
use std::os::unix::fs::{FileExt, OpenOptionsExt};
use std::path::Path;
use std::sync::Arc;

use rustix::fs::OFlags;

use crate::gate::{Gate, Report};
use crate::page::{Page, at};
use crate::verdict::Violations;

const SLOTS: u64 = 32;
const BLOCK: usize = 4096;
const WORD: usize = size_of::<u64>();

/// A record as it is on disk, aligned as reading past the cache asks.
#[repr(C, align(4096))]
#[derive(Clone, PartialEq, Eq)]
struct Block([u8; BLOCK]);

impl Block {
    const EMPTY: Self = Self([0; BLOCK]);

    /// The number all over the block, but for the counts that the writers had published.
    fn record(number: u64, published: &[Page]) -> Self {
        let mut block = Self::EMPTY;
        for (word, bytes) in block.0.chunks_exact_mut(WORD).enumerate() {
            let count = word.checked_sub(1).and_then(|writer| published.get(writer));
            let value = count.map_or(number, |page| page.get(0));
            bytes.copy_from_slice(&value.to_le_bytes());
        }
        block
    }

    fn word(&self, index: usize) -> u64 {
        let bytes = &self.0[index * WORD..][..WORD];
        bytes.iter().rev().fold(0, |value, byte| value << 8 | u64::from(*byte))
    }
}

/// The thread's files and what it remembers.
pub(crate) struct Recorder {
    number: usize,
    cached: File,
    direct: File,
    remembered: Vec<Block>,
    scratch: Box<Block>,
    published: Arc<Vec<Page>>,
    violations: Violations,
}

impl Recorder {
    /// The recorder that publishes its count in page `number` of `published`. Makes the file of
    /// records in `directory`.
    pub(crate) fn new(
        number: usize,
        directory: &Path,
        published: Arc<Vec<Page>>,
    ) -> io::Result<Self> {
        let path = directory.join("witness.records");
        let mut options = OpenOptions::new();
        let cached = options.read(true).write(true).create(true).truncate(true).open(&path)?;
        for slot in 0..SLOTS {
            cached.write_all_at(&Block::EMPTY.0, slot * BLOCK as u64)?;
        }
        cached.sync_all()?;
        let flags = i32::try_from(OFlags::DIRECT.bits()).map_err(io::Error::other)?;
        let direct = OpenOptions::new().read(true).custom_flags(flags).open(&path)?;
        Ok(Self {
            number,
            cached,
            direct,
            remembered: vec![Block::EMPTY; at(SLOTS)],
            scratch: Box::new(Block::EMPTY),
            published,
            violations: Violations::default(),
        })
    }

    /// Writes records for ever.
    pub(crate) fn run(mut self, gate: &Gate) -> ! {
        let mut done = 0u64;
        loop {
            if let Err(error) = self.write(done + 1) {
                self.report_error(&error);
            }
            done += 1;
            self.published[self.number].set(0, done);
            if gate.is_closed() {
                if let Err(error) = self.verify_all() {
                    self.report_error(&error);
                }
                gate.stop(Report::Recorder { records: done, violations: self.violations.clone() });
            }
        }
    }

    fn write(&mut self, number: u64) -> io::Result<()> {
        let slot = number % SLOTS;
        self.direct.read_exact_at(&mut self.scratch.0, slot * BLOCK as u64)?;
        self.compare("disk", slot);
        let block = Block::record(number, &self.published);
        self.cached.write_all_at(&block.0, slot * BLOCK as u64)?;
        self.cached.sync_data()?;
        self.remembered[at(slot)] = block;
        Ok(())
    }

    fn verify_all(&mut self) -> io::Result<()> {
        for slot in 0..SLOTS {
            self.cached.read_exact_at(&mut self.scratch.0, slot * BLOCK as u64)?;
            self.compare("page cache", slot);
        }
        fs::write("/proc/sys/vm/drop_caches", "1")?;
        for slot in 0..SLOTS {
            self.cached.read_exact_at(&mut self.scratch.0, slot * BLOCK as u64)?;
            self.compare("disk read anew", slot);
            self.direct.read_exact_at(&mut self.scratch.0, slot * BLOCK as u64)?;
            self.compare("disk", slot);
        }
        Ok(())
    }

    /// Compares what was read with what is remembered.
    fn compare(&mut self, what: &str, slot: u64) {
        let remembered = &self.remembered[at(slot)];
        if *remembered != *self.scratch {
            let words = 0..BLOCK / WORD;
            let pairs = words.map(|word| (word, remembered.word(word), self.scratch.word(word)));
            for (word, expected, found) in pairs.filter(|(_, a, b)| a != b).take(1) {
                let at = || format!("{what}: word {word} of slot {slot}");
                self.violations.expect(expected, found, at);
            }
        }
    }

    fn report_error(&mut self, error: &io::Error) {
        self.violations.expect(0, 1, || format!("disk: {}", error.kind()));
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_record_bears_its_number_at_both_ends_and_the_published_counts() {
        let published = crate::page::pages(2);
        published[0].set(0, 70);
        published[1].set(0, 80);
        let block = Block::record(3, &published);
        let words = [0, 1, 2, 3, BLOCK / WORD - 1].map(|word| block.word(word));
        assert_eq!(words, [3, 70, 80, 3, 3]);
    }
}
