//! The gaps between two readings of a clock: the longest of each millisecond.
//!
//! All memory is there before the measurement; a note is a look at one number, and a write only
//! when the gap is the longest of its millisecond.

use std::time::Duration;

use forkd_meter_protocol::INTERVAL_NS;

/// The longest gap that began in each interval since the start.
#[derive(Debug)]
pub(crate) struct GapLog {
    longest_ns: Vec<u64>,
}

impl GapLog {
    /// A log of so much time.
    pub(crate) fn over(time: Duration) -> Self {
        let intervals = time.as_nanos().div_ceil(INTERVAL_NS.into());
        // Other than 0, so that every page of it is written here and not in the measurement.
        let mut longest_ns = vec![1; usize::try_from(intervals).unwrap_or(0)];
        std::hint::black_box(longest_ns.as_mut_slice()).fill(0);
        Self { longest_ns }
    }

    /// Notes a gap that began `at_ns` after the start. False when the log has no room for it.
    #[inline]
    pub(crate) fn note(&mut self, at_ns: u64, gap_ns: u64) -> bool {
        let bucket = usize::try_from(at_ns / INTERVAL_NS).unwrap_or(usize::MAX);
        match self.longest_ns.get_mut(bucket) {
            Some(longest) => {
                if gap_ns > *longest {
                    *longest = gap_ns;
                }
                true
            }
            None => false,
        }
    }

    /// The numbers of the first `spun_ns` nanoseconds.
    pub(crate) fn within(mut self, spun_ns: u64) -> Vec<u64> {
        let used = usize::try_from(spun_ns.div_ceil(INTERVAL_NS)).unwrap_or(usize::MAX);
        self.longest_ns.truncate(used);
        self.longest_ns
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn each_millisecond_keeps_its_longest_gap_by_where_the_gap_began() {
        let mut log = GapLog::over(Duration::from_millis(4));
        assert!(log.note(0, 300));
        assert!(log.note(500_000, 2_000_000), "it ends in another millisecond");
        assert!(log.note(900_000, 700));
        assert!(log.note(2_999_999, 5));
        assert_eq!(log.within(2_500_000), [2_000_000, 0, 5], "a begun millisecond counts");
    }

    #[test]
    fn a_full_log_says_so() {
        let mut log = GapLog::over(Duration::from_millis(2));
        assert!(log.note(1_999_999, 1));
        assert!(!log.note(2_000_000, 1));
    }
}
