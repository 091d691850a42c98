//! A histogram of times of fixed size.

use std::time::Duration;

/// How many times were how long, in buckets whose upper bounds double: from 1 µs to 0.5 s, and one
/// for all that are longer.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct TimeHistogram {
    counts: [u64; BUCKETS + 1],
    sum: Duration,
}

/// Buckets with an upper bound.
const BUCKETS: usize = 20;

impl TimeHistogram {
    /// Counts one time.
    pub fn record(&mut self, time: Duration) {
        let index = (0..BUCKETS).find(|index| time <= upper_bound(*index)).unwrap_or(BUCKETS);
        self.counts[index] += 1;
        self.sum = self.sum.saturating_add(time);
    }

    /// Adds what another one has counted.
    pub fn merge(&mut self, other: &Self) {
        for (count, more) in self.counts.iter_mut().zip(other.counts) {
            *count += more;
        }
        self.sum = self.sum.saturating_add(other.sum);
    }

    /// How many times were counted.
    #[must_use]
    pub fn count(&self) -> u64 {
        self.counts.iter().sum()
    }

    /// All times together.
    #[must_use]
    pub const fn sum(&self) -> Duration {
        self.sum
    }

    /// Upper bounds, `None` for the last, and how many times lie between each and the one before.
    pub fn buckets(&self) -> impl Iterator<Item = (Option<Duration>, u64)> + '_ {
        let bounds = (0..BUCKETS).map(|index| Some(upper_bound(index))).chain([None]);
        bounds.zip(self.counts)
    }
}

const fn upper_bound(index: usize) -> Duration {
    Duration::from_micros(1 << index)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn each_time_is_in_the_bucket_of_the_next_larger_bound() {
        let mut histogram = TimeHistogram::default();
        for nanoseconds in [0, 1000, 1001, 40_000, 3_000_000_000] {
            histogram.record(Duration::from_nanos(nanoseconds));
        }
        let filled: Vec<_> = histogram.buckets().filter(|(_, count)| *count > 0).collect();
        let bound = |micros| Some(Duration::from_micros(micros));
        assert_eq!(filled, [(bound(1), 2), (bound(2), 1), (bound(64), 1), (None, 1)]);
        assert_eq!(histogram.sum(), Duration::from_nanos(3_000_042_001));
    }

    #[test]
    fn merging_adds_counts_and_sums() {
        let mut one = TimeHistogram::default();
        one.record(Duration::from_micros(5));
        let mut both = one;
        both.merge(&one);
        assert_eq!((both.count(), both.sum()), (2, Duration::from_micros(10)));
    }
}
