//! How long the syncs of a log took since its start, in classes of durations.

use std::time::Duration;

/// Upper limits (inclusive) of all classes but the last one, in µs.
pub(super) const LIMITS_US: [u64; 15] = [
    100, 250, 500, 1000, 2500, 5000, 10_000, 25_000, 50_000, 100_000, 250_000, 500_000, 1_000_000, 2_500_000,
    10_000_000,
];
pub(super) const CLASSES: usize = LIMITS_US.len() + 1;

#[derive(Default)]
pub(super) struct SyncTimes {
    counts: [u64; CLASSES],
    total: Duration,
}

impl SyncTimes {
    pub(super) fn add(&mut self, took: Duration) {
        let class = LIMITS_US.partition_point(|&limit| Duration::from_micros(limit) < took);
        self.counts[class] += 1;
        self.total += took;
    }

    /// The counts by class, and the time of all syncs in seconds.
    pub(super) fn totals(&self) -> ([u64; CLASSES], f64) {
        (self.counts, self.total.as_secs_f64())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_duration_counts_in_the_first_class_whose_limit_it_does_not_exceed() {
        assert!(LIMITS_US.windows(2).all(|pair| pair[0] < pair[1]));
        for (class, &limit) in LIMITS_US.iter().enumerate() {
            let mut times = SyncTimes::default();
            times.add(Duration::from_micros(limit));
            times.add(Duration::from_nanos(limit * 1000 + 1));
            let (counts, seconds) = times.totals();
            assert_eq!((counts[class], counts[class + 1]), (1, 1), "{limit} µs");
            assert!((seconds - 2e-6 * limit as f64).abs() < 1e-6);
        }
    }
}
