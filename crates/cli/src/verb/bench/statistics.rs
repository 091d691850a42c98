//! The few statistics that are reported.

/// How one figure is distributed.
#[derive(Debug, Clone, Copy, PartialEq, serde::Serialize)]
pub(super) struct Distribution {
    /// How many values there are.
    pub(super) n: usize,
    pub(super) p50: f64,
    pub(super) p90: f64,
    pub(super) p99: f64,
    pub(super) max: f64,
}

impl Distribution {
    /// Of these values; none if there are none.
    pub(super) fn of(mut values: Vec<f64>) -> Option<Self> {
        values.sort_by(f64::total_cmp);
        let max = *values.last()?;
        let at = |percent| percentile(&values, percent);
        Some(Self { n: values.len(), p50: at(50), p90: at(90), p99: at(99), max })
    }
}

/// The smallest value that is not less than `percent` of all (nearest rank): always one that was
/// measured. `sorted` is not empty.
fn percentile(sorted: &[f64], percent: usize) -> f64 {
    let rank = (sorted.len() * percent).div_ceil(100).max(1);
    sorted[rank - 1]
}

/// The longest of the gaps that began between two times, in milliseconds since the measurement
/// began; `longest_ns` has one for each interval, which is a millisecond. None unless all of that
/// time was measured.
pub(super) fn longest_gap_ms(
    longest_ns: &[u64],
    spun_ns: u64,
    from_ms: f64,
    to_ms: f64,
) -> Option<f64> {
    if from_ms < 0.0 || to_ms <= from_ms || to_ms * 1e6 > float(spun_ns) {
        return None;
    }
    #[expect(clippy::cast_possible_truncation, clippy::cast_sign_loss, reason = "checked above")]
    let (from, to) = (from_ms.floor() as usize, to_ms.ceil() as usize);
    let longest = longest_ns.get(from..to.min(longest_ns.len()))?.iter().max()?;
    Some(float(*longest) / 1e6)
}

/// A count as a number to calculate with.
#[expect(clippy::cast_precision_loss, reason = "below 2^53, or shown with few digits")]
pub(super) fn float(number: u64) -> f64 {
    number as f64
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn percentiles_are_measured_values_at_the_nearest_rank() {
        let values: Vec<f64> = (1..=100).rev().map(f64::from).collect();
        let all = Distribution::of(values).unwrap();
        assert_eq!((all.n, all.p50, all.p90, all.p99, all.max), (100, 50.0, 90.0, 99.0, 100.0));
        let few = Distribution::of(vec![3.0, 1.0, 2.0]).unwrap();
        assert_eq!((few.p50, few.p90, few.p99, few.max), (2.0, 3.0, 3.0, 3.0));
        let one = Distribution::of(vec![7.0]).unwrap();
        assert_eq!((one.p50, one.max), (7.0, 7.0));
        assert_eq!(Distribution::of(Vec::new()), None);
    }

    #[test]
    fn only_gaps_that_began_in_the_window_count() {
        let mut gaps = vec![0_u64; 100];
        gaps[9] = 9_000_000;
        gaps[10] = 1_000_000;
        gaps[19] = 2_000_000;
        gaps[20] = 8_000_000;
        let longest = |from, to| longest_gap_ms(&gaps, 100_000_000, from, to);
        assert_eq!(longest(10.0, 20.0), Some(2.0));
        assert_eq!(longest(10.9, 18.5), Some(1.0), "a begun millisecond counts");
        assert_eq!(longest(0.0, 100.0), Some(9.0));
    }

    #[test]
    fn a_window_that_was_not_measured_throughout_has_no_figure() {
        let gaps = vec![5_u64; 100];
        assert_eq!(longest_gap_ms(&gaps, 99_000_000, 10.0, 99.5), None);
        assert_eq!(longest_gap_ms(&gaps, 99_000_000, -1.0, 50.0), None);
        assert_eq!(longest_gap_ms(&gaps, 99_000_000, 50.0, 50.0), None);
        assert_eq!(longest_gap_ms(&[], 99_000_000, 10.0, 20.0), None);
    }
}
