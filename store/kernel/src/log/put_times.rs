//! How long sends took, from the arrival of their frame to their answer, in RocketMQ's classes of durations.

use crate::reply::Reply;

/// Upper limits (exclusive) of the classes 1 to 11 in ms. Class 0 has what took no time, class 12 everything longer.
const LIMITS_MS: [i64; 11] = [10, 50, 100, 200, 500, 1000, 2000, 3000, 4000, 5000, 10_000];
pub(super) const CLASSES: usize = LIMITS_MS.len() + 2;

/// Counts since the last `take`.
#[derive(Default)]
pub(super) struct PutTimes {
    counts: [u64; CLASSES],
    longest_ms: i64,
}

impl PutTimes {
    /// Counts sends that took `ms`. A clock that was set back gives a negative time, which counts as none.
    pub(super) fn add(&mut self, ms: i64, sends: u64) {
        let class = if ms <= 0 {
            0
        } else {
            1 + LIMITS_MS.partition_point(|&limit| limit <= ms)
        };
        self.counts[class] += sends;
        self.longest_ms = self.longest_ms.max(ms);
    }

    /// Counts sends that are answered now. Most of them arrived in the same millisecond.
    pub(super) fn answered(&mut self, replies: &[Reply], now_ms: i64) {
        for run in replies.chunk_by(|a, b| a.at_ms == b.at_ms) {
            self.add(now_ms - run[0].at_ms, run.len() as u64);
        }
    }

    /// The counts and the longest time; both start again at 0.
    pub(super) fn take(&mut self) -> ([u64; CLASSES], i64) {
        let taken = std::mem::take(self);
        (taken.counts, taken.longest_ms)
    }
}
