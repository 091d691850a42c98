//! Which blocks of the disk a file's content is in: runs of blocks, and the tree that lists them.

use super::{BLOCK, Put};

const MAGIC: u16 = 0xf30a;
const RECORD: usize = 12;
/// In an inode.
const ROOT_RECORDS: usize = 4;
const BLOCK_RECORDS: usize = BLOCK / RECORD - 1;
/// Blocks of one run.
const RUN_BLOCKS_MAX: u32 = 32768;

/// Blocks of a file that follow each other on the disk too.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) struct Run {
    /// The first, in the file.
    pub(super) at: u32,
    /// The first, on the disk.
    pub(super) block: u32,
    pub(super) count: u32,
}

/// The runs of one file in order.
#[derive(Debug, Default)]
pub(super) struct Runs(Vec<Run>);

impl Runs {
    /// One more block of the file.
    pub(super) fn add(&mut self, at: u32, block: u32) {
        if let Some(last) = self.0.last_mut()
            && last.at + last.count == at
            && last.block + last.count == block
            && last.count < RUN_BLOCKS_MAX
        {
            last.count += 1;
            return;
        }
        self.0.push(Run { at, block, count: 1 });
    }

    /// What the inode says. What does not fit there goes to further blocks: `allocate` gives one,
    /// `write` fills it.
    pub(super) fn root<E>(
        &self,
        mut allocate: impl FnMut() -> Result<u32, E>,
        mut write: impl FnMut(u32, &[u8]) -> Result<(), E>,
    ) -> Result<[u8; 60], E> {
        let mut records: Vec<[u8; RECORD]> = self.0.iter().map(leaf).collect();
        let mut depth = 0;
        while records.len() > ROOT_RECORDS {
            let mut above = Vec::new();
            for part in records.chunks(BLOCK_RECORDS) {
                let mut bytes = vec![0; BLOCK];
                fill(&mut bytes, part, BLOCK_RECORDS, depth);
                let block = allocate()?;
                write(block, &bytes)?;
                above.push(index(&part[0], block));
            }
            records = above;
            depth += 1;
        }
        let mut root = [0; 60];
        fill(&mut root, &records, ROOT_RECORDS, depth);
        Ok(root)
    }
}

fn leaf(run: &Run) -> [u8; RECORD] {
    let mut record = [0; RECORD];
    record.put32(0, run.at);
    // 32768 is written as itself: more would mean that nothing was written there.
    record.put16(4, u16::try_from(run.count).unwrap_or_default());
    record.put32(8, run.block);
    record
}

/// Leads to the block whose first record is `first`.
fn index(first: &[u8; RECORD], block: u32) -> [u8; RECORD] {
    let mut record = [0; RECORD];
    record[..4].copy_from_slice(&first[..4]);
    record.put32(4, block);
    record
}

fn fill(bytes: &mut [u8], records: &[[u8; RECORD]], most: usize, depth: u16) {
    bytes.put16(0, MAGIC);
    bytes.put16(2, u16::try_from(records.len()).unwrap_or_default());
    bytes.put16(4, u16::try_from(most).unwrap_or_default());
    bytes.put16(6, depth);
    for (record, at) in records.iter().zip((RECORD..).step_by(RECORD)) {
        bytes[at..at + RECORD].copy_from_slice(record);
    }
}
