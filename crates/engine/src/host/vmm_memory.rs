//! How much memory VMMs really have: their own and what they share.
//!
//! The kernel walks a process's page tables to tell, which takes milliseconds for a large guest. So
//! one look takes a bounded time: the VMMs whose figures are oldest come first, and for the others
//! the last figures stand.

use std::collections::BTreeMap;
use std::fs;
use std::sync::{Mutex, PoisonError};
use std::time::{Duration, Instant};

use forkd_types::ByteCount;

/// Memory of all VMMs together.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct VmmMemory {
    /// Pages of their own: what their guests have written since the fork, and QEMU's.
    pub private: ByteCount,
    /// Pages in use that others may use too: of layers, of programs.
    pub shared: ByteCount,
    /// Pages that are in swap.
    pub swapped: ByteCount,
    /// VMMs that have not been looked at, for want of time.
    pub unread: usize,
}

/// What is known of each VMM.
#[derive(Debug, Default)]
pub(crate) struct VmmMemories {
    known: Mutex<BTreeMap<u32, Known>>,
}

#[derive(Debug, Clone, Copy)]
struct Known {
    looked_at: Instant,
    memory: VmmMemory,
}

impl VmmMemories {
    /// Memory of the processes `pids`. Begins no look once `within` has passed.
    pub(crate) fn look(&self, pids: &[u32], within: Duration) -> VmmMemory {
        self.look_by(pids, within, read)
    }

    fn look_by(
        &self,
        pids: &[u32],
        within: Duration,
        read: impl Fn(u32) -> Option<VmmMemory>,
    ) -> VmmMemory {
        let begun = Instant::now();
        let mut known = self.known.lock().unwrap_or_else(PoisonError::into_inner);
        known.retain(|pid, _| pids.contains(pid));
        let mut by_age: Vec<u32> = pids.to_vec();
        by_age.sort_by_key(|pid| known.get(pid).map(|known| known.looked_at));
        let mut sum = VmmMemory::default();
        for pid in by_age {
            let in_time = begun.elapsed() < within;
            match in_time.then(|| read(pid)) {
                Some(Some(memory)) => {
                    known.insert(pid, Known { looked_at: Instant::now(), memory });
                }
                // It has ended.
                Some(None) => {
                    known.remove(&pid);
                    continue;
                }
                None => {}
            }
            match known.get(&pid) {
                Some(Known { memory, .. }) => {
                    sum.private += memory.private;
                    sum.shared += memory.shared;
                    sum.swapped += memory.swapped;
                }
                None => sum.unread += 1,
            }
        }
        sum
    }
}

/// What the kernel says of one process.
fn read(pid: u32) -> Option<VmmMemory> {
    parse(&fs::read_to_string(format!("/proc/{pid}/smaps_rollup")).ok()?)
}

/// Reads `smaps_rollup` (`proc(5)`). Pages of layers lie on tmpfs, where they count as dirty and,
/// with one child alone, as private: so what is its own is told by `Anonymous`.
fn parse(text: &str) -> Option<VmmMemory> {
    let field = |name: &str| -> Option<ByteCount> {
        let line = text.lines().find_map(|line| line.strip_prefix(name)?.strip_prefix(':'))?;
        let kibibytes: u64 = line.trim().strip_suffix("kB")?.trim().parse().ok()?;
        Some(ByteCount::new(kibibytes << 10))
    };
    let (resident, private) = (field("Rss")?, field("Anonymous")?);
    let shared = ByteCount::new(resident.get().saturating_sub(private.get()));
    Some(VmmMemory { private, shared, swapped: field("Swap")?, unread: 0 })
}

#[cfg(test)]
mod tests {
    use super::*;

    const fn private(mebibytes: u64) -> VmmMemory {
        let private = ByteCount::from_mib(mebibytes);
        VmmMemory { private, shared: ByteCount::ZERO, swapped: ByteCount::ZERO, unread: 0 }
    }

    #[test]
    fn what_the_kernel_says_of_this_process_is_understood() {
        let memory = read(std::process::id()).unwrap();
        assert!(memory.private > ByteCount::ZERO && memory.shared > ByteCount::ZERO, "{memory:?}");
        let text =
            "0-1 ---p [rollup]\nRss:  100 kB\nAnonymous:   40 kB\nSwap:   8 kB\nSwapPss: 9 kB\n";
        let memory = parse(text).unwrap();
        let kibibytes = |count: u64| ByteCount::new(count << 10);
        assert_eq!((memory.private, memory.shared), (kibibytes(40), kibibytes(60)));
        assert_eq!(memory.swapped, kibibytes(8));
        assert_eq!(parse("Rss: 1 kB\n"), None);
    }

    #[test]
    fn without_time_the_last_figures_stand_and_unknown_ones_are_counted() {
        let memories = VmmMemories::default();
        let never = |_| panic!("no time is left");
        assert_eq!(memories.look_by(&[1, 2], Duration::ZERO, never).unread, 2);
        let first = memories.look_by(&[1], Duration::MAX, |_| Some(private(3)));
        assert_eq!(first, private(3));
        let later = memories.look_by(&[1, 2], Duration::ZERO, never);
        assert_eq!(later, VmmMemory { unread: 1, ..private(3) });
    }

    #[test]
    fn the_oldest_figures_are_renewed_first() {
        let memories = VmmMemories::default();
        memories.look_by(&[1], Duration::MAX, |_| Some(private(1)));
        memories.look_by(&[2], Duration::MAX, |_| Some(private(1)));
        let order = Mutex::new(Vec::new());
        let note = |pid| {
            order.lock().unwrap().push(pid);
            Some(private(1))
        };
        memories.look_by(&[2], Duration::MAX, note);
        memories.look_by(&[1, 2, 3], Duration::MAX, note);
        assert_eq!(
            *order.lock().unwrap(),
            [2, 1, 3, 2],
            "1 was forgotten when it was not asked for"
        );
    }

    #[test]
    fn a_process_that_has_ended_counts_no_more() {
        let memories = VmmMemories::default();
        memories.look_by(&[1, 2], Duration::MAX, |_| Some(private(4)));
        let left = memories.look_by(&[1, 2], Duration::MAX, |pid| (pid == 2).then(|| private(4)));
        assert_eq!(left, private(4));
    }
}
